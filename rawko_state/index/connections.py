"""Connections: one per thread, owned by the database or the client that opened them.

A connection in thread-local storage is dropped without being closed when its thread ends. So each connection is registered here.
Connections of ended threads are closed when the next one is opened; the others are closed when their owner is closed or
garbage-collected. The number of open descriptors is therefore bounded by the number of live threads.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import Protocol


class Connection(Protocol):
    def close(self) -> None: ...


_inherited: list[Connection] = []
"""Connections of the parent process: never used, and never closed, because that would end the parent's sessions."""


class Connections:
    """The open connections of one owner, and the thread that uses each."""

    def __init__(self, owner: object) -> None:
        self._open: list[tuple[weakref.ref[threading.Thread], Connection]] = []
        self._lock = threading.Lock()
        # When the owner is dropped, its connections are closed, whichever threads opened them.
        weakref.finalize(owner, _close_all, self._open)

    def add(self, connection: Connection) -> None:
        with self._lock:
            self._open.append((weakref.ref(threading.current_thread()), connection))
        self.close_ended()

    def remove(self, connection: Connection) -> None:
        with self._lock:
            self._open[:] = [each for each in self._open if each[1] is not connection]

    def close_ended(self) -> None:
        """Closes the connections of threads that have ended. No other thread can be using them."""
        with self._lock:
            ended = [each for each in self._open if not _is_alive(each[0])]
            self._open[:] = [each for each in self._open if _is_alive(each[0])]
        for _, connection in ended:
            _close(connection)

    def close_all(self) -> None:
        """Closes every thread's connection. Call it only when no thread uses one."""
        with self._lock:
            found, self._open[:] = list(self._open), []
        for _, connection in found:
            _close(connection)

    def disown(self) -> None:
        """Called in a forked child: the connections belong to the parent."""
        self._lock = threading.Lock()
        _inherited.extend(connection for _, connection in self._open)
        self._open.clear()

    def __len__(self) -> int:
        return len(self._open)


def _is_alive(reference: weakref.ref[threading.Thread]) -> bool:
    thread = reference()
    return thread is not None and thread.is_alive()


def _close(connection: Connection) -> None:
    with contextlib.suppress(Exception):  # broken or already closed: either way it is gone
        connection.close()


def _close_all(connections: list[tuple[weakref.ref[threading.Thread], Connection]]) -> None:
    for _, connection in connections:
        _close(connection)
