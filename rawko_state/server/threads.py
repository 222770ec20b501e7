"""Threads for the blocking work of an event loop.

``run_in_executor`` makes two futures for each call, joins them, and wakes the loop for each result. Here a call has one future,
and results that are ready together wake the loop once.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

_Call: TypeAlias = "tuple[asyncio.Future[Any], Callable[..., Any], tuple[Any, ...]]"


class Threads:
    """So many threads, started as they are needed. Used from one event loop."""

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._waiting: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._done: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._told = False
        """Whether the loop will look at what is done."""
        self._threads: list[threading.Thread] = []
        self._at_work = 0
        self._closed = False

    async def run(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Calls ``work`` in one of the threads."""
        if self._closed:
            raise RuntimeError("The threads have ended.")
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._at_work += 1
        if self._at_work > len(self._threads) < self._most:
            name = f"{self._name}_{len(self._threads)}"
            thread = threading.Thread(target=self._run, args=(loop,), daemon=True, name=name)
            self._threads.append(thread)
            thread.start()
        self._waiting.put((future, work, arguments))
        return await future

    def close(self) -> None:
        """Waits until everything is done."""
        self._closed = True
        for _ in self._threads:
            self._waiting.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        while (call := self._waiting.get()) is not None:
            future, work, arguments = call
            result: Any = None
            error: BaseException | None = None
            try:
                result = work(*arguments)
            except StopIteration:
                error = RuntimeError("The call raised StopIteration.")  # a future can't hold one
            except BaseException as found:
                error = found
            self._done.append((future, result, error))
            del call, future, work, arguments, result, error  # nothing is kept while this waits
            if not self._told:
                self._told = True
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._told = False  # first: what is done from now on is told again
        while self._done:
            future, result, error = self._done.popleft()
            self._at_work -= 1
            if future.done():  # nobody waits for it any more
                continue
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)
