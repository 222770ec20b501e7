"""The index: always fresh, always rebuildable, never in the way."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rawko_state.backends.files import sync as catalogue_module
from rawko_state.backends.files.store import FileStore
from rawko_state.index import flushed
from tests.index.indexes import ALL, Told, ids, turn


class TestFreshness:
    def test_a_turn_is_there_when_its_append_returned(self, store: FileStore, tmp_path: Path) -> None:
        task = store.start("x")
        other = FileStore(tmp_path)
        for number in range(1, 4):
            task.add_turn(turn())
            assert other.history(ALL)[0].turns == number
        assert other.history(ALL)[0].status == "running"
        task.finish("success", "done")
        assert (other.history(ALL)[0].status, other.history(ALL)[0].summary) == ("completed", "done")

    def test_a_file_that_was_copied_in_or_removed(self, store: FileStore, tmp_path: Path, fixtures: Path) -> None:
        store.start("x", detached=True).close()
        assert len(ids(store)) == 1
        path = store.journal.layout.tasks / "2024-01-15T10-30-00-abc123.task"
        shutil.copy2(fixtures / "format" / "rfc-example.task", path)
        os.utime(path, (0, 0))
        assert "abc123" in ids(store)
        path.unlink()
        assert "abc123" not in ids(store)

    def test_a_file_that_was_replaced_as_git_does(self, store: FileStore) -> None:
        with store.start("first") as task:
            task.add_turn(turn())
        path = store.root / store.history(ALL)[0].file
        other = path.with_name("elsewhere")
        other.write_bytes(path.read_bytes().replace(b"User: first", b"User: other"))
        os.utime(other, ns=(0, 0))
        os.replace(other, path)
        (found,) = store.history(ALL)
        assert (found.request, found.damaged, found.status) == ("other", 1, "completed")

    def test_a_writer_that_died_before_it_indexed(self, store: FileStore, tmp_path: Path) -> None:
        code = (
            "import sys, os; from rawko_state.backends.files.store import FileStore; from rawko_state.model.entries import Turn;"
            "s = FileStore(sys.argv[1]); t = s.start('x'); t.add_turn(Turn(number=1, agent='a', content='one'));"
            "s.sync.appended = lambda *a: None;"
            "t.add_turn(Turn(number=1, agent='a', content='two')); os.kill(os.getpid(), 9)"
        )
        subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
        assert [name for name in os.listdir(store.journal.layout.live) if name.endswith(".mark")]
        (summary,) = store.history(ALL)
        assert (summary.turns, summary.status) == (2, "interrupted")
        assert not [name for name in os.listdir(store.journal.layout.live) if name.endswith(".mark")]

    def test_a_finished_file_edited_in_place_is_noticed_by_show(self, store: FileStore) -> None:
        with store.start("first") as task:
            task.add_turn(turn())
        path = store.root / store.history(ALL)[0].file
        with open(path, "r+b") as stream:
            data = stream.read()
            stream.seek(0)
            stream.write(data.replace(b"User: first", b"User: edits"))
        found = store.summary(task.id)
        assert (found.request, found.damaged) == ("edits", 1)

    def test_looking_reads_no_task_file_when_nothing_has_changed(
        self, store: FileStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for _ in range(3):
            store.start("x", detached=True).close()
        ids(store)
        opened: list[object] = []
        monkeypatch.setattr(type(store.journal), "reader", lambda self, name: opened.append(name))
        monkeypatch.setattr(catalogue_module.Sync, "_sweep", lambda *a: opened.append("sweep"))
        assert len(ids(store)) == 3
        assert opened == []

    def test_a_new_task_does_not_cost_a_look_at_all_others(
        self, store: FileStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if not catalogue_module._fine_stamps():
            pytest.skip("NOT TESTED HERE: the times of folders are too coarse on this system")
        ids(store)
        store.start("x", detached=True).close()
        ids(store)
        monkeypatch.setattr(catalogue_module.Sync, "_sweep", lambda *a: pytest.fail("swept"))
        store.start("y", detached=True).close()
        assert len(ids(store)) == 2

    def test_deleting_the_index_changes_no_answer(self, store: FileStore, tmp_path: Path) -> None:
        for number in range(5):
            with store.start(f"request {number}", labels={"n": str(number)}) as task:
                task.add_turn(turn("x", f"src/{number}.py"))
        before = store.history(ALL)
        store.close()
        for path in store.journal.layout.state.glob("index.db*"):
            path.unlink()
        assert FileStore(tmp_path).history(ALL) == before

    def test_a_file_that_could_not_be_read_is_looked_at_again(
        self, store: FileStore, told: Told, tmp_path: Path
    ) -> None:
        with store.start("x") as task:
            task.add_turn(turn())
        path = store.root / store.history(ALL)[0].file
        store.close()
        for index in store.journal.layout.state.glob("index.db*"):
            index.unlink()
        os.link(path, tmp_path / "second name")
        again = FileStore(tmp_path, warn=told)
        assert ids(again) == []
        assert "could not be read" in told[0]
        (tmp_path / "second name").unlink()
        assert ids(again) == [task.id]

    def test_a_mark_stays_until_its_file_was_read(self, store: FileStore, told: Told, tmp_path: Path) -> None:
        task = store.start("x", detached=True)
        store.history(ALL)
        store.sync.appended = lambda *a: None  # type: ignore[method-assign]
        task.note(title="renamed")
        assert task._writer._mark is not None
        task._writer._mark.leave()  # as if the process had died
        path = store.journal.layout.path(store.find(task.id))
        os.link(path, tmp_path / "second name")
        again = FileStore(tmp_path, warn=told)
        assert again.history(ALL)[0].title is None
        (tmp_path / "second name").unlink()
        assert again.history(ALL)[0].title == "renamed"

    def test_two_files_with_one_id_the_first_counts(self, store: FileStore, fixtures: Path) -> None:
        store.journal.layout.make()
        source = fixtures / "format" / "rfc-example.task"
        shutil.copy(source, store.journal.layout.tasks / "2024-01-15T10-30-00-abc123.task")
        shutil.copy(source, store.journal.layout.tasks / "2024-01-16T10-30-00-abc123.task")
        (summary,) = store.history(ALL)
        assert summary.file.endswith("2024-01-15T10-30-00-abc123.task")
        assert [bool(verdict.faults) for verdict in store.verify()] == [False, True]


def test_what_is_kept_while_nothing_changes(store: FileStore) -> None:
    """Sums over all tasks are asked for at each search. They are worked out again after any change, whoever made it."""
    task = store.start("do it")
    index = store.sync.fresh()
    asked: list[str] = []
    index.connection.set_trace_callback(lambda text: asked.append(text) if "sum(turns)" in text else None)
    found = [flushed.totals(index) for _ in range(3)]
    assert len(asked) == 1

    task.add_turn(turn("by this connection"))
    found.append(flushed.totals(store.sync.fresh()))
    task.close()
    another = FileStore(store.root)
    with another.start("by another one") as other:
        other.add_turn(turn("x"))
    another.close()
    found.append(flushed.totals(store.sync.fresh()))
    assert [documents for documents, _ in found] == [2, 2, 2, 3, 6]

    index.connection.execute("BEGIN")
    index.connection.execute("DELETE FROM tasks")
    assert flushed.totals(index) == (0, 0)
    index.connection.execute("ROLLBACK")
    assert flushed.totals(index) == found[-1]
    os.unlink(store.journal.layout.path(store.journal.find(task.id)))
    store.reindex()
    assert flushed.totals(store.sync.fresh())[0] == 3
