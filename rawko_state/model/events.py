"""The events of a task, as delivered to its followers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a task."""

    task: str
    cursor: str
    """Pass it as ``after`` to get the events that follow this one."""
    kind: str
    """status, request, turn, text, tool, progress, file, note, warning, error, final or gap. Unknown kinds are passed on."""
    at: str | None = None
    turn: int | None = None
    agent: str | None = None
    text: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    live: bool = False
    """Comes from the draft of a turn that has not ended."""
    replaces: bool = False
    """The turn has ended: this event holds all of it and replaces its live events."""
