"""Remote leases expire unless renewed. This module has both sides: the holder, and the server that lends them."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rawko_state.errors import RawkoError, TaskBusy

if TYPE_CHECKING:
    from rawko_state.journal.journal import Journal
    from rawko_state.journal.locks import Lease

LEASE: Final = 30.0
"""Seconds after which a silent process is considered dead."""
_POLL: Final = 0.05


class ExpiringLease:
    """The right to run a task."""

    def __init__(
        self,
        task_id: str,
        take: Callable[[str | None], str],
        give_back: Callable[[str], None],
        *,
        wait: float = 0.0,
        done: Callable[[], None] = lambda: None,
    ) -> None:
        """``take`` takes the lease, or renews it if given its token. ``done`` is called at the end, in the renewal thread."""
        self.task, self._take, self._give_back, self._done = task_id, take, give_back, done
        until = time.monotonic() + wait
        while True:
            try:
                self.token = take(None)
                break
            except TaskBusy:
                if time.monotonic() >= until:
                    raise
                time.sleep(_POLL)
        self._ended = threading.Event()
        threading.Thread(target=self._keep, daemon=True, name=f"lease of {task_id}").start()

    def _keep(self) -> None:
        while not self._ended.wait(LEASE / 3):
            # Retry after a failed renewal. If the lease expires, others may take the task, as intended.
            with contextlib.suppress(RawkoError):
                self._take(self.token)
        self._done()

    def check(self) -> None:
        """Raises TaskBusy if another process holds the lease by now."""
        self._take(self.token)

    def release(self) -> None:
        if not self._ended.is_set():
            self._ended.set()
            with contextlib.suppress(RawkoError):  # it will expire
                self._give_back(self.token)


@dataclass(slots=True)
class _Loan:
    token: str
    lease: Lease
    until: float


class LentLeases:
    """Leases on one project's files that this process holds for its server's clients."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._lock = threading.Lock()
        self._loans: dict[str, _Loan] = {}

    def take(self, task_id: str, token: str | None, seconds: float) -> str:
        """Takes the lease, or extends the one with this token. A token that is unknown because the server restarted is accepted
        as long as nobody else holds the task."""
        with self._lock:
            self._expire()
            loan = self._loans.get(task_id)
            if loan is None:
                lease = self._journal.lease(task_id)
                loan = self._loans[task_id] = _Loan(token or secrets.token_hex(16), lease, 0.0)
            elif token is None or not secrets.compare_digest(token, loan.token):
                raise TaskBusy(task_id, "another client of this server")
            loan.until = time.monotonic() + seconds
            return loan.token

    def check(self, task_id: str, token: str) -> None:
        """Raises TaskBusy unless this token holds the lease."""
        with self._lock:
            self._expire()
            loan = self._loans.get(task_id)
            if loan is None or not secrets.compare_digest(token, loan.token):
                raise TaskBusy(task_id, reason="lost")

    def release(self, task_id: str, token: str) -> None:
        with self._lock:
            loan = self._loans.get(task_id)
            if loan is not None and secrets.compare_digest(token, loan.token):
                del self._loans[task_id]
                loan.lease.release()

    def expire(self) -> None:
        """Releases leases that were not renewed in time."""
        with self._lock:
            self._expire()

    def _expire(self) -> None:
        now = time.monotonic()
        for task_id in [task_id for task_id, loan in self._loans.items() if loan.until < now]:
            self._loans.pop(task_id).lease.release()
