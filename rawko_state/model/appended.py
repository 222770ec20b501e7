"""The result of one append to a task."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from rawko_state.model.entries import Entry
from rawko_state.model.state import TaskState


class LocatedBlock(NamedTuple):
    """An entry, and where its block is in the file.

    >>> task.note("x").blocks[0].entry.content
    'x'
    """

    entry: Entry
    offset: int
    length: int


class Position(NamedTuple):
    """The end of a task: where its last record ends, that record's seal, and the state after it."""

    end: int
    seal: str
    state: TaskState


class Appended(NamedTuple):
    """A record that is now durable.

    >>> done = task.note("x")
    >>> done.seal == task.seal, done.state.status
    (True, 'running')
    """

    seal: str
    parent: str
    offset: int
    """Where the record starts."""
    end: int
    state: TaskState
    blocks: tuple[LocatedBlock, ...] = ()
    """The record's blocks; empty if another machine wrote it."""
    alone: bool = True
    """Whether the record directly follows the previous last record, with no TORN record in between."""


BeforeWrite = Callable[[Appended], None]
"""Called with a record just before it is written. What it writes to the same database joins the record's transaction, so both are
kept or neither is. If it raises, nothing is written."""
