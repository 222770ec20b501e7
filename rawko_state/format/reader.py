"""Reads a task's bytes as records: any span, one block, or all records in order. The bytes may be stored anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Final, Protocol

from rawko_state.format.scan import Problem, Record, Scan
from rawko_state.format.seal import SEAL_LENGTH, find_seal
from rawko_state.model.entries import Entry, Turn

_STRETCH: Final = 1 << 16


class TaskBytes(Protocol):
    """The bytes of one task: in a file (packed or not), in a database, or on a server."""

    def size(self) -> int: ...

    def read_at(self, length: int, offset: int) -> bytes:
        """Up to this many bytes; at least one, unless the offset is at the end."""

    def fetch(self, offset: int, length: int) -> bytes:
        """Exactly this many bytes, or fewer at the end."""

    def stat(self) -> tuple[int, int]:
        """Size on disk and modification time, to detect later changes."""

    def close(self) -> None: ...


def entry_of(data: bytes, offset: int) -> Entry | None:
    """The block whose bytes these are, at an offset of its task."""
    for record in Scan(BytesIO(data).read, start=offset):
        for block in record.blocks:
            return block.entry(lambda at, length: data[at - offset : at - offset + length])
    return None


class MemoryBytes:
    """A task in memory."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def size(self) -> int:
        return len(self._data)

    def read_at(self, length: int, offset: int) -> bytes:
        return self._data[offset : offset + length]

    def fetch(self, offset: int, length: int) -> bytes:
        return self._data[offset : offset + length]

    def stat(self) -> tuple[int, int]:
        return self.size(), 0

    def close(self) -> None:
        return


class TaskReader:
    """A task opened for reading."""

    def __init__(self, path: Path, source: TaskBytes) -> None:
        self.path, self._source = path, source
        self.size = source.size()
        self.problems: list[Problem] = []

    def __enter__(self) -> TaskReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._source.close()

    def stat(self) -> tuple[int, int]:
        return self._source.stat()

    def fetch(self, offset: int, length: int) -> bytes:
        return self._source.fetch(offset, length)

    def turn_at(self, offset: int, length: int) -> Turn | None:
        """The turn at this position; None if it is something else."""
        entry = self.entry_at(offset, length)
        return entry if isinstance(entry, Turn) else None

    def entry_at(self, offset: int, length: int) -> Entry | None:
        """The whole block at this position. Reads nothing beyond ``length``."""
        for record in Scan(self.reading(offset, offset + length), start=offset):
            for block in record.blocks:
                return block.entry(self.fetch)
        return None

    def seal_after(self, offset: int) -> str | None:
        """The seal of the record that this position is in: the first one from here on. None if the record has none."""
        rest = b""
        while piece := self.fetch(offset, _STRETCH):
            seal = find_seal(rest + piece)
            if seal is not None:
                return seal
            offset += len(piece)
            rest = piece[-SEAL_LENGTH:]
        return None

    def reading(self, start: int, end: int) -> _Span:
        """A span, in the form that Scan reads from."""
        return _Span(self, start, end)

    def scan(self, checkpoint: tuple[int, str] | None = None) -> Scan:
        """Scans the records, from the start or from a seal on (its end offset and its digits)."""
        at = checkpoint[0] if checkpoint else 0

        def read(length: int) -> bytes:
            nonlocal at
            piece = self._source.read_at(length, at)
            at += len(piece)
            return piece

        return Scan(read, start=at, parent=checkpoint[1]) if checkpoint else Scan(read)

    def records(self) -> Iterator[Record]:
        scan = self.scan()
        self.problems = scan.problems
        for record in scan:
            self.problems = scan.problems
            yield record
        self.problems = scan.problems


class _Span:
    def __init__(self, reader: TaskReader, start: int, end: int) -> None:
        self._reader, self._at, self._end = reader, start, end

    def __call__(self, length: int) -> bytes:
        piece = self._reader.fetch(self._at, min(length, self._end - self._at)) if self._at < self._end else b""
        self._at += len(piece)
        return piece
