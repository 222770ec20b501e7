"""The rows of tasks in any database: the few statements that every append runs, and their dialect differences.

The models define the tables. The statements of an append and of a list run directly on the connection, because going through
the model costs ten times as much as the statement.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias, TypeVar

if TYPE_CHECKING:
    from rawko_state.index.projection import Bulk, NewRows, Projector, Row
    from rawko_state.index.schema import Tables

TABLE_OF: Final = {
    "agents": "task_agents",
    "files": "task_files",
    "records": "task_records",
    "runs": "task_runs",
    "events": "task_events",
    "snapshots": "snapshots",
    "blobs": "task_blobs",
}


Answer = TypeVar("Answer")
Condition: TypeAlias = tuple[str, tuple[Any, ...]]
"""A condition as SQL, with ``?`` for each of its values; and the values."""


class TaskDatabase(ABC):
    """An open database with the tables of ``schema``."""

    name: str
    mark: ClassVar[str] = "?"
    """The parameter placeholder."""
    same: ClassVar[str] = "IS"
    """Equality that also holds if both sides are NULL."""

    def __init__(self) -> None:
        self._statements: dict[tuple[str, tuple[str, ...]], str] = {}
        self._columns: tuple[str, ...] | None = None
        """The columns of tasks, in order; reading them from the cursor each time costs as much as the query."""

    @property
    @abstractmethod
    def tables(self) -> Tables:
        """The models, bound to this database."""

    @property
    @abstractmethod
    def connection(self) -> Any:
        """The driver's own connection."""

    def at(self, table: str) -> str:
        """The name of a table in SQL statements."""
        return table

    @abstractmethod
    def mapped(self) -> contextlib.AbstractContextManager[None]:
        """Maps the driver's errors to ours."""

    @abstractmethod
    def transaction(self) -> contextlib.AbstractContextManager[None]:
        """A write transaction."""

    # Differences between dialects

    @abstractmethod
    def read(self, statement: str, values: Sequence[Any] = ()) -> Iterable[tuple[Any, ...]]:
        """The rows that a query finds. It is written with ``?`` for each value."""

    @abstractmethod
    def glob(self, column: str, pattern: str) -> Condition:
        """Whether a text matches a pattern with ``*``, ``?`` and ``[…]``."""

    @abstractmethod
    def contains(self, column: str, needle: str) -> Condition:
        """Whether a text contains another."""

    @abstractmethod
    def unindexed(self, column: str) -> str:
        """A column that is looked at as the rows are read, not looked up in its index."""

    @abstractmethod
    def number_in(self, column: str, name: str) -> str:
        """A whole number in a column of JSON objects."""

    remembers: ClassVar[bool] = False
    """Whether it keeps what remember() is given."""

    def remembered(self, beginning: str) -> dict[str, str]:
        """What remember() was given, by keys that begin like this."""
        return {}

    def remember(self, values: Mapping[str, str]) -> None:
        """Keeps what was worked out from the rows. It may be forgotten at any time."""
        return

    def while_unchanged(self, name: str, ask: Callable[[], Answer]) -> Answer:
        """What was asked under this name before, unless the rows may have changed since."""
        return ask()

    def ordered(self, column: str, *, descending: bool) -> str:
        """Sorts NULL below everything else."""
        return f"{column} DESC" if descending else column

    # Reading

    def position(self, task_id: str) -> tuple[int, str | None] | None:
        """How far the task's file has been indexed: the offset, and the seal before it."""
        with self.mapped():
            found = self.connection.execute(
                f"SELECT indexed_end, tail_seal FROM {self.at('tasks')} WHERE id = {self.mark}", (task_id,)
            ).fetchone()
        return (found[0], found[1]) if found else None

    def positions(self) -> dict[str, tuple[int, str | None]]:
        """The same for every task."""
        with self.mapped():
            cursor = self.connection.execute(f"SELECT id, indexed_end, tail_seal FROM {self.at('tasks')}")
            return {row[0]: (row[1], row[2]) for row in cursor}

    def row(self, task_id: str, *, lock: bool = False) -> Row | None:
        """The row of a task. With ``lock``, if the database supports it, no one else can change it until the transaction ends."""
        with self.mapped():
            cursor = self.connection.execute(
                f"SELECT * FROM {self.at('tasks')} WHERE id = {self.mark}{' FOR UPDATE' if lock else ''}", (task_id,)
            )
            found = cursor.fetchone()
            if not found:
                return None
            if self._columns is None or len(self._columns) != len(found):
                self._columns = tuple(column[0] for column in cursor.description)
            return dict(zip(self._columns, found, strict=True))

    def count(self) -> int:
        with self.mapped():
            return int(self.connection.execute(f"SELECT count(*) FROM {self.at('tasks')}").fetchone()[0])

    # Writing; always inside a transaction

    def put(self, projector: Projector, rows: NewRows, *, after: tuple[int, str | None] | None = None) -> bool:
        """Writes the task's row and the new rows of the other tables.

        With ``after``, writes only if the file is indexed up to that offset and seal; otherwise does nothing and returns False.
        """
        if projector.saved is None:
            self._upsert(projector.row)
        elif not self._update(projector.row, projector.saved, after):
            return False
        projector.saved = dict(projector.row)
        for name, table in TABLE_OF.items():
            new = getattr(rows, name)
            if new:
                self._many(self._insert(table, tuple(new[0])), [tuple(row.values()) for row in new])
        self._update_runs(rows.run_updates)
        return True

    def put_new(self, batch: Bulk) -> None:
        """Writes the rows of many tasks at once, replacing their old rows."""
        self._many(f"DELETE FROM {self.at('tasks')} WHERE id = {self.mark}", [(task_id,) for task_id in batch.ids])
        for table, (names, values) in batch.tables.items():
            self._many(self._insert(table, names), values)
        self._update_runs(batch.run_updates)

    def _many(self, statement: str, values: Sequence[tuple[Any, ...]]) -> None:
        self.connection.executemany(statement, values)

    def _update_runs(self, updates: Iterable[Row]) -> None:
        for row in updates:
            names = tuple(name for name in row if name not in ("task_id", "run"))
            sets = ", ".join(f'"{name}" = {self.mark}' for name in names)
            values = (*(row[name] for name in names), row["task_id"], row["run"])
            where = f"task_id = {self.mark} AND run = {self.mark}"
            self.connection.execute(f"UPDATE {self.at('task_runs')} SET {sets} WHERE {where}", values)

    def _upsert(self, row: Row) -> None:
        names = tuple(row)
        columns, marks = ", ".join(f'"{name}"' for name in names), ", ".join(self.mark for _ in names)
        sets = ", ".join(f'"{name}" = excluded."{name}"' for name in names if name != "id")
        statement = f"INSERT INTO {self.at('tasks')} ({columns}) VALUES ({marks}) ON CONFLICT (id) DO UPDATE SET {sets}"
        self.connection.execute(statement, tuple(row.values()))

    def _update(self, row: Row, saved: Row, after: tuple[int, str | None] | None) -> bool:
        """Updates only the columns that differ: rewriting the others would rewrite their indexes too."""
        names = tuple([name for name, value in row.items() if value != saved[name]])
        if not names:
            return True
        key = ("update", names) if after is None else ("update after", names)
        statement = self._statements.get(key)
        if statement is None:
            sets = ", ".join(f'"{name}" = {self.mark}' for name in names)
            where = "" if after is None else f" AND indexed_end = {self.mark} AND tail_seal {self.same} {self.mark}"
            statement = f"UPDATE {self.at('tasks')} SET {sets} WHERE id = {self.mark}{where}"
            self._statements[key] = statement
        values = (*[row[name] for name in names], row["id"], *(after or ()))
        return bool(self.connection.execute(statement, values).rowcount == 1)

    def _insert(self, table: str, names: tuple[str, ...]) -> str:
        key = (table, names)
        statement = self._statements.get(key)
        if statement is None:
            columns, marks = ", ".join(f'"{name}"' for name in names), ", ".join(self.mark for _ in names)
            # A turn may name a file twice, and a hand-edited file may contain anything twice.
            statement = f"INSERT INTO {self.at(table)} ({columns}) VALUES ({marks}) ON CONFLICT DO NOTHING"
            self._statements[key] = statement
        return statement

    def moved(self, task_id: str, file_path: str, stat: tuple[int, int]) -> None:
        """Records a new file name and stat for unchanged content."""
        sets = ", ".join(f"{name} = {self.mark}" for name in ("file_path", "file_size", "file_mtime_ns"))
        self.connection.execute(
            f"UPDATE {self.at('tasks')} SET {sets} WHERE id = {self.mark}", (file_path, *stat, task_id)
        )

    def forget(self, task_id: str) -> None:
        """Removes a task and everything that belongs to it."""
        self.connection.execute(f"DELETE FROM {self.at('tasks')} WHERE id = {self.mark}", (task_id,))
