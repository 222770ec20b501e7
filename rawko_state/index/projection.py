"""Converts records to rows, for live writes, catching up and reindexing alike.

A Projector owns the row of one task and is fed its records in file order. Its whole state is in that row, so it can stop after
any record and be recreated from the database.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any, Final, NamedTuple

from rawko_state.format.events import RecordEvent, damaged_event, entry_events, torn_event
from rawko_state.format.scan import Fetch, Record, bounded
from rawko_state.format.seal import GENESIS
from rawko_state.format.values import read_json, read_label_lines, read_time, write_exact_time, write_labels, write_time
from rawko_state.late import late
from rawko_state.model.appended import LocatedBlock
from rawko_state.model.entries import (
    IN_CONTEXT,
    MEMORY,
    Execution,
    Money,
    Note,
    Parent,
    Request,
    Result,
    TaskHeader,
    Torn,
    Turn,
    blobs_of,
    touched,
)
from rawko_state.model.state import TaskState

# How many characters of long texts are kept; the file has the rest.
SHORT: Final = 2_000
_LISTED_AGENTS: Final = 20
_LARGEST: Final = 2**63 - 1
SECTIONS: Final = frozenset(
    f"[{name}{json}]".encode() for name in ("Tool Log", "Diff", "Files", "Output", "Snapshot") for json in ("", " json")
)
"""The sections that rows are built from; the others are not even decoded."""

_STAMP = late(r"([0-9]{4}-[0-9]{2}-[0-9]{2})T([0-9]{2})-([0-9]{2})-([0-9]{2})-[0-9A-Za-z]+\.task")

_BELIEVED: Final = (TaskHeader, Request, Execution)
"""Blocks that are trusted even in a damaged record; see TaskState.apply_damaged."""

Row = dict[str, Any]


class LocatedRecord(NamedTuple):
    """A record as the projection sees it: its content and its position."""

    kind: str
    offset: int
    length: int
    seal: str | None
    parent: str | None
    torn: int
    blocks: tuple[LocatedBlock, ...]

    @property
    def end(self) -> int:
        return self.offset + self.length


def located(record: Record, fetch: Fetch) -> LocatedRecord:
    """A record that was read from a file. ``fetch`` reads the parts that were too large to keep in the record."""
    some = bounded(fetch)
    blocks = tuple(
        LocatedBlock(block.entry(some, only=SECTIONS), block.offset, block.length) for block in record.blocks
    )
    return LocatedRecord(record.kind, record.offset, record.length, record.seal, record.parent, record.torn, blocks)


@dataclass(slots=True)
class NewRows:
    """New rows, by table. The task's own row is in the projector."""

    agents: list[Row] = field(default_factory=list)
    files: list[Row] = field(default_factory=list)
    records: list[Row] = field(default_factory=list)
    runs: list[Row] = field(default_factory=list)
    events: list[Row] = field(default_factory=list)
    snapshots: list[Row] = field(default_factory=list)
    blobs: list[Row] = field(default_factory=list)
    run_updates: list[Row] = field(default_factory=list)


class Projector:
    def __init__(self, task_id: str, file_path: str, row: Row | None = None) -> None:
        self.row: Row = dict(row) if row is not None else {"id": task_id, "file_path": file_path, **_EMPTY}
        self.saved: Row | None = dict(row) if row is not None else None
        """The row as stored in the database."""
        self._state = _state_of(self.row)
        self._kept: TaskState | None = None
        self._seen: set[str] = set((self.row["agents"] or "").split("\n")) if self.row["agents"] else set()

    @property
    def end(self) -> int:
        return int(self.row["indexed_end"])

    @property
    def state(self) -> TaskState:
        return self._state

    def take(self, record: LocatedRecord) -> NewRows:
        """The rows of one more record. A torn tail has none: it is an append in progress, or one that failed."""
        rows = NewRows()
        if record.kind == "tail":
            return rows
        row, damaged = self.row, record.kind == "damaged"
        parent = None if record.parent in (None, GENESIS) else record.parent
        rows.records.append(
            {"task_id": row["id"], "offset": record.offset, "length": record.length, "kind": record.kind}
            | {"seal": record.seal, "parent": parent}
        )
        if record.kind == "torn":
            row["torn_bytes"] += record.torn
            self._event(rows, record.offset, torn_event(record.torn))
        if damaged:
            row["damaged"] += 1
            self._event(rows, record.offset, damaged_event())
        for placed in record.blocks:
            if isinstance(placed.entry, Turn):
                self._turn(rows, placed, placed.entry, damaged)
            elif not isinstance(placed.entry, Torn) and (not damaged or isinstance(placed.entry, _BELIEVED)):
                self._other(rows, placed)
            elif damaged:
                self._state = self._state.apply_damaged(placed.entry)
        if self._state.runs and self._state.status != row["status"]:
            key = {"task_id": row["id"], "run": self._state.runs}
            rows.run_updates.append({**key, "status": _safe(self._state.status, SHORT)})
        self._keep_state()
        row["indexed_end"], row["tail_offset"] = record.end, record.offset
        row["tail_seal"] = record.seal
        return rows

    def _turn(self, rows: NewRows, placed: LocatedBlock, turn: Turn, damaged: bool) -> None:
        row = self.row
        rows.agents.append(
            {
                "task_id": row["id"],
                "turn": turn.number,
                "agent": _safe(turn.agent, SHORT),
                "status": _safe(turn.status, SHORT),
                "duration_ms": _int(turn.duration_ms),
                "tool_calls": len(turn.tools) or None if turn.tool_calls is None else turn.tool_calls,
                "run": self._state.runs,
                "selected": _safe(turn.selected, SHORT),
                "decision": _safe(turn.decision, SHORT),
                "reason": _safe(turn.reason, SHORT),
                "started_at": _time(turn.started),
                "model": _safe(turn.model, SHORT),
                "tokens": json.dumps(dict(turn.tokens)) if turn.tokens else None,
                "cost": _money(turn.cost),
                "by": _safe(turn.by, SHORT),
                "answers": turn.answers,
                "damaged": int(damaged),
                "offset": placed.offset,
                "length": placed.length,
            }
        )
        for blob in blobs_of(turn):
            rows.blobs.append({"task_id": row["id"], "sha256": blob.sha256, "size": _int(blob.size)})
        if damaged:
            self._state = self._state.apply_damaged(turn)
            return
        self._apply(rows, placed)
        for file in touched(turn):
            self._file(rows, turn.number, file.path, file.operation)
        for snapshot in (section for section in turn.sections if section.heading == "Snapshot"):
            self._snapshot(rows, turn.number, snapshot.text)
        self._add_agent(turn.agent)
        row["model"] = row["model"] or _safe(turn.model, SHORT)
        self._used(turn)

    def _other(self, rows: NewRows, placed: LocatedBlock) -> None:
        entry, row, at = placed.entry, self.row, placed.offset
        state = self._apply(rows, placed)
        if isinstance(entry, TaskHeader):
            self._header(entry)
        elif isinstance(entry, Request):
            text = _safe(entry.text, SHORT)
            if row["request"] is None:
                row["request"] = text
            run: Row = {"task_id": row["id"], "run": state.runs, "offset": at, "status": state.status, "request": text}
            rows.runs.append({**_EMPTY_RUN, **run, "by": _safe(entry.by, SHORT), "first_turn": state.turns + 1})
        elif isinstance(entry, Result):
            self._result(rows, entry)
        elif isinstance(entry, Note) and entry.source is not None:
            row["source"] = _with_source(row["source"], _safe(entry.source, SHORT))

    def _apply(self, rows: NewRows, placed: LocatedBlock) -> TaskState:
        """Applies the block to the state and adds its events."""
        before = self._state
        self._state = before.apply(placed.entry)
        for event in entry_events(placed.entry, before, self._state, stored=True):
            self._event(rows, placed.offset, event)
        return self._state

    def _used(self, entry: Turn | Result) -> None:
        row = self.row
        row["tokens_in"] = _plus(row["tokens_in"], entry.tokens.get("in"))
        row["tokens_out"] = _plus(row["tokens_out"], entry.tokens.get("out"))
        if entry.cost is not None and entry.cost.currency == "USD":
            row["cost"] = f"{_decimal(row['cost']) + entry.cost.amount:f}"

    def _header(self, header: TaskHeader) -> None:
        row = self.row
        for name in ("agent", "model", "provider", "repo", "branch", "commit", "cwd", "runtime", "user", "source"):
            row[name] = _safe(getattr(header, name), SHORT)
        extra = {field.name: field.value[:SHORT] for field in header.extra[:100]}
        row["extra"] = _safe(json.dumps(extra)) if extra else None

    def _result(self, rows: NewRows, result: Result) -> None:
        row = self.row
        self._used(result)
        row["result_summary"], row["error"] = _safe(result.summary, SHORT), _safe(result.error, SHORT)
        for path in result.files_modified:
            self._file(rows, 0, path, "write")
        done: Row = {"task_id": row["id"], "run": self._state.runs}
        done |= {"completed_at": _time(result.completed), "duration_ms": _int(result.duration_ms)}
        done |= {"summary": row["result_summary"], "error": row["error"]}
        done |= {"cost": cost} if (cost := _money(result.cost)) is not None else {}
        rows.run_updates.append({**done, "output": None if result.output is None else _safe(json.dumps(result.output))})

    def _event(self, rows: NewRows, seq: int, event: RecordEvent) -> None:
        """The sequence number is the offset in the file, so it is the same after every rebuild. The text of a note stays in the
        file; its row has its purpose: part of the conversation, or of the task's memory."""
        text = _purpose(event) if event.kind == "note" else _safe(event.text, SHORT)
        key = {"task_id": self.row["id"], "seq": seq, "kind": event.kind}
        rows.events.append({**key, "at": event.at, "turn": event.turn, "text": text})

    def _file(self, rows: NewRows, turn: int, path: str, operation: str) -> None:
        rows.files.append({"task_id": self.row["id"], "file_path": _safe(path), "operation": operation, "turn": turn})

    def _snapshot(self, rows: NewRows, turn: int, text: str) -> None:
        data = read_json(text)
        if isinstance(data, dict):
            known = {name: _text_or_json(data.get(name)) for name in ("provider", "ref", "path", "parent", "metadata")}
            rows.snapshots.append({"task_id": self.row["id"], "turn": turn, **known})

    def _add_agent(self, agent: str) -> None:
        name = _safe(agent) or ""
        if name not in self._seen and len(self._seen) < _LISTED_AGENTS:
            self._seen.add(name)
            self.row["agents"] = f"{self.row['agents']}\n{name}" if self.row["agents"] else name

    def _keep_state(self) -> None:
        """Copies the state to the row. Every part has its column, so that the next projector starts where this one ended. Most
        records change little, so only what differs is copied."""
        row, state, before = self.row, self._state, self._kept
        for part, columns in _COLUMNS_OF.items():
            value = getattr(state, part)
            if before is None or value is not getattr(before, part):
                for column, shown in columns:
                    row[column] = shown(value)
        if row["created_at"] is None:
            row["created_at"] = _stamp(row["file_path"])
        if row["updated_at"] is None:
            created = read_time(row["created_at"] or "")
            row["updated_at"] = None if created is None else write_exact_time(created)
        self._kept = state


_NOTHING: Final = (
    "created_at", "completed_at", "updated_at", "status", "duration_ms", "request", "result_summary", "title", "parent_id",
    "parent_turn", "agent", "model", "provider", "repo", "branch", "commit", "cwd", "runtime", "labels", "user", "source",
    "extra", "agents", "error", "question", "selected", "format", "tokens_in", "tokens_out", "cost", "tail_seal",
)  # fmt: skip
_ZERO: Final = (
    "pinned", "detached", "exact", "turns", "runs", "by_header", "damaged", "torn_bytes", "indexed_end", "tail_offset",
    "file_size", "file_mtime_ns",
)  # fmt: skip
_EMPTY: Final[Row] = {**dict.fromkeys(_NOTHING), **dict.fromkeys(_ZERO, 0)}
_EMPTY_RUN: Final[Row] = dict.fromkeys(("completed_at", "duration_ms", "summary", "error", "output", "cost"))


def _state_of(row: Row) -> TaskState:
    """Restores the state that _keep_state() stored in the row."""
    return TaskState(
        id=row["id"],
        created=read_time(row["created_at"]) if row["created_at"] else None,
        format=row["format"],
        status=row["status"] or "pending",
        duration_ms=row["duration_ms"],
        completed=read_time(row["completed_at"]) if row["completed_at"] else None,
        updated=read_time(row["updated_at"]) if row["updated_at"] else None,
        turns=row["turns"],
        runs=row["runs"],
        title=row["title"],
        labels=read_label_lines(row["labels"]),
        pinned=bool(row["pinned"]),
        parent=Parent(row["parent_id"], row["parent_turn"]) if row["parent_id"] else None,
        detached=bool(row["detached"]),
        exact=bool(row["exact"]),
        question=row["question"],
        selected=row["selected"],
        by_header=bool(row["by_header"]),
    )


def _purpose(note: RecordEvent) -> str | None:
    kind = note.data["kind"]
    return kind if kind in MEMORY else IN_CONTEXT if note.data["context"] == IN_CONTEXT else None


def _with_source(known: str | None, more: str | None) -> str | None:
    """The sessions that a task records, one per line, the first one first."""
    listed = known.split("\n") if known else []
    return known if more is None or more in listed else "\n".join([*listed, more])


def labels_text(labels: Mapping[str, str]) -> str | None:
    """One label per line, with a newline at both ends, so that a text search finds labels and no value can pose as one."""
    lines = [write_labels({name: value}) for name, value in labels.items()]
    return _safe("\n" + "\n".join(lines) + "\n") if lines else None


def _safe(text: str | None, limit: int = 0) -> str | None:
    """Text for a column: without NUL and lone surrogates, which some databases reject. The file keeps them."""
    if text is None:
        return None
    if limit and len(text) > limit:
        text = text[:limit]
    if text.isascii() and "\x00" not in text:
        return text
    return text.replace("\x00", "\N{SYMBOL FOR NULL}").encode("utf-8", "replace").decode()


def _stamp(file_path: str) -> str | None:
    """The time of creation from the file name, if the header has none."""
    match = _STAMP.search(file_path)
    return f"{match[1]}T{match[2]}:{match[3]}:{match[4]}Z" if match else None


def _time(value: Any) -> str | None:
    return None if value is None else write_time(value)


def _plus(total: int | None, more: int | None) -> int | None:
    return total if more is None else _int((total or 0) + more)


def _int(value: int | None) -> int | None:
    """Limits a number to the range of a database integer; the file keeps the exact value."""
    return value if value is None or value <= _LARGEST else _LARGEST


def _money(cost: Money | None) -> str | None:
    return None if cost is None else f"{cost.amount:f} {cost.currency}"


def _decimal(text: str | None) -> Decimal:
    try:
        return Decimal(text or 0)
    except InvalidOperation:
        return Decimal(0)


def _text_or_json(value: Any) -> str | None:
    return _safe(value if value is None or isinstance(value, str) else json.dumps(value), SHORT)


@dataclass(slots=True)
class Bulk:
    """The rows of many tasks as plain values, by table: cheap to send between processes."""

    ids: list[str] = field(default_factory=list)
    tables: dict[str, tuple[tuple[str, ...], list[tuple[Any, ...]]]] = field(default_factory=dict)
    run_updates: list[Row] = field(default_factory=list)

    def add(self, projector: Projector, rows: NewRows) -> None:
        self._add("tasks", [projector.row])
        for name, table in _TABLES:
            self._add(table, getattr(rows, name))
        self.run_updates += rows.run_updates

    def _add(self, table: str, rows: list[Row]) -> None:
        if rows:
            _, values = self.tables.setdefault(table, (tuple(rows[0]), []))
            values.extend(tuple(row.values()) for row in rows)


_TABLES: Final = (
    ("agents", "task_agents"),
    ("files", "task_files"),
    ("records", "task_records"),
    ("runs", "task_runs"),
    ("events", "task_events"),
    ("snapshots", "snapshots"),
    ("blobs", "task_blobs"),
)


def merged(parts: list[NewRows]) -> NewRows:
    """The rows of all records of a file."""
    whole = NewRows()
    for part in parts:
        for name, _ in _TABLES:
            getattr(whole, name).extend(getattr(part, name))
        whole.run_updates += part.run_updates
    return whole


def _text(value: str | None) -> str | None:
    return _safe(value, SHORT)


# Maps each part of a task's state to its columns and how to write them. _state_of() reads them back.
_COLUMNS_OF: Final[dict[str, tuple[tuple[str, Callable[[Any], Any]], ...]]] = {
    "status": (("status", _text),),
    "duration_ms": (("duration_ms", _int),),
    "created": (("created_at", _time),),
    "completed": (("completed_at", _time),),
    "updated": (("updated_at", lambda value: None if value is None else write_exact_time(value)),),
    "title": (("title", _text),),
    "pinned": (("pinned", int),),
    "detached": (("detached", int),),
    "exact": (("exact", int),),
    "labels": (("labels", labels_text),),
    "parent": (
        ("parent_id", lambda parent: parent.task if parent else None),
        ("parent_turn", lambda parent: parent.turn if parent else None),
    ),
    "turns": (("turns", int),),
    "runs": (("runs", int),),
    "question": (("question", _int),),
    "selected": (("selected", _text),),
    "by_header": (("by_header", int),),
    "format": (("format", _int),),
}
