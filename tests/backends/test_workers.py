"""Work on all cores: in order, and bounded."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from rawko_state.backends.files import workers

ROOT = Path(__file__).parents[2]


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


def in_a_process_of_its_own(body: Callable[[], object]) -> Any:
    """Where no earlier test has left a thread: a process with threads does not fork."""
    code = f"import json; from {__name__} import {body.__name__} as body; print(json.dumps(body()))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def all_squared() -> tuple[int, list[tuple[int, int]]]:
    return os.getpid(), list(workers.on_all_cores(squared, range(50)))


def how_far_ahead() -> int:
    """How many jobs at most were taken before the result that they follow."""
    begun: list[int] = []

    def jobs() -> Iterator[int]:
        for number in range(1_000):
            begun.append(number)
            yield number

    results = workers.on_all_cores(squared, jobs())
    ahead = max(len(begun) - taken for taken, _ in enumerate(islice(results, 20), 1))
    close(results)
    return ahead


def all_failing() -> str:
    try:
        return f"no error: {list(workers.on_all_cores(failing, range(10)))}"
    except ValueError as error:
        return str(error)


def left_early() -> None:
    for taken in range(20):
        results = workers.on_all_cores(squared, iter(range(1_000)))
        for _ in range(taken % 4):
            next(results)
        close(results)


def close(results: Iterator[object]) -> None:
    assert isinstance(results, Generator)
    results.close()


def all_but_a_killed_worker() -> list[int]:
    return list(workers.on_all_cores(killed_in_a_worker, [(number, os.getpid()) for number in range(20)]))


class TestWorkers:
    def test_results_are_in_order_and_made_by_other_processes(self) -> None:
        process, found = in_a_process_of_its_own(all_squared)
        assert [result for result, _ in found] == [number * number for number in range(50)]
        assert process not in {each for _, each in found}

    def test_jobs_are_not_taken_far_ahead_of_their_results(self) -> None:
        """A history of any length is read and written in the same memory."""
        assert in_a_process_of_its_own(how_far_ahead) <= 2 * workers.cores()

    def test_an_error_reaches_the_caller(self) -> None:
        assert in_a_process_of_its_own(all_failing) == "three"

    def test_it_can_be_left_at_any_time(self) -> None:
        """multiprocessing.Pool sometimes never ended."""
        in_a_process_of_its_own(left_early)

    def test_what_a_killed_worker_left_is_done_here(self) -> None:
        assert in_a_process_of_its_own(all_but_a_killed_worker) == list(range(20))

    def test_a_process_with_threads_is_not_forked(self) -> None:
        done = threading.Event()
        thread = threading.Thread(target=done.wait)
        thread.start()
        try:
            process, found = all_squared()
        finally:
            done.set()
            thread.join()
        assert {each for _, each in found} == {process}
