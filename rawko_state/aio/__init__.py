"""rawko for asyncio: the same store, task and live turn, with ``await``.

    from rawko_state import aio

    async with aio.open(".") as store, store.start("Fix the login bug") as task:
        async with task.turn("developer") as turn:
            async for token in model.stream():
                await turn.say(token)
        await task.finish("success")

Each call runs in a thread of the store, so the event loop goes on meanwhile. If a coroutine is cancelled, the call that it waits
for is finished first; then ``async with`` ends its turn as interrupted and its task as cancelled.
"""

from __future__ import annotations

from pathlib import Path

import rawko_state
from rawko_state.aio.store import Store
from rawko_state.aio.task import LiveTurn, Task
from rawko_state.aio.threads import Opening

__all__ = ["LiveTurn", "Opening", "Store", "Task", "open"]


def open(
    folder: str | Path | None = None,
    *,
    remote: str | None = None,
    workspace: str | None = None,
    threads: int | None = None,
) -> Store:
    """Opens a store as ``rawko_state.open`` does. Its calls run in up to ``threads`` threads (default: 4).

    >>> asyncio.run(aio.open(":memory:").history(TaskFilter()))
    []
    """
    return Store(rawko_state.open(folder, remote=remote, workspace=workspace), threads=threads)
