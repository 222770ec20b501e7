"""Leases that a server holds for somebody who is far away: they end when he no longer says that he is there."""

from __future__ import annotations

import secrets
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rawko_state.errors import TaskBusy

if TYPE_CHECKING:
    from rawko_state.journal.journal import Journal
    from rawko_state.journal.locks import Lease


@dataclass(slots=True)
class _Loan:
    token: str
    lease: Lease
    until: float


class Borrowed:
    """The leases of one project that this process holds for others."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._lock = threading.Lock()
        self._loans: dict[str, _Loan] = {}

    def take(self, task_id: str, token: str | None, seconds: float) -> str:
        """A new loan, or more time for the one with this token. Also when that is not known any more (the server was started
        again), as long as nobody else has the task."""
        with self._lock:
            self._let_go()
            loan = self._loans.get(task_id)
            if loan is None:
                lease = self._journal.lease(task_id)
                loan = self._loans[task_id] = _Loan(token or secrets.token_hex(16), lease, 0.0)
            elif token is None or not secrets.compare_digest(token, loan.token):
                raise TaskBusy(task_id, "somebody else through this server")
            loan.until = time.monotonic() + seconds
            return loan.token

    def check(self, task_id: str, token: str) -> None:
        """TaskBusy unless this token has the task now."""
        with self._lock:
            self._let_go()
            loan = self._loans.get(task_id)
            if loan is None or not secrets.compare_digest(token, loan.token):
                raise TaskBusy(task_id, "somebody else, or nobody any more")

    def give_back(self, task_id: str, token: str) -> None:
        with self._lock:
            loan = self._loans.get(task_id)
            if loan is not None and secrets.compare_digest(token, loan.token):
                del self._loans[task_id]
                loan.lease.release()

    def tidy(self) -> None:
        """Lets go of what nobody has asked for in time."""
        with self._lock:
            self._let_go()

    def _let_go(self) -> None:
        now = time.monotonic()
        for task_id in [task_id for task_id, loan in self._loans.items() if loan.until < now]:
            self._loans.pop(task_id).lease.release()
