"""Group commit for SQLite: threads that write while another one syncs share the next commit, and so one sync.

There is no thread for it. Whoever is first commits for all that wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

from rawko_state.forking import renew_after_fork

Statement = tuple[str, Sequence[Any]]
_SAVEPOINT: Final = "one_of_many"


class _Job:
    __slots__ = ("done", "durable", "error", "statements")

    def __init__(self, statements: Sequence[Statement], durable: bool) -> None:
        self.statements, self.durable = statements, durable
        self.done = False
        self.error: BaseException | None = None


class GroupCommit:
    """Writes to one database, each all or nothing."""

    def __init__(self, connection: Callable[[], Any], mapped: Callable[[], AbstractContextManager[None]]) -> None:
        """``connection`` returns the calling thread's connection, in autocommit mode. ``mapped`` maps its errors to ours."""
        self._connection, self._mapped = connection, mapped
        self.commits = 0
        self._waiting: list[_Job] = []
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        self._lock, self._turn = threading.Lock(), threading.Lock()
        self._waiting = []

    def write(self, statements: Sequence[Statement], *, durable: bool = True) -> None:
        """Runs the statements. They are synced on return, unless ``durable`` is false and nobody in the group needs it."""
        job = _Job(statements, durable)
        with self._lock:
            self._waiting.append(job)
        with self._turn:
            if not job.done:
                with self._lock:
                    jobs, self._waiting = self._waiting, []
                self._commit(jobs)
        if job.error is not None:
            raise job.error

    def _commit(self, jobs: Sequence[_Job]) -> None:
        try:
            with self._mapped():
                self._run(self._connection(), jobs)
        except BaseException as error:
            for job in jobs:
                job.error = job.error or error
        for job in jobs:
            job.done = True

    def _run(self, connection: Any, jobs: Sequence[_Job]) -> None:
        durable = any(job.durable for job in jobs)
        connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
        connection.execute("BEGIN IMMEDIATE")
        try:
            for job in jobs:
                self._do(connection, job)
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        self.commits += 1

    def _do(self, connection: Any, job: _Job) -> None:
        """Runs one job. If it fails, the others go on without it."""
        connection.execute(f"SAVEPOINT {_SAVEPOINT}")
        try:
            with self._mapped():
                for statement, values in job.statements:
                    connection.execute(statement, values)
        except Exception as error:
            connection.execute(f"ROLLBACK TO {_SAVEPOINT}")
            job.error = error
        connection.execute(f"RELEASE {_SAVEPOINT}")
