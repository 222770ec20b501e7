"""Drafts as files: ``live/ID.draft`` holds a live turn's lines until it ends."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from rawko_state.errors import StorageError
from rawko_state.journal import disk


class FileSink:
    """A draft in a file. The first write is its head."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = disk.open_or_create(path)
        with disk.naming("write to", path):
            os.ftruncate(self._descriptor, 0)
        self._end = 0

    def write(self, data: bytes, *, durable: bool) -> None:
        first = self._end == 0
        disk.write_at(self._descriptor, data, self._end, self.path)
        self._end += len(data)
        if durable:
            disk.sync(self._descriptor, self.path, "")
            if first:
                disk.sync_folder(self.path.parent)

    def discard(self) -> None:
        if self._descriptor >= 0:
            self.leave()
            with contextlib.suppress(OSError):
                os.unlink(self.path)

    def leave(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class DraftView:
    """A draft, as read by followers of its turn."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @contextlib.contextmanager
    def opened(self) -> Iterator[tuple[bytes, Callable[[int], Iterator[bytes]]]]:
        """Its head, and a function that yields its complete lines from an offset on. Raises OSError if there is no draft."""
        with open(self._path, "rb") as stream:
            head = stream.readline()

            def lines(start: int) -> Iterator[bytes]:
                stream.seek(start)
                while (line := stream.readline()).endswith(b"\n"):
                    yield line

            yield head, lines


def draft_lines(path: Path) -> list[bytes]:
    """The lines of a leftover draft. Empty if there is none."""
    try:
        descriptor = disk.open_regular(path)
    except StorageError:
        return []
    try:
        with os.fdopen(descriptor, "rb") as stream:
            return stream.readlines()
    except OSError as error:
        raise StorageError(f"Can't read {path}: {error.strerror}.", str(path), error.errno) from error


def append_lines(path: Path, lines: bytes, before: Callable[[int], None] | None = None) -> bool:
    """Adds lines to a draft that another process began. False if there is none. ``before`` is called with their place just before
    they are written."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0))
    except FileNotFoundError:
        return False
    with os.fdopen(descriptor, "ab") as stream:
        if before is not None:
            before(os.fstat(descriptor).st_size)
        stream.write(lines)
    return True
