"""The tables of ``index.db``, as Peewee models.

``tasks``, ``task_agents`` and ``task_files`` have the RFC's names, columns, types and indexes, plus more columns, so that SQL
written from the RFC runs unchanged. Times are text, as in the task file. Model classes are created per database, so that one
process can open two projects at once.
"""

from __future__ import annotations

from typing import Any

from rawko_state.index.orm import p
from rawko_state.model.frozen import Frozen


class Timestamp(p.TextField):
    """A time as written in the task file; the RFC's column type is TIMESTAMP."""

    field_type = "TIMESTAMP"


class Tables(Frozen):
    """One set of models, bound to one database."""

    tasks: Any
    agents: Any
    files: Any
    records: Any
    runs: Any
    events: Any
    snapshots: Any
    blobs: Any
    meta: Any

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of tasks that are derived from the files."""
        return tuple(name for name in self.tasks._meta.columns if name not in ("folded", "fold_base"))

    @property
    def derived(self) -> tuple[Any, ...]:
        """All tables that are rebuilt, in an order that satisfies the foreign keys."""
        return (self.tasks, self.agents, self.files, self.records, self.runs, self.events, self.snapshots, self.blobs)


def tables_for(db: p.Database, within: str | None = None) -> Tables:
    """Creates the models; ``within`` a schema, if the database has schemas."""

    class Bound(p.Model):
        class Meta:
            database = db
            schema = within
            legacy_table_names = False

    class Task(Bound):
        id = p.TextField(primary_key=True)
        created_at = Timestamp(null=True)
        completed_at = Timestamp(null=True)
        updated_at = Timestamp(null=True)
        """The latest time in the task's records."""
        status = p.TextField(null=True)
        duration_ms = p.IntegerField(null=True)
        request = p.TextField(null=True)
        result_summary = p.TextField(null=True)
        file_path = p.TextField(null=True)
        title = p.TextField(null=True)
        parent_id = p.TextField(null=True)
        parent_turn = p.IntegerField(null=True)
        agent = p.TextField(null=True)
        model = p.TextField(null=True)
        provider = p.TextField(null=True)
        repo = p.TextField(null=True)
        branch = p.TextField(null=True)
        commit = p.TextField(null=True)
        cwd = p.TextField(null=True)
        runtime = p.TextField(null=True)
        labels = p.TextField(null=True)
        user = p.TextField(null=True)
        source = p.TextField(null=True)
        extra = p.TextField(null=True)
        agents = p.TextField(null=True)
        error = p.TextField(null=True)
        pinned = p.IntegerField(default=0)
        detached = p.IntegerField(default=0)
        exact = p.IntegerField(default=0)
        turns = p.IntegerField(default=0)
        runs = p.IntegerField(default=0)
        question = p.IntegerField(null=True)
        selected = p.TextField(null=True)
        by_header = p.IntegerField(default=0)
        format = p.IntegerField(null=True)
        tokens_in = p.IntegerField(null=True)
        tokens_out = p.IntegerField(null=True)
        cost = p.TextField(null=True)
        damaged = p.IntegerField(default=0)
        torn_bytes = p.IntegerField(default=0)
        indexed_end = p.IntegerField(default=0)
        tail_offset = p.IntegerField(default=0)
        tail_seal = p.TextField(null=True)
        file_size = p.IntegerField(default=0)
        file_mtime_ns = p.IntegerField(default=0)
        folded = p.IntegerField(default=0)
        """The offset up to which the file is in the search index."""
        fold_base = p.IntegerField(default=0)
        """Which reading of the file that was. Neither column is derived from the file."""

        class Meta:
            table_name = "tasks"

    class Owned(Bound):
        task = p.ForeignKeyField(Task, column_name="task_id", on_delete="CASCADE", lazy_load=False, index=False)

    class Agent(Owned):
        turn = p.IntegerField(null=True)
        agent = p.TextField(null=True)
        status = p.TextField(null=True)
        duration_ms = p.IntegerField(null=True)
        tool_calls = p.IntegerField(null=True)
        run = p.IntegerField(default=0)
        selected = p.TextField(null=True)
        decision = p.TextField(null=True)
        reason = p.TextField(null=True)
        started_at = Timestamp(null=True)
        model = p.TextField(null=True)
        tokens = p.TextField(null=True)
        cost = p.TextField(null=True)
        by = p.TextField(null=True)
        answers = p.IntegerField(null=True)
        damaged = p.IntegerField(default=0)
        offset = p.IntegerField()
        length = p.IntegerField()

        class Meta:
            table_name = "task_agents"
            primary_key = p.CompositeKey("task", "offset")

    class File(Owned):
        file_path = p.TextField()
        operation = p.TextField()
        turn = p.IntegerField(default=0)

        class Meta:
            table_name = "task_files"
            primary_key = p.CompositeKey("task", "turn", "file_path", "operation")

    class Record(Owned):
        offset = p.IntegerField()
        length = p.IntegerField()
        kind = p.TextField()
        seal = p.TextField(null=True)
        parent = p.TextField(null=True)

        class Meta:
            table_name = "task_records"
            primary_key = p.CompositeKey("task", "offset")

    class Run(Owned):
        run = p.IntegerField()
        offset = p.IntegerField()
        status = p.TextField(null=True)
        request = p.TextField(null=True)
        by = p.TextField(null=True)
        first_turn = p.IntegerField(null=True)
        completed_at = Timestamp(null=True)
        duration_ms = p.IntegerField(null=True)
        summary = p.TextField(null=True)
        error = p.TextField(null=True)
        output = p.TextField(null=True)
        cost = p.TextField(null=True)

        class Meta:
            table_name = "task_runs"
            primary_key = p.CompositeKey("task", "run")

    class Event(Owned):
        seq = p.IntegerField()
        kind = p.TextField()
        at = Timestamp(null=True)
        turn = p.IntegerField(null=True)
        text = p.TextField(null=True)

        class Meta:
            table_name = "task_events"
            primary_key = p.CompositeKey("task", "seq")

    class Snapshot(Owned):
        turn = p.IntegerField()
        provider = p.TextField(null=True)
        ref = p.TextField(null=True)
        path = p.TextField(null=True)
        parent = p.TextField(null=True)
        metadata = p.TextField(null=True)

        class Meta:
            table_name = "snapshots"
            primary_key = p.CompositeKey("task", "turn")

    class Blob(Owned):
        sha256 = p.TextField()
        size = p.IntegerField()

        class Meta:
            table_name = "task_blobs"
            primary_key = p.CompositeKey("task", "sha256")

    class Meta(Bound):
        k = p.TextField(primary_key=True)
        v = p.TextField(null=True)

        class Meta:
            table_name = "index_meta"

    return Tables(Task, Agent, File, Record, Run, Event, Snapshot, Blob, Meta)
