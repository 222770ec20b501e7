"""Data that programs keep goes to the index in groups, and no query can tell."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rawko_state as rawko
from rawko_state import FileStore, TaskFilter
from rawko_state.index.database import Index
from rawko_state.model.entries import Note


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / ".rawko").mkdir()
    return tmp_path


def data(store: rawko.Store, task_id: str) -> list[Any]:
    return [note.data for note in store.notes(task_id, "data")]


def rows(root: Path) -> dict[str, list[tuple[Any, ...]]]:
    """The rows of the index as it is, without a query that would bring it up to date."""
    index = Index(root / ".rawko/state/index.db")
    tables = ("task_records", "task_events", "tasks")
    found = {table: sorted(index.read(f"SELECT * FROM {table}"), key=repr) for table in tables}
    index.close()
    return found


def test_sixty_four_of_them_are_one_transaction(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileStore(root)
    with store.open_task("test:1", "x") as task:
        task.note(kind="data", data=0)
        begun = []
        real = Index.transaction
        monkeypatch.setattr(Index, "transaction", lambda self: (begun.append(1), real(self))[1])
        for number in range(1, 65):
            task.note(kind="data", data=number)
        assert len(begun) == 1
    assert data(store, task.id) == list(range(65))


def test_a_long_one_is_not_kept_waiting(root: Path) -> None:
    store = FileStore(root)
    with store.open_task("test:1", "x") as task:
        task.note(kind="data", data="x" * (1 << 19))
        assert len(rows(root)["task_records"]) == 2


def test_what_says_something_about_the_task_takes_the_others_along(root: Path) -> None:
    store = FileStore(root)
    with store.open_task("test:1", "x") as task:
        task.note(kind="data", data=1)
        task.note(kind="data", data=2)
        assert len(rows(root)["task_records"]) == 1
        task.note(kind="data", data=3, labels={"a": "b"})
        assert len(rows(root)["task_records"]) == 4


def test_each_query_sees_them_at_once(root: Path) -> None:
    mine, other = FileStore(root), FileStore(root)
    with mine.open_task("test:1", "x") as task:
        for number in range(5):
            task.note(kind="data", data=number)
            for store in (mine, other):
                found = store.last_note(task.id, "data")
                assert found is not None
                assert found.data == number
                assert data(store, task.id) == list(range(number + 1))
                assert len([each for each in store.events(task.id) if each.kind == "note"]) == number + 1
        size = mine.reader(task.id).size
        for store in (mine, other):
            assert store.history(TaskFilter())[0].id == task.id
            assert store.sync.index().row(task.id)["indexed_end"] == size


def test_those_of_another_writer_do_not_look_as_if_they_were_indexed(root: Path) -> None:
    """The size of the file is looked at after the append: by then it may hold what others wrote."""
    mine, other = FileStore(root), FileStore(root)
    one, two = mine.open_task("test:1", "x"), other.open_task("test:1", "x")
    one.note(kind="data", data="one")
    real = one._writer._sync.appended  # type: ignore[attr-defined]

    def late(*given: Any) -> Any:
        two.note(kind="data", data="two")
        return real(*given)

    one._writer._sync.appended = late  # type: ignore[attr-defined]
    one.note(title="all of it goes to the index now")
    for store in (mine, other, FileStore(root)):
        found = store.last_note(one.id, "data")
        assert found is not None
        assert found.data == "two"
    one.close()
    two.close()


def test_the_rows_are_those_of_a_rebuilt_index(root: Path) -> None:
    store = FileStore(root)
    with store.open_task("test:1", "x") as task:
        for number in range(20):
            task.add([Note(kind="data", data=number), Note(kind="data", data=[number])])
        assert rows(root)["task_records"] != []
    live = rows(root)
    assert len(live["task_records"]) == 21
    store.close()
    for file in (root / ".rawko/state").glob("index.db*"):
        file.unlink()
    FileStore(root).history(TaskFilter())
    assert rows(root) == live


def test_those_of_a_killed_process_are_found(root: Path) -> None:
    program = (
        "import os, signal, sys, rawko_state\n"
        "task = rawko_state.open(sys.argv[1]).open_task('test:1', 'x')\n"
        "for number in range(5): task.note(kind='data', data=number)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(root)], env={**os.environ}, check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(rows(root)["task_records"]) == 1
    store = FileStore(root)
    task_id = store.find_source("test:1")
    assert task_id is not None
    assert data(store, task_id) == list(range(5))
    store.history(TaskFilter())
    assert len(rows(root)["task_records"]) == 6


def test_a_task_that_was_deleted_meanwhile_is_closed_without_a_word(root: Path) -> None:
    store = FileStore(root)
    task = store.open_task("test:1", "x")
    task.note(kind="data", data=1)
    FileStore(root).delete(task.id)
    task.close()
    assert store.history(TaskFilter()) == []
    assert store.restore(task.id) == [task.id]
    assert data(store, task.id) == [1]
