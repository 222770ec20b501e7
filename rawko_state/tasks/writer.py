"""How an open task reaches the place where it is kept. Each backend has a Writer; the rest of a Task is the same everywhere."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rawko_state.format.reader import TaskReader
from rawko_state.model.appended import Appended, Position
from rawko_state.model.entries import Entry, Turn
from rawko_state.model.state import TaskState
from rawko_state.tasks.draft import Draft, DraftContent

Make = Callable[[TaskState], list[Entry]]
"""What to append, given the state that it will follow. Called under the append lock, so it must be quick: entries are redacted
before, and only get their numbers here. May be called again when somebody else was faster."""
BeforeWrite = Callable[[str], None]
"""Gets the seal of a record just before it is written."""


class Writer(ABC):
    """One task, open for writing. A Task calls it from one thread at a time."""

    id: str

    @property
    @abstractmethod
    def root(self) -> Path:
        """The project's folder; the current one, where the tasks are elsewhere."""

    @property
    @abstractmethod
    def is_leased(self) -> bool:
        """Whether this process runs the task."""

    @abstractmethod
    def position(self) -> Position:
        """As last read or written."""

    @abstractmethod
    def refresh(self) -> TaskState:
        """Reads what others have appended."""

    @abstractmethod
    def has_grown(self) -> bool:
        """Whether others may have appended since. Cheap: every step of a live turn asks this."""

    @abstractmethod
    def holds(self, seal: str) -> bool:
        """Whether a record with this seal is there."""

    @abstractmethod
    def append(self, make: Make, expect: str | None = None, before: BeforeWrite | None = None) -> Appended:
        """Appends one record, durable when this returns. With ``expect``, ChainMoved unless that is the last seal."""

    @abstractmethod
    def reader(self) -> TaskReader: ...

    @abstractmethod
    def last_turns(self) -> Iterator[Turn]:
        """The newest turn first."""

    @abstractmethod
    def keeping_blobs(self, turn: Turn | None = None) -> contextlib.AbstractContextManager[None]:
        """While this is held, no cleanup deletes long outputs that no record names yet."""

    @abstractmethod
    def with_blobs(self, turn: Turn, redact: Callable[[str], str]) -> Turn:
        """The same turn with long outputs moved out of it, durably."""

    @abstractmethod
    def draft(self, agent: str, fields: dict[str, Any], durable: bool) -> Draft:
        """Starts the draft of a live turn."""

    @abstractmethod
    def left_draft(self) -> DraftContent | None:
        """The draft that a dead writer left, if any."""

    @abstractmethod
    def draft_text(self) -> str:
        """The same, as it stands."""

    @abstractmethod
    def drop_draft(self) -> None: ...

    @abstractmethod
    def release_lease(self) -> None: ...

    def finished(self) -> None:  # noqa: B027 - most backends have nothing to do
        """The task is finished: a good moment for upkeep that nothing depends on."""

    @abstractmethod
    def close(self) -> None: ...

    def entries_since(self, end: int, seal: str) -> Iterator[Entry]:
        """What was appended after a position, as far as it counts; without large sections."""
        with self.reader() as reader:
            for record in reader.scan((end, seal) if end else None):
                for block in record.blocks if record.counts else ():
                    yield block.entry(reader.fetch, head_only=True)
