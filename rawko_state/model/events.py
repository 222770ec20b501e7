"""The events of a task, as delivered to its followers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rawko_state.model.frozen import Frozen, field


class Event(Frozen):
    """One event of a task.

    >>> [event.text for event in store.events("fix0001") if event.kind == "request"]
    ['Fix the login bug']
    """

    task: str
    """Its id."""
    cursor: str
    """Pass it as ``after`` to get the events that follow this one."""
    kind: str
    """status, request, turn, text, thinking, tool, output, edit, progress, file, note, warning, error, final or gap. Unknown
    kinds are passed on."""
    at: str | None = None
    turn: int | None = None
    agent: str | None = None
    text: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    """What else the event holds, by its kind: docs/reference/events.md."""
    live: bool = False
    """Comes from the draft of a turn that has not ended."""
    replaces: bool = False
    """The turn has ended: this event holds all of it and replaces its live events."""
