"""Converts records to events. Followers and the event rows of the index share this one definition."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any, Final, NamedTuple

from rawko_state.format.values import write_time
from rawko_state.model.entries import (
    Entry,
    Note,
    Progress,
    Request,
    Result,
    Resumed,
    TaskHeader,
    ToolCall,
    Torn,
    Turn,
    Unknown,
    said_by,
)
from rawko_state.model.state import TaskState

KINDS_OF_PROGRESS: Final = frozenset({"warning", "error", "progress"})


class RecordEvent(NamedTuple):
    """An event without a cursor."""

    kind: str
    at: str | None = None
    turn: int | None = None
    agent: str | None = None
    text: str | None = None
    data: dict[str, Any] = {}  # noqa: RUF012 - never written to


def torn_event(length: int) -> RecordEvent:
    return RecordEvent("warning", text=f"{length} bytes of an append that did not finish")


def damaged_event() -> RecordEvent:
    return RecordEvent("error", text="Damaged record: it was changed after it was written.")


def entry_events(entry: Entry, before: TaskState, after: TaskState, *, stored: bool = False) -> Iterator[RecordEvent]:
    """The events of one block, given the task's state before and after it. ``stored``: only those that the index keeps in event
    rows; turns and requests have rows of their own."""
    changed = after.status != before.status
    data: dict[str, Any]
    if isinstance(entry, TaskHeader):
        data = {"title": entry.title, "parent": str(entry.parent or "") or None}
        yield RecordEvent("status", time_text(entry.created), text=after.status, data=data)
    elif isinstance(entry, Request):
        if not stored:
            yield RecordEvent(
                "request", time_text(entry.at), text=entry.text, data={"by": said_by(entry), "run": after.runs}
            )
    elif isinstance(entry, Turn):
        if not stored:
            yield from _turn_events(entry)
        if changed:
            yield RecordEvent(
                "status", time_text(entry.started), entry.number, text=after.status, data=_question(entry)
            )
    elif isinstance(entry, Result):
        data = {"summary": entry.summary, "error": entry.error, "duration_ms": entry.duration_ms, "by": entry.by}
        yield RecordEvent("final", time_text(entry.completed), text=after.status, data=data)
    elif isinstance(entry, (Resumed, Note)):
        if changed or isinstance(entry, Resumed):
            data = {"by": entry.by, "reason": entry.reason}
            yield RecordEvent("status", time_text(entry.at), text=after.status, data=data)
        else:
            data = {"by": entry.by, "title": entry.title, "labels": dict(entry.labels), "pinned": entry.pinned}
            data |= {"kind": entry.kind, "context": entry.context}
            yield RecordEvent("note", time_text(entry.at), text=entry.content, data=data)
    elif isinstance(entry, Unknown):
        yield RecordEvent("unknown", text=entry.marker)
    elif changed and not isinstance(entry, Torn):
        yield RecordEvent("status", time_text(before.updated), text=after.status)


def _turn_events(turn: Turn) -> Iterator[RecordEvent]:
    started = time_text(turn.started)
    who = (turn.number, turn.agent)
    data: dict[str, Any]
    for call in turn.tools:
        if isinstance(call, ToolCall):
            data = {"of": started, "args": call.args, "result": call.result, "time": call.time}
            yield RecordEvent("tool", _at(turn.started, call.time), *who, call.tool, data)
    for step in turn.progress:
        if isinstance(step, Progress):
            kind = step.kind if step.kind in KINDS_OF_PROGRESS else "progress"
            data = {"of": started, "time": step.time, "kind": step.kind}
            yield RecordEvent(kind, _at(turn.started, step.time), *who, step.text, data)
    data = {
        "started": started,
        "status": turn.status,
        "duration_ms": turn.duration_ms,
        "model": turn.model,
        "tokens": dict(turn.tokens),
        "cost": None if turn.cost is None else f"{turn.cost.amount:f} {turn.cost.currency}",
        "tool_calls": len(turn.tools) if turn.tool_calls is None else turn.tool_calls,
        "selected": turn.selected,
        "decision": turn.decision,
        "reason": turn.reason,
        "by": said_by(turn),
        "answers": turn.answers,
        "files": [[file.operation, file.path] for file in turn.files if not isinstance(file, str)],
    }
    yield RecordEvent("turn", started, *who, turn.content, data)


def _at(started: datetime | None, clock: str | None) -> str | None:
    """The full time of a log line in a turn; the log has only hours, minutes and seconds."""
    if started is None or clock is None:
        return time_text(started)
    started = started.astimezone(timezone.utc)
    try:
        hour, minute, second = map(int, clock.split(":"))
        found = started.replace(hour=hour, minute=minute, second=second, microsecond=0)
        # Past midnight. The log has no fractions, so a time slightly before the start is not on the next day.
        return time_text(found + timedelta(days=1) if started - found > timedelta(hours=1) else found)
    except (ValueError, OverflowError):
        return time_text(started)


def _question(turn: Turn) -> dict[str, Any]:
    if turn.question is None:
        return {}
    asked = turn.question
    return {"question": asked.text, "choices": list(asked.choices), "default": asked.default, "kind": asked.kind}


def time_text(value: datetime | None) -> str | None:
    return None if value is None else write_time(value)
