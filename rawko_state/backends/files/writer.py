"""One task file, open for writing: appends go to the file durably, then to the index, which may fail."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from rawko_state.backends import redaction
from rawko_state.backends.files import ingest
from rawko_state.backends.files.sync import Sync
from rawko_state.config import folders
from rawko_state.format.reader import TaskReader
from rawko_state.index.projection import Projector
from rawko_state.journal import blobs, disk
from rawko_state.journal.chain import Chain
from rawko_state.journal.drafts import FileSink, draft_lines
from rawko_state.journal.locks import Lease, Mark
from rawko_state.model.appended import Appended, LocatedBlock, Position
from rawko_state.model.entries import Note, Turn
from rawko_state.model.names import TaskName
from rawko_state.model.state import TaskState
from rawko_state.tasks.draft import Draft, DraftContent, draft_content
from rawko_state.tasks.writer import BeforeWrite, Make, Writer

# Import these before anything is written: a failing import (no descriptors left) must not come between an append and its return.
_LOADED = (blobs, folders, ingest, redaction)
_TOGETHER: Final = 64
_TOGETHER_BYTES: Final = 1 << 18
"""So much data goes to the index at once."""


class FileWriter(Writer):
    """A task file, its lease, and its rows in the index."""

    def __init__(
        self, sync: Sync, name: TaskName, chain: Chain, lease: Lease | None, projector: Projector | None = None
    ) -> None:
        self.id = name.id
        self._sync, self._journal = sync, sync.journal
        self._name, self._chain, self._lease, self._projector = name, chain, lease, projector
        self._mark: Mark | None = None
        self._waiting: list[Appended] = []
        """What the index does not have yet: data that programs keep, which comes often, and which few look for in lists."""

    @property
    def root(self) -> Path:
        return self._journal.layout.root

    @property
    def is_leased(self) -> bool:
        return self._lease is not None

    def position(self) -> Position:
        return Position(self._chain.end, self._chain.seal, self._chain.state)

    def refresh(self) -> TaskState:
        return self._chain.refresh()

    def has_grown(self) -> bool:
        return self._chain.has_grown()

    def holds(self, seal: str) -> bool:
        return self._chain.holds(seal)

    def append(self, make: Make, expect: str | None = None, before: BeforeWrite | None = None) -> Appended:
        if self._mark is None:
            self._mark = self._sync.mark(self.id)
        done = self._chain.append(make, expect=expect, before=before)
        self._waiting.append(done)
        size = done.end - self._waiting[0].offset
        if len(self._waiting) < _TOGETHER and size < _TOGETHER_BYTES and all(_is_data(each) for each in done.blocks):
            self._sync.keeps_up(self._mark, current=False)  # a query that comes first reads it from the file
        else:
            self._index()
        return done

    def _index(self) -> None:
        """Puts what was appended into the index."""
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._projector = self._sync.appended(self._name, self._chain, waiting, self._projector)
            self._sync.keeps_up(self._mark, current=self._projector is not None)

    def reader(self) -> TaskReader:
        return self._journal.reader(self._name)

    def last_turns(self) -> Iterator[Turn]:
        """Uses the index, or the file where the index cannot help."""
        with self.reader() as reader:
            for offset, length in self._sync.last_turns(self._name):
                found = reader.turn_at(offset, length)
                if found is not None:
                    yield found

    def keeping_blobs(self, turn: Turn | None = None) -> contextlib.AbstractContextManager[None]:
        return self._journal.keeping_blobs(turn)

    def with_blobs(self, turn: Turn, redact: Callable[[str], str]) -> Turn:
        return self._journal.with_blobs(turn, redact)

    def draft(self, agent: str, fields: dict[str, Any], durable: bool) -> Draft:
        self._journal.layout.make()
        sink = FileSink(self._journal.layout.draft(self.id))
        return Draft(sink, agent, self._chain.end, self._chain.seal, fields, durable)

    def left_draft(self) -> DraftContent | None:
        return draft_content(draft_lines(self._journal.layout.draft(self.id)))

    def draft_text(self) -> str:
        return b"".join(draft_lines(self._journal.layout.draft(self.id))).decode("utf-8", "replace")

    def drop_draft(self) -> None:
        path = self._journal.layout.draft(self.id)
        if path.exists():
            with disk.naming("remove", path):
                path.unlink()

    def release_lease(self) -> None:
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    def finished(self) -> None:
        self._sync.finished()

    def close(self) -> None:
        if not self._chain.is_closed:
            self._index()
        self._chain.close()
        self._sync.settle(self._mark, current=self._projector is not None)
        self._mark = None
        self.release_lease()


def _is_data(block: LocatedBlock) -> bool:
    return isinstance(block.entry, Note) and block.entry.is_data
