"""How task files begin, and how their folder stands to git."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from rawko_state.backends.files.store import FileStore
from rawko_state.errors import NotATask
from tests.journal.files import path_of, turn
from tests.support.processes import rawko


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path, warn=lambda message: None)


class TestFilesThatAreNone:
    """What lost its beginning is a fault, and nothing is appended to it."""

    @pytest.mark.parametrize(
        ("spoil", "said"),
        [
            (lambda data: data.replace(b"\n", b"\r\n"), "CRLF"),
            (lambda data: b"", "is empty"),
            (lambda data: data[:10], "TASK marker"),
            (lambda data: data.decode().encode("utf-16"), "TASK marker"),
            (lambda data: b"<<<<<<< HEAD\n" + data, "TASK marker"),
        ],
        ids=["crlf", "empty", "cut", "utf-16", "conflict"],
    )
    def test_it_is_a_fault_by_name(self, store: FileStore, spoil: Callable[[bytes], bytes], said: str) -> None:
        with store.start("x") as task:
            task.add_turn(turn("said"))
            task.finish("success")
        path = path_of(store, task.id)
        spoiled = spoil(path.read_bytes())
        path.write_bytes(spoiled)
        (verdict,) = store.verify(task.id)
        assert said in verdict.faults[0]
        with pytest.raises(NotATask, match=said):
            store.resume(task.id)
        with pytest.raises(NotATask, match=said):
            store.attach(task.id).add_turn(turn("more"))
        assert path.read_bytes() == spoiled

    def test_the_command_says_so_and_fails(self, store: FileStore) -> None:
        store.start("x").close()
        for path in store.journal.layout.tasks.iterdir():
            path.write_bytes(b"")
        done = rawko(store.root, "verify", code=1)
        assert "is empty" in done.stdout


class TestGit:
    def git(self, root: Path, *words: str) -> str:
        return subprocess.run(["git", *words], cwd=root, check=True, capture_output=True, text=True).stdout

    def test_a_new_state_folder_is_not_committed_by_accident(self, tmp_path: Path) -> None:
        self.git(tmp_path, "init", "-q")
        FileStore(tmp_path).start("what the agent said").close()
        self.git(tmp_path, "add", "-A")
        assert self.git(tmp_path, "ls-files") == ""

    def test_shared_tasks_are_committed_byte_for_byte_and_nothing_else(self, tmp_path: Path) -> None:
        self.git(tmp_path, "init", "-q")
        (tmp_path / ".rawko").mkdir()
        (tmp_path / ".rawko/config.yaml").write_text("state:\n  share: git\n")
        with FileStore(tmp_path).start("x") as task:
            task.finish("success")
        self.git(tmp_path, "-c", "core.autocrlf=true", "add", "-A")
        listed = self.git(tmp_path, "ls-files").splitlines()
        assert [name for name in listed if name.endswith(".task")]
        assert not [name for name in listed if "index.db" in name or "/live/" in name]
        self.git(tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x")
        clone = tmp_path / "clone"
        self.git(tmp_path, "clone", "-q", "-c", "core.autocrlf=true", str(tmp_path), str(clone))
        assert [verdict.faults for verdict in FileStore(clone).verify()] == [[]]

    def test_what_was_there_before_stays_as_it_is(self, tmp_path: Path) -> None:
        (tmp_path / ".rawko/state/tasks").mkdir(parents=True)
        FileStore(tmp_path).start("x").close()
        assert not (tmp_path / ".rawko/state/.gitignore").exists()

    def test_the_setting_is_followed_when_it_is_set(self, tmp_path: Path) -> None:
        self.git(tmp_path, "init", "-q")
        FileStore(tmp_path).start("x").close()
        rawko(tmp_path, "config", "set", "state.share", "git")
        self.git(tmp_path, "add", "-A")
        assert ".task" in self.git(tmp_path, "ls-files")
        rawko(tmp_path, "config", "unset", "state.share")
        assert (tmp_path / ".rawko/state/.gitignore").read_text().endswith("*\n")
