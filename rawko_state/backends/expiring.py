"""Leases over a distance: they run out unless one says again and again that one is there."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Final

from rawko_state.errors import RawkoError, TaskBusy

LEASE: Final = 30.0
"""Seconds after which a process that says nothing is taken for dead."""
_POLL: Final = 0.05


class ExpiringLease:
    """The right to run a task."""

    def __init__(
        self,
        task_id: str,
        borrow: Callable[[str | None], str],
        give_back: Callable[[str], None],
        *,
        wait: float = 0.0,
        done: Callable[[], None] = lambda: None,
    ) -> None:
        """``borrow`` takes the lease, or keeps the one with that token; ``done`` is called where it was kept, at the end."""
        self.task, self._borrow, self._give_back, self._done = task_id, borrow, give_back, done
        until = time.monotonic() + wait
        while True:
            try:
                self.token = borrow(None)
                break
            except TaskBusy:
                if time.monotonic() >= until:
                    raise
                time.sleep(_POLL)
        self._ended = threading.Event()
        threading.Thread(target=self._keep, daemon=True, name=f"lease of {task_id}").start()

    def _keep(self) -> None:
        while not self._ended.wait(LEASE / 3):
            # What cannot be kept now is tried again; when it has run out, others may take the task, as they should.
            with contextlib.suppress(RawkoError):
                self._borrow(self.token)
        self._done()

    def check(self) -> None:
        """TaskBusy if somebody else has it by now."""
        self._borrow(self.token)

    def release(self) -> None:
        if not self._ended.is_set():
            self._ended.set()
            with contextlib.suppress(RawkoError):  # then it runs out
                self._give_back(self.token)
