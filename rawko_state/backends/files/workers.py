"""Work on all cores, with the results in order, and never far ahead of whoever takes them: what waits is bounded."""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

Job = TypeVar("Job")
Result = TypeVar("Result")

_AHEAD: Final = 2
"""Jobs that are started or wait to be taken, for each core."""


def cores() -> int:
    return os.cpu_count() or 1


def on_all_cores(work: Callable[[Job], Result], jobs: Iterable[Job]) -> Iterator[Result]:
    """The result of each job. Without the bound, the rows of a long history would all wait in memory while the index is
    written. A process with other threads works alone: a fork would copy the locks that they hold."""
    if threading.active_count() > 1:
        return map(work, jobs)
    return _by_many(work, iter(jobs))


def _by_many(work: Callable[[Job], Result], jobs: Iterator[Job]) -> Iterator[Result]:
    """If a worker is killed (out of memory, say), the pool breaks and the rest is done here."""
    # A catch-up of a few files needs no pool. multiprocessing.Pool can hang, both when it is ended early and when a worker dies.
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    waiting: deque[tuple[Job, Future[Result] | None]] = deque()
    pool = ProcessPoolExecutor(cores(), mp_context=context)

    def submitted(job: Job) -> tuple[Job, Future[Result] | None]:
        try:
            return job, pool.submit(work, job)
        except BrokenProcessPool:
            return job, None

    try:
        waiting.extend(map(submitted, islice(jobs, _AHEAD * cores())))
        while waiting:
            job, future = waiting.popleft()
            try:
                result = work(job) if future is None else future.result()
            except BrokenProcessPool:
                result = work(job)
            waiting.extend(map(submitted, islice(jobs, 1)))
            yield result
    finally:
        pool.shutdown(cancel_futures=True)
