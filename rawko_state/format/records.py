"""Whole records: builds sealed bytes from entries, and reads bytes in memory back.

``build_record`` is the only builder. Every append, import and database write goes through it, so a task has the same bytes
wherever it is stored.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from rawko_state.format.blocks import Block, emit_block
from rawko_state.format.codec import FORMAT_VERSION, copy_value, encode
from rawko_state.format.scan import Problem, Record, Scan
from rawko_state.format.seal import GENESIS, HeaderShape, header_shape, seal_line, seal_of
from rawko_state.format.values import write_duration
from rawko_state.model.appended import Appended, LocatedBlock
from rawko_state.model.entries import Entry, TaskHeader, Torn
from rawko_state.model.frozen import replace
from rawko_state.model.state import TaskState

Fetch = Callable[[int, int], bytes]


class BuiltRecord(NamedTuple):
    """A record that is ready to write, and the task's state after it."""

    data: bytes
    seal: str
    parent: str
    offset: int
    state: TaskState
    blocks: tuple[LocatedBlock, ...]
    """The record's blocks, with the position of each in the file."""

    @property
    def end(self) -> int:
        return self.offset + len(self.data)

    def appended(self, *, alone: bool = True) -> Appended:
        return Appended(self.seal, self.parent, self.offset, self.end, self.state, self.blocks, alone)


def build_record(entries: Sequence[Entry], state: TaskState, parent: str, offset: int) -> BuiltRecord:
    """Builds a record that follows the seal ``parent`` at ``offset``. Raises IllegalMove if an entry cannot follow the state."""
    blocks, at, pieces = [], offset, []
    for entry in entries:
        if type(entry) is TaskHeader:
            entry = replace(entry, format=FORMAT_VERSION)
        state = state.step(entry)
        piece = emit_block(encode(entry))
        pieces.append(piece)
        blocks.append(LocatedBlock(entry, at, len(piece)))
        at += len(piece)
    data, seal = seal_record(b"".join(pieces), parent)
    return BuiltRecord(data, seal, parent, offset, state, tuple(blocks))


def first_record(header: TaskHeader, entries: Sequence[Entry]) -> BuiltRecord:
    """The first record of a new task."""
    return build_record([header, *entries], TaskState(id=header.id), GENESIS, 0)


def seal_record(body: bytes, parent: str) -> tuple[bytes, str]:
    """A record from the bytes of its blocks: its bytes with the seal line, and the seal."""
    holes = header_shape(body).holes if parent == GENESIS else ()
    seal = seal_of(parent, body, holes)
    return body + seal_line(seal), seal


def emit_record(entries: Iterable[Entry], parent: str = GENESIS) -> tuple[bytes, str]:
    """The bytes of entries as one record, and its seal; for tests and tools that keep no state."""
    return seal_record(emit_blocks(entries), parent)


def emit_blocks(entries: Iterable[Entry]) -> bytes:
    """The bytes of blocks in a task file, without a seal."""
    return b"".join(emit_block(encode(entry)) for entry in entries)


def emit_unsealed(entries: Iterable[Entry]) -> bytes:
    """A file as people write it: no seal and no empty line at the end."""
    return emit_blocks(entries)[:-1]


def emit_torn(length: int) -> bytes:
    """The marker that closes an unfinished append of this many bytes."""
    return b"\n" + emit_block(encode(Torn(length=length)))


def emit_as_read(blocks: Iterable[Block], seal: str | None) -> bytes:
    """A record exactly as it was read elsewhere, with its original seal."""
    data = b"".join(emit_block(block) for block in blocks)
    return data + seal_line(seal) if seal is not None else data


class HeaderCopy(NamedTuple):
    """A copied header value that differs from the records."""

    offset: int
    data: bytes | None
    """The correct value; None if it does not fit."""


def header_copies(shape: HeaderShape, fetch: Fetch, state: TaskState) -> list[HeaderCopy]:
    """The stale copies of status and duration in a header. The copies are for grep: they have a fixed width, and no seal covers
    them."""
    if shape.format is None or shape.status is None or shape.duration is None:
        return []
    duration = "-" if state.duration_ms is None else write_duration(state.duration_ms)
    found = []
    for (first, last), value in ((shape.status, state.status), (shape.duration, duration)):
        if fetch(first, last - first).rstrip(b" ") != value.rstrip().encode():
            wanted = copy_value(value, last - first).encode()
            found.append(HeaderCopy(first, wanted if len(wanted) == last - first else None))
    return found


def scan_bytes(data: bytes) -> tuple[list[Record], list[Problem]]:
    """All records of a file in memory."""
    scan = Scan(io.BytesIO(data).read)
    return list(scan), scan.problems
