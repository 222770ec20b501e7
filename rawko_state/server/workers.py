"""Several server processes that share one port, and one that supervises them.

Each worker is a whole server on the same database, as on several machines. The system spreads connections over them. The
supervisor holds the port, starts another worker if one dies, and stops them all when it is told to. It needs ``SO_REUSEPORT``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Final

from rawko_state.errors import InvalidValue, RawkoError

_SOON: Final = 1.0
"""Seconds between two starts of the same worker, so that one that can't start does not take the whole machine."""
_GRACE: Final = 20.0
Warn = Callable[[str], None]


def reserved(host: str, port: int) -> socket.socket:
    """A socket that holds the port for this process and its children. It does not listen."""
    if not hasattr(socket, "SO_REUSEPORT") or not hasattr(os, "fork"):
        raise InvalidValue(
            "Several workers can't share a port on this system. Run one server, or several on different ports."
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        made.bind((host, port))
    except OSError as error:
        made.close()
        raise RawkoError(f"Can't listen on {host}:{port}: {error.strerror}.") from None
    return made


def supervise(count: int, work: Callable[[], None], warn: Warn) -> None:
    """Keeps so many processes at work until SIGTERM or SIGINT."""
    stopping = False
    started: dict[int, float] = {}

    def stop(sig: int, frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    before = {sig: signal.signal(sig, stop) for sig in (signal.SIGTERM, signal.SIGINT)}
    try:
        while not stopping:
            while len(started) < count and not stopping:
                started[_started(work, before)] = time.monotonic()
            ended = _ended()
            if ended is None:
                time.sleep(0.05)
                continue
            pid, status = ended
            began = started.pop(pid, 0.0)
            if not stopping:
                warn(f"worker {pid} ended ({_how(status)}); starting another one")
                time.sleep(max(0.0, began + _SOON - time.monotonic()))
    finally:
        _stop(set(started))
        for sig, handler in before.items():
            signal.signal(sig, handler)


def _started(work: Callable[[], None], handlers: Iterable[signal.Signals]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        for sig in handlers:
            signal.signal(sig, signal.SIG_DFL)
        work()
        code = 0
    finally:
        os._exit(code)  # the supervisor's own clean-up is not the worker's


def _ended() -> tuple[int, int] | None:
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, status) if pid else None


def _how(status: int) -> str:
    return f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit {os.WEXITSTATUS(status)}"


def _stop(left: set[int]) -> None:
    """Ends the workers: politely, and after a while not."""
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    until = time.monotonic() + _GRACE
    while left and time.monotonic() < until:
        ended = _ended()
        if ended is None:
            time.sleep(0.02)
        else:
            left.discard(ended[0])
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
