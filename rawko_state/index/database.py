"""An index database on SQLite: open, migrate, replace and check it."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, cast

from rawko_state.errors import IndexCorrupt, IndexNewer, IndexTrouble, RawkoError
from rawko_state.forking import renew_after_fork
from rawko_state.index.connections import Connections
from rawko_state.index.migrations import APPLICATION_ID, MIGRATIONS, VERSION
from rawko_state.index.rows import TABLE_OF, Answer, Condition, TaskDatabase
from rawko_state.version import __version__

if TYPE_CHECKING:
    from rawko_state.index.schema import Tables

BUSY_MS: Final = 3_000
_PRAGMAS: Final = (
    "journal_mode = wal",
    # The index can be rebuilt, so commits do not wait for the disk; settle() does, before a mark is removed.
    "synchronous = normal",
    "foreign_keys = 1",
    "temp_store = memory",
)


class mapped:  # noqa: N801 - used as a function; a class, as it is on the path of every append
    """Maps the errors of SQLite and Peewee to ours."""

    __slots__ = ("_path",)

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> Literal[False]:
        if error is not None and (ours := _ours(self._path, error)) is not None:
            raise ours from error
        return False


def _ours(path: str, error: BaseException) -> RawkoError | None:
    """Our error for one of SQLite or Peewee; None for any other."""
    if isinstance(error, RawkoError):
        return None
    if isinstance(error, (OverflowError, ValueError, RecursionError)):
        return IndexTrouble(f"{path}: a value can't be stored: {error}.")
    if isinstance(error, OSError):
        return IndexTrouble(f"{path}: {error.strerror or error}")
    if not _is_of_database(error):
        return None
    message = str(error)
    if "malformed" in message or "not a database" in message or "corrupt" in message:
        return IndexCorrupt(f"{path} is damaged: {message}.")
    if type(error).__name__ == "OperationalError" and ("no such table" in message or "no such column" in message):
        return IndexCorrupt(f"{path} is not a rawko index: {message}.")
    return IndexTrouble(f"{path}: {message}")


def _is_of_database(error: BaseException) -> bool:
    """Whether SQLite raised it, or Peewee, if that is in use at all."""
    peewee: Any = sys.modules.get("peewee")
    return isinstance(error, sqlite3.Error) or (peewee is not None and isinstance(error, peewee.PeeweeException))


class _Shared:
    """The connection of an index in memory, which all threads share. A statement and its rows are one step: otherwise another
    thread could use the connection in between."""

    def __init__(self, connection: sqlite3.Connection, index: Index) -> None:
        self._connection, self._index = connection, index

    def execute(self, statement: str, values: Any = ()) -> _Rows:
        with self._index._turns:
            cursor = self._connection.execute(statement, values)
            return _Rows(cursor.fetchall(), cursor.rowcount, cursor.lastrowid, cursor.description)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


class _Rows:
    """What a cursor gives, already read."""

    def __init__(self, rows: list[Any], count: int, last: int | None, description: Any) -> None:
        self._next = iter(rows)
        self.rowcount, self.lastrowid, self.description = count, last, description

    def __iter__(self) -> Iterator[Any]:
        return self._next

    def fetchone(self) -> Any:
        return next(self._next, None)

    def fetchall(self) -> list[Any]:
        return list(self._next)

    def close(self) -> None:
        self._next = iter(())


class Index(TaskDatabase):
    """An open index on SQLite. With ``path`` None, it is in memory."""

    def __init__(self, path: Path | None) -> None:
        super().__init__()
        self.path = path
        self.name = str(path) if path else "the index in memory"
        self._inode: tuple[int, int] | None = None
        self._turns = threading.RLock()
        self._connections = Connections(self)
        self._of_thread: Any = threading.local() if path is not None else SimpleNamespace()
        renew_after_fork(self)
        with mapped(self.name):
            if path is not None and not path.exists():
                # SQLite would make it world-readable. If the file exists, its -wal and -shm files inherit this mode too.
                with contextlib.suppress(FileExistsError):
                    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            try:
                self._migrate()
            except BaseException:
                self.close()
                raise
            if path is not None:
                # Another process may have moved it aside in the meantime; then this fails like any other error.
                found = os.stat(path)
                self._inode = (found.st_dev, found.st_ino)

    @cached_property
    def tables(self) -> Tables:
        from rawko_state.index.orm import Borrowed
        from rawko_state.index.schema import tables_for

        return tables_for(Borrowed(lambda: self.connection))

    def close(self) -> None:
        """Closes this thread's connection, and those of threads that have ended. An index in memory is shared by all threads and
        is freed with its last reference."""
        if self.path is None:
            return
        self._of_thread.__dict__.pop("kept", None)
        made = self._of_thread.__dict__.pop("connection", None)
        if made is not None:
            self._connections.remove(made)
            with contextlib.suppress(sqlite3.Error):
                made.close()
        self._connections.close_ended()

    def after_fork(self) -> None:
        self._turns = threading.RLock()
        self._connections.disown()
        if self.path is not None:
            self._of_thread = threading.local()

    @property
    def is_current(self) -> bool:
        """Whether the open file is still the one at this path; it may have been moved aside."""
        if self.path is None:
            return True
        try:
            found = os.stat(self.path)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._inode

    def mapped(self) -> contextlib.AbstractContextManager[None]:
        return mapped(self.name)

    def read(self, statement: str, values: Sequence[Any] = ()) -> Iterable[tuple[Any, ...]]:
        return self.connection.execute(statement, values)

    def glob(self, column: str, pattern: str) -> Condition:
        return f"{column} GLOB ?", (pattern,)

    def contains(self, column: str, needle: str) -> Condition:
        return f"INSTR({column}, ?) > 0", (needle,)

    def unindexed(self, column: str) -> str:
        return f"+{column}"

    def number_in(self, column: str, name: str) -> str:
        return f"JSON_EXTRACT({column}, '$.{name}')"

    remembers: ClassVar[bool] = True

    def remembered(self, beginning: str) -> dict[str, str]:
        statement = "SELECT k, v FROM index_meta WHERE k >= ? AND k < ?"
        with mapped(self.name):
            return dict(self.read(statement, (beginning, beginning + "\U0010ffff")))

    def remember(self, values: Mapping[str, str]) -> None:
        with contextlib.suppress(IndexTrouble), self.transaction():  # a query also answers where nothing can be written
            for key, value in values.items():
                self.set_meta(key, value)

    def while_unchanged(self, name: str, ask: Callable[[], Answer]) -> Answer:
        # The first number changes with what other connections write, the second with what this one does.
        connection = self.connection
        if connection.in_transaction:
            return ask()  # it may be rolled back
        version = connection.execute("PRAGMA data_version").fetchone()[0]
        mark = (connection, version, connection.total_changes)
        kept: dict[str, tuple[Any, Any]] = self._of_thread.__dict__.setdefault("kept", {})
        known = kept.get(name)
        if known is not None and known[0] == mark:
            return cast("Answer", known[1])
        found = ask()
        kept[name] = (mark, found)
        return found

    @property
    def connection(self) -> sqlite3.Connection:
        """Each thread has its own. An index in memory has one that all threads share."""
        made: sqlite3.Connection | None = getattr(self._of_thread, "connection", None)
        return self._connect() if made is None else made

    def _connect(self) -> sqlite3.Connection:
        made = sqlite3.connect(
            str(self.path) if self.path else ":memory:",
            timeout=BUSY_MS / 1000,
            isolation_level=None,
            check_same_thread=False,  # other threads close the connections of ended ones
        )
        try:
            for pragma in _PRAGMAS:
                made.execute(f"PRAGMA {pragma}").close()
        except BaseException:
            made.close()
            raise
        self._connections.add(made)
        self._of_thread.connection = made if self.path else cast("sqlite3.Connection", _Shared(made, self))
        return self.connection

    def _maker(self) -> str | None:
        with contextlib.suppress(sqlite3.Error):
            found = self.connection.execute("SELECT v FROM index_meta WHERE k = 'made_by'").fetchone()
            return f"rawko {found[0]}" if found else None
        return None

    def _migrate(self) -> None:
        connection = self.connection
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version == VERSION:
            if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
                raise IndexCorrupt(f"{self.name} is not a rawko index.")
            return
        if version > VERSION:
            raise IndexNewer(
                f"{self.name} was made by {self._maker() or 'a newer rawko'} (index version {version}; this rawko knows up to"
                f" {VERSION}). Update rawko, or delete the file: it is rebuilt from the task files."
            )
        connection.execute("BEGIN IMMEDIATE")
        try:
            version = connection.execute("PRAGMA user_version").fetchone()[0]  # another process may have been first
            if version == 0 and connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                raise IndexCorrupt(f"{self.name} is not a rawko index.")
            if version > VERSION:
                raise IndexNewer(f"{self.name} was just rebuilt by a newer rawko. Update rawko.")
            for migration in MIGRATIONS[version:]:
                migration.apply(connection)
                connection.execute(f"PRAGMA user_version = {migration.number}")
            connection.execute("INSERT OR REPLACE INTO index_meta (k, v) VALUES ('made_by', ?)", (__version__,))
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise

    def transaction(self) -> contextlib.AbstractContextManager[None]:
        """A write transaction: waits for other writers up to the busy timeout, then raises IndexTrouble."""
        return _Transaction(self)

    def settle(self) -> None:
        """Makes everything committed so far durable."""
        with mapped(self.name):
            connection = self.connection
            connection.execute("PRAGMA synchronous = FULL")
            try:
                connection.execute("INSERT OR REPLACE INTO index_meta (k, v) VALUES ('settled', hex(randomblob(8)))")
            finally:
                connection.execute("PRAGMA synchronous = NORMAL")

    def forget_all(self, task_ids: Iterable[str]) -> None:
        """Removes many tasks, in its own transaction: table by table, which is five times as fast as task by task."""
        with mapped(self.name):
            connection = self.connection
            # The rows are deleted below, so SQLite need not look them up for every task.
            connection.execute("PRAGMA foreign_keys = 0")
            connection.execute("PRAGMA cache_size = -64000")
            try:
                with self.transaction():
                    connection.execute("CREATE TEMP TABLE IF NOT EXISTS going (id TEXT PRIMARY KEY) WITHOUT ROWID")
                    connection.execute("DELETE FROM going")
                    connection.executemany(
                        "INSERT OR IGNORE INTO going VALUES (?)", [(task_id,) for task_id in task_ids]
                    )
                    for table in TABLE_OF.values():
                        connection.execute(f"DELETE FROM {table} WHERE task_id IN (SELECT id FROM going)")
                    connection.execute("DELETE FROM tasks WHERE id IN (SELECT id FROM going)")
            finally:
                connection.execute("PRAGMA foreign_keys = 1")
                connection.execute("PRAGMA cache_size = -2000")

    def known_files(self) -> dict[str, tuple[str, int, int]]:
        """For every task, the file it was read from, and that file's size and modification time then."""
        with mapped(self.name):
            cursor = self.connection.execute("SELECT id, file_path, file_size, file_mtime_ns FROM tasks")
            return {row[0]: (row[1], row[2], row[3]) for row in cursor}

    def files_size(self) -> int:
        """The size of all task files together, in bytes."""
        with mapped(self.name):
            return int(self.connection.execute("SELECT SUM(file_size) FROM tasks").fetchone()[0] or 0)

    def meta(self, key: str) -> str | None:
        with mapped(self.name):
            found = self.connection.execute("SELECT v FROM index_meta WHERE k = ?", (key,)).fetchone()
        return found[0] if found else None

    def set_meta(self, key: str, value: str) -> None:
        """Call this inside a transaction."""
        self.connection.execute("INSERT OR REPLACE INTO index_meta (k, v) VALUES (?, ?)", (key, value))

    def seals(self, task_id: str) -> set[str]:
        """The seals of a task's records, without damaged ones."""
        with mapped(self.name):
            found = self.connection.execute(
                "SELECT seal FROM task_records WHERE task_id = ? AND kind != 'damaged' AND seal IS NOT NULL", (task_id,)
            )
            return {row[0] for row in found}

    def meta_like(self, beginning: str) -> list[str]:
        """The keys with this prefix."""
        with mapped(self.name):
            found = self.connection.execute(
                "SELECT k FROM index_meta WHERE k >= ? AND k < ? ORDER BY k", (beginning, beginning + "\U0010ffff")
            )
            return [row[0] for row in found]

    def drop_meta(self, key: str) -> bool:
        """Returns whether the key existed. Call this inside a transaction."""
        return bool(self.connection.execute("DELETE FROM index_meta WHERE k = ?", (key,)).rowcount)

    @contextlib.contextmanager
    def filling(self) -> Iterator[None]:
        """Fast and unsafe: for an index that is discarded if anything fails. Its SQL indexes are created at the end."""
        with mapped(self.name):
            connection = self.connection
            connection.execute("PRAGMA synchronous = OFF")
            later = connection.execute(
                "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql LIKE 'CREATE INDEX %'"
            ).fetchall()
            for name, _ in later:
                connection.execute(f"DROP INDEX {name}")
        yield
        with mapped(self.name):
            # Sorted in memory, the largest one takes 200 MB at a million turns, and three times as long.
            connection.execute("PRAGMA temp_store = file")
            for _, sql in later:
                try:
                    connection.execute(sql)
                except sqlite3.OperationalError:  # no folder for temporary files
                    connection.execute("PRAGMA temp_store = memory")
                    connection.execute(sql)
            connection.execute("PRAGMA temp_store = memory")

    def replace_with(self, other: Index) -> None:
        """Replaces the content with that of another index, atomically for readers."""
        with mapped(self.name):
            other.connection.backup(self.connection)
            self._of_thread.__dict__.pop("kept", None)
            # Old content must not stay in the log: it may have been removed for a reason.
            self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def dump(self) -> dict[str, list[tuple[Any, ...]]]:
        """All derived rows, sorted. Two indexes of the same files must agree on them."""
        with mapped(self.name):
            chosen = {"tasks": ", ".join(f'"{column}"' for column in self.tables.columns)}
            names = [model._meta.table_name for model in self.tables.derived]
            return {
                name: sorted(self.connection.execute(f"SELECT {chosen.get(name, '*')} FROM {name}"), key=repr)
                for name in names
            }

    def check(self) -> list[str]:
        """The problems that SQLite finds: corruption, and foreign key violations."""
        with mapped(self.name):
            found = [row[0] for row in self.connection.execute("PRAGMA integrity_check(5)") if row[0] != "ok"]
            found += [f"a row of {row[0]} has no task" for row in self.connection.execute("PRAGMA foreign_key_check")]
            return found


class _Transaction:
    """A class, as it is on the path of every append."""

    __slots__ = ("_connection", "_index")

    def __init__(self, index: Index) -> None:
        self._index = index

    def __enter__(self) -> None:
        index = self._index
        index._turns.acquire()  # for the threads of this process; SQLite would make them poll
        try:
            with mapped(index.name):
                self._connection = index.connection
                self._connection.execute("BEGIN IMMEDIATE")
        except BaseException:
            index._turns.release()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> Literal[False]:
        try:
            with mapped(self._index.name):
                if error is None:
                    self._commit()
                else:
                    self._roll_back()
        finally:
            self._index._turns.release()
        if error is not None and (ours := _ours(self._index.name, error)) is not None:
            raise ours from error
        return False

    def _commit(self) -> None:
        try:
            self._connection.execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise

    def _roll_back(self) -> None:
        with contextlib.suppress(sqlite3.Error):  # after a full disk, SQLite has already rolled back
            self._connection.execute("ROLLBACK")


def remove(path: Path) -> None:
    """Deletes the database and its -wal and -shm files."""
    for name in companions(path):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)


def companions(path: Path) -> Iterable[Path]:
    return (path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm"))
