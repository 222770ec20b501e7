"""Work on all cores: in order, and bounded."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from rawko_state.backends.files import workers


def squared(number: int) -> tuple[int, int]:
    return number * number, os.getpid()


def failing(number: int) -> int:
    if number == 3:
        raise ValueError("three")
    return number


def killed_in_a_worker(job: tuple[int, int]) -> int:
    number, parent = job
    if number == 3 and os.getpid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


class TestWorkers:
    def test_results_are_in_order_and_made_by_other_processes(self) -> None:
        found = list(workers.on_all_cores(squared, range(50)))
        assert [result for result, _ in found] == [number * number for number in range(50)]
        assert os.getpid() not in {process for _, process in found}

    def test_jobs_are_not_taken_far_ahead_of_their_results(self) -> None:
        """A history of any length is read and written in the same memory."""
        begun: list[int] = []

        def jobs() -> Iterator[int]:
            for number in range(1_000):
                begun.append(number)
                yield number

        results = workers.on_all_cores(squared, jobs())
        for taken in range(20):
            next(results)
            assert len(begun) <= taken + 1 + 2 * workers.cores()
        results.close()  # type: ignore[attr-defined] # a generator

    def test_an_error_reaches_the_caller(self) -> None:
        with pytest.raises(ValueError, match="three"):
            list(workers.on_all_cores(failing, range(10)))

    def test_it_can_be_left_at_any_time(self) -> None:
        """multiprocessing.Pool sometimes never ended."""
        for taken in range(20):
            results = workers.on_all_cores(squared, iter(range(1_000)))
            for _ in range(taken % 4):
                next(results)
            results.close()  # type: ignore[attr-defined] # a generator

    def test_what_a_killed_worker_left_is_done_here(self) -> None:
        jobs = [(number, os.getpid()) for number in range(20)]
        assert list(workers.on_all_cores(killed_in_a_worker, jobs)) == list(range(20))

    def test_a_process_with_threads_is_not_forked(self) -> None:
        done = threading.Event()
        thread = threading.Thread(target=done.wait)
        thread.start()
        try:
            found = list(workers.on_all_cores(squared, range(10)))
        finally:
            done.set()
            thread.join()
        assert {process for _, process in found} == {os.getpid()}
