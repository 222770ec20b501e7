"""Whole records: entries in, bytes with their seal out; and bytes in memory, read back."""

from __future__ import annotations

import io
from collections.abc import Iterable

from rawko_state.format.blocks import emit_block
from rawko_state.format.codec import encode
from rawko_state.format.scan import Problem, Record, Scan
from rawko_state.format.seal import GENESIS, header_shape, seal_line, seal_of
from rawko_state.model.entries import Entry


def seal_record(body: bytes, parent: str) -> tuple[bytes, str]:
    """A record from the bytes of its blocks: with its seal line, and the seal."""
    holes = header_shape(body).holes if parent == GENESIS else ()
    seal = seal_of(parent, body, holes)
    return body + seal_line(seal), seal


def emit_record(entries: Iterable[Entry], parent: str = GENESIS) -> tuple[bytes, str]:
    """The bytes of one append, and its seal."""
    return seal_record(b"".join(emit_block(encode(entry)) for entry in entries), parent)


def emit_unsealed(entries: Iterable[Entry]) -> bytes:
    """A file as people write it: no seal, and no empty line at the end."""
    return b"".join(emit_block(encode(entry)) for entry in entries)[:-1]


def scan_bytes(data: bytes) -> tuple[list[Record], list[Problem]]:
    """All records of a file that is in memory."""
    scan = Scan(io.BytesIO(data).read)
    return list(scan), scan.problems
