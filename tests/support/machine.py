"""How slow this machine is just now, and waiting for conditions.

Timing never decides a test. A test waits for a condition; the limit is only there so that a broken one ends. It is generous, and
longer on a machine that is slow or busy.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from typing import Final

import pytest

_WORK: Final = b"x" * 2_000_000
_QUIET: Final = 0.004
"""Seconds that the work below takes on a quiet machine of today."""


_measured: tuple[float, float] = (0.0, 1.0)
_GOOD_FOR: Final = 2.0
_LEAST: Final = 60.0


def slowness() -> float:
    """How many times slower than a quiet machine this one is now; at least 1."""
    global _measured
    if time.monotonic() - _measured[0] > _GOOD_FOR:
        _measured = (time.monotonic(), _measure())
    return _measured[1]


def _measure() -> float:
    begun = time.perf_counter()
    for _ in range(3):
        hashlib.sha256(_WORK).digest()
    taken = time.perf_counter() - begun
    waiting = os.getloadavg()[0] / (os.cpu_count() or 1) if hasattr(os, "getloadavg") else 1.0
    return max(1.0, taken / _QUIET, waiting)


def patience(seconds: float) -> float:
    """A limit for what takes a fraction of that on a quiet machine."""
    return max(seconds, _LEAST) * slowness()


def wait_for(condition: Callable[[], object], what: str = "it", seconds: float = 60.0) -> None:
    """Waits until the condition holds; fails the test when it does not within the limit."""
    end = time.monotonic() + patience(seconds)
    nap = 0.002
    while not condition():
        if time.monotonic() > end:
            pytest.fail(f"{what} did not come within {patience(seconds):.0f} s")
        time.sleep(nap)
        nap = min(nap * 1.5, 0.1)
