"""The rows of one workspace in PostgreSQL, and the migrations that make its tables."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final

from rawko_state.backends.postgres.connection import BLOBS, IMPORT, Postgres, mapped
from rawko_state.index.projection import NewRows, Projector, Row
from rawko_state.index.rows import Condition, TaskDatabase
from rawko_state.index.schema import Tables, tables_for

if TYPE_CHECKING:
    import psycopg

_LONGEST: Final = 2_000


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

    def unindexed(self, column: str) -> str:
        """PostgreSQL knows how common each value is, and chooses by that."""
        return column

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
_6_MODELS: Final = """
UPDATE {s}.tasks t SET model = (
    SELECT model FROM {s}.task_agents a WHERE a.task_id = t.id AND model <> '' AND damaged = 0 ORDER BY turn LIMIT 1
) WHERE model IS NULL
"""
"""The model of a task is that of its first turn, if its header names none."""
_7_COSTS_OF_RUNS: Final = f"""
ALTER TABLE {{s}}.task_runs ADD COLUMN cost {_TEXT};
UPDATE {{s}}.task_runs r SET cost = told.cost || ' USD' FROM (
    SELECT t.id, t.cost::numeric - coalesce((
        SELECT sum(split_part(a.cost, ' ', 1)::numeric) FROM {{s}}.task_agents a WHERE a.task_id = t.id AND a.cost LIKE '% USD'
    ), 0) AS cost FROM {{s}}.tasks t WHERE t.cost IS NOT NULL
) told
WHERE told.id = r.task_id AND told.cost > 0.0000000001 AND r.run = (
    SELECT max(run) FROM {{s}}.task_runs WHERE task_id = r.task_id AND completed_at IS NOT NULL
)
"""
"""What the result of a run states of its cost. Of several runs of a task, the last one has it all."""
MIGRATIONS: Final = (
    ("tables", _1_TABLES),
    ("registry", _2_REGISTRY),
    ("updated", _3_UPDATED),
    ("locks", _4_LOCKS),
    ("exact", _5_EXACT),
    ("models", _6_MODELS),
    ("costs_of_runs", _7_COSTS_OF_RUNS),
)
