"""How an open task reaches its storage. Each backend has a Writer; the rest of a Task is the same everywhere."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rawko_state.format.reader import TaskReader
from rawko_state.model.appended import Appended, BeforeWrite, Position
from rawko_state.model.entries import Entry, Turn
from rawko_state.model.state import TaskState
from rawko_state.tasks.draft import Draft, DraftContent

__all__ = ["BeforeWrite", "Make", "Writer"]

Make = Callable[[TaskState], list[Entry]]
"""Returns what to append, given the state it will follow. Called under the append lock, so it must be quick: entries are already
redacted, and only numbered here. May be called again if another writer was faster."""


class Writer(ABC):
    """One task, open for writing. A Task calls it from one thread at a time."""

    id: str

    @property
    @abstractmethod
    def root(self) -> Path:
        """The project's folder, or the current folder if the tasks are elsewhere."""

    @property
    @abstractmethod
    def is_leased(self) -> bool:
        """Whether this process runs the task."""

    @abstractmethod
    def position(self) -> Position:
        """The position as last read or written."""

    @abstractmethod
    def refresh(self) -> TaskState:
        """Reads what others have appended."""

    @abstractmethod
    def has_grown(self) -> bool:
        """Whether others may have appended since. Cheap, because every step of a live turn calls it."""

    @abstractmethod
    def holds(self, seal: str) -> bool:
        """Whether the task has a record with this seal."""

    @abstractmethod
    def append(self, make: Make, expect: str | None = None, before: BeforeWrite | None = None) -> Appended:
        """Appends one record, durable on return. With ``expect``, raises ChainMoved unless that is the last seal."""

    @abstractmethod
    def reader(self) -> TaskReader: ...

    @abstractmethod
    def last_turns(self) -> Iterator[Turn]:
        """Turns, newest first."""

    @abstractmethod
    def keeping_blobs(self, turn: Turn | None = None) -> contextlib.AbstractContextManager[None]:
        """Prevents cleanups from deleting blobs that no record names yet."""

    @abstractmethod
    def with_blobs(self, turn: Turn, redact: Callable[[str], str]) -> Turn:
        """The turn with its long outputs moved to blobs, durably."""

    @abstractmethod
    def draft(self, agent: str, fields: dict[str, Any], durable: bool) -> Draft:
        """Starts the draft of a live turn."""

    @abstractmethod
    def left_draft(self) -> DraftContent | None:
        """The draft that a dead writer left, if any."""

    @abstractmethod
    def draft_text(self) -> str:
        """The raw text of that draft."""

    @abstractmethod
    def drop_draft(self) -> None: ...

    @abstractmethod
    def release_lease(self) -> None: ...

    def finished(self) -> None:  # noqa: B027 - most backends have nothing to do
        """Called when the task is finished: a good time for optional maintenance."""

    @abstractmethod
    def close(self) -> None: ...

    def entries_since(self, end: int, seal: str) -> Iterator[Entry]:
        """Entries appended after a position, from records that count, without large sections."""
        with self.reader() as reader:
            for record in reader.scan((end, seal) if end else None):
                for block in record.blocks if record.counts else ():
                    yield block.entry(reader.fetch, head_only=True)
