"""Work on all cores: in order, and bounded."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from rawko_state.backends.files import workers


def squared(number: int) -> tuple[int, int]:
    return number * number, os.getpid()


def failing(number: int) -> int:
    if number == 3:
        raise ValueError("three")
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
