"""Agents in an event loop: several stream at once, a follower watches, and one of them is cancelled.

python examples/async_agent.py FOLDER
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from rawko_state import TaskFilter, aio


async def model(request: str) -> AsyncIterator[str]:
    """Stands for a model's API that streams tokens."""
    words = f"You asked: {request}. Here is what I found, word by word.".split(" ")
    for word in itertools.cycle(words) if "endless" in request else words:
        await asyncio.sleep(0.002)
        yield f"{word} "


async def agent(store: aio.Store, request: str) -> str:
    """Answers one request, and records the tokens as they come. Returns the task's id."""
    async with store.start(request, agent="streamer") as task:
        async with task.turn("streamer", model="scripted-1") as turn:
            tokens = 0
            async for token in model(request):
                await turn.say(token)
                tokens += 1
            await turn.end(tokens={"out": tokens})
        await task.finish("success", f"{tokens} tokens")
    return task.id


async def watch(store: aio.Store, task_id: str) -> str:
    """The text of a running task, piece by piece, as another process would see it."""
    seen = ""
    async for event in store.follow(task_id):
        if event.kind == "text":
            seen += event.text or ""
    return seen


async def main(folder: Path) -> dict[str, str]:
    """Runs five agents, one of which does not stop until it is cancelled. Returns the status of each request."""
    async with aio.open(folder) as store:
        endless = asyncio.create_task(agent(store, "an endless question"))
        while not (alive := await store.alive()):
            await asyncio.sleep(0.001)
        watching = asyncio.create_task(watch(store, next(iter(alive))))
        await asyncio.gather(*(agent(store, f"question {number}") for number in range(4)))
        endless.cancel()  # its turn is recorded as interrupted, its task as cancelled
        await asyncio.gather(endless, return_exceptions=True)
        print("A follower saw:", (await watching)[:60], "…")
        return {task.request or "": task.status for task in await store.history(TaskFilter(agent="streamer"))}


if __name__ == "__main__":
    where = Path(sys.argv[1])
    where.mkdir(parents=True, exist_ok=True)
    for asked, status in sorted(asyncio.run(main(where)).items()):
        print(f"{asked}: {status}")
