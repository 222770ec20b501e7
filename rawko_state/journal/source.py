"""The bytes of a task file, either plain or packed in a ``.task.gz``.

A packed file is an ordinary gzip file with several members, so ``zcat`` and ``zgrep`` can read it. Each member's header states
its packed and unpacked length, so any position can be found by skipping over headers and unpacking one member. Offsets always
refer to the unpacked text: indexes, cursors and seals stay valid.

Gzip files from other tools have no such lengths. They are read from the beginning up to the requested position.
"""

from __future__ import annotations

import bisect
import errno
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rawko_state.errors import StorageError
from rawko_state.journal import disk
from rawko_state.model.names import PACKED

MEMBER: Final = 1 << 18
"""Bytes of text per member: the cost of one seek."""
_HEAD = struct.Struct("<4sIBBH2sHII")
_MAGIC: Final = b"\x1f\x8b\x08\x04"
_LENGTHS: Final = b"RK"
_TAIL = struct.Struct("<II")
_PIECE: Final = 1 << 16


class FileBytes:
    """A plain task file."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self.descriptor = path, descriptor

    def size(self, found: os.stat_result | None = None) -> int:
        """Of the text. ``found``: what the system says of the file, if it was asked already."""
        return (found or os.fstat(self.descriptor)).st_size

    def read_at(self, length: int, offset: int) -> bytes:
        return disk.read_at(self.descriptor, length, offset)

    def fetch(self, offset: int, length: int) -> bytes:
        """Exactly that many bytes, or fewer at the end."""
        if 0 < length <= _PIECE and len(piece := disk.read_at(self.descriptor, length, offset)) == length:
            return piece
        return disk.read_range(self.descriptor, offset, length)

    def stat(self) -> tuple[int, int]:
        """Size on disk and mtime."""
        found = os.fstat(self.descriptor)
        return found.st_size, found.st_mtime_ns

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class PackedBytes(FileBytes):
    """A task file in gzip members."""

    def __init__(self, path: Path, descriptor: int) -> None:
        super().__init__(path, descriptor)
        self._last: tuple[int, bytes] | None = None
        self._starts: list[int] = []
        """Where each member's text begins,"""
        self._places: list[tuple[int, int]] = []
        """and the member's offset and length in the file."""
        self._size = self._members() if disk.read_at(descriptor, 4, 0) == _MAGIC else None
        self._foreign = None if self._size is not None else _Foreign(self)

    def _members(self) -> int | None:
        """The size of the text. None if a member does not state its own."""
        at = text = 0
        end = os.fstat(self.descriptor).st_size
        while at < end:
            head = disk.read_at(self.descriptor, _HEAD.size, at)
            if len(head) < _HEAD.size:
                raise self._damaged(at)
            magic, _, _, _, extra, name, length, packed, plain = _HEAD.unpack(head)
            if (magic, extra, name, length) != (_MAGIC, 12, _LENGTHS, 8) or plain > MEMBER:
                return None  # not written by us
            if packed < _HEAD.size + _TAIL.size or at + packed > end:
                raise self._damaged(at)
            self._starts.append(text)
            self._places.append((at, packed))
            at, text = at + packed, text + plain
        return text

    def size(self, found: os.stat_result | None = None) -> int:
        return self._foreign.size() if self._foreign is not None else self._size or 0

    def read_at(self, length: int, offset: int) -> bytes:
        """Up to that many bytes; at least one, unless the offset is at the end."""
        if self._foreign is not None:
            return self._foreign.read_at(length, offset)
        if offset >= self.size():
            return b""
        number = bisect.bisect_right(self._starts, offset) - 1
        text = self._member(number)
        start = offset - self._starts[number]
        return text[start : start + length]

    def fetch(self, offset: int, length: int) -> bytes:
        pieces = []
        while length > 0 and (piece := self.read_at(length, offset)):
            pieces.append(piece)
            offset, length = offset + len(piece), length - len(piece)
        return b"".join(pieces)

    def _member(self, number: int) -> bytes:
        if self._last is not None and self._last[0] == number:
            return self._last[1]
        at, packed = self._places[number]
        data = disk.read_range(self.descriptor, at, packed)
        crc, size = _TAIL.unpack(data[-_TAIL.size :]) if len(data) == packed else (0, -1)
        unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            # Never more than stated: a small file must not expand to a huge one in memory.
            text = unpacker.decompress(data[_HEAD.size : -_TAIL.size], max(1, size))
        except zlib.error:
            raise self._damaged(at) from None
        ends = [*self._starts[1:], self.size()]
        if len(text) != size or size != ends[number] - self._starts[number] or zlib.crc32(text) != crc:
            raise self._damaged(at)
        self._last = (number, text)
        return text

    def _damaged(self, at: int) -> StorageError:
        return StorageError(f"{self.path} is damaged: can't unpack it at byte {at}.", str(self.path))


class _Foreign:
    """A gzip file without lengths: read from the beginning, only as far as needed."""

    def __init__(self, source: PackedBytes) -> None:
        self._source = source
        self._total: int | None = None
        self._restart()

    def _restart(self) -> None:
        self._pieces = self._unpacked()
        self._start, self._text = 0, b""

    def _unpacked(self) -> Iterator[bytes]:
        at, unpacker = 0, zlib.decompressobj(16 + zlib.MAX_WBITS)
        rest, whole = b"", False
        while data := rest or disk.read_at(self._source.descriptor, _PIECE, at):
            at, whole = at + (0 if rest else len(data)), False
            try:
                yield unpacker.decompress(data, MEMBER)
            except zlib.error:
                raise self._source._damaged(at) from None
            rest = unpacker.unconsumed_tail
            if unpacker.eof:
                whole = True
                rest, unpacker = unpacker.unused_data, zlib.decompressobj(16 + zlib.MAX_WBITS)
        if not whole:
            raise self._source._damaged(at)  # truncated, or empty

    def size(self) -> int:
        if self._total is None:
            self._total = sum(map(len, self._unpacked()))
        return self._total

    def read_at(self, length: int, offset: int) -> bytes:
        if offset < self._start:
            self._restart()
        while offset >= self._start + len(self._text):
            piece = next(self._pieces, None)
            if piece is None:
                return b""
            self._start, self._text = self._start + len(self._text), piece
        return self._text[offset - self._start :][:length]


def open_source(path: Path, *, write: bool = False) -> FileBytes:
    """Opens a task file, even if it was packed or unpacked since its name was looked up."""
    try:
        return _opened(path, write)
    except StorageError as error:
        if error.errno != errno.ENOENT or write:
            raise
        try:
            return _opened(other(path), write)
        except StorageError:
            raise error from None


def open_source_as(path: Path, *, packed: bool) -> FileBytes:
    """Opens a task file whose name does not tell its form, such as one in the trash."""
    descriptor = disk.open_regular(path)
    try:
        return (PackedBytes if packed else FileBytes)(path, descriptor)
    except BaseException:
        os.close(descriptor)
        raise


def other(path: Path) -> Path:
    """The task's path in its other form, packed or plain."""
    return path.with_name(path.name[:-3] if path.name.endswith(PACKED) else path.name + ".gz")


def _opened(path: Path, write: bool) -> FileBytes:
    descriptor = disk.open_regular(path, write=write)
    try:
        return (PackedBytes if path.name.endswith(PACKED) else FileBytes)(path, descriptor)
    except BaseException:
        os.close(descriptor)
        raise


def packed(source: FileBytes) -> Iterator[bytes]:
    """Packs a file: yields its gzip members."""
    offset = 0
    while text := source.fetch(offset, MEMBER):
        packer = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
        body = packer.compress(text) + packer.flush()
        length = _HEAD.size + len(body) + _TAIL.size
        yield _HEAD.pack(_MAGIC, 0, 0, 255, 12, _LENGTHS, 8, length, len(text))
        yield body
        yield _TAIL.pack(zlib.crc32(text), len(text))
        offset += len(text)


def unpacked(source: FileBytes) -> Iterator[bytes]:
    """The text of a file, in pieces."""
    offset = 0
    while text := source.fetch(offset, MEMBER):
        yield text
        offset += len(text)
