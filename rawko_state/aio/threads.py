"""Runs blocking calls in threads of their own, so that the event loop goes on; and keeps cancellation honest.

A call that has begun is finished, also if its coroutine is cancelled meanwhile: the coroutine waits for it, and is cancelled
then. So the calls of one coroutine happen in order, and what a cancelled one had opened is ended, not left behind.
"""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, Protocol, TypeVar

if TYPE_CHECKING:
    from typing_extensions import Self

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C", bound="_Context")
_END: Final = object()
_BATCH: Final = 0.002
"""Seconds for which one call collects items of an iterator."""
MOST_THREADS: Final = 4
"""More threads compete with the event loop for the interpreter, and make it late."""


class Threads:
    """The threads of one store."""

    def __init__(self, most: int = MOST_THREADS) -> None:
        self._most = most
        self._pool: Executor | None = None

    @property
    def pool(self) -> Executor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._most, thread_name_prefix="rawko")
        return self._pool

    async def run(self, work: Callable[P, T], /, *args: P.args, **more: P.kwargs) -> T:
        """The result of a blocking call."""
        return await finished(self.pool, functools.partial(work, *args, **more))

    async def opened(self, work: Callable[[], T], undo: Callable[[T], object]) -> T:
        """The same for a call that opens something: if the coroutine is cancelled meanwhile, ``undo`` ends it."""
        return await finished(self.pool, work, undo)

    async def iterate(self, begin: Callable[[], Iterator[T]]) -> AsyncIterator[T]:
        """The items of a blocking iterator."""
        items = await self.run(begin)
        try:
            while True:
                batch = await self.run(_collected, items)
                for item in batch:
                    if item is _END:
                        return
                    yield item
        finally:
            close = getattr(items, "close", None)
            if close is not None:
                await self.run(close)

    async def close(self) -> None:
        """Lets the threads go. They are started again when there is work."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False)


async def finished(pool: Executor, work: Callable[[], T], undo: Callable[[T], object] | None = None) -> T:
    future = asyncio.get_running_loop().run_in_executor(pool, work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await _settled(future)
        if undo is not None and not future.cancelled() and future.exception() is None:
            await _settled(asyncio.get_running_loop().run_in_executor(pool, undo, future.result()))
        raise


class _Ending(Protocol):
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


def cancelled(opened: _Ending) -> None:
    """Ends what was opened by a coroutine that was cancelled meanwhile."""
    opened.__exit__(asyncio.CancelledError, asyncio.CancelledError(), None)


async def _settled(future: asyncio.Future[Any]) -> None:
    """Waits for a call to finish, however often the coroutine is cancelled meanwhile."""
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            continue
    if not future.cancelled():
        future.exception()  # it was seen


def _collected(items: Iterator[T]) -> list[Any]:
    found: list[Any] = []
    until = time.monotonic() + _BATCH
    while True:
        found.append(next(items, _END))
        if found[-1] is _END or time.monotonic() > until:
            return found


class _Context(Protocol):
    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Opening(Generic[C]):
    """Something that is being opened: ``await`` it to have it, or ``async with`` it to have it and to end it.

    >>> async def main():
    ...     store = aio.open(":memory:")
    ...     task = await store.start("Say hello")
    ...     await task.close()
    ...     async with store.resume(task.id):
    ...         pass
    ...     return await store.status(task.id)
    >>> asyncio.run(main())
    'completed'
    """

    def __init__(self, begin: Callable[[], Awaitable[C]]) -> None:
        self._begin = begin
        self._opened: C | None = None

    def __await__(self) -> Generator[Any, None, C]:
        return self._begin().__await__()

    async def __aenter__(self) -> C:
        self._opened = await self._begin()
        return await self._opened.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._opened is not None
        await self._opened.__aexit__(kind, error, trace)


async def followed(begin: Callable[[Callable[[], bool]], Iterator[T | None]]) -> AsyncIterator[T]:
    """The items of an iterator that waits for new ones, without the Nones between. It has a thread of its own, which is told when
    nobody listens any more."""
    ended = threading.Event()
    pool = ThreadPoolExecutor(1, thread_name_prefix="rawko follows")
    loop = asyncio.get_running_loop()
    try:
        items = await loop.run_in_executor(pool, begin, ended.is_set)
        while True:
            item = await loop.run_in_executor(pool, next, items, _END)
            if item is _END:
                return
            if item is not None:
                yield item  # type: ignore[misc]
    finally:
        ended.set()
        pool.shutdown(wait=False)
