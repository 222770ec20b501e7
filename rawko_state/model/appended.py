"""What one append has put into a task."""

from __future__ import annotations

from dataclasses import dataclass

from rawko_state.model.entries import Entry
from rawko_state.model.state import TaskState


@dataclass(frozen=True, slots=True)
class Appended:
    """A record that is durable now."""

    seal: str
    parent: str
    offset: int
    """Of its record."""
    end: int
    state: TaskState
    blocks: tuple[tuple[Entry, int, int], ...] = ()
    """What it says, block by block, with the offset and length of each; nothing, where another machine wrote it."""
    alone: bool = True
    """Whether the record before it is the one that was the last before the append: no TORN record between."""
