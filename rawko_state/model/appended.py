"""What one append has put into a task."""

from __future__ import annotations

from typing import NamedTuple

from rawko_state.model.entries import Entry
from rawko_state.model.state import TaskState


class LocatedBlock(NamedTuple):
    """An entry, and where its block stands in the file."""

    entry: Entry
    offset: int
    length: int


class Position(NamedTuple):
    """How far a task has come: where its last record ends, that record's seal, and the state after it."""

    end: int
    seal: str
    state: TaskState


class Appended(NamedTuple):
    """A record that is durable now."""

    seal: str
    parent: str
    offset: int
    """Of its record."""
    end: int
    state: TaskState
    blocks: tuple[LocatedBlock, ...] = ()
    """What it says, block by block; nothing where another machine wrote it."""
    alone: bool = True
    """Whether the record before it is the one that was the last before the append: no TORN record between."""
