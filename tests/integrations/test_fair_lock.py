"""The lock of the adapters."""

from __future__ import annotations

import threading

from rawko_state.integrations.fair_lock import FairLock
from tests.support.machine import wait_for


def test_threads_get_it_in_the_order_in_which_they_asked_and_one_at_a_time() -> None:
    lock, order, inside = FairLock(), [], 0
    threads = []

    def work(number: int) -> None:
        nonlocal inside
        with lock, lock:
            inside += 1
            assert inside == 1
            order.append(number)
            inside -= 1

    with lock:
        for number in range(20):
            threads.append(threading.Thread(target=work, args=(number,)))
            threads[-1].start()
            wait_for(lambda number=number: len(lock._waiting) > number)  # type: ignore[misc]
    for thread in threads:
        thread.join()
    assert order == list(range(20))
    with lock:
        pass
