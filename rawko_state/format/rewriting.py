"""A task's bytes with some blocks changed, and new seals.

Unchanged blocks keep their bytes. Content that cannot be read as blocks (a torn span, a damaged record) is changed as text. A
note at the end says that the file was rewritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rawko_state.format.reader import TaskReader
from rawko_state.format.records import emit_blocks, emit_record, emit_torn, seal_record
from rawko_state.format.scan import RawBlock, Record
from rawko_state.format.seal import GENESIS, SEAL_LENGTH, read_seal
from rawko_state.format.text import decode
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
            pieces += [self._raw(reader.fetch(at, block.offset - at)), self.block(reader, block)]
            at = block.offset + block.length
        pieces.append(self._raw(reader.fetch(at, max(0, end - at))))
        return b"".join(pieces)

    def block(self, reader: TaskReader, block: RawBlock) -> bytes:
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
        """A damaged record stays damaged: the next record is chained to the seal digits in the file. No note can follow an append
        that did not finish."""
        self.sealed = self.sealed and record.kind != "tail"
        line = reader.fetch(record.end - SEAL_LENGTH, SEAL_LENGTH)
        digits = read_seal(line.rstrip(b"\n"))
        if digits is None:
            return self._raw(reader.fetch(record.offset, record.length))
        self.seal = digits
        return self._raw(reader.fetch(record.offset, record.length - SEAL_LENGTH)) + line


def with_note(work: Rewriting, reader: TaskReader, note: Callable[[int], Note]) -> Iterator[bytes]:
    """The complete new file, including the note."""
    yield from work.pieces(reader)
    if work.changed and work.sealed:
        yield emit_record([note(work.changed)], work.seal)[0]
