"""The system calls behind task files, with their errors translated into ours.

Only code in this module may make bytes durable. Never retry a failed sync: the kernel forgets the pages that it could not write,
so a second sync would succeed without them.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, Literal

from rawko_state.errors import OutcomeUnknown, StorageError, UnsafePath

FILE_MODE: Final = 0o600
FOLDER_MODE: Final = 0o700
_AT_ONCE: Final = 1 << 20
"""A new file is written in pieces of about this size."""
_NOFOLLOW: Final = getattr(os, "O_NOFOLLOW", 0)
# O_NONBLOCK: opening a pipe that someone put there must not block.
_SAFE: Final = _NOFOLLOW | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


class naming:  # noqa: N801 - used as a function; a class, as it is on the path of every append
    """Translates an OSError into a StorageError that names the file."""

    __slots__ = ("_doing", "_path")

    def __init__(self, doing: str, path: Path) -> None:
        self._doing, self._path = doing, path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> Literal[False]:
        if isinstance(error, OSError):
            message = f"cannot {self._doing} {self._path}: {error.strerror or error}"
            raise StorageError(message, str(self._path), error.errno) from error
        return False


def open_regular(path: Path, *, write: bool = False) -> int:
    """Opens a regular file: not a link, a pipe or a device, and without a second hard link."""
    try:
        descriptor = os.open(path, (os.O_RDWR if write else os.O_RDONLY) | _SAFE)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise UnsafePath(f"{path} is not a regular file.") from None
        raise StorageError(f"Can't open {path}: {error.strerror}.", str(path), error.errno) from error
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(descriptor)
        what = "has a second name (hard link)" if stat.S_ISREG(found.st_mode) else "is not a regular file"
        raise UnsafePath(f"{path} {what}")
    return descriptor


def create_exclusive(path: Path) -> int:
    with naming("create", path):
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _SAFE, FILE_MODE)


def open_or_create(path: Path) -> int:
    """For lock files and drafts. Only we write their content, but a link in their place is not followed."""
    with naming("open", path):
        return os.open(path, os.O_RDWR | os.O_CREAT | _SAFE, FILE_MODE)


if hasattr(os, "pwrite"):

    def _write_at(descriptor: int, data: memoryview, offset: int) -> int:
        return os.pwrite(descriptor, data, offset)

    def read_at(descriptor: int, length: int, offset: int) -> bytes:
        return os.pread(descriptor, length, offset)

else:  # Windows

    def _write_at(descriptor: int, data: memoryview, offset: int) -> int:
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.write(descriptor, data)

    def read_at(descriptor: int, length: int, offset: int) -> bytes:
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.read(descriptor, length)


def write_at(descriptor: int, data: bytes, offset: int, path: Path) -> None:
    """Writes everything: one call, unless the system accepts only part of it."""
    rest = memoryview(data)
    with naming("write to", path):
        while rest:
            written = _write_at(descriptor, rest, offset)
            rest, offset = rest[written:], offset + written


def read_range(descriptor: int, offset: int, length: int) -> bytes:
    """Exactly that many bytes, or fewer at the end of the file."""
    pieces = []
    while length > 0:
        piece = read_at(descriptor, min(length, 1 << 24), offset)
        if not piece:
            break
        pieces.append(piece)
        offset, length = offset + len(piece), length - len(piece)
    return b"".join(pieces)


def _data_sync(descriptor: int) -> None:
    if sys.platform == "darwin":
        import fcntl

        # fsync on macOS leaves the data in the drive's cache.
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    elif hasattr(os, "fdatasync"):
        os.fdatasync(descriptor)
    else:
        os.fsync(descriptor)


def sync(descriptor: int, path: Path, seal: str) -> None:
    """Makes the data durable. If it raises, what is on disk is unknown."""
    try:
        _data_sync(descriptor)
    except OSError as error:
        raise OutcomeUnknown(
            f"Can't confirm that the record reached the disk ({path}: {error.strerror}). It may or may not be "
            "there.\n    "
            f"Look for seal {seal} before you retry.",
            str(path),
            error.errno,
            seal,
        ) from error


def sync_many(files: Sequence[tuple[int, Path]]) -> None:
    """Makes the data of many files durable: with one call for all, where that reports every error. If it raises, none of them
    may be relied on."""
    if len(files) > _WORTH_A_SYNC_OF_ALL and _has_sync_of_all(os.fstat(files[0][0]).st_dev):
        with naming("sync", files[0][1]):
            if _sync_of_all(files[0][0]):
                return
    for descriptor, path in files:
        sync(descriptor, path, "")


_WORTH_A_SYNC_OF_ALL: Final = 2
_WITH_SYNC_OF_ALL: Final = frozenset(("ext4", "xfs", "f2fs"))
"""Local file systems. With others, such as FUSE, syncfs() may return before the data is stored."""


@functools.cache
def _has_sync_of_all(device: int) -> bool:
    """Whether syncfs() is there and can be relied on. Before Linux 5.8 it does not report errors."""
    if sys.platform != "linux":
        return False
    release = re.match(r"(\d+)\.(\d+)", os.uname().release)
    if release is None or (int(release[1]), int(release[2])) < (5, 8):
        return False
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
            # 36 35 98:0 / /home rw,noatime master:1 - ext4 /dev/sda1 rw
            kinds = [line.partition(" - ")[2].split(" ")[0] for line in mounts if line.split(" ")[2] == number]
    except (OSError, IndexError):
        return False
    return bool(kinds) and _WITH_SYNC_OF_ALL.issuperset(kinds)


def _sync_of_all(descriptor: int) -> bool:
    """Syncs the file system of a file. False if the system does not have that."""
    import ctypes

    system = ctypes.CDLL(None, use_errno=True)
    if not hasattr(system, "syncfs"):
        return False
    if system.syncfs(descriptor) != 0:
        number = ctypes.get_errno()
        if number == errno.ENOSYS:
            return False
        raise OSError(number, os.strerror(number))
    return True


def sync_folder(path: Path, seal: str = "") -> None:
    """Makes the names in a folder durable."""
    if os.name == "nt":
        return
    with naming("open", path):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _SAFE)
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise OutcomeUnknown(f"Can't sync {path}: {error.strerror}.", str(path), error.errno, seal) from error
    finally:
        os.close(descriptor)


def write_temporary(
    folder: Path,
    data: bytes | Iterable[bytes],
    seal: str = "",
    finish: Callable[[int, Path], None] | None = None,
) -> Path:
    """Writes and syncs a complete file with a temporary name, to be renamed into place. ``finish`` is called before the sync."""
    descriptor, temporary = write_unsynced(folder, [data] if isinstance(data, bytes) else data, finish)
    try:
        try:
            sync(descriptor, temporary, seal)
        finally:
            os.close(descriptor)
    except BaseException:
        remove_quietly(temporary)
        raise
    return temporary


def write_unsynced(
    folder: Path, pieces: Iterable[bytes], finish: Callable[[int, Path], None] | None = None
) -> tuple[int, Path]:
    """Writes a complete file with a temporary name, and returns it open: whoever renames it into place syncs it first."""
    temporary = folder / f"new-{os.getpid()}-{os.urandom(6).hex()}"
    descriptor = create_exclusive(temporary)
    try:
        at, waiting, size = 0, list[bytes](), 0
        for piece in pieces:
            waiting.append(piece)
            size += len(piece)
            if size >= _AT_ONCE:
                write_at(descriptor, b"".join(waiting), at, temporary)
                at, waiting, size = at + size, [], 0
        write_at(descriptor, b"".join(waiting), at, temporary)
        if finish is not None:
            finish(descriptor, temporary)
    except BaseException:
        os.close(descriptor)
        remove_quietly(temporary)
        raise
    return descriptor, temporary


def remove_quietly(path: Path) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def rename(source: Path, target: Path) -> None:
    """Renames atomically: the target is complete or absent. Its name is durable only after sync_folder()."""
    with naming("rename to", target):
        os.rename(source, target)


def make_folder(path: Path) -> None:
    """Creates a folder, private and durable. Rejects a link in its place."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        if not path.parent.exists():
            make_folder(path.parent)
        with naming("create", path), contextlib.suppress(FileExistsError):
            os.mkdir(path, FOLDER_MODE)
            sync_folder(path.parent)
        return
    except OSError as error:
        raise StorageError(f"Can't read {path}: {error.strerror}.", str(path), error.errno) from error
    check_folder(path, found)


def check_folder(path: Path, found: os.stat_result | None = None) -> None:
    found = found or os.lstat(path)
    if not stat.S_ISDIR(found.st_mode):
        what = "a link" if stat.S_ISLNK(found.st_mode) else "not a folder"
        raise UnsafePath(f"{path} is {what}. rawko stores files only in the project's own folder.")
    if os.name != "nt" and found.st_mode & stat.S_IWOTH:
        raise UnsafePath(f"Everyone on this machine can write to {path}. Run: chmod o-w {path}")


def is_running(pid: int) -> bool:
    """Whether a process with this id exists."""
    if os.name == "nt":  # signal 0 is Ctrl-C there
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
