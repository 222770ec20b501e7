"""One task in memory, open for writing: an append is a few assignments under the store's lock."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rawko_state.errors import ChainMoved, NewerFormat, TaskNotFound
from rawko_state.format.codec import FORMAT_VERSION
from rawko_state.format.reader import TaskReader
from rawko_state.format.records import build_record, header_copies
from rawko_state.format.seal import GENESIS, HEADER_LIMIT, header_shape
from rawko_state.index.projection import LocatedRecord, Projector
from rawko_state.journal.chain import Chain
from rawko_state.model.appended import Appended, Position
from rawko_state.model.entries import Turn
from rawko_state.model.long_texts import apart
from rawko_state.model.state import TaskState
from rawko_state.tasks.draft import Draft, DraftContent, draft_content
from rawko_state.tasks.writer import BeforeWrite, Make, Writer

if TYPE_CHECKING:
    from rawko_state.backends.memory.store import MemoryStore


class _DraftSink:
    def __init__(self, store: MemoryStore, task_id: str) -> None:
        self._store, self._id = store, task_id
        store.drafts[task_id] = b""

    def write(self, data: bytes, *, durable: bool) -> None:
        self._store.drafts[self._id] = self._store.drafts.get(self._id, b"") + data

    def discard(self) -> None:
        self._store.drafts.pop(self._id, None)

    def leave(self) -> None:
        return


class MemoryWriter(Writer):
    def __init__(self, store: MemoryStore, task_id: str, token: str | None) -> None:
        self.id = task_id
        self._store, self._token = store, token
        self.refresh()

    @property
    def root(self) -> Path:
        return self._store.root

    @property
    def is_leased(self) -> bool:
        return self._token is not None

    def position(self) -> Position:
        return self._position

    def refresh(self) -> TaskState:
        row = self._store.sync.index().row(self.id)
        if row is None:
            raise TaskNotFound(self.id)
        state = Projector(self.id, row["file_path"], row).state
        self._position = Position(row["indexed_end"], row["tail_seal"] or GENESIS, state)
        self._size = row["file_size"]
        return state

    def has_grown(self) -> bool:
        held = self._store.held.get(self.id)
        return held is None or len(held.data) != self._size

    def holds(self, seal: str) -> bool:
        with self.reader() as reader:
            return any(record.seal == seal and record.counts for record in reader.records())

    def append(self, make: Make, expect: str | None = None, before: BeforeWrite | None = None) -> Appended:
        with self._store.lock:
            if self.id not in self._store.held:
                raise ChainMoved(f"Task {self.id} no longer exists.")
            if self._token is not None:
                self._store.check_lease(self.id, self._token)
            done = self._append(make, expect, before)
        self.refresh()
        return done

    def _append(self, make: Make, expect: str | None, before: BeforeWrite | None) -> Appended:
        held, index = self._store.held[self.id], self._store.sync.index()
        row = index.row(self.id)
        assert row is not None
        if row["tail_seal"] is None or row["indexed_end"] != len(held.data):
            return self._append_to_file(make, expect, before)
        if row["format"] is not None and row["format"] > FORMAT_VERSION:
            raise NewerFormat(
                f"Task {self.id} has format {row['format']}; this rawko writes {FORMAT_VERSION}. Update rawko."
            )
        projector = Projector(self.id, row["file_path"], row)
        old, parent = projector.state, row["tail_seal"]
        if expect is not None and expect != parent:
            raise ChainMoved(f"Task {self.id} has changed: its last seal is {parent}, not {expect}.", last=parent)
        record = build_record(make(old), old, parent, len(held.data))
        if before is not None:
            before(record.appended())
        located = LocatedRecord("sealed", record.offset, len(record.data), record.seal, parent, 0, record.blocks)
        rows = projector.take(located)
        held.data += record.data
        held.changed()
        start = held.data[:HEADER_LIMIT]
        for copy in header_copies(header_shape(start), lambda at, size: start[at : at + size], record.state):
            if copy.data is not None:
                held.data = held.data[: copy.offset] + copy.data + held.data[copy.offset + len(copy.data) :]
        projector.row["file_size"], projector.row["file_mtime_ns"] = len(held.data), held.mtime_ns
        with index.transaction():
            index.put(projector, rows)
        self._store.kept(held)
        return record.appended()

    def _append_to_file(self, make: Make, expect: str | None, before: BeforeWrite | None) -> Appended:
        """Appends to a task that was written by hand or has a torn end, the way a file would. Happens at most once per task."""
        held = self._store.held[self.id]
        with tempfile.TemporaryDirectory(prefix="rawko-") as folder:
            path = Path(folder) / held.name.filename
            path.write_bytes(held.data)
            chain = Chain(path, self.id)
            try:
                done = chain.append(make, expect=expect, before=before)
            finally:
                chain.close()
            self._store.put(held.name, path.read_bytes())
        return done

    def reader(self) -> TaskReader:
        return self._store.reader(self.id)

    def last_turns(self) -> Iterator[Turn]:
        found = [entry for _, entry in self._store.entries(self.id) if isinstance(entry, Turn)]
        return reversed(found)

    def keeping_blobs(self, turn: Turn | None = None) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def with_blobs(self, turn: Turn, redact: Callable[[str], str]) -> Turn:
        return apart(turn, lambda text: self._store.put_blob(redact(text).encode("utf-8", "surrogatepass")))

    def draft(self, agent: str, fields: dict[str, Any], durable: bool) -> Draft:
        position = self._position
        return Draft(_DraftSink(self._store, self.id), agent, position.end, position.seal, fields, durable)

    def left_draft(self) -> DraftContent | None:
        return draft_content(self._store.draft_lines(self.id))

    def draft_text(self) -> str:
        return b"".join(self._store.draft_lines(self.id)).decode("utf-8", "replace")

    def drop_draft(self) -> None:
        self._store.drop_draft(self.id)

    def release_lease(self) -> None:
        if self._token is not None:
            self._store.release_lease(self.id, self._token)
            self._token = None

    def close(self) -> None:
        self.release_lease()
