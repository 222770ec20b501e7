"""Work on all cores, with the results in order, and never far ahead of whoever takes them: what waits is bounded."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final, TypeVar

Job = TypeVar("Job")
Result = TypeVar("Result")

_AHEAD: Final = 2
"""Jobs that are started or wait to be taken, for each core."""


def cores() -> int:
    return os.cpu_count() or 1


def on_all_cores(work: Callable[[Job], Result], jobs: Iterable[Job]) -> Iterator[Result]:
    """The result of each job. Without the bound, the rows of a long history would all wait in memory while the index is
    written."""
    import multiprocessing  # a catch-up of a few files needs no pool

    # Forking is fast, and safe here because there are no threads. Elsewhere, start a fresh interpreter.
    method = "fork" if sys.platform == "linux" else "spawn"
    with multiprocessing.get_context(method).Pool(cores()) as pool:
        left = iter(jobs)
        waiting = deque(pool.apply_async(work, (job,)) for job in islice(left, _AHEAD * cores()))
        while waiting:
            result = waiting.popleft().get()
            waiting.extend(pool.apply_async(work, (job,)) for job in islice(left, 1))
            yield result
