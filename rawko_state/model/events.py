"""What happens to a task, as whoever follows it is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a task."""

    task: str
    cursor: str
    """Give this back as ``after``, and the events that follow it are delivered."""
    kind: str
    """status, request, turn, text, tool, progress, file, note, warning, error, final, gap; or an unknown one, passed on."""
    at: str | None = None
    turn: int | None = None
    agent: str | None = None
    text: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    live: bool = False
    """From a turn that has not ended: its draft."""
    replaces: bool = False
    """The turn has ended: this is all of it, in place of its live events."""
