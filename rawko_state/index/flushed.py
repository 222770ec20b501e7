"""How far the search index has come, task by task. What lies beyond is the tail.

``folded`` and ``fold_base`` of a task's row say up to where, and as which reading of its file. They vanish with the row when the
file turns out to have been edited, so what was folded of the old text no longer counts. The database decides which search index
is in use (``search`` in ``index_meta``), so that both change in one transaction.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from rawko_state.index.database import Index
from rawko_state.index.rows import TaskDatabase


class Unflushed(NamedTuple):
    """A stretch of a task file that the search index has not taken in."""

    id: str
    file_path: str
    start: int
    end: int
    base: int
    created: str | None


def pending(index: Index) -> list[Unflushed]:
    """In the order of the ids; costs what the tail is long, not the history."""
    with index.mapped():
        rows = index.connection.execute(
            "SELECT id, file_path, folded, indexed_end, fold_base, created_at FROM tasks INDEXED BY idx_tasks_tail"
            " WHERE indexed_end > folded ORDER BY id"
        )
        return [Unflushed(*row) for row in rows]


def everything(index: Index) -> list[Unflushed]:
    """All tasks from their beginning: the tail, where no search index can be used."""
    with index.mapped():
        rows = index.connection.execute("SELECT id, file_path, 0, indexed_end, 0, created_at FROM tasks ORDER BY id")
        return [Unflushed(*row) for row in rows]


def pending_bytes(index: Index) -> int:
    with index.mapped():
        query = "SELECT sum(indexed_end - folded) FROM tasks INDEXED BY idx_tasks_tail WHERE indexed_end > folded"
        return int(index.connection.execute(query).fetchone()[0] or 0)


class Folded(NamedTuple):
    """What is folded of a task, and the file that it was read from."""

    file_path: str
    base: int
    end: int
    size: int
    mtime_ns: int


def state(index: Index, task_id: str) -> Folded | None:
    """None when there is no such task."""
    with index.mapped():
        query = "SELECT file_path, fold_base, folded, file_size, file_mtime_ns FROM tasks WHERE id = ?"
        found = index.connection.execute(query, (task_id,)).fetchone()
    return Folded(*found) if found else None


def claim(index: Index) -> list[Unflushed]:
    """The tail, with a base for each task that had none. Before anything is read, so that an edit in between shows."""
    with index.transaction():
        base = int(index.meta("fold_base") or 0) + 1
        index.set_meta("fold_base", str(base))
        index.connection.execute("UPDATE tasks SET fold_base = ? WHERE indexed_end > folded AND fold_base = 0", (base,))
        return pending(index)


def acknowledge(index: Index, done: Iterable[Unflushed]) -> None:
    """These stretches are in the search index, for good; unless their files have been read anew since."""
    with index.transaction():
        index.connection.executemany(
            "UPDATE tasks SET folded = ? WHERE id = ? AND fold_base = ? AND folded = ?",
            [(each.end, each.id, each.base, each.start) for each in done],
        )


def salt(index: Index) -> str | None:
    """What the name of the search index in use is made from."""
    return index.meta("search")


def totals(index: TaskDatabase) -> tuple[int, int]:
    """How many documents there are, about, and how many bytes."""
    with index.mapped():
        row = index.connection.execute(
            f"SELECT count(*), sum(turns), sum(indexed_end) FROM {index.at('tasks')}"
        ).fetchone()
    return 2 * row[0] + int(row[1] or 0), int(row[2] or 0)


def any_flushed(index: Index) -> bool:
    with index.mapped():
        return index.connection.execute("SELECT 1 FROM tasks WHERE folded > 0 LIMIT 1").fetchone() is not None


def start_over(index: Index, old_salt: str | None, new_salt: str | None) -> None:
    """Nothing is folded, and the next search index is another one; unless that has happened meanwhile."""
    with index.transaction():
        if index.meta("search") != old_salt:
            return
        index.connection.execute("UPDATE tasks SET folded = 0, fold_base = 0 WHERE folded > 0 OR fold_base > 0")
        if new_salt is None:
            index.connection.execute("DELETE FROM index_meta WHERE k = 'search'")
        else:
            index.set_meta("search", new_salt)
