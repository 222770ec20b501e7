"""How much of each task is in the search index. The rest is the tail.

``folded`` in a task's row is the offset up to which its file has been folded into the search index; ``fold_base`` identifies the
reading of the file. Both are deleted with the row if the file was edited, so documents of the old text no longer count. The
database decides which search index is in use (``search`` in ``index_meta``), so that both change in one transaction.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from rawko_state.index.database import Index
from rawko_state.index.rows import TaskDatabase


class Unflushed(NamedTuple):
    """A range of a task file that is not in the search index yet."""

    id: str
    file_path: str
    start: int
    end: int
    base: int
    created: str | None


def pending(index: Index) -> list[Unflushed]:
    """The tail, ordered by id. The cost depends on the length of the tail, not of the history."""
    with index.mapped():
        rows = index.connection.execute(
            "SELECT id, file_path, folded, indexed_end, fold_base, created_at FROM tasks INDEXED BY idx_tasks_tail"
            " WHERE indexed_end > folded ORDER BY id"
        )
        return [Unflushed(*row) for row in rows]


def everything(index: Index) -> list[Unflushed]:
    """All tasks from their start: the tail if no search index can be used."""
    with index.mapped():
        rows = index.connection.execute("SELECT id, file_path, 0, indexed_end, 0, created_at FROM tasks ORDER BY id")
        return [Unflushed(*row) for row in rows]


def pending_bytes(index: Index) -> int:
    with index.mapped():
        query = "SELECT sum(indexed_end - folded) FROM tasks INDEXED BY idx_tasks_tail WHERE indexed_end > folded"
        return int(index.connection.execute(query).fetchone()[0] or 0)


class Folded(NamedTuple):
    """How much of a task is folded, and the file that it was read from."""

    file_path: str
    base: int
    end: int
    size: int
    mtime_ns: int


def state(index: Index, task_id: str) -> Folded | None:
    """None if there is no such task."""
    with index.mapped():
        query = "SELECT file_path, fold_base, folded, file_size, file_mtime_ns FROM tasks WHERE id = ?"
        found = index.connection.execute(query, (task_id,)).fetchone()
    return Folded(*found) if found else None


def claim(index: Index) -> list[Unflushed]:
    """The tail, with a new base for each task that had none. Call this before reading, so that a later edit is detected."""
    with index.transaction():
        base = int(index.meta("fold_base") or 0) + 1
        index.set_meta("fold_base", str(base))
        index.connection.execute("UPDATE tasks SET fold_base = ? WHERE indexed_end > folded AND fold_base = 0", (base,))
        return pending(index)


def acknowledge(index: Index, done: Iterable[Unflushed]) -> None:
    """Records that these ranges are durably in the search index, unless their files have been reread since."""
    with index.transaction():
        index.connection.executemany(
            "UPDATE tasks SET folded = ? WHERE id = ? AND fold_base = ? AND folded = ?",
            [(each.end, each.id, each.base, each.start) for each in done],
        )


def salt(index: Index) -> str | None:
    """The salt from which the name of the current search index is derived."""
    return index.meta("search")


def totals(index: TaskDatabase) -> tuple[int, int]:
    """The approximate number of documents, and the number of bytes."""
    statement = f"SELECT count(*), sum(turns), sum(indexed_end) FROM {index.at('tasks')}"
    with index.mapped():
        row = index.while_unchanged("totals", lambda: index.connection.execute(statement).fetchone())
    return 2 * row[0] + int(row[1] or 0), int(row[2] or 0)


def any_flushed(index: Index) -> bool:
    with index.mapped():
        return index.connection.execute("SELECT 1 FROM tasks WHERE folded > 0 LIMIT 1").fetchone() is not None


def start_over(index: Index, old_salt: str | None, new_salt: str | None) -> None:
    """Marks everything as not folded and switches to a new search index, unless another process already has."""
    with index.transaction():
        if index.meta("search") != old_salt:
            return
        index.connection.execute("UPDATE tasks SET folded = 0, fold_base = 0 WHERE folded > 0 OR fold_base > 0")
        if new_salt is None:
            index.connection.execute("DELETE FROM index_meta WHERE k = 'search'")
        else:
            index.set_meta("search", new_salt)
