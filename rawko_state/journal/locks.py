"""Locks that the system releases when their process dies, however it dies.

The *append lock* is an flock on the task file, held during one append. The *run lease* is an flock on a file in ``live/``, held
as long as a process works on the task.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

from rawko_state.errors import StorageError, TaskBusy, UnsafePath
from rawko_state.journal import disk
from rawko_state.model.frozen import Frozen

APPEND_TIMEOUT: Final = 60.0
_POLL: Final = 0.02
_LOOKING: Final = 1.0
_WRITING: Final = 5.0
_WIDTH: Final = 512

if os.name == "nt":
    import msvcrt

    def _try_lock(descriptor: int) -> bool:
        os.lseek(descriptor, 1 << 40, os.SEEK_SET)  # far past any content, so that the lock does not block readers
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
        except OSError:
            return False
        return True

    _try_share = _try_lock

    def _unlock(descriptor: int) -> None:
        os.lseek(descriptor, 1 << 40, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)  # type: ignore[attr-defined,unused-ignore]

else:
    import fcntl

    def _flock(descriptor: int, kind: int) -> bool:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES, errno.EINTR):
                return False
            raise
        return True

    def _try_lock(descriptor: int) -> bool:
        return _flock(descriptor, fcntl.LOCK_EX)

    def _try_share(descriptor: int) -> bool:
        return _flock(descriptor, fcntl.LOCK_SH)

    def _unlock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def _host() -> str:
    """The name of this machine."""
    if hasattr(os, "uname"):
        return os.uname().nodename
    import socket

    return socket.gethostname()


class append_lock:  # noqa: N801 - used as a function; a class, as it is on the path of every append
    """The append lock. Appends take milliseconds, so a process that holds it for a minute is stopped, not working."""

    __slots__ = ("_descriptor", "_path", "_timeout")

    def __init__(self, descriptor: int, path: Path, timeout: float = APPEND_TIMEOUT) -> None:
        self._descriptor, self._path, self._timeout = descriptor, path, timeout

    def __enter__(self) -> None:
        with disk.naming("lock", self._path):
            if not _try_lock(self._descriptor):
                self._wait()

    def _wait(self) -> None:
        until = time.monotonic() + self._timeout
        pause = 0.0002
        while not _try_lock(self._descriptor):
            if time.monotonic() > until:
                raise StorageError(
                    f"{self._path} has been locked for {self._timeout:.0f} s by a process that makes no progress.",
                    str(self._path),
                )
            time.sleep(pause)
            pause = min(pause * 2, _POLL)

    def __exit__(self, *_: object) -> None:
        # The work under the lock is done. If unlocking fails, closing the descriptor releases it.
        with contextlib.suppress(OSError):
            _unlock(self._descriptor)


@contextlib.contextmanager
def gate(path: Path, *, shared: bool = False, timeout: float = APPEND_TIMEOUT) -> Iterator[None]:
    """A lock on its own file, shared or exclusive."""
    descriptor = disk.open_or_create(path)
    until = time.monotonic() + timeout
    try:
        with disk.naming("lock", path):
            while not (_try_share if shared else _try_lock)(descriptor):
                if time.monotonic() > until:
                    raise StorageError(f"Another process has held {path} for {timeout:.0f} s. Try again.", str(path))
                time.sleep(_POLL)
        yield
    finally:
        os.close(descriptor)


class Holder(Frozen):
    """Who holds a lease."""

    pid: int
    host: str
    since: str

    def __str__(self) -> str:
        where = "" if self.host == _host() else f" on {self.host}"
        return f"process {self.pid}{where}, since {self.since}"


class Lease:
    """The right to run a task. Taken on creation, and released by release() or by the death of the process."""

    def __init__(self, path: Path, task: str, wait: float = 0.0) -> None:
        self.path, self.task = path, task
        began = time.monotonic()
        until = began + wait
        while True:
            descriptor = disk.open_or_create(path)
            if _locked(descriptor, path):
                if _is_at(descriptor, path):
                    break
                os.close(descriptor)  # it was released, and its file removed, between our open and our lock
                continue
            holder = _read_holder(descriptor)
            os.close(descriptor)
            # A process that checks for an abandoned lease holds it for a moment.
            patience = until if _is_held(holder) else max(until, began + _LOOKING)
            if time.monotonic() >= patience:
                raise TaskBusy(task, str(holder) if holder else "another process")
            time.sleep(_POLL)
        self._descriptor: int | None = descriptor
        import json

        now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        content = json.dumps({"pid": os.getpid(), "host": _host(), "since": now}).encode()
        try:
            # Write in place with a fixed length, so that the content is never empty or a mix of two holders.
            disk.write_at(descriptor, content.ljust(_WIDTH), 0, path)
        except BaseException:
            self.release()
            raise
        _held[id(self)] = self

    def release(self) -> None:
        if self._descriptor is not None:
            _held.pop(id(self), None)
            with contextlib.suppress(OSError):
                os.unlink(self.path)  # while locked: a process that opens it now finds it gone, and retries
            os.close(self._descriptor)
            self._descriptor = None

    def _forget(self) -> None:
        """In a forked child: the parent keeps the lease."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _locked(descriptor: int, path: Path) -> bool:
    try:
        with disk.naming("lock", path):
            return _try_lock(descriptor)
    except BaseException:
        os.close(descriptor)
        raise


_held: dict[int, Lease] = {}


def _forget_all() -> None:
    for lease in list(_held.values()):
        lease._forget()
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


def holder_of(path: Path) -> Holder | None:
    """Who holds the lease now, or None. Checking does not take it."""
    try:
        descriptor = disk.open_regular(path, write=os.name == "nt")
    except StorageError as error:
        if error.errno == errno.ENOENT:
            return None
        raise
    try:
        if _try_lock(descriptor):
            _unlock(descriptor)
            return None
        return _read_holder(descriptor) or Holder(0, _host(), "unknown")
    finally:
        os.close(descriptor)


def is_abandoned(path: Path) -> bool:
    """Whether the lease's holder died without releasing it, or the lease names no holder. False for other machines, where this
    cannot be checked, and for a process that is taking or releasing the lease right now, as it is alive."""
    try:
        descriptor = disk.open_regular(path, write=os.name == "nt")
    except StorageError:
        return False
    try:
        holder = _read_holder(descriptor)
        if _is_held(holder) or (holder is None and _is_young(descriptor)) or not _try_lock(descriptor):
            return False
        _unlock(descriptor)
        return True
    finally:
        os.close(descriptor)


def _is_held(holder: Holder | None) -> bool:
    """Whether the lease's holder may still be running."""
    return holder is not None and (holder.host != _host() or disk.is_running(holder.pid))


def _is_young(descriptor: int) -> bool:
    """Whether a process may be about to write to it."""
    return abs(time.time() - os.fstat(descriptor).st_mtime) < _WRITING


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        there = os.lstat(path)
    except FileNotFoundError:
        return False
    mine = os.fstat(descriptor)
    return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)


def _read_holder(descriptor: int) -> Holder | None:
    import json

    try:
        data = json.loads(disk.read_at(descriptor, 4096, 0))
        return Holder(int(data["pid"]), str(data["host"]), str(data["since"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


class Mark:
    """``live/ID.NONCE.mark``: this task may have grown beyond what the index knows. Locked while its writer lives."""

    def __init__(self, folder: Path, task_id: str) -> None:
        disk.make_folder(folder)
        while True:
            self.path = folder / f"{task_id}.{os.urandom(6).hex()}.mark"
            descriptor = disk.create_exclusive(self.path)
            self._descriptor: int | None = descriptor
            if _locked(descriptor, self.path) and _is_at(descriptor, self.path):
                break
            self.leave()  # a query was faster, and took it for a dead writer's mark
        try:
            # Durable before the append that it announces.
            disk.sync_folder(folder)
        except BaseException:
            self.remove()
            raise

    @classmethod
    def of_dead_writer(cls, path: Path) -> Mark | None:
        """Takes over the mark of a dead writer. None while the writer lives."""
        try:
            descriptor = disk.open_regular(path, write=True)
        except (StorageError, UnsafePath):
            return None
        try:
            if not _try_lock(descriptor):
                os.close(descriptor)
                return None
        except OSError:
            os.close(descriptor)
            return None
        mark = cls.__new__(cls)
        mark.path, mark._descriptor = path, descriptor
        return mark

    def remove(self) -> None:
        """Deletes the mark: the index has everything."""
        if self._descriptor is not None:
            disk.remove_quietly(self.path)
            self.leave()

    def leave(self) -> None:
        """Leaves the mark for the next query to process."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
