"""The audit log: who did what. A change is acknowledged only after its entry is durable.

The entry of a change that writes a record travels with the record (``Call.with_record``). All others are written here, before the
response is sent. If the database is unreachable, the entry is written again until it is there, and the client gets an error
instead of an acknowledgement. Rejected requests are logged in the background.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from typing import Final

from rawko_state.errors import RawkoError, StorageError
from rawko_state.store.hosting import AuditEntry, KeyedRequest, ServerState

_MOST: Final = 10_000
_WAIT: Final = 5.0
"""Seconds that a request waits for an entry that could not be written at once."""
_LONGEST: Final = 2.0
_LAST: Final = 5.0
"""Seconds to go on trying when the server stops."""


class _Waiting:
    """An entry on its way. ``written`` is set once it is durable."""

    __slots__ = ("entry", "key", "must", "written")

    def __init__(self, entry: AuditEntry, key: KeyedRequest | None, *, must: bool) -> None:
        self.entry, self.key, self.must = entry, key, must
        self.written = threading.Event()


class Auditor:
    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._waiting: queue.Queue[_Waiting | None] = queue.Queue()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="audit")
        self._thread.start()

    def add(self, entry: AuditEntry, key: KeyedRequest | None = None) -> None:
        """Writes the entry of a change, and the answer to its idempotency key. Both are durable on return."""
        with contextlib.suppress(RawkoError):
            self._state.finished(key, [entry])
            return
        waiting = _Waiting(entry, key, must=True)
        self._waiting.put(waiting)
        if not waiting.written.wait(_WAIT):
            raise StorageError("The change was made, but its audit entry can't be written yet. Try again.", "the audit")

    def note(self, entry: AuditEntry) -> None:
        """Writes the entry of a rejected request soon. There may be many of them, so they are dropped if too many wait."""
        if self._waiting.qsize() < _MOST:
            self._waiting.put(_Waiting(entry, None, must=False))

    def flush(self) -> None:
        """Waits until everything added so far is written."""
        self._waiting.join()

    def close(self) -> None:
        self._stopped.set()
        self._waiting.put(None)
        self._thread.join(_LAST + 5)

    def _run(self) -> None:
        ended = False
        while not ended:
            found = [self._waiting.get()]
            with contextlib.suppress(queue.Empty):
                while len(found) < 500:
                    found.append(self._waiting.get_nowait())
            ended = None in found
            self._write([each for each in found if each is not None])
            for _ in found:
                self._waiting.task_done()
        self._state.close()

    def _write(self, waiting: list[_Waiting]) -> None:
        """Tries until the entries of changes are written. Entries of rejected requests get one try."""
        pause, until = 0.05, None
        while waiting:
            try:
                keys = [each.key for each in waiting if each.key is not None]
                self._state.finished(None, [each.entry for each in waiting])
                for key in keys:
                    self._state.finished(key, [])
            except RawkoError:
                waiting = [each for each in waiting if each.must]
                if self._stopped.is_set():
                    until = until or time.monotonic() + _LAST
                    if time.monotonic() >= until:
                        return
                time.sleep(pause)
                pause = min(_LONGEST, pause * 2)
                continue
            for each in waiting:
                each.written.set()
            return
