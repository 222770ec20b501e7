"""The migrations that create the tables of ``index.db``.

The models in ``schema`` define the result, and a test compares the two. Migrations stand apart because opening an index needs no
model, only the number of the last migration.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from rawko_state.model.frozen import Frozen

APPLICATION_ID: Final = 0x7261776B  # "rawk"

# The RFC's schema, verbatim except for what SQLite needs to keep it in sync with the files.
_1_RFC_TABLES = """
CREATE TABLE tasks (
    id TEXT PRIMARY KEY,
    created_at TIMESTAMP,
    completed_at TIMESTAMP,
    status TEXT,
    duration_ms INTEGER,
    request TEXT,
    result_summary TEXT,
    file_path TEXT
);
CREATE TABLE task_agents (
    task_id TEXT,
    turn INTEGER,
    agent TEXT,
    status TEXT,
    duration_ms INTEGER,
    tool_calls INTEGER,
    FOREIGN KEY (task_id) REFERENCES tasks(id)
);
CREATE TABLE task_files (
    task_id TEXT,
    file_path TEXT,
    operation TEXT,
    FOREIGN KEY (task_id) REFERENCES tasks(id)
);
CREATE INDEX idx_tasks_created ON tasks(created_at);
CREATE INDEX idx_tasks_status ON tasks(status);
CREATE INDEX idx_task_files_path ON task_files(file_path);
"""

_TASK_COLUMNS = """
title TEXT, parent_id TEXT, parent_turn INTEGER, agent TEXT, model TEXT, provider TEXT, repo TEXT, branch TEXT, "commit" TEXT,
cwd TEXT, runtime TEXT, labels TEXT, user TEXT, source TEXT, extra TEXT, agents TEXT, error TEXT,
pinned INTEGER NOT NULL DEFAULT 0, detached INTEGER NOT NULL DEFAULT 0, turns INTEGER NOT NULL DEFAULT 0,
runs INTEGER NOT NULL DEFAULT 0, question INTEGER, selected TEXT, by_header INTEGER NOT NULL DEFAULT 0, format INTEGER,
tokens_in INTEGER, tokens_out INTEGER, cost TEXT, damaged INTEGER NOT NULL DEFAULT 0, torn_bytes INTEGER NOT NULL DEFAULT 0,
indexed_end INTEGER NOT NULL DEFAULT 0, tail_offset INTEGER NOT NULL DEFAULT 0, tail_seal TEXT,
file_size INTEGER NOT NULL DEFAULT 0, file_mtime_ns INTEGER NOT NULL DEFAULT 0
"""

# SQLite cannot add a primary key to a table, so the two are recreated; their rows come back from the task files.
_2_POSITIONS_AND_RUNS = """
DROP TABLE task_agents;
DROP TABLE task_files;
CREATE TABLE task_agents (
    task_id TEXT NOT NULL,
    turn INTEGER,
    agent TEXT,
    status TEXT,
    duration_ms INTEGER,
    tool_calls INTEGER,
    run INTEGER NOT NULL DEFAULT 0,
    selected TEXT, decision TEXT, reason TEXT, started_at TIMESTAMP, model TEXT, tokens TEXT, cost TEXT, by TEXT,
    answers INTEGER, damaged INTEGER NOT NULL DEFAULT 0,
    offset INTEGER NOT NULL,
    length INTEGER NOT NULL,
    PRIMARY KEY (task_id, offset),
    FOREIGN KEY (task_id) REFERENCES tasks(id) ON DELETE CASCADE
) WITHOUT ROWID;
CREATE TABLE task_files (
    task_id TEXT NOT NULL,
    file_path TEXT NOT NULL,
    operation TEXT NOT NULL,
    turn INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (task_id, turn, file_path, operation),
    FOREIGN KEY (task_id) REFERENCES tasks(id) ON DELETE CASCADE
) WITHOUT ROWID;
CREATE INDEX idx_task_files_path ON task_files(file_path);
CREATE INDEX idx_task_agents_agent ON task_agents(agent, task_id);
CREATE TABLE task_records (
    task_id TEXT NOT NULL REFERENCES tasks(id) ON DELETE CASCADE,
    offset INTEGER NOT NULL,
    length INTEGER NOT NULL,
    kind TEXT NOT NULL,
    seal TEXT,
    parent TEXT,
    PRIMARY KEY (task_id, offset)
) WITHOUT ROWID;
CREATE UNIQUE INDEX one_header_a_task ON task_records(task_id) WHERE parent IS NULL AND kind = 'sealed';
CREATE UNIQUE INDEX one_child_a_record ON task_records(task_id, parent) WHERE parent IS NOT NULL;
CREATE TABLE task_runs (
    task_id TEXT NOT NULL REFERENCES tasks(id) ON DELETE CASCADE,
    run INTEGER NOT NULL,
    offset INTEGER NOT NULL,
    status TEXT, request TEXT, by TEXT, first_turn INTEGER, completed_at TIMESTAMP, duration_ms INTEGER, summary TEXT,
    error TEXT, output TEXT,
    PRIMARY KEY (task_id, run)
) WITHOUT ROWID;
CREATE TABLE task_events (
    task_id TEXT NOT NULL REFERENCES tasks(id) ON DELETE CASCADE,
    seq INTEGER NOT NULL,
    kind TEXT NOT NULL,
    at TIMESTAMP, turn INTEGER, text TEXT,
    PRIMARY KEY (task_id, seq)
) WITHOUT ROWID;
CREATE TABLE snapshots (
    task_id TEXT NOT NULL REFERENCES tasks(id) ON DELETE CASCADE,
    turn INTEGER NOT NULL,
    provider TEXT, ref TEXT, path TEXT, parent TEXT, metadata TEXT,
    PRIMARY KEY (task_id, turn)
) WITHOUT ROWID;
CREATE TABLE index_meta (k TEXT PRIMARY KEY, v TEXT) WITHOUT ROWID;
CREATE INDEX idx_tasks_status_created ON tasks(status, created_at);
CREATE INDEX idx_tasks_parent ON tasks(parent_id) WHERE parent_id IS NOT NULL;
DELETE FROM tasks;
"""


class Migration(Frozen):
    """``N__description``: from version N - 1 to N."""

    number: int
    description: str
    apply: Callable[[Any], None]


def _rfc_tables(connection: Any) -> None:
    _run(connection, _1_RFC_TABLES)


def _positions_and_runs(connection: Any) -> None:
    for column in _TASK_COLUMNS.replace("\n", " ").split(","):
        connection.execute(f"ALTER TABLE tasks ADD COLUMN {column.strip()}")
    _run(connection, _2_POSITIONS_AND_RUNS)


def _run(connection: Any, script: str) -> None:
    """Runs one statement at a time: executescript() would commit the transaction that the migration runs in."""
    for statement in script.split(";\n"):
        if statement.strip():
            connection.execute(statement)


_3_FOLDED = """
ALTER TABLE tasks ADD COLUMN folded INTEGER NOT NULL DEFAULT 0;
ALTER TABLE tasks ADD COLUMN fold_base INTEGER NOT NULL DEFAULT 0;
CREATE INDEX idx_tasks_tail ON tasks(id) WHERE indexed_end > folded;
"""


def _folded(connection: Any) -> None:
    _run(connection, _3_FOLDED)


# Which tasks refer to which long outputs. The rows come from the task files, which are all read again.
_4_BLOBS = """
CREATE TABLE task_blobs (
    task_id TEXT NOT NULL REFERENCES tasks(id) ON DELETE CASCADE,
    sha256 TEXT NOT NULL,
    size INTEGER NOT NULL,
    PRIMARY KEY (task_id, sha256)
) WITHOUT ROWID;
CREATE INDEX idx_task_blobs_sha256 ON task_blobs(sha256);
DELETE FROM tasks;
DELETE FROM index_meta WHERE k = 'tasks_stamp';
"""


def _blobs(connection: Any) -> None:
    _run(connection, _4_BLOBS)


# The latest time in the records of a task, with milliseconds, taken from existing rows. Only the files of tasks that were
# cancelled by a note are read again, because the note now sets their end time.
_5_UPDATED = """
ALTER TABLE tasks ADD COLUMN updated_at TIMESTAMP;
DELETE FROM tasks WHERE status = 'cancelled' AND completed_at IS NULL;
DELETE FROM index_meta WHERE k = 'tasks_stamp';
UPDATE tasks SET updated_at = (
    SELECT max(
        substr(x, 1, 19) || '.'
        || CASE WHEN substr(x, 20, 1) = '.' THEN substr(rtrim(substr(x, 21), 'Z') || '000', 1, 3) ELSE '000' END || 'Z'
    ) FROM (
        SELECT tasks.created_at AS x
        UNION ALL SELECT tasks.completed_at
        UNION ALL SELECT started_at FROM task_agents WHERE task_id = tasks.id AND damaged = 0
        UNION ALL SELECT completed_at FROM task_runs WHERE task_id = tasks.id
        UNION ALL SELECT at FROM task_events WHERE task_id = tasks.id
    )
);
CREATE INDEX idx_tasks_updated ON tasks(updated_at);
"""


def _updated(connection: Any) -> None:
    _run(connection, _5_UPDATED)


def _sources(connection: Any) -> None:
    """open_task() looks up a source each time it is called."""
    _run(connection, "CREATE INDEX idx_tasks_source ON tasks(source) WHERE source IS NOT NULL;")


def _exact(connection: Any) -> None:
    _run(connection, "ALTER TABLE tasks ADD COLUMN exact INTEGER NOT NULL DEFAULT 0;")


_8_MODELS = """
UPDATE tasks SET model = (
    SELECT model FROM task_agents WHERE task_id = tasks.id AND model <> '' AND damaged = 0 ORDER BY turn LIMIT 1
) WHERE model IS NULL;
"""


def _models(connection: Any) -> None:
    """The model of a task is that of its first turn, if its header names none."""
    _run(connection, _8_MODELS)


# What the result of a run states of its cost. Only the files of tasks that state a cost are read again.
_9_COSTS_OF_RUNS = """
ALTER TABLE task_runs ADD COLUMN cost TEXT;
DELETE FROM tasks WHERE cost IS NOT NULL;
DELETE FROM index_meta WHERE k = 'tasks_stamp';
"""


def _costs_of_runs(connection: Any) -> None:
    _run(connection, _9_COSTS_OF_RUNS)


MIGRATIONS: Final = (
    Migration(1, "rfc_tables", _rfc_tables),
    Migration(2, "positions_and_runs", _positions_and_runs),
    Migration(3, "folded", _folded),
    Migration(4, "blobs", _blobs),
    Migration(5, "updated", _updated),
    Migration(6, "sources", _sources),
    Migration(7, "exact", _exact),
    Migration(8, "models", _models),
    Migration(9, "costs_of_runs", _costs_of_runs),
)
VERSION: Final = MIGRATIONS[-1].number
