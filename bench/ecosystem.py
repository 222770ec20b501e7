"""What the adapters cost beside the SQLite ones of the frameworks, in one run: time of a put or an append, and bytes on disk.

    pip install 'rawko-state[ecosystem]'
    python bench/ecosystem.py [--steps 1000] [--runs 3]

Both sides store the same things in the same folder, taking turns, so that the noise of the machine hits both. Each step adds one text
of 500 bytes to a list. Times are medians over the first and the last fifth of the steps; a ratio over 1 means that rawko is slower.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import rawko_state

sys.path = [
    folder for folder in sys.path if folder != str(Path(__file__).parent)
]  # agents.py there is not OpenAI's package
TEXT = 500


def texts(steps: int) -> list[str]:
    chosen = random.Random(7)
    return ["".join(chosen.choices("abcdefghijklmnopqrstuvwxyz     ", k=TEXT)) for _ in range(steps)]


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def langgraph_saver(folder: Path, kind: str) -> tuple[Any, Callable[[], None]]:
    if kind == "rawko":
        from rawko_state.integrations.langgraph import RawkoSaver

        store = rawko_state.open(folder)
        saver = RawkoSaver(store)
        return saver, lambda: (saver.close(), store.close())  # type: ignore[func-returns-value,return-value]
    from langgraph.checkpoint.sqlite import SqliteSaver

    connection = sqlite3.connect(folder / "checkpoints.db", check_same_thread=False)
    return SqliteSaver(connection), connection.close


def puts(saver: Any, said: list[str]) -> Iterator[tuple[float, float]]:
    """Puts a growing list; yields the wall and CPU seconds of each put."""
    from langgraph.checkpoint.base import empty_checkpoint

    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    version = None
    for step in range(len(said)):
        version = saver.get_next_version(version, None)
        values = {"said": said[: step + 1]}
        checkpoint = {**empty_checkpoint(), "channel_values": values, "channel_versions": {"said": version}}
        wall, cpu = time.perf_counter(), time.process_time()
        config = saver.put(config, checkpoint, {"source": "loop", "step": step, "parents": {}}, {"said": version})
        yield time.perf_counter() - wall, time.process_time() - cpu


def openai_session(folder: Path, kind: str) -> tuple[Any, Callable[[], None]]:
    if kind == "rawko":
        from rawko_state.integrations.openai_agents import RawkoSession

        store = rawko_state.open(folder)
        session = RawkoSession(store, "s")
        return session, lambda: (session.close(), store.close())  # type: ignore[func-returns-value,return-value]
    from agents import SQLiteSession

    other = SQLiteSession("s", folder / "sessions.db")
    return other, other.close


def adds(session: Any, said: list[str]) -> Iterator[tuple[float, float]]:
    loop = asyncio.new_event_loop()
    for text in said:
        wall, cpu = time.perf_counter(), time.process_time()
        loop.run_until_complete(session.add_items([{"role": "user", "content": text}]))
        yield time.perf_counter() - wall, time.process_time() - cpu
    loop.close()


def compared(name: str, made: Any, work: Any, steps: int, runs: int) -> None:
    said = texts(steps)
    times: dict[str, list[list[tuple[float, float]]]] = {"rawko": [], "sqlite": []}
    disk: dict[str, int] = {}
    for _ in range(runs):
        folders = {kind: Path(tempfile.mkdtemp(prefix=f"bench-{kind}-")) for kind in times}
        opened = {kind: made(folders[kind], kind) for kind in times}
        doing = {kind: work(opened[kind][0], said) for kind in times}
        measured: dict[str, list[tuple[float, float]]] = {kind: [] for kind in times}
        for _ in range(steps):
            for kind in times:
                measured[kind].append(next(doing[kind]))
        for kind in times:
            for _ in doing[kind]:
                pass
            opened[kind][1]()
            times[kind].append(measured[kind])
            disk[kind] = size(folders[kind])
            shutil.rmtree(folders[kind])
    written = steps * TEXT
    print(f"\n{name}: {steps} steps, {written / 1e6:.2f} MB of text")
    for kind in times:
        print(f"  {kind:7} {disk[kind] / 1e6:9.2f} MB on disk, {disk[kind] / written:7.2f} x the text")
    fifth = max(1, steps // 5)
    for word, part in (("first fifth", slice(0, fifth)), ("last fifth", slice(steps - fifth, steps))):
        for at, what in enumerate(("wall", "cpu")):
            found = {
                kind: statistics.median(each[at] for run in times[kind] for each in run[part]) * 1000 for kind in times
            }
            print(
                f"  {word:11} {what:4} rawko {found['rawko']:7.3f} ms  sqlite {found['sqlite']:7.3f} ms  ratio {found['rawko'] / found['sqlite']:5.2f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}")
    compared("LangGraph put", langgraph_saver, puts, given.steps, given.runs)
    compared("OpenAI add_items", openai_session, adds, given.steps, given.runs)


if __name__ == "__main__":
    main()
