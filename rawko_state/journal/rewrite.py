"""Rewrites a task file with some blocks changed: writes and seals a new file next to the old one, then swaps it in atomically.

Unchanged blocks keep their bytes. Content that cannot be read as blocks (a torn span, a damaged record) is changed as text. A
note at the end says that the file was rewritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rawko_state.errors import ChainMoved, RawkoError, StorageError
from rawko_state.format.reader import TaskReader
from rawko_state.format.records import emit_blocks, emit_record, emit_torn, seal_record
from rawko_state.format.scan import RawBlock, Record
from rawko_state.format.seal import GENESIS, SEAL_LENGTH, read_seal
from rawko_state.format.text import decode
from rawko_state.journal import disk
from rawko_state.journal.archive import drop_leftover, is_in_place
from rawko_state.journal.chain import Chain
from rawko_state.journal.layout import Layout, TaskName
from rawko_state.journal.locks import append_lock
from rawko_state.journal.reader import open_reader
from rawko_state.journal.source import FileBytes, open_source, packed
from rawko_state.model.entries import Entry, Note

Change = Callable[[Entry], Entry]
"""Must return the same object if there is nothing to change."""
ChangeText = Callable[[str], str]


@dataclass(slots=True)
class Rewriting:
    """The pieces of the new file, and how much has changed."""

    change: Change
    text: ChangeText
    changed: int = 0
    """Number of changed blocks and spans."""
    seal: str = GENESIS
    sealed: bool = True

    def pieces(self, reader: TaskReader) -> Iterator[bytes]:
        for record in reader.records():
            if record.kind == "sealed":
                data, self.seal = seal_record(self._body(reader, record, record.length - SEAL_LENGTH), self.seal)
                yield data
            elif record.kind == "torn":
                yield self._torn(reader, record)
            elif record.kind == "unsealed":
                self.sealed = False
                yield self._body(reader, record, record.length)
            else:
                yield self._as_text(reader, record)

    def _body(self, reader: TaskReader, record: Record, length: int) -> bytes:
        """A record's blocks, and anything between them."""
        pieces, at, end = [], record.offset, record.offset + length
        for block in record.blocks:
            pieces += [self._raw(reader.fetch(at, block.offset - at)), self._block(reader, block)]
            at = block.offset + block.length
        pieces.append(self._raw(reader.fetch(at, max(0, end - at))))
        return b"".join(pieces)

    def _block(self, reader: TaskReader, block: RawBlock) -> bytes:
        entry = block.entry(reader.fetch)
        new = self.change(entry)
        if new is entry:
            return reader.fetch(block.offset, block.length)
        self.changed += 1
        return emit_blocks([new])

    def _raw(self, data: bytes) -> bytes:
        text = decode(data)
        new = self.text(text)
        if new is text or new == text:
            return data
        self.changed += 1
        return new.encode("utf-8", "surrogateescape")

    def _torn(self, reader: TaskReader, record: Record) -> bytes:
        """The marker states the span's length, so it is regenerated."""
        span = self._raw(reader.fetch(record.offset, record.torn))
        data, self.seal = seal_record(span + emit_torn(len(span)), self.seal)
        return data

    def _as_text(self, reader: TaskReader, record: Record) -> bytes:
        """A damaged record stays damaged: the next record is chained to the seal digits in the file."""
        line = reader.fetch(record.end - SEAL_LENGTH, SEAL_LENGTH)
        digits = read_seal(line.rstrip(b"\n"))
        if digits is None:
            return self._raw(reader.fetch(record.offset, record.length))
        self.seal = digits
        return self._raw(reader.fetch(record.offset, record.length - SEAL_LENGTH)) + line


def rewrite(layout: Layout, name: TaskName, change: Change, text: ChangeText, note: Callable[[int], Note]) -> int:
    """Returns the number of changed blocks. If there are none, the file is left alone. The caller holds the task's lease."""
    path = layout.path(name)
    if not name.packed:
        chain = Chain(path, name.id)
        try:
            chain.check()
            chain.close_tail()  # mark the torn tail, so that it stays separate from what follows
        finally:
            chain.close()
    source = open_source(path, write=not name.packed)
    try:
        with append_lock(source.descriptor, path), open_reader(path) as reader:
            if source.path != path or not is_in_place(source):
                raise ChainMoved(f"{path} changed while it was being rewritten. Try again.")
            drop_leftover(layout, name)
            work = Rewriting(change, text)
            beside = disk.write_temporary(layout.live, with_note(work, reader, note))
            try:
                if not work.changed:
                    return 0
                _check(reader, beside, work)
                if name.packed:
                    beside = packed_copy(layout, beside)
                disk.rename(beside, path)
            finally:
                disk.remove_quietly(beside)
        disk.sync_folder(layout.tasks)
        return work.changed
    finally:
        source.close()


def replaced(layout: Layout, name: TaskName, data: Iterable[bytes], size: int, seal: str) -> bool:
    """Replaces a task's bytes atomically and durably, if it has this size and ends with this seal. The caller holds its
    lease."""
    path = layout.path(name)
    beside = disk.write_temporary(layout.live, data)
    chain = Chain(path, name.id)
    done = False

    def put() -> None:
        nonlocal done
        if chain.seal == seal and chain.stat()[0] == size:
            disk.rename(beside, path)
            done = True

    try:
        chain.alone(put)
    finally:
        chain.close()
        disk.remove_quietly(beside)
    if done:
        disk.sync_folder(layout.tasks)
    return done


def with_note(work: Rewriting, reader: TaskReader, note: Callable[[int], Note]) -> Iterator[bytes]:
    """The complete new file, including the note."""
    yield from work.pieces(reader)
    if work.changed and work.sealed:
        yield emit_record([note(work.changed)], work.seal)[0]


def packed_copy(layout: Layout, plain: Path) -> Path:
    """Packs a temporary file and removes the plain one."""
    source = FileBytes(plain, disk.open_regular(plain))
    try:
        return disk.write_temporary(layout.live, packed(source))
    finally:
        source.close()
        disk.remove_quietly(plain)


def _check(reader: TaskReader, beside: Path, work: Rewriting) -> None:
    """Checks that the new file has the same records and the same problems as the old one."""
    with open_reader(beside) as again:
        try:
            before = [record.kind for record in reader.records()]
            after = [record.kind for record in again.records()]
        except RawkoError as error:
            raise StorageError(f"Can't rewrite {reader.path}: {error}.", str(reader.path)) from error
        as_before = len(reader.problems) == len(again.problems)
        if before + ["sealed"] * work.sealed != after or not as_before:
            raise StorageError(
                f"Can't rewrite {reader.path}: the result would differ. Nothing was changed.", str(reader.path)
            )
