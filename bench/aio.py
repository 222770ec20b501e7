"""Streaming in an event loop: how late the loop is while streams of tokens are recorded, with ``rawko_state.aio`` and, to compare, with
blocking calls in the loop. And what a warm read of the newest state costs.

    python bench/aio.py [--streams 10] [--tokens 300] [--steps 1000]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path

import rawko_state
from rawko_state import aio
from rawko_state.model.entries import Turn

EVERY = 0.001
GAP = 0.01
"""Seconds between two tokens of a stream: a model's pace."""


async def lags(into: list[float]) -> None:
    """Notes how late each millisecond is."""
    while True:
        before = time.perf_counter()
        await asyncio.sleep(EVERY)
        into.append(time.perf_counter() - before - EVERY)


async def layered(store: aio.Store, tokens: int) -> None:
    async with store.start("stream") as task, task.turn("dev") as turn:
        for number in range(tokens):
            await asyncio.sleep(GAP)
            await turn.say(f"token {number} ")


async def direct(store: rawko_state.Store, tokens: int) -> None:
    with store.start("stream") as task, task.turn("dev") as turn:
        for number in range(tokens):
            await asyncio.sleep(GAP)
            turn.say(f"token {number} ")


async def nothing(tokens: int) -> None:
    for _ in range(tokens):
        await asyncio.sleep(GAP)


async def measured(kind: str, folder: Path, streams: int, tokens: int) -> dict[str, float]:
    found: list[float] = []
    async with aio.open(folder) as store:
        async with store.start("warm up") as task, task.turn("dev") as turn:
            await turn.say("imports what it needs")
        watching = asyncio.create_task(lags(found))
        began = time.perf_counter()
        work = {
            "nothing": lambda: nothing(tokens),
            "aio": lambda: layered(store, tokens),
            "direct": lambda: direct(store.blocking, tokens),
        }[kind]
        await asyncio.gather(*(work() for _ in range(streams)))
        took = time.perf_counter() - began
        watching.cancel()
    found.sort()
    ms = {name: found[min(len(found) - 1, int(len(found) * part))] * 1000 for name, part in PARTS.items()}
    return {"seconds": round(took, 2), **{name: round(value, 2) for name, value in ms.items()}}


PARTS = {"p50_ms": 0.5, "p99_ms": 0.99, "max_ms": 1.0}


def warm_reads(folder: Path, steps: int) -> dict[str, float]:
    with rawko_state.open(folder) as store, store.open_task("bench:1", "x") as task:
        for number in range(steps):
            task.add_turn(Turn(agent="dev", number=1, state={"messages": ["a message"] * 20, "step": number}))
        began = time.perf_counter()
        store.latest_state(task.id)
        cold = time.perf_counter() - began
        times = []
        for number in range(100):
            if number % 2:
                task.add_turn(Turn(agent="dev", number=1, state={"step": number}))
            began = time.perf_counter()
            store.latest_state(task.id)
            times.append((number % 2, time.perf_counter() - began))
        read = [sorted(each for kind, each in times if kind == wanted)[25] for wanted in (0, 1)]
    return {
        "cold_ms": round(cold * 1000, 2),
        "warm_ms": round(read[0] * 1000, 3),
        "after_append_ms": round(read[1] * 1000, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("streams", 10), ("tokens", 300), ("steps", 1000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("nothing", "aio", "direct"):
            (Path(folder) / kind).mkdir()
            lag = asyncio.run(measured(kind, Path(folder) / kind, given.streams, given.tokens))
            print(json.dumps({"loop lag": kind, **lag}))
        (Path(folder) / "reads").mkdir()
        print(json.dumps({"newest state, steps": given.steps, **warm_reads(Path(folder) / "reads", given.steps)}))


if __name__ == "__main__":
    main()
