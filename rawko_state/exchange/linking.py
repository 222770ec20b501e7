"""Sessions that a task recorded while they ran, so that an import does not bring them in again."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

from rawko_state.errors import TaskNotFound
from rawko_state.exchange.transcript import Session
from rawko_state.exchange.turns import IMPORTED
from rawko_state.format.values import read_time
from rawko_state.model.entries import Note, Turn
from rawko_state.store.contract import Store
from rawko_state.tasks.task import Task

LINKED: Final = "session"
"""The kind of the note that names the session a task records."""
_UUID = re.compile(r'"uuid": ?"([0-9a-f-]{36})"')
_ROUNDED: Final = timedelta(seconds=1)
"""Times in task files may be rounded down to seconds."""


def link(store: Store, task: Task, source: str) -> str | None:
    """Notes in a task which session it records. Returns another task that has recorded the session before, if there is one."""
    with store.import_lock():
        earlier = store.by_source(source).get(source)
        task.add([Note(kind=LINKED, context="out", source=source)])
    return earlier if earlier != task.id else None


def mark_recorded(store: Store, task_id: str, session: Session) -> None:
    """Notes that everything in a session so far is recorded, in this task or in one that went on with it."""
    place = session.end()
    with store.attach(task_id) as task:
        task.add([Note(kind=IMPORTED, context="out", data={"place": place, **session.marked(place)})])


def recorded_until(store: Store, task_id: str, session: Session) -> int:
    """The place in a session up to which a task has recorded it as it ran: by the ids of its records, else by their times."""
    known: set[str] = set()
    for _, entry in store.entries(task_id):
        if isinstance(entry, Turn) and entry.payload:
            known.update(_UUID.findall(entry.payload))
    updated = store.summary(task_id).updated
    last = read_time(updated) if updated else None
    by_id = by_time = 0
    for place, step in session.steps(0, []):
        found = _UUID.search(step.raw)
        if found is not None and found[1] in known:
            by_id = place
        if last is not None and step.at is not None and step.at <= last + _ROUNDED:
            by_time = place
    return by_id or by_time


def is_running(store: Store, task_id: str) -> bool:
    """Whether a process runs the task now."""
    try:
        return store.find(task_id).id in store.alive()
    except TaskNotFound:
        return False
