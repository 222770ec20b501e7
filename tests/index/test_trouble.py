"""The index: always fresh, always rebuildable, never in the way."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rawko_state.backends.files import sync as catalogue_module
from rawko_state.backends.files.store import FileStore
from rawko_state.errors import IndexNewer, IndexTrouble
from rawko_state.index.database import Index
from rawko_state.index.migrations import VERSION
from rawko_state.store import TaskFilter
from tests.index.indexes import ALL, DRIVER, Told, ids, rebuilt, turn
from tests.support.faults import needs_root


class TestTrouble:
    def _filled(self, store: FileStore) -> list[str]:
        for number in range(30):
            with store.start(f"request {number}") as task:
                task.add_turn(turn("x" * 500, f"src/{number}.py"))
        found = ids(store)
        store.close()
        return found

    @pytest.mark.parametrize("damage", ["random", "truncated", "zeroed", "zeroed pages", "foreign", "text", "empty"])
    def test_a_broken_index_is_moved_aside_and_rebuilt(
        self, store: FileStore, told: Told, damage: str, tmp_path: Path
    ) -> None:
        expected = self._filled(store)
        path = store.sync.path
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()
        data = bytearray(path.read_bytes())
        if damage == "random":
            data = bytearray(random.Random(1).randbytes(len(data)))
        elif damage == "truncated":
            data = data[: len(data) // 2]
        elif damage == "zeroed":
            data = bytearray(len(data))
        elif damage == "zeroed pages":
            for page in range(3, len(data) // 4096, 2):
                data[page * 4096 : page * 4096 + 4096] = bytes(4096)
        elif damage == "text":
            data = bytearray(b"hello\n")
        elif damage == "empty":
            data = bytearray()
        path.write_bytes(data)
        if damage == "foreign":
            path.unlink()
            connection = sqlite3.connect(path)
            connection.execute("CREATE TABLE cats (name TEXT)")
            connection.commit()
            connection.close()
        again = FileStore(tmp_path, warn=told)
        assert ids(again) == expected
        assert again.history(TaskFilter(file="src/3.py"))
        if damage != "empty":
            assert len(told) == 1
            assert "set aside as index.db.broken-" in told[0]
            assert list(path.parent.glob("index.db.broken-*"))

    def test_a_newer_index_is_refused_by_name_and_not_touched(
        self, store: FileStore, told: Told, tmp_path: Path
    ) -> None:
        self._filled(store)
        path = store.sync.path
        connection = sqlite3.connect(path)
        connection.execute(f"PRAGMA user_version = {VERSION + 1}")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()
        before = path.read_bytes()
        again = FileStore(tmp_path, warn=told)
        with pytest.raises(IndexNewer, match=r"index\.db was made by rawko"):
            again.history(ALL)
        with again.start("appends go on") as task:
            task.add_turn(turn())
        assert again.status(task.id) == "completed"
        assert path.read_bytes() == before
        assert len(told) >= 1

    def test_an_index_that_cannot_be_written_fails_no_append(self, store: FileStore, told: Told) -> None:
        task = store.start("x")
        task.add_turn(turn())
        other = sqlite3.connect(store.sync.path, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        store.sync.index().connection.execute("PRAGMA busy_timeout = 50")
        task.add_turn(turn("while the index is locked"))
        other.execute("ROLLBACK")
        other.close()
        assert told
        assert store.history(ALL)[0].turns == 2
        task.add_turn(turn())
        task.finish("success")
        assert store.sync.fresh().dump() == rebuilt(store.root)

    def test_deleting_the_index_under_writers_harms_nothing(self, tmp_path: Path) -> None:
        writers = [subprocess.Popen([sys.executable, DRIVER, str(tmp_path), str(seed), "30"]) for seed in (51, 52, 53)]
        while any(writer.poll() is None for writer in writers):
            for path in tmp_path.glob(".rawko/state/index.db*"):
                path.unlink(missing_ok=True)
            time.sleep(0.05)
        assert [writer.returncode for writer in writers] == [0, 0, 0]
        assert FileStore(tmp_path).sync.fresh().dump() == rebuilt(tmp_path)

    def test_a_last_append_that_the_index_missed_is_caught_up_on(
        self, store: FileStore, told: Told, tmp_path: Path
    ) -> None:
        task = store.start("x")
        task.add_turn(turn())
        store.history(ALL)  # from here on the folder's stamp is known, and nothing but a mark tells
        store.sync.appended = lambda *a: None  # type: ignore[method-assign]  # as after any trouble with the index
        task.finish("failure", "which the index does not hear of")
        assert FileStore(tmp_path).history(ALL)[0].status == "failed"

    @pytest.mark.parametrize("thing", ["folder", "link", "dangling link"])
    def test_something_else_in_place_of_the_index_is_moved_aside(
        self, store: FileStore, told: Told, tmp_path: Path, thing: str
    ) -> None:
        store.journal.layout.make()
        target = tmp_path / "target"
        if thing == "folder":
            store.sync.path.mkdir()
        else:
            store.sync.path.symlink_to(target)
        if thing == "link":
            target.write_bytes(b"precious")
        with store.start("x") as task:
            task.add_turn(turn())
        assert ids(store) == [task.id]
        assert len(told) == 1
        assert not target.exists() or target.read_bytes() == b"precious"

    def test_an_index_that_cannot_be_used_at_all_is_done_without(
        self, store: FileStore, told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """And what is written meanwhile is marked, so that the next one who can use it catches up."""
        expected = self._filled(store)
        broken = FileStore(tmp_path, warn=told)
        real = catalogue_module.Index

        def refuse(path: Path | None) -> Index:
            if path is not None:
                raise IndexTrouble(f"{path}: disk I/O error")
            return real(path)

        monkeypatch.setattr(catalogue_module, "Index", refuse)
        assert ids(broken) == expected
        task = broken.start("meanwhile", detached=True)
        task.add_turn(turn())
        task.close()
        assert task.id in ids(broken)
        monkeypatch.undo()
        again = FileStore(tmp_path, warn=told)
        assert again.summary(task.id).turns == 1
        assert again.sync.fresh().dump() == rebuilt(tmp_path)

    @needs_root
    def test_a_read_only_project_is_answered_from_elsewhere(self, store: FileStore, told: Told, tmp_path: Path) -> None:
        expected = self._filled(store)
        view = tmp_path / "view"
        view.mkdir()
        subprocess.run(["mount", "--bind", str(tmp_path), str(view)], check=True)
        try:
            subprocess.run(["mount", "-o", "remount,bind,ro", str(view)], check=True)
            again = FileStore(view, warn=told)
            assert ids(again) == expected
            assert again.turn(expected[0], 1).content == "x" * 500
            again.close()
        finally:
            subprocess.run(["umount", "--lazy", str(view)], check=True)

    def test_asking_where_nothing_was_recorded_makes_no_folder(self, store: FileStore) -> None:
        assert ids(store) == []
        assert not (store.root / ".rawko").exists()

    def test_one_process_can_open_two_projects(self, tmp_path: Path) -> None:
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
        one, two = FileStore(tmp_path / "a"), FileStore(tmp_path / "b")
        first = one.start("in a", detached=True)
        second = two.start("in b", detached=True)
        assert (ids(one), ids(two)) == ([first.id], [second.id])

    def test_the_index_is_private(self, store: FileStore) -> None:
        store.start("x").add_turn(turn())
        for path in store.journal.layout.state.glob("index.db*"):
            assert path.stat().st_mode & 0o777 == 0o600
