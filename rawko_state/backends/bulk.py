"""Writes whole imported tasks in one pass, building their index rows along the way."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

from rawko_state.backends.files.sync import Sync
from rawko_state.backends.redaction import redactor_for
from rawko_state.errors import RawkoError, TaskExists
from rawko_state.format.records import build_record, header_copies
from rawko_state.format.seal import GENESIS, HEADER_LIMIT, header_shape
from rawko_state.index.projection import Bulk, LocatedRecord, NewRows, Projector, merged
from rawko_state.journal import disk
from rawko_state.journal.batch import Batch
from rawko_state.journal.journal import Journal
from rawko_state.journal.layout import Layout, TaskName
from rawko_state.model.entries import Blob, Entry, Turn
from rawko_state.model.frozen import replace
from rawko_state.model.long_texts import apart
from rawko_state.model.state import TaskState
from rawko_state.redact.redactor import Redactor

_LOOKED_AT_TOGETHER: Final = 1 << 16
"""Redaction looks at records of about this many characters at once."""


def write_task(
    batch: Batch,
    redactor: Redactor,
    name: TaskName,
    records: Iterable[Sequence[Entry]],
    *,
    pack: bool = False,
) -> Bulk:
    """Adds a new task to a batch, and returns its rows. With ``pack``, writes a .task.gz."""
    work = _Writing(batch, redactor, name)
    row = work.projector.row
    row["file_size"], row["file_mtime_ns"] = batch.add(name, work.pieces(records), work.finish, pack=pack)
    if pack:
        row["file_path"] = replace(name, packed=True).file_path
    bulk = Bulk(ids=[name.id])
    bulk.add(work.projector, merged(work.rows))
    return bulk


def write_one(layout: Layout, redactor: Redactor, name: TaskName, records: Iterable[Sequence[Entry]]) -> Bulk | None:
    """Writes a new task, durably, and returns its rows. None if the id is taken."""
    batch = Batch(layout)
    try:
        rows = write_task(batch, redactor, name, records)
        return None if batch.commit() else rows
    finally:
        batch.discard()


class FileBulkWriter:
    """Writes tasks of one project from any process: it is pickled for workers as a path."""

    def __init__(self, root: Path, sync: Sync | None = None) -> None:
        """``sync`` stays in the process that created this object, which does the indexing."""
        self.root, self._sync = root, sync
        self._open: tuple[Batch, Redactor] | None = None

    def __getstate__(self) -> Path:
        return self.root

    def __setstate__(self, root: Path) -> None:
        self.root, self._sync, self._open = root, None, None

    def write(self, name: TaskName, records: Iterable[Sequence[Entry]], *, pack: bool = False) -> Bulk:
        if self._open is None:
            layout = Journal(self.root).layout
            layout.make()
            self._open = (Batch(layout), redactor_for(self.root, lambda message: None))
        batch, redactor = self._open
        return write_task(batch, redactor, name, records, pack=pack)

    def commit(self) -> set[str]:
        return self._open[0].commit() if self._open is not None else set()

    def index(self, written: Iterable[object]) -> None:
        if self._sync is None:
            self._sync = Sync(Journal(self.root), lambda message: None)
        with contextlib.suppress(RawkoError):  # the next sweep of the folder indexes them
            index = self._sync.index()
            with index.transaction():
                for rows in written:
                    assert isinstance(rows, Bulk)
                    index.put_new(rows)


class AddsFiles(Protocol):
    def add_file(
        self, filename: str, data: bytes | Iterable[bytes], blobs: Iterable[bytes] = ()
    ) -> TaskName | None: ...


def upload_task(store: AddsFiles, redactor: Redactor, name: TaskName, records: Iterable[Sequence[Entry]]) -> bool:
    """Adds a task to a remote store: builds the file locally, then uploads it. False if the task exists."""
    with tempfile.TemporaryDirectory(prefix="rawko-") as folder:
        layout = Journal(Path(folder)).layout
        layout.make()
        write_one(layout, redactor, name, records)
        path = layout.path(name)
        blobs = (each.read_bytes() for each in sorted(layout.blobs.iterdir()))
        with open(path, "rb") as stream:
            try:
                return store.add_file(name.filename, iter(lambda: stream.read(1 << 20), b""), blobs) is not None
            except TaskExists:
                return False


class _Writing:
    def __init__(self, batch: Batch, redactor: Redactor, name: TaskName) -> None:
        self._batch, self._redactor, self._name = batch, redactor, name
        self.projector = Projector(name.id, name.file_path)
        self.rows: list[NewRows] = []
        self._state = TaskState(id=name.id)

    def pieces(self, records: Iterable[Sequence[Entry]]) -> Iterator[bytes]:
        seal, at, state = GENESIS, 0, TaskState(id=self._name.id)
        for entries in self._clean(records):
            record = build_record(list(_numbered(entries, state.turns)), state, seal, at)
            located = LocatedRecord("sealed", at, len(record.data), record.seal, seal, 0, record.blocks)
            self.rows.append(self.projector.take(located))
            yield record.data
            seal, at, state = record.seal, record.end, record.state
        self._state = state

    def _clean(self, records: Iterable[Sequence[Entry]]) -> Iterator[Sequence[Entry]]:
        """Redacted records, with long outputs moved to blobs. Many are looked at together: most have no secret, and then one look
        is enough."""
        some, size = list[Sequence[Entry]](), 0
        for entries in records:
            some.append([apart(entry, self._put) if isinstance(entry, Turn) else entry for entry in entries])
            size += sum(len(entry.payload or "") for entry in entries if isinstance(entry, Turn))
            if size >= _LOOKED_AT_TOGETHER:
                yield from self._redacted(some)
                some, size = [], 0
        yield from self._redacted(some)

    def _redacted(self, records: Sequence[Sequence[Entry]]) -> Iterable[Sequence[Entry]]:
        if self._redactor.is_clean(records):
            return records
        return [[self._redactor.entry(entry) for entry in entries] for entries in records]

    def _put(self, text: str) -> Blob:
        return self._batch.put_blob(self._redactor.text(text))

    def finish(self, descriptor: int, path: Path) -> None:
        """Writes the header's copies, whose values are only known at the end."""

        def fetch(offset: int, length: int) -> bytes:
            return disk.read_range(descriptor, offset, length)

        for copy in header_copies(header_shape(fetch(0, HEADER_LIMIT)), fetch, self._state):
            if copy.data is not None:
                disk.write_at(descriptor, copy.data, copy.offset, path)


def _numbered(entries: Sequence[Entry], turns: int) -> Iterator[Entry]:
    for entry in entries:
        if isinstance(entry, Turn):
            turns += 1
            entry = replace(entry, number=turns)
        yield entry
