"""Where one open task is written to: the few things that differ between backends.

A Task says what is to be written and when; its desk gets it into a file, a database or a server. So the life of a task is told
once, in ``session``, and holds on every backend.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from rawko_state.backends.catalogue import Catalogue
from rawko_state.index.projection import Projector
from rawko_state.journal import disk
from rawko_state.journal.chain import Chain
from rawko_state.journal.draft import Draft, FileSink, Spoken, read_draft
from rawko_state.journal.layout import TaskName
from rawko_state.journal.locks import Lease, Mark
from rawko_state.model.appended import Appended
from rawko_state.model.entries import Entry, Turn
from rawko_state.model.state import TaskState

Make = Callable[[TaskState], list[Entry]]
"""What to append, given the state that it will follow."""
BeforeWrite = Callable[[str], None]


class Point(NamedTuple):
    """How far a task had come."""

    end: int
    seal: str
    status: str


class Desk(Protocol):
    """One task, open for writing."""

    id: str

    @property
    def root(self) -> Path:
        """The project's folder; the current one, where the tasks are elsewhere."""

    @property
    def state(self) -> TaskState: ...

    @property
    def seal(self) -> str: ...

    @property
    def is_leased(self) -> bool:
        """Whether this process runs the task."""

    def point(self) -> Point: ...

    def refresh(self) -> TaskState:
        """Takes in what others have appended."""

    def has_grown(self) -> bool:
        """Whether others may have appended since; cheap, as it is asked at every step of a turn."""

    def holds(self, seal: str) -> bool:
        """Whether a record with this seal is there."""

    def append(self, make: Make, expect: str | None = None, before: BeforeWrite | None = None) -> Appended:
        """One record, durable when this returns. ``make`` may be called again, when somebody else was faster."""

    def since(self, end: int, seal: str) -> Iterator[Entry]:
        """What was appended after a place, as far as it counts: fields without sections."""

    def last_turns(self) -> Iterator[Turn]:
        """The last turn first."""

    def keeping_blobs(self, turn: Turn | None = None) -> contextlib.AbstractContextManager[None]:
        """While this is held, no cleanup takes long outputs whose record does not name them yet."""

    def with_blobs(self, turn: Turn, redact: Callable[[str], str]) -> Turn:
        """The same turn with long outputs moved out of it, durably."""

    def draft(self, agent: str, fields: dict[str, Any], durable: bool) -> Draft: ...

    def spoken(self) -> Spoken | None:
        """What a draft that was left says."""

    def draft_text(self) -> str: ...

    def drop_draft(self) -> None: ...

    def let_go(self) -> None:
        """Of the lease."""

    def tend(self) -> None:
        """The task is finished: a good moment for what nothing depends on."""

    def close(self) -> None: ...


class LocalDesk:
    """A task file, its lease, and its rows in the index."""

    def __init__(
        self,
        catalogue: Catalogue,
        name: TaskName,
        chain: Chain,
        lease: Lease | None,
        projector: Projector | None = None,
    ) -> None:
        self.id = name.id
        self._catalogue, self._journal = catalogue, catalogue.journal
        self._name, self._chain, self._lease, self._projector = name, chain, lease, projector
        self._mark: Mark | None = None

    @property
    def root(self) -> Path:
        return self._journal.layout.root

    @property
    def state(self) -> TaskState:
        return self._chain.state

    @property
    def seal(self) -> str:
        return self._chain.seal

    @property
    def is_leased(self) -> bool:
        return self._lease is not None

    def point(self) -> Point:
        point = self._chain.checkpoint()
        return Point(point.end, point.seal, point.state.status)

    def refresh(self) -> TaskState:
        return self._chain.refresh()

    def has_grown(self) -> bool:
        return self._chain.has_grown()

    def holds(self, seal: str) -> bool:
        return self._chain.holds(seal)

    def append(self, make: Make, expect: str | None = None, before: BeforeWrite | None = None) -> Appended:
        """Into the file, durably; then into the index, which may fail."""
        if self._mark is None:
            self._mark = self._catalogue.mark(self.id)
        done = self._chain.append(make, expect=expect, before=before)
        self._projector = self._catalogue.appended(self._name, self._chain, done, self._projector)
        self._catalogue.keeps_up(self._mark, current=self._projector is not None)
        return done

    def since(self, end: int, seal: str) -> Iterator[Entry]:
        with self._journal.reader(self._name) as reader:
            for record in reader.scan((end, seal) if end else None):
                for block in record.blocks if record.counts else ():
                    yield block.entry(reader.fetch, head_only=True)

    def last_turns(self) -> Iterator[Turn]:
        """By the index; where that does not help, from the file."""
        with self._journal.reader(self._name) as reader:
            for offset, length in self._catalogue.last_turns(self._name):
                found = reader.turn_at(offset, length)
                if found is not None:
                    yield found

    def keeping_blobs(self, turn: Turn | None = None) -> contextlib.AbstractContextManager[None]:
        return self._journal.keeping_blobs(turn)

    def with_blobs(self, turn: Turn, redact: Callable[[str], str]) -> Turn:
        return self._journal.with_blobs(turn, redact)

    def draft(self, agent: str, fields: dict[str, Any], durable: bool) -> Draft:
        self._journal.layout.make()
        point = self._chain.checkpoint()
        return Draft(FileSink(self._journal.layout.draft(self.id)), agent, point.end, point.seal, fields, durable)

    def spoken(self) -> Spoken | None:
        return read_draft(self._journal.layout.draft(self.id))

    def draft_text(self) -> str:
        return self._journal.layout.draft(self.id).read_bytes().decode("utf-8", "replace")

    def drop_draft(self) -> None:
        path = self._journal.layout.draft(self.id)
        if path.exists():
            with disk.told("remove", path):
                path.unlink()

    def let_go(self) -> None:
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    def tend(self) -> None:
        self._catalogue.tend()

    def close(self) -> None:
        self._chain.close()
        self._catalogue.settle(self._mark, current=self._projector is not None)
        self._mark = None
        self.let_go()
