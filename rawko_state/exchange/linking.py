"""Sessions that a task recorded while they ran, so that an import does not bring them in again."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Final, NamedTuple

from rawko_state.errors import TaskNotFound
from rawko_state.exchange.transcript import Session
from rawko_state.exchange.turns import IMPORTED
from rawko_state.format.values import read_time
from rawko_state.late import late
from rawko_state.model.entries import Json, Note, Request, ToolCall, Turn
from rawko_state.model.status import INTERRUPTED
from rawko_state.store.contract import Store
from rawko_state.tasks.task import Task

LINKED: Final = "session"
"""The kind of the note that names the session a task records."""
_UUID = late(r'"uuid": ?"([0-9a-f-]{36})"')
_ROUNDED: Final = timedelta(seconds=1)
"""Times in task files may be rounded down to seconds."""


def link(store: Store, task: Task, source: str) -> str | None:
    """Notes in a task which session it records. Returns another task that has recorded the session before, if there is one."""
    with store.import_lock():
        earlier = store.by_source(source).get(source)
        task.add([_link(source)])
    return earlier if earlier != task.id else None


class Progress(NamedTuple):
    """How far a task has recorded one of its sessions."""

    own: Mapping[str, Json] | None
    """The place, and how the session stood there. None if no import has noted it."""
    beside: Mapping[str, Json]
    """What each further note must say, so that the places in the task's other sessions are not lost."""


def progress(store: Store, task_id: str, session: Session) -> Progress:
    """Reads the last note of an import. It tells of one session, and of the places in all others."""
    note = store.last_note(task_id, IMPORTED)
    data = note.data if note is not None and isinstance(note.data, dict) else None
    me, first = _source(session), store.source(task_id)
    if data is None:
        return Progress(None if note is None else {}, {} if me == first else {"session": me, "others": {}})
    told = data.get("session") or first
    others = data.get("others")
    places = dict(others) if isinstance(others, dict) else {}
    own = data if told == me else places.pop(me, None)
    if told != me and isinstance(told, str):
        places[told] = {name: data[name] for name in ("place", "mark") if name in data}
    beside = {"session": me, "others": places} if places or me != first else {}
    return Progress(own if isinstance(own, dict) else None, beside)


def _source(session: Session) -> str:
    return f"{session.source}:{session.key}"


def mark_recorded(store: Store, task_id: str, session: Session, *, place: int | None = None) -> None:
    """Notes that everything in a session so far is recorded, in this task or in one that went on with it; or all up to a place.
    Makes the session one of the task's own."""
    place = session.end() if place is None else place
    beside = progress(store, task_id, session).beside
    link = [] if _source(session) in store.by_source(_source(session)) else [_link(_source(session))]
    with store.attach(task_id) as task:
        data = {"place": place, **session.marked(place), **beside}
        task.add([*link, Note(kind=IMPORTED, context="out", data=data)])


def _link(source: str) -> Note:
    return Note(kind=LINKED, context="out", source=source)


def recorded_until(store: Store, task_id: str, session: Session) -> int:
    """The place in a session up to which a task has recorded it as it ran: by the ids of its records and calls, else by times.
    A turn that was cut off has no records, only what had been said and begun."""
    records, calls, cut_off, turns = set[str](), set[object](), "", 0
    for _, entry in store.entries(task_id):
        if isinstance(entry, Turn):
            turns += 1
            records.update(_UUID.findall(entry.payload or ""))
            calls.update(call.more.get("id") for call in entry.tools if isinstance(call, ToolCall))
            cut_off = entry.content or "" if entry.status == INTERRUPTED else ""
    updated = store.summary(task_id).updated
    last = read_time(updated) if updated else None
    by_id = by_time = 0
    is_next = False
    """Whether nothing has been said since the last place that is known by an id."""
    for place, step in session.steps(0, []):
        found = _UUID.search(step.raw)
        if (found is not None and found[1] in records) or any(call.id in calls for call in step.calls):
            by_id, is_next = place, True
        elif step.turn is not None or step.prompt is not None:
            is_next = is_next and bool(step.text) and str(step.text) in cut_off and not step.calls
            by_id = place if is_next else by_id
        if last is not None and step.at is not None and step.at <= last + _ROUNDED:
            by_time = place
    return by_id or (by_time if turns else 0)


def latest_session(store: Store, task_id: str) -> str | None:
    """The source of the session that has all that a task has: the last one that was recorded, unless turns came after it."""
    first = current = store.source(task_id)
    is_behind = has_note = False
    for _, entry in store.entries(task_id):
        if isinstance(entry, Note) and entry.kind == IMPORTED:
            data = entry.data if isinstance(entry.data, dict) else {}
            current, is_behind, has_note = str(data.get("session") or first or "") or None, False, True
        elif isinstance(entry, Turn | Request) or (isinstance(entry, Note) and entry.context == "in"):
            is_behind = has_note
    return None if is_behind else current


def is_running(store: Store, task_id: str) -> bool:
    """Whether a process runs the task now."""
    try:
        return store.find(task_id).id in store.alive()
    except TaskNotFound:
        return False
