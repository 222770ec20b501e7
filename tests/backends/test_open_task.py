"""Processes that open one key at once get one task, on every backend."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import rawko_state
from rawko_state.backends.files.store import FileStore
from rawko_state.backends.memory.host import MemoryHost
from rawko_state.backends.remote.store import RemoteStore
from rawko_state.cli import cli
from rawko_state.errors import InvalidValue, NoProject, TaskExists
from rawko_state.index.database import Index
from rawko_state.model.entries import Turn
from rawko_state.store import TaskFilter
from tests.support.serving import served

ROUNDS, PROCESSES = 15, 3


_OPENS = {
    "files": "FileStore(root)",
    "http": "RemoteStore(where, root=root)",
    "postgresql": "PostgresStore(where, 'race', root=root)",
}
_PROGRAM = """
import sys
from rawko_state import FileStore, PostgresStore, RemoteStore
where, root = sys.argv[1:]
store = {opens}
for line in sys.stdin:
    with store.open_task("race:" + line.strip(), "x") as task:
        print(task.id, task.is_new, flush=True)
store.close()
"""


def raced(kind: str, where: str, root: Path) -> None:
    """Each process answers a line with the task that it got."""
    program = [sys.executable, "-c", _PROGRAM.format(opens=_OPENS[kind]), where, str(root)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(program, **pipes) for _ in range(PROCESSES)]
    try:
        for number in range(ROUNDS):
            for process in processes:
                process.stdin.write(f"{number}\n")
                process.stdin.flush()
            ids, new = zip(*(process.stdout.readline().split() for process in processes), strict=True)
            assert (len(set(ids)), new.count("True")) == (1, 1)
    finally:
        for process in processes:
            process.communicate()
    assert [process.returncode for process in processes] == [0] * PROCESSES


class TestProcesses:
    def test_with_files(self, tmp_path: Path) -> None:
        raced("files", "", tmp_path)

    @pytest.mark.every
    def test_over_http(self, tmp_path: Path) -> None:
        with served(tmp_path) as server:
            raced("http", server.url, tmp_path)

    @pytest.mark.every
    def test_with_postgresql(self, postgres: str, tmp_path: Path) -> None:
        raced("postgresql", postgres, tmp_path)


class TestFiles:
    def test_a_key_is_found_when_the_index_is_lost(self, tmp_path: Path) -> None:
        with FileStore(tmp_path) as store, store.open_task("k:1", "x") as task:
            pass
        for file in (tmp_path / ".rawko" / "state").glob("index.db*"):
            file.unlink()
        with FileStore(tmp_path) as store, store.open_task("k:1", "x") as again:
            assert (again.id, again.is_new) == (task.id, False)

    def test_a_key_is_found_when_its_maker_died_before_it_was_indexed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with FileStore(tmp_path) as first:
            first.open_task("k:0", "x").close()
        died = FileStore(tmp_path, warn=lambda message: None)
        with monkeypatch.context() as patch:
            patch.setattr(Index, "put", lambda *_, **__: 1 / 0)
            task = died.open_task("k:1", "x")
        task.close()
        died.close()
        with FileStore(tmp_path) as store, store.open_task("k:1", "x") as again:
            assert (again.id, again.is_new) == (task.id, False)

    def test_a_lookup_uses_an_index(self, tmp_path: Path) -> None:
        with FileStore(tmp_path) as store:
            store.open_task("k:1", "x").close()
            query = "EXPLAIN QUERY PLAN SELECT id FROM tasks WHERE source = ? ORDER BY created_at, id LIMIT 1"
            plan = list(store.sync.index().read(query, ("k:1",)))
        assert "idx_tasks_source" in str(plan)

    def test_the_history_of_one_key_is_not_confused_by_case_or_globs(self, tmp_path: Path) -> None:
        with FileStore(tmp_path) as store:
            for key in ("k:a", "k:A", "k:*"):
                store.open_task(key, key).close()
            assert [each.request for each in store.history(TaskFilter(source="k:*"))] == ["k:*"]


class TestFreshFolders:
    def test_a_folder_that_is_named_becomes_a_project(self, tmp_path: Path) -> None:
        fresh = tmp_path / "fresh"
        fresh.mkdir()
        with rawko_state.open(fresh) as store:
            assert not (fresh / ".rawko").exists()
            with store.start("x") as task:
                pass
        assert list((fresh / ".rawko" / "state" / "tasks").glob(f"*{task.id}.task"))
        with rawko_state.open(fresh) as store:
            assert store.summary(task.id).request == "x"

    def test_a_folder_that_is_not_there_does_not(self, tmp_path: Path) -> None:
        with pytest.raises(NoProject):
            rawko_state.open(tmp_path / "nowhere")

    def test_nor_does_the_current_folder_unless_it_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        with pytest.raises(NoProject):
            rawko_state.open()
        rawko_state.open(".").close()

    def test_an_id_is_kept_by_the_file(self, tmp_path: Path) -> None:
        with rawko_state.open(tmp_path) as store:
            with store.start("x", id="mine01"):
                pass
            with pytest.raises(TaskExists):
                store.start("y", id="mine01")
        assert len(list(tmp_path.glob(".rawko/state/tasks/*-mine01.task"))) == 1


class TestExactValues:
    def test_a_setting_forbids_them(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RAWKO_REDACT_EXACT", "no")
        with FileStore(tmp_path) as store, pytest.raises(InvalidValue, match=r"redact\.exact"):
            store.start("x", exact=True)

    def test_the_settings_of_a_server_count_too(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        host = MemoryHost(tmp_path, lambda message: None)
        create = host.store.create

        def forbidding(*given: Any, **more: Any) -> Any:
            with monkeypatch.context() as patch:
                patch.setenv("RAWKO_REDACT_EXACT", "no")
                return create(*given, **more)

        monkeypatch.setattr(host.store, "create", forbidding)
        with served(tmp_path, host=host) as server, RemoteStore(server.url, root=tmp_path) as store:
            with pytest.raises(InvalidValue, match=r"redact\.exact"):
                store.start("x", exact=True, detached=True)
            store.start("x", detached=True).close()

    def test_doctor_names_them(self, tmp_path: Path) -> None:
        with FileStore(tmp_path) as store:
            store.start("x", exact=True, id="exact1").finish()
            store.start("y", id="plain1").finish()
        said = CliRunner().invoke(cli, ["-C", str(tmp_path), "doctor"]).output
        (line,) = [line for line in said.splitlines() if "Exact " in line]
        assert "exact1" in line
        assert "plain1" not in line

    def test_the_file_says_so(self, tmp_path: Path) -> None:
        with FileStore(tmp_path) as store, store.start("x", exact=True) as task:
            pass
        (file,) = tmp_path.glob(f".rawko/state/tasks/*{task.id}.task")
        assert "\nExact: yes\n" in file.read_text()


class TestMemory:
    def test_each_store_in_memory_is_its_own(self) -> None:
        one, two = rawko_state.open(":memory:"), rawko_state.open(":memory:")
        with one.start("x") as task:
            task.add_turn(Turn(number=1, agent="dev", content="found"))
        assert [hit.task.id for hit in one.search("found").hits] == [task.id]
        assert two.history(TaskFilter()) == []

    def test_it_leaves_nothing_behind(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        with rawko_state.open(":memory:") as store, store.start("x") as task, task.turn("dev") as turn:
            turn.say("words")
        assert list(tmp_path.iterdir()) == []
