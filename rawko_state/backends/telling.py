"""From what stands in a task's file, and in the draft of its running turn, to the events that tell it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from rawko_state.format.scan import Record, bounded
from rawko_state.format.values import write_time
from rawko_state.journal.reader import TaskReader
from rawko_state.model.entries import (
    Entry,
    Execution,
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
)
from rawko_state.model.events import Event
from rawko_state.model.state import TaskState

_KINDS_OF_PROGRESS: Final = frozenset({"warning", "error", "progress"})


def events_of(record: Record, state: TaskState, reader: TaskReader, task_id: str) -> tuple[list[Event], TaskState]:
    """What a record tells, and the state after it. The same for the same bytes, so a number of events is a place."""
    found: list[Event] = []

    def tell(kind: str, **more: Any) -> None:
        found.append(Event(task_id, "", kind, **more))

    if record.kind == "torn":
        tell("warning", text=f"{record.torn} bytes of an append that did not finish")
    if record.kind == "damaged":
        tell("error", text="a damaged record: its seal does not match")
    fetch = bounded(reader.fetch)
    for block in record.blocks:
        entry = block.entry(fetch)
        before = state
        state = state.apply_damaged(entry) if record.kind == "damaged" else state.apply(entry)
        if record.kind != "damaged":
            _tell_entry(tell, entry, before, state)
    return found, state


def _tell_entry(tell: Callable[..., None], entry: Entry, before: TaskState, state: TaskState) -> None:
    changed = state.status != before.status
    if isinstance(entry, TaskHeader):
        tell(
            "status",
            at=time_text(entry.created),
            text=state.status,
            data={"title": entry.title, "parent": str(entry.parent or "") or None},
        )
    elif isinstance(entry, Request):
        tell("request", at=time_text(entry.at), text=entry.text, data={"by": entry.by, "run": state.runs})
    elif isinstance(entry, Turn):
        _tell_turn(tell, entry)
        if changed:
            tell("status", turn=entry.number, text=state.status, data=_question(entry))
    elif isinstance(entry, Result):
        tell(
            "final",
            at=time_text(entry.completed),
            text=state.status,
            data={"summary": entry.summary, "error": entry.error, "duration_ms": entry.duration_ms, "by": entry.by},
        )
    elif isinstance(entry, (Resumed, Note)):
        if changed or isinstance(entry, Resumed):
            tell("status", at=time_text(entry.at), text=state.status, data={"by": entry.by, "reason": entry.reason})
        else:
            data = {"by": entry.by, "title": entry.title, "labels": dict(entry.labels), "pinned": entry.pinned}
            tell("note", at=time_text(entry.at), text=entry.content, data=data)
    elif isinstance(entry, Execution):
        if changed:
            tell("status", text=state.status)
    elif isinstance(entry, Unknown):
        tell("unknown", text=entry.marker)
    elif not isinstance(entry, Torn) and changed:
        tell("status", text=state.status)


def _tell_turn(tell: Callable[..., None], turn: Turn) -> None:
    started = time_text(turn.started)
    who: dict[str, Any] = {"turn": turn.number, "agent": turn.agent}
    for call in turn.tools:
        if isinstance(call, ToolCall):
            tell("tool", **who, text=call.tool, data={"of": started, **_call(call)})
    for step in turn.progress:
        if isinstance(step, Progress):
            kind = step.kind if step.kind in _KINDS_OF_PROGRESS else "progress"
            tell(kind, **who, text=step.text, data={"of": started, "time": step.time, "kind": step.kind})
    data: dict[str, Any] = {
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
        "by": turn.by,
        "answers": turn.answers,
        "files": [[file.operation, file.path] for file in turn.files if not isinstance(file, str)],
    }
    tell("turn", **who, at=started, text=turn.content, data=data)


def _call(call: ToolCall) -> dict[str, Any]:
    return {"args": call.args, "result": call.result, "time": call.time}


def _question(turn: Turn) -> dict[str, Any]:
    if turn.question is None:
        return {}
    asked = turn.question
    return {"question": asked.text, "choices": list(asked.choices), "default": asked.default, "kind": asked.kind}


def live_event(task_id: str, agent: str, line: dict[str, Any]) -> Event | None:
    """What one line of a draft tells."""
    kind = line.get("kind")
    event = Event(task_id, "", str(kind), agent=agent, live=True)
    if kind == "text":
        return replace(event, text=str(line.get("text", "")))
    if kind == "tool":
        data = {
            "args": line.get("args"),
            "result": line.get("result"),
            "time": line.get("time"),
            "key": line.get("key"),
        }
        return replace(event, text=str(line.get("tool", "")), data={**data, "running": bool(line.get("open"))})
    if kind == "tool_end":
        return replace(
            event, kind="tool", data={"key": line.get("key"), "result": line.get("result"), "running": False}
        )
    if kind == "progress":
        of = str(line.get("of", "progress"))
        kind = of if of in _KINDS_OF_PROGRESS else "progress"
        return replace(event, kind=kind, text=str(line.get("text", "")), data={"time": line.get("time"), "kind": of})
    if kind == "file":
        return replace(event, text=str(line.get("path", "")), data={"operation": line.get("operation")})
    return replace(event, data=line) if isinstance(kind, str) else None


def time_text(value: datetime | None) -> str | None:
    return None if value is None else write_time(value)
