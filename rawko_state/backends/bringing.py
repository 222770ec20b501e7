"""Whole tasks from elsewhere: written to one file in one go, with the rows of the index made on the way."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from rawko_state.backends.intake import file_path
from rawko_state.errors import RawkoError
from rawko_state.format.blocks import emit_block
from rawko_state.format.codec import copy_value, encode
from rawko_state.format.records import seal_record
from rawko_state.format.seal import GENESIS, HEADER_LIMIT, header_shape
from rawko_state.format.values import write_duration
from rawko_state.index.projection import Bulk, Laid, Placed, Projector, Rows, merged
from rawko_state.journal import disk
from rawko_state.journal.journal import Journal
from rawko_state.journal.layout import TaskName
from rawko_state.journal.rewrite import packed_copy
from rawko_state.model.entries import Entry, Turn
from rawko_state.model.state import TaskState
from rawko_state.redact.redactor import Redactor


def bring(
    journal: Journal,
    redactor: Redactor,
    name: TaskName,
    records: Iterable[Sequence[Entry]],
    taken: Callable[[str], bool],
    *,
    pack: bool = False,
) -> Bulk | None:
    """Writes a new task. Durable when this returns its rows; None when there is one of its id. With ``pack``, as a .task.gz."""
    work = _Writing(journal, redactor, name)
    with journal.keeping_blobs():
        beside = disk.write_temporary(journal.layout.live, work.pieces(records), finish=work.finish)
        if pack:
            name = replace(name, packed=True)
            beside = packed_copy(journal.layout, beside)
            work.projector.row["file_path"] = file_path(name)
        if not journal.publish(beside, name, taken):
            return None
    stat = os.stat(journal.layout.path(name))
    work.projector.row["file_size"], work.projector.row["file_mtime_ns"] = stat.st_size, stat.st_mtime_ns
    bulk = Bulk(ids=[name.id])
    bulk.add(work.projector, merged(work.rows))
    return bulk


def taken(journal: Journal, name: TaskName) -> Callable[[str], bool]:
    """Whether the file of a task is there, in either form."""
    paths = [journal.layout.path(replace(name, packed=packed)) for packed in (False, True)]
    return lambda task: any(path.exists() for path in paths)


class Placing(Protocol):
    def place(self, filename: str, data: bytes | Iterable[bytes], blobs: Iterable[bytes] = ()) -> TaskName | None: ...


def carried(store: Placing, redactor: Redactor, name: TaskName, records: Iterable[Sequence[Entry]]) -> bool:
    """A new task for a store that is elsewhere: made as a file here, then placed there. False when there is one."""
    with tempfile.TemporaryDirectory(prefix="rawko-") as folder:
        journal = Journal(Path(folder))
        journal.layout.make()
        bring(journal, redactor, name, records, lambda task: False)
        path = journal.layout.path(name)
        blobs = (each.read_bytes() for each in sorted(journal.layout.blobs.iterdir()))
        with open(path, "rb") as stream:
            try:
                return store.place(name.filename, iter(lambda: stream.read(1 << 20), b""), blobs) is not None
            except RawkoError as error:
                if "there is another task" in str(error):
                    return False
                raise


class _Writing:
    def __init__(self, journal: Journal, redactor: Redactor, name: TaskName) -> None:
        self._journal, self._redactor, self._name = journal, redactor, name
        self.projector = Projector(name.id, file_path(name))
        self.rows: list[Rows] = []
        self._state = TaskState(id=name.id)

    def pieces(self, records: Iterable[Sequence[Entry]]) -> Iterator[bytes]:
        seal, at = GENESIS, 0
        for entries in records:
            kept = [self._kept(entry) for entry in entries]
            blocks = [emit_block(encode(entry)) for entry in kept]
            parent = seal
            data, seal = seal_record(b"".join(blocks), parent)
            placed, place = [], at
            for entry, block in zip(kept, blocks, strict=True):
                placed.append(Placed(entry, place, len(block)))
                place += len(block)
            self.rows.append(self.projector.take(Laid("sealed", at, len(data), seal, parent, 0, tuple(placed))))
            yield data
            at += len(data)

    def _kept(self, entry: Entry) -> Entry:
        if isinstance(entry, Turn):
            entry = self._journal.with_blobs(replace(entry, number=self._state.turns + 1), self._redactor.text)
        clean: Entry = self._redactor.entry(entry)
        self._state = self._state.step(clean)
        return clean

    def finish(self, descriptor: int, path: Path) -> None:
        """The header's copies, which stand before what they are copies of."""
        shape = header_shape(disk.read_range(descriptor, 0, HEADER_LIMIT))
        duration = self._state.duration_ms
        values = (self._state.status, "-" if duration is None else write_duration(duration))
        for span, value in zip((shape.status, shape.duration), values, strict=True):
            if span is not None:
                wanted = copy_value(value, span[1] - span[0]).encode()
                if len(wanted) == span[1] - span[0]:
                    disk.write_at(descriptor, wanted, span[0], path)
