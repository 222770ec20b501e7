"""Writes whole imported tasks in one pass, building their index rows along the way."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from rawko_state.backends.files.sync import Sync
from rawko_state.backends.redaction import redactor_for
from rawko_state.errors import RawkoError, TaskExists
from rawko_state.format.records import build_record, header_copies
from rawko_state.format.seal import GENESIS, HEADER_LIMIT, header_shape
from rawko_state.index.projection import Bulk, LocatedRecord, NewRows, Projector, merged
from rawko_state.journal import disk
from rawko_state.journal.journal import Journal
from rawko_state.journal.layout import TaskName
from rawko_state.journal.rewrite import packed_copy
from rawko_state.model.entries import Entry, Turn
from rawko_state.model.state import TaskState
from rawko_state.redact.redactor import Redactor


def write_task(
    journal: Journal,
    redactor: Redactor,
    name: TaskName,
    records: Iterable[Sequence[Entry]],
    taken: Callable[[str], bool],
    *,
    pack: bool = False,
) -> Bulk | None:
    """Writes a new task and returns its rows, durably. None if the id is taken. With ``pack``, writes a .task.gz."""
    work = _Writing(journal, redactor, name)
    with journal.keeping_blobs():
        beside = disk.write_temporary(journal.layout.live, work.pieces(records), finish=work.finish)
        if pack:
            name = replace(name, packed=True)
            beside = packed_copy(journal.layout, beside)
            work.projector.row["file_path"] = name.file_path
        if not journal.publish(beside, name, taken):
            return None
    stat = os.stat(journal.layout.path(name))
    work.projector.row["file_size"], work.projector.row["file_mtime_ns"] = stat.st_size, stat.st_mtime_ns
    bulk = Bulk(ids=[name.id])
    bulk.add(work.projector, merged(work.rows))
    return bulk


class FileBulkWriter:
    """Writes tasks of one project from any process: it is pickled for workers as a path."""

    def __init__(self, root: Path, sync: Sync | None = None) -> None:
        """``sync`` stays in the process that created this object, which does the indexing."""
        self.root, self._sync = root, sync
        self._open: tuple[Journal, Redactor] | None = None

    def __getstate__(self) -> Path:
        return self.root

    def __setstate__(self, root: Path) -> None:
        self.root, self._sync, self._open = root, None, None

    def write(self, name: TaskName, records: Iterable[Sequence[Entry]], *, pack: bool = False) -> Bulk | None:
        if self._open is None:
            journal = Journal(self.root)
            journal.layout.make()
            self._open = (journal, redactor_for(self.root, lambda message: None))
        journal, redactor = self._open
        return write_task(journal, redactor, name, records, taken(journal, name), pack=pack)

    def index(self, written: Iterable[object]) -> None:
        if self._sync is None:
            self._sync = Sync(Journal(self.root), lambda message: None)
        with contextlib.suppress(RawkoError):  # the next sweep of the folder indexes them
            index = self._sync.index()
            with index.transaction():
                for rows in written:
                    assert isinstance(rows, Bulk)
                    index.put_new(rows)


def taken(journal: Journal, name: TaskName) -> Callable[[str], bool]:
    """Returns a check for whether the task's file exists, plain or packed."""
    paths = [journal.layout.path(replace(name, packed=packed)) for packed in (False, True)]
    return lambda task: any(path.exists() for path in paths)


class AddsFiles(Protocol):
    def add_file(
        self, filename: str, data: bytes | Iterable[bytes], blobs: Iterable[bytes] = ()
    ) -> TaskName | None: ...


def upload_task(store: AddsFiles, redactor: Redactor, name: TaskName, records: Iterable[Sequence[Entry]]) -> bool:
    """Adds a task to a remote store: builds the file locally, then uploads it. False if the task exists."""
    with tempfile.TemporaryDirectory(prefix="rawko-") as folder:
        journal = Journal(Path(folder))
        journal.layout.make()
        write_task(journal, redactor, name, records, lambda task: False)
        path = journal.layout.path(name)
        blobs = (each.read_bytes() for each in sorted(journal.layout.blobs.iterdir()))
        with open(path, "rb") as stream:
            try:
                return store.add_file(name.filename, iter(lambda: stream.read(1 << 20), b""), blobs) is not None
            except TaskExists:
                return False


class _Writing:
    def __init__(self, journal: Journal, redactor: Redactor, name: TaskName) -> None:
        self._journal, self._redactor, self._name = journal, redactor, name
        self.projector = Projector(name.id, name.file_path)
        self.rows: list[NewRows] = []
        self._state = TaskState(id=name.id)

    def pieces(self, records: Iterable[Sequence[Entry]]) -> Iterator[bytes]:
        seal, at, state = GENESIS, 0, TaskState(id=self._name.id)
        for entries in records:
            record = build_record(self._clean(entries, state.turns), state, seal, at)
            located = LocatedRecord("sealed", at, len(record.data), record.seal, seal, 0, record.blocks)
            self.rows.append(self.projector.take(located))
            yield record.data
            seal, at, state = record.seal, record.end, record.state
        self._state = state

    def _clean(self, entries: Sequence[Entry], turns: int) -> list[Entry]:
        """Redacted entries, with long outputs moved to blobs and turns numbered."""
        clean: list[Entry] = []
        for entry in entries:
            if isinstance(entry, Turn):
                turns += 1
                entry = self._journal.with_blobs(replace(entry, number=turns), self._redactor.text)
            clean.append(self._redactor.entry(entry))
        return clean

    def finish(self, descriptor: int, path: Path) -> None:
        """Writes the header's copies, whose values are only known at the end."""

        def fetch(offset: int, length: int) -> bytes:
            return disk.read_range(descriptor, offset, length)

        for copy in header_copies(header_shape(fetch(0, HEADER_LIMIT)), fetch, self._state):
            if copy.data is not None:
                disk.write_at(descriptor, copy.data, copy.offset, path)
