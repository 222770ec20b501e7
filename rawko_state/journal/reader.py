"""A task file opened for reading."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rawko_state.format.scan import Problem, Record, Scan
from rawko_state.journal.source import Source, open_source

if TYPE_CHECKING:
    from rawko_state.model.entries import Entry, Turn


class TaskReader:
    """A task file opened for reading, packed or not: its records one after another, and any span of it."""

    def __init__(self, path: Path, source: Source | None = None) -> None:
        """``source``: the bytes, if they are not in a file of that name."""
        self.path = path
        self._source = source or open_source(path)
        self.size = self._source.size()
        self.problems: list[Problem] = []

    def __enter__(self) -> TaskReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._source.close()

    def stat(self) -> tuple[int, int]:
        """Size on the disk and time of change, as Chain.stat() gives them."""
        found = os.fstat(self._source.descriptor)
        return found.st_size, found.st_mtime_ns

    def fetch(self, offset: int, length: int) -> bytes:
        return self._source.fetch(offset, length)

    def turn_at(self, offset: int, length: int) -> Turn | None:
        """The turn that stands there; None if something else does."""
        from rawko_state.model.entries import Turn

        entry = self.entry_at(offset, length)
        return entry if isinstance(entry, Turn) else None

    def entry_at(self, offset: int, length: int) -> Entry | None:
        """The block that stands there, whole; nothing after ``length`` is looked at."""
        at, end = offset, offset + length

        def read(size: int) -> bytes:
            nonlocal at
            piece = self.fetch(at, min(size, end - at)) if at < end else b""
            at += len(piece)
            return piece

        for record in Scan(read, start=offset):
            for block in record.blocks:
                return block.entry(self.fetch)
        return None

    def scan(self, checkpoint: tuple[int, str] | None = None) -> Scan:
        """The records, from the start or from a seal on (its end and its digits)."""
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
