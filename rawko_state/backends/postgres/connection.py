"""PostgreSQL: connections, migrations, and the tables of one workspace. Each workspace has its own schema.

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
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, ClassVar, Final, TypeVar
from urllib.parse import parse_qs, urlsplit

try:
    import psycopg
    from psycopg import errors as pg_errors
    from psycopg.pq import ConnStatus, TransactionStatus
except ImportError as missing:  # pragma: no cover - a message for users
    from rawko_state.errors import RawkoError as _RawkoError

    raise _RawkoError("PostgreSQL support is not installed.\n    pip install 'rawko-state[postgres]'") from missing

from rawko_state.errors import IndexNewer, InvalidValue, RawkoError, StorageError, StorageGone
from rawko_state.forking import renew_after_fork
from rawko_state.index.connections import Connections
from rawko_state.index.orm import p, use_psycopg
from rawko_state.index.projection import NewRows, Projector, Row
from rawko_state.index.rows import Condition, TaskDatabase
from rawko_state.index.schema import Tables, tables_for

CHANNEL: Final = "rawko"
_REQUESTS: Final = "requests"
MIGRATE, BLOBS, IMPORT, OPEN = "migrate", "blobs", "import", "open"
"""The rows of a schema's table ``locks``. Advisory locks are not shared by the nodes of a distributed engine, rows are."""
_TRIES: Final = 6
_T = TypeVar("_T")
_LONGEST: Final = 2_000
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
        raise StorageError(f"Can't reach {what}: {_first_line(error)}", what) from error
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
        if not url.startswith(("postgresql://", "postgres://")):
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


class PostgresDatabase(TaskDatabase):
    """The rows of one workspace."""

    mark: ClassVar[str] = "%s"
    same: ClassVar[str] = "IS NOT DISTINCT FROM"

    def __init__(self, postgres: Postgres, schema: str) -> None:
        super().__init__()
        self.postgres, self.schema, self.name = postgres, schema, postgres.name
        postgres.prepare(schema, MIGRATIONS)

    @cached_property
    def tables(self) -> Tables:
        return tables_for(self.postgres.db, self.schema)

    @property
    def connection(self) -> psycopg.Connection[Any]:
        return self.postgres.connection

    def at(self, table: str) -> str:
        return f'"{self.schema}".{table}'

    @contextlib.contextmanager
    def mapped(self) -> Iterator[None]:
        _ = self.postgres.connection  # replaces a lost connection before Peewee uses it
        with mapped(self.name):
            yield

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        with self.postgres.transaction():
            yield

    def read(self, statement: str, values: Sequence[Any] = ()) -> Iterable[tuple[Any, ...]]:
        # psycopg takes a % of its own for the start of a placeholder.
        prepared = statement.replace("%", "%%").replace("?", "%s")
        found: Iterable[tuple[Any, ...]] = self.postgres.db.execute_sql(prepared, tuple(values))
        return found

    def glob(self, column: str, pattern: str) -> Condition:
        return f"{column} ~ ?", (_regular(pattern),)

    def contains(self, column: str, needle: str) -> Condition:
        return f"STRPOS({column}, ?) > 0", (needle,)

    def number_in(self, column: str, name: str) -> str:
        return f"CAST(json_extract_path_text(CAST({column} AS json), '{name}') AS bigint)"

    def ordered(self, column: str, *, descending: bool) -> str:
        return f"{column} DESC NULLS LAST" if descending else f"{column} NULLS FIRST"

    def put(self, projector: Projector, rows: NewRows, *, after: tuple[int, str | None] | None = None) -> bool:
        """Truncates long values, as an index entry is at most 2,704 bytes. The task's bytes keep them in full."""
        for row in rows.files:
            row["file_path"] = _cut(row["file_path"])
        for row in rows.agents:
            row["agent"] = _cut(row["agent"])
        projector.row["source"] = _cut(projector.row["source"])
        return super().put(projector, rows, after=after)

    def _update(self, row: Row, saved: Row, after: tuple[int, str | None] | None) -> bool:
        """The row is locked, so it exists. Asking for the row count would break the pipeline."""
        names = tuple(name for name, value in row.items() if value != saved[name])
        if names:
            sets = ", ".join(f'"{name}" = %s' for name in names)
            where = "" if after is None else " AND file_size = %s AND tail_seal = %s RETURNING 1"
            values = (*(row[name] for name in names), row["id"], *(after or ()))
            self.connection.execute(f"UPDATE {self.at('tasks')} SET {sets} WHERE id = %s{where}", values)
        return True

    def _many(self, statement: str, values: Sequence[tuple[Any, ...]]) -> None:
        connection = self.connection
        for each in values:
            connection.execute(statement, each)


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
    """Whether an idle connection still leads somewhere. Asks the socket, not the server: if the server has closed it, there is
    something to read."""
    if connection.closed or connection.broken:
        return False
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    if not poll.poll(0):
        return True
    try:
        connection.pgconn.consume_input()
    except psycopg.Error:
        return False
    return bool(connection.pgconn.status == ConnStatus.OK)


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


def _cut(text: str | None) -> str | None:
    if text is None or len(text) * 4 <= _LONGEST:
        return text
    return text.encode("utf-8", "replace")[:_LONGEST].decode("utf-8", "ignore")


def _regular(glob: str) -> str:
    """Converts a glob to a regular expression. ``*`` and ``?`` also match a slash, as in SQLite."""
    found, at = "^", 0
    while at < len(glob):
        letter = glob[at]
        end = glob.find("]", at + 2) if letter == "[" else -1
        if letter == "*":
            found += ".*"
        elif letter == "?":
            found += "."
        elif end > 0:
            found += "[" + glob[at + 1 : end].replace("\\", "\\\\").replace("[", "\\[") + "]"
            at = end
        else:
            found += re.escape(letter)
        at += 1
    return found + "$"


def is_taken(error: BaseException) -> bool:
    """Whether a task could not be created because its id exists. A key that was used before is another matter."""
    cause = error if isinstance(error, psycopg.Error) else error.__cause__
    return isinstance(cause, pg_errors.UniqueViolation) and cause.diag.table_name == "tasks"


_TEXT: Final = 'text COLLATE "C"'
_1_TABLES: Final = (
    """
CREATE TABLE {s}.tasks (
    id T PRIMARY KEY, created_at T, completed_at T, status T, duration_ms bigint, request T, result_summary T, file_path T,
    title T, parent_id T, parent_turn bigint, agent T, model T, provider T, repo T, branch T, "commit" T, cwd T, runtime T,
    labels T, "user" T, source T, extra T, agents T, error T, pinned integer NOT NULL DEFAULT 0,
    detached integer NOT NULL DEFAULT 0, turns bigint NOT NULL DEFAULT 0, runs bigint NOT NULL DEFAULT 0, question bigint,
    selected T, by_header integer NOT NULL DEFAULT 0, format bigint, tokens_in bigint, tokens_out bigint, cost T,
    damaged bigint NOT NULL DEFAULT 0, torn_bytes bigint NOT NULL DEFAULT 0, indexed_end bigint NOT NULL DEFAULT 0,
    tail_offset bigint NOT NULL DEFAULT 0, tail_seal T, file_size bigint NOT NULL DEFAULT 0,
    file_mtime_ns bigint NOT NULL DEFAULT 0, folded bigint NOT NULL DEFAULT 0, fold_base bigint NOT NULL DEFAULT 0
);
CREATE INDEX idx_tasks_created ON {s}.tasks (created_at DESC NULLS LAST, id DESC);
CREATE INDEX idx_tasks_status_created ON {s}.tasks (status, created_at);
CREATE INDEX idx_tasks_parent ON {s}.tasks (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX idx_tasks_source ON {s}.tasks (source) WHERE source IS NOT NULL;
CREATE TABLE {s}.task_agents (
    task_id T NOT NULL REFERENCES {s}.tasks ON DELETE CASCADE, turn bigint, agent T, status T, duration_ms bigint,
    tool_calls bigint, run bigint NOT NULL DEFAULT 0, selected T, decision T, reason T, started_at T, model T, tokens T, cost T,
    "by" T, answers bigint, damaged integer NOT NULL DEFAULT 0, "offset" bigint NOT NULL, length bigint NOT NULL,
    PRIMARY KEY (task_id, "offset")
);
CREATE INDEX idx_task_agents_agent ON {s}.task_agents (agent, task_id);
CREATE TABLE {s}.task_files (
    task_id T NOT NULL REFERENCES {s}.tasks ON DELETE CASCADE, file_path T NOT NULL, operation T NOT NULL,
    turn bigint NOT NULL DEFAULT 0, PRIMARY KEY (task_id, turn, file_path, operation)
);
CREATE INDEX idx_task_files_path ON {s}.task_files (file_path);
CREATE TABLE {s}.task_records (
    task_id T NOT NULL REFERENCES {s}.tasks ON DELETE CASCADE, "offset" bigint NOT NULL, length bigint NOT NULL,
    kind T NOT NULL, seal T, parent T, PRIMARY KEY (task_id, "offset")
);
CREATE UNIQUE INDEX one_header_a_task ON {s}.task_records (task_id) WHERE parent IS NULL AND kind = 'sealed';
CREATE UNIQUE INDEX one_child_a_record ON {s}.task_records (task_id, parent) WHERE parent IS NOT NULL;
CREATE TABLE {s}.task_runs (
    task_id T NOT NULL REFERENCES {s}.tasks ON DELETE CASCADE, run bigint NOT NULL, "offset" bigint NOT NULL, status T,
    request T, "by" T, first_turn bigint, completed_at T, duration_ms bigint, summary T, error T, output T,
    PRIMARY KEY (task_id, run)
);
CREATE TABLE {s}.task_events (
    task_id T NOT NULL REFERENCES {s}.tasks ON DELETE CASCADE, seq bigint NOT NULL, kind T NOT NULL, "at" T, turn bigint,
    "text" T, PRIMARY KEY (task_id, seq)
);
CREATE TABLE {s}.snapshots (
    task_id T NOT NULL REFERENCES {s}.tasks ON DELETE CASCADE, turn bigint NOT NULL, provider T, ref T, path T, parent T,
    metadata T, PRIMARY KEY (task_id, turn)
);
CREATE TABLE {s}.task_blobs (
    task_id T NOT NULL REFERENCES {s}.tasks ON DELETE CASCADE, sha256 T NOT NULL, size bigint NOT NULL,
    PRIMARY KEY (task_id, sha256)
);
CREATE INDEX idx_task_blobs_sha256 ON {s}.task_blobs (sha256);
CREATE TABLE {s}.index_meta (k T PRIMARY KEY, v T);
CREATE TABLE {s}.record_bytes (
    task_id T NOT NULL REFERENCES {s}.tasks ON DELETE CASCADE, "offset" bigint NOT NULL, length bigint NOT NULL,
    data bytea NOT NULL, PRIMARY KEY (task_id, "offset")
);
CREATE TABLE {s}.documents (
    task_id T NOT NULL REFERENCES {s}.tasks ON DELETE CASCADE, "offset" bigint NOT NULL, length bigint NOT NULL,
    words tsvector NOT NULL, PRIMARY KEY (task_id, "offset")
);
CREATE INDEX idx_documents_words ON {s}.documents USING gin (words);
CREATE TABLE {s}.task_states (
    task_id T NOT NULL REFERENCES {s}.tasks ON DELETE CASCADE, turn bigint NOT NULL, state jsonb, payload jsonb,
    PRIMARY KEY (task_id, turn)
);
CREATE TABLE {s}.blobs (sha256 T PRIMARY KEY, size bigint NOT NULL, data bytea NOT NULL);
CREATE TABLE {s}.drafts (task_id T PRIMARY KEY, key bigint GENERATED ALWAYS AS IDENTITY, size bigint NOT NULL DEFAULT 0);
CREATE TABLE {s}.draft_pieces (
    task_id T NOT NULL REFERENCES {s}.drafts ON DELETE CASCADE, start bigint NOT NULL, data bytea NOT NULL,
    PRIMARY KEY (task_id, start)
);
CREATE TABLE {s}.leases (
    task_id T PRIMARY KEY, token T NOT NULL, holder T NOT NULL, since timestamptz NOT NULL DEFAULT now(),
    expires timestamptz NOT NULL
);
CREATE TABLE {s}.trash (
    key bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, task_id T NOT NULL, filename T NOT NULL,
    at timestamptz NOT NULL DEFAULT now(), rule T NOT NULL, "by" T, size bigint NOT NULL, blobs text[] NOT NULL DEFAULT '{}'
);
CREATE TABLE {s}.trash_bytes (
    key bigint NOT NULL REFERENCES {s}.trash ON DELETE CASCADE, "offset" bigint NOT NULL, data bytea NOT NULL,
    PRIMARY KEY (key, "offset")
);
CREATE TABLE {s}.exempt (task_id T PRIMARY KEY);
""".replace(" T ", f" {_TEXT} ")
    .replace(" T,", f" {_TEXT},")
    .replace(" T\n", f" {_TEXT}\n")
    .replace(" T)", f" {_TEXT})")
)
_2_REGISTRY: Final = """
CREATE TABLE {s}.kv (scope text NOT NULL, k text NOT NULL, v text, PRIMARY KEY (scope, k));
CREATE TABLE {s}.repos (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, vcs text NOT NULL, root_path text UNIQUE, remote_url text UNIQUE,
    default_branch text, created_at text NOT NULL, seen_at text NOT NULL
);
CREATE TABLE {s}.agents (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL, version text NOT NULL, metadata text,
    UNIQUE (name, version)
);
CREATE TABLE {s}.runtimes (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, type text NOT NULL, devcontainer_path text, metadata text
);
"""
_3_UPDATED: Final = f"""
ALTER TABLE {{s}}.tasks ADD COLUMN updated_at {_TEXT};
UPDATE {{s}}.tasks t SET completed_at = (
    SELECT "at" FROM {{s}}.task_events e WHERE e.task_id = t.id AND kind = 'status' AND "text" = 'cancelled'
    ORDER BY seq DESC LIMIT 1
) WHERE status = 'cancelled' AND completed_at IS NULL;
UPDATE {{s}}.tasks SET duration_ms = greatest(0, extract(epoch FROM completed_at::timestamptz - created_at::timestamptz) * 1000)
WHERE status = 'cancelled' AND duration_ms IS NULL AND runs <= 1;
UPDATE {{s}}.tasks t SET updated_at = (
    SELECT max(
        substr(x, 1, 19) || '.'
        || CASE WHEN substr(x, 20, 1) = '.' THEN substr(rtrim(substr(x, 21), 'Z') || '000', 1, 3) ELSE '000' END || 'Z'
    ) FROM (
        SELECT t.created_at AS x
        UNION ALL SELECT t.completed_at
        UNION ALL SELECT started_at FROM {{s}}.task_agents a WHERE a.task_id = t.id AND damaged = 0
        UNION ALL SELECT r.completed_at FROM {{s}}.task_runs r WHERE r.task_id = t.id
        UNION ALL SELECT "at" FROM {{s}}.task_events e WHERE e.task_id = t.id
    ) stated
);
CREATE INDEX idx_tasks_updated ON {{s}}.tasks (updated_at DESC NULLS LAST, id DESC);
"""
"""The latest time stated in a task's records, with milliseconds."""
_4_LOCKS: Final = f"INSERT INTO {{s}}.locks VALUES ('{BLOBS}'), ('{IMPORT}') ON CONFLICT DO NOTHING"
_5_EXACT: Final = "ALTER TABLE {s}.tasks ADD COLUMN exact integer NOT NULL DEFAULT 0"
MIGRATIONS: Final = (
    ("tables", _1_TABLES),
    ("registry", _2_REGISTRY),
    ("updated", _3_UPDATED),
    ("locks", _4_LOCKS),
    ("exact", _5_EXACT),
)
