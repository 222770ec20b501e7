"""PostgreSQL: connections, transactions, locks and notifications. Each workspace has its own schema (see ``rows``).

Workspaces are isolated by construction: no statement on one workspace names another's tables. Data of the server as a whole is in
the schema ``rawko`` (see ``host``).
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import random
import re
import select
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import parse_qs, urlsplit

try:
    import psycopg
    from psycopg import errors as pg_errors
    from psycopg.pq import TransactionStatus
except ImportError as missing:  # pragma: no cover - a message for users
    from rawko_state.errors import RawkoError as _RawkoError
    from rawko_state.lazy import installing

    raise _RawkoError(f"PostgreSQL support is not installed.\n  Install it: {installing('postgres')}") from missing

from rawko_state.errors import IndexNewer, InvalidValue, RawkoError, StorageAway, StorageError, StorageGone
from rawko_state.forking import renew_after_fork
from rawko_state.index.connections import Connections
from rawko_state.index.orm import p, use_psycopg

CHANNEL: Final = "rawko"
_REQUESTS: Final = "requests"
MIGRATE, BLOBS, IMPORT, OPEN = "migrate", "blobs", "import", "open"
"""The rows of a schema's table ``locks``. Advisory locks are not shared by the nodes of a distributed engine, rows are."""
_TRIES: Final = 6
_T = TypeVar("_T")
_TOGETHER: Final = 0.02
_AT_ONCE: Final = 100
"""Keeps a notification within PostgreSQL's limit of 8,000 bytes."""


@contextlib.contextmanager
def mapped(what: str) -> Iterator[None]:
    """Translates psycopg's and Peewee's errors into ours."""
    try:
        yield
    except RawkoError:
        raise
    except (psycopg.OperationalError, psycopg.InterfaceError, p.OperationalError, p.InterfaceError) as error:
        if isinstance(error, pg_errors.ProgramLimitExceeded) or "exceeds" in _first_line(error):
            raise InvalidValue(f"{what}: a value can't be stored: {_first_line(error)}") from error
        raise StorageAway(f"Can't reach {what}: {_first_line(error)}", what) from error
    except (psycopg.DataError, p.DataError) as error:
        raise InvalidValue(f"{what}: a value can't be stored: {_first_line(error)}") from error
    except (psycopg.Error, p.PeeweeException) as error:
        cause = error.__cause__ if isinstance(error, p.PeeweeException) else error
        if isinstance(cause, (pg_errors.UndefinedTable, pg_errors.InvalidSchemaName)):
            raise StorageGone(f"{what}: {_first_line(error)}", what) from error
        raise StorageError(f"{what}: {_first_line(error)}", what) from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


_MADE_BY_ANOTHER: Final = (
    pg_errors.UniqueViolation, pg_errors.DuplicateObject, pg_errors.DuplicateSchema, pg_errors.DuplicateTable,
    pg_errors.InternalError_,
)  # fmt: skip
"""What PostgreSQL says when two sessions create the same thing at once, even with IF NOT EXISTS."""


class Postgres:
    """One database: one connection per thread, reopened when lost."""

    def __init__(self, url: str, listen: str | None = None) -> None:
        """``listen`` is a direct address for LISTEN, if ``url`` leads to a pooler."""
        for address in (url, listen or url):
            if not address.startswith(("postgresql://", "postgres://")):
                raise InvalidValue("Not a database address. Write postgresql://user@host/name.")
        self.url = _writable(url.replace("postgres://", "postgresql://", 1))
        self.listen_url = _writable(listen.replace("postgres://", "postgresql://", 1)) if listen else self.url
        self.name = "the PostgreSQL database"
        use_psycopg()
        self.db = _Database(
            self,
            self.url,
            prefer_psycopg3=True,
            connect_timeout=10,
            application_name="rawko",
            autoconnect=True,
            # A host that vanished without a word is noticed in about 20 s, not in the system's two hours.
            keepalives_idle=10,
            keepalives_interval=3,
            keepalives_count=3,
        )
        self._local = threading.local()
        self._connections = Connections(self)
        self.notifier = Notifier(self)
        renew_after_fork(self)

    def after_fork(self) -> None:
        self._connections.disown()
        self._local = threading.local()
        peewee: Any = self.db
        peewee._lock = threading.Lock()
        peewee._state.reset()
        self.notifier = Notifier(self)

    @property
    def connection(self) -> psycopg.Connection[Any]:
        """This thread's connection. A lost one is replaced, unless a transaction was lost with it."""
        gathering: psycopg.Connection[Any] | None = getattr(self._local, "gathering", None)
        if gathering is not None:
            return gathering
        with mapped(self.name):
            if not self.db.is_closed():
                found: psycopg.Connection[Any] = self.db.connection()  # type: ignore[no-untyped-call]
                if self.in_transaction or _is_usable(found):
                    return found
                self._drop()
            self.db.connect()
            made: psycopg.Connection[Any] = self.db.connection()  # type: ignore[no-untyped-call]
            self._connections.add(made)
            _suit_pooler(made)
            return made

    @property
    def in_transaction(self) -> bool:
        """Whether this thread has begun a transaction."""
        return bool(getattr(self._local, "depth", 0))

    def close(self) -> None:
        """Closes this thread's connection, and those of threads that have ended."""
        self._drop()
        self._connections.close_ended()

    def _drop(self) -> None:
        if not self.db.is_closed():
            connection = self.db.connection()  # type: ignore[no-untyped-call]
            self._connections.remove(connection)
            with contextlib.suppress(p.PeeweeException, psycopg.Error):
                self.db.close()

    def close_all(self) -> None:
        """Closes all threads' connections. Call this when no thread needs one any more."""
        self.notifier.close()
        self.close()
        self._connections.close_all()

    @contextlib.contextmanager
    def transaction(self, *, durable: bool = True) -> Iterator[psycopg.Connection[Any]]:
        """Runs the block in a transaction, durable unless ``durable`` is false. A nested one becomes part of the outer one."""
        connection = self.connection
        with mapped(self.name):
            if self.in_transaction:
                yield connection
                return
            self._local.depth = 1
            try:
                # Nothing that is not fetched is waited for: BEGIN goes with the first query, COMMIT with the last statements.
                with connection.pipeline():
                    connection.execute("BEGIN")
                    if not durable:
                        connection.execute("SET LOCAL synchronous_commit TO off")
                    yield connection
                    connection.execute("COMMIT")
            except pg_errors.ReadOnlySqlTransaction:
                connection.close()  # the host is not the primary any more: look for the new one
                raise
            finally:
                self._local.depth = 0
                if not connection.closed and connection.info.transaction_status != TransactionStatus.IDLE:
                    with contextlib.suppress(psycopg.Error):
                        connection.rollback()

    @contextlib.contextmanager
    def gathered(self) -> Iterator[None]:
        """Runs what the block executes as one statement, so that a transaction takes one round trip. The first part must return a
        row: if it does not, nothing is done and ConditionFailed is raised. The block can't fetch anything."""
        assert not self.in_transaction
        connection, gathering = self.connection, _Gathering()
        self._local.depth, self._local.gathering = 1, gathering
        try:
            yield
        finally:
            self._local.depth, self._local.gathering = 0, None
        try:
            with mapped(self.name):
                psycopg.RawCursor(connection).execute(gathering.statement(), gathering.values)
        except (InvalidValue, StorageError) as error:
            cause = error.__cause__
            if isinstance(cause, pg_errors.DivisionByZero) or (
                isinstance(cause, psycopg.IntegrityError) and cause.diag.table_name != _REQUESTS
            ):
                raise ConditionFailed("another writer was faster") from error
            raise

    def retrying(self, work: Callable[[], _T]) -> _T:
        """Repeats a transaction that the database has undone because of a conflict or a deadlock with another one."""
        if self.in_transaction:
            return work()  # the whole transaction is repeated, not a part of it
        for attempt in range(1, _TRIES):
            try:
                return work()
            except (RawkoError, psycopg.Error, p.PeeweeException) as error:
                if not _is_conflict(error):
                    raise
                time.sleep(random.uniform(0, 0.01 * 2**attempt))
        return work()

    def prepare(self, schema: str, migrations: Sequence[tuple[str, str]]) -> None:
        """Brings a schema up to date. ``migrations`` are its versions in order: a name, and statements in which ``{s}`` is the
        schema. Several servers may do this at once."""
        with mapped(self.name):
            if self._version(self.connection, schema) != len(migrations):
                self._prepare_locks(schema)
                self.retrying(lambda: self._migrate(schema, migrations))

    def _prepare_locks(self, schema: str) -> None:
        """Creates the schema and its locks. Of processes that do this at once, all but one may fail, so they try again."""
        statements = (
            f'CREATE SCHEMA IF NOT EXISTS "{schema}"',
            f'CREATE TABLE IF NOT EXISTS "{schema}".locks (name text PRIMARY KEY)',
            f'CREATE TABLE IF NOT EXISTS "{schema}".migrations (n integer PRIMARY KEY, name text)',
            *(
                f"INSERT INTO \"{schema}\".locks VALUES ('{name}') ON CONFLICT DO NOTHING"
                for name in (MIGRATE, BLOBS, IMPORT)
            ),
        )
        for statement in statements:
            for attempt in range(_TRIES):
                try:
                    self.connection.execute(statement)
                    break
                except _MADE_BY_ANOTHER:
                    if attempt == _TRIES - 1:
                        raise
                    time.sleep(random.uniform(0, 0.01 * 2**attempt))

    def _migrate(self, schema: str, migrations: Sequence[tuple[str, str]]) -> None:
        with self.transaction() as connection:
            self.lock_row(schema, MIGRATE)  # one process at a time
            version = self._version(connection, schema)
            if version > len(migrations):
                raise IndexNewer(
                    f"Schema {schema} was made by a newer rawko (version {version}; this one knows {len(migrations)}). "
                    "Update rawko."
                )
            for number, (name, script) in enumerate(migrations[version:], version + 1):
                for statement in statements_of(script.replace("{s}", f'"{schema}"')):
                    connection.execute(statement)
                connection.execute(f'INSERT INTO "{schema}".migrations VALUES (%s, %s)', (number, name))

    def lock_row(self, schema: str, name: str, *, shared: bool = False) -> None:
        """Takes a lock of a schema until the transaction ends."""
        how = "SHARE" if shared else "UPDATE"
        self.connection.execute(f'SELECT 1 FROM "{schema}".locks WHERE name = %s FOR {how}', (name,)).fetchone()

    def lock_made_row(self, schema: str, name: str) -> None:
        """The same for a lock that may not be there yet. It changes the row, so that a transaction with an older view of the
        tables fails and is repeated, whatever the isolation level."""
        self.connection.execute(
            f'INSERT INTO "{schema}".locks VALUES (%s) ON CONFLICT (name) DO UPDATE SET name = excluded.name', (name,)
        )

    @staticmethod
    def _version(connection: psycopg.Connection[Any], schema: str) -> int:
        found = connection.execute("SELECT to_regclass(%s)", (f'"{schema}".migrations',)).fetchone()
        if found is None or found[0] is None:
            return 0
        row = connection.execute(f'SELECT coalesce(max(n), 0) FROM "{schema}".migrations').fetchone()
        return int(row[0]) if row else 0

    def listen(
        self, stop: threading.Event, heard: Callable[[str], None], *, ready: threading.Event | None = None
    ) -> None:
        """Calls ``heard`` with every notification until ``stop`` is set. After a lost connection it passes ``*``: anything may
        have happened meanwhile."""
        first = True
        while not stop.is_set():
            try:
                with psycopg.connect(
                    self.listen_url, autocommit=True, application_name="rawko-listen", connect_timeout=10
                ) as connection:
                    connection.execute(f"LISTEN {CHANNEL}")
                    if ready is not None:
                        ready.set()
                    if not first:
                        heard("*")
                    first = False
                    while not stop.is_set():
                        for notice in connection.notifies(timeout=0.5):
                            heard(notice.payload)
                            if stop.is_set():
                                break
            except psycopg.Error:
                first = False
                stop.wait(0.5)


class ConditionFailed(RawkoError):
    """A gathered statement did nothing, because its condition did not hold."""


class _Gathering:
    """Takes the place of a connection, and gathers statements into one."""

    def __init__(self) -> None:
        self._statements: list[str] = []
        self.values: list[Any] = []

    def execute(self, statement: str, values: Sequence[Any] = ()) -> None:
        self._statements.append(statement)
        self.values += values

    def statement(self) -> str:
        """With PostgreSQL's own placeholders: psycopg would parse so long a text each time."""
        key = tuple(self._statements)
        found = _gathered.get(key)
        if found is None:
            parts = ", ".join(f"s{number} AS ({each})" for number, each in enumerate(self._statements))
            numbers = itertools.count(1)
            whole = f"WITH {parts} SELECT 1 / count(*) FROM s0"  # an error undoes the whole statement
            found = re.sub("%s", lambda _: f"${next(numbers)}", whole)
            if len(_gathered) >= _MOST_GATHERED:
                _gathered.clear()
            _gathered[key] = found
        return found


_gathered: dict[tuple[str, ...], str] = {}
_MOST_GATHERED: Final = 500


class Notifier:
    """Notifies other processes of changed tasks, in batches, once the changes are durable.

    It does not notify inside the transaction itself: PostgreSQL serialises notifying transactions until they are on disk, so no
    two appends could share a sync. If this process dies first, followers notice a little later by polling.
    """

    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres
        self._waiting: queue.SimpleQueue[tuple[str, str] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def notify(self, schema: str, task_id: str) -> None:
        self._waiting.put((schema, task_id))
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, daemon=True, name="notify")
                    self._thread.start()

    def close(self) -> None:
        """Waits until everything is sent."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._waiting.put(None)
            thread.join(5)

    def _run(self) -> None:
        ended = False
        while not ended:
            chosen = [self._waiting.get()]
            with contextlib.suppress(queue.Empty):
                while len(chosen) < _AT_ONCE:
                    chosen.append(self._waiting.get_nowait())
            ended = None in chosen
            tasks: dict[str, dict[str, None]] = {}
            for each in chosen:
                if each is not None:
                    tasks.setdefault(each[0], {})[each[1]] = None
            for schema, ids in tasks.items():
                self._send(" ".join((schema, *ids)))
            if not ended:
                time.sleep(_TOGETHER)  # what happens meanwhile shares the next notification
        self._postgres.close()

    def _send(self, payload: str) -> None:
        """One statement that does not wait for the disk."""
        with contextlib.suppress(StorageError), mapped(self._postgres.name):
            self._postgres.connection.execute(
                "SELECT pg_notify(%s, %s), set_config('synchronous_commit', 'off', true)", (CHANNEL, payload)
            )


class _Database(p.PostgresqlDatabase):
    """Peewee's database. A statement outside of a transaction is repeated after a conflict."""

    def __init__(self, postgres: Postgres, *arguments: Any, **options: Any) -> None:
        self._postgres = weakref.proxy(postgres)
        super().__init__(*arguments, **options)

    def execute_sql(self, sql: Any, params: Any = None) -> Any:
        return self._postgres.retrying(lambda: super(_Database, self).execute_sql(sql, params))  # type: ignore[no-untyped-call]


def _writable(url: str) -> str:
    """With several hosts, the one that takes writes is wanted, also after a failover."""
    hosts = urlsplit(url).netloc.rpartition("@")[2]
    if (
        "," not in hosts and "," not in parse_qs(urlsplit(url).query).get("host", [""])[0]
    ) or "target_session_attrs=" in url:
        return url
    return f"{url}{'&' if '?' in url else '?'}target_session_attrs=read-write"


def _is_usable(connection: psycopg.Connection[Any]) -> bool:
    """Whether an idle connection still leads somewhere. Asks the socket, not the server: PostgreSQL says something to an idle
    client when it ends the connection, and almost never else."""
    if connection.closed or connection.broken:
        return False
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return not poll.poll(0)


def _suit_pooler(connection: psycopg.Connection[Any]) -> None:
    """Behind a pooler in transaction mode (pgbouncer), the next transaction may run on another server connection, which does not
    know the statements that were prepared on this one. A pooler shows itself by a process id of its own."""
    found = connection.execute("SELECT pg_backend_pid()", prepare=False).fetchone()
    if found is None or found[0] != connection.info.backend_pid:
        connection.prepare_threshold = None


def _is_conflict(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, (pg_errors.SerializationFailure, pg_errors.DeadlockDetected)):
            return True
        error = error.__cause__
    return False


def statements_of(script: str) -> list[str]:
    """The statements of a migration. A distributed engine takes one at a time."""
    return [statement.strip() for statement in script.split(";") if statement.strip()]


def is_taken(error: BaseException) -> bool:
    """Whether a task could not be created because its id exists. A key that was used before is another matter."""
    cause = error if isinstance(error, psycopg.Error) else error.__cause__
    return isinstance(cause, pg_errors.UniqueViolation) and cause.diag.table_name == "tasks"
