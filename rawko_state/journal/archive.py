"""Packs a finished task into a ``.task.gz``, and unpacks it again. One of the two complete files exists at every moment."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable

from rawko_state.errors import RawkoError, StorageError
from rawko_state.format.seal import HEADER_LIMIT, header_shape
from rawko_state.journal import disk
from rawko_state.journal.layout import Layout, TaskName
from rawko_state.journal.locks import append_lock
from rawko_state.journal.source import FileBytes, PackedBytes, open_source, packed, unpacked
from rawko_state.model.frozen import replace


def pack(layout: Layout, name: TaskName, stat: tuple[int, int]) -> TaskName | None:
    """Returns the packed file's name. None if the task no longer matches ``stat`` (size, mtime) or is already packed."""
    if name.packed:
        return None
    plain = open_source(layout.path(name), write=True)
    try:
        with append_lock(plain.descriptor, plain.path):
            found = os.fstat(plain.descriptor)
            if (found.st_size, found.st_mtime_ns) != stat or not is_in_place(plain):
                return None
            target = replace(name, packed=True)
            _replace(layout, plain, packed(plain), target, found.st_mtime_ns)
            return target
    finally:
        plain.close()


def unpack(layout: Layout, name: TaskName) -> TaskName:
    """Returns the plain file's name. Another process may unpack it first."""
    target = replace(name, packed=False)
    if not name.packed or layout.path(target).exists():
        return target
    source = open_source(layout.path(name))
    try:
        with append_lock(source.descriptor, source.path):
            if source.path == layout.path(name) and not layout.path(target).exists():
                _replace(layout, source, unpacked(source), target, os.fstat(source.descriptor).st_mtime_ns)
    finally:
        source.close()
    return target


def drop_leftover(layout: Layout, name: TaskName) -> None:
    """Removes a packed file left by a process that was killed after creating one form and before removing the other. The plain
    file counts, so the packed one must go before it is mistaken for the task. The caller holds the plain file's append lock."""
    if is_leftover(layout, name):
        leftover = layout.path(replace(name, packed=True))
        with disk.naming("remove", leftover):
            os.unlink(leftover)
        disk.sync_folder(layout.tasks)


def is_leftover(layout: Layout, name: TaskName) -> bool:
    """Whether a plain task also has a packed file, which contains nothing more."""
    packed_path = layout.path(replace(name, packed=True))
    if name.packed or not os.path.lexists(packed_path):
        return False
    try:
        plain = open_source(layout.path(name))
    except RawkoError:
        return False
    try:
        other = open_source(packed_path)
    except RawkoError:
        plain.close()
        return False
    try:
        return other.path == packed_path and _begins_with(plain, other)
    except RawkoError:
        return False  # unreadable, but perhaps not for others
    finally:
        plain.close()
        other.close()


def _begins_with(whole: FileBytes, beginning: FileBytes) -> bool:
    """Compares while ignoring the header's copies of status and duration, which may have been updated since."""
    holes = header_shape(whole.fetch(0, HEADER_LIMIT)).holes
    at = 0
    for piece in unpacked(beginning):
        mine, theirs = bytearray(whole.fetch(at, len(piece))), bytearray(piece)
        for first, last in holes:
            if at <= first and last <= at + len(piece):
                mine[first - at : last - at] = theirs[first - at : last - at] = bytes(last - first)
        if mine != theirs:
            return False
        at += len(piece)
    return True


def is_in_place(source: FileBytes) -> bool:
    try:
        there = os.lstat(source.path)
    except OSError:
        return False
    mine = os.fstat(source.descriptor)
    return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)


def _replace(layout: Layout, source: FileBytes, pieces: Iterable[bytes], target: TaskName, mtime_ns: int) -> None:
    """Writes the same text in the other form. Removes the old file only once the new one is durable and reads the same."""
    path = layout.path(target)
    beside = disk.write_temporary(layout.live, pieces)
    try:
        with disk.naming("set the time of", beside):
            os.utime(beside, ns=(mtime_ns, mtime_ns))
        written = disk.open_regular(beside)
        try:
            copy = PackedBytes(beside, written) if target.packed else FileBytes(beside, written)
            if _digest(copy) != _digest(source):
                raise StorageError(f"{beside} and {source.path} differ; neither was removed.", str(beside))
        finally:
            os.close(written)
        disk.rename(beside, path)
    finally:
        disk.remove_quietly(beside)
    disk.sync_folder(layout.tasks)
    with disk.naming("remove", source.path):
        os.unlink(source.path)
    disk.sync_folder(layout.tasks)


def _digest(source: FileBytes) -> bytes:
    digest = hashlib.sha256()
    for piece in unpacked(source):
        digest.update(piece)
    return digest.digest()
