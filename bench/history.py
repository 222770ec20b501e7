"""The index: an append with its rows, `rawko history` in a fresh process, reindexing, one turn of a huge task.

    python bench/history.py [--sizes 1000,10000,100000]

Figures are ratios within one run, beside a floor: a bare write and sync, a process that imports click and sqlite3, parsing alone.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from append import a_turn, beside_bare
from histories import write_history

from rawko_state.backends.files.store import FileStore
from rawko_state.format.scan import Scan
from rawko_state.model.entries import Turn

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # what pip installs is compiled, so ours is too
RAWKO = [sys.executable, "-c", "from rawko_state.cli import main; main()"]


def seconds(command: list[str], rounds: int = 11) -> float:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def appends(folder: Path, rounds: int = 3000) -> None:
    import random

    chance = random.Random(1)
    store = FileStore(folder)
    task = store.start("a request")
    path = store.journal.layout.path(store.find(task.id))
    turns = [a_turn(chance) for _ in range(50)]
    size = path.stat().st_size
    task.add_turn(turns[0])
    record = path.read_bytes()[size:]
    ours, floor = beside_bare(lambda number: task.add_turn(turns[number % 50]), record, folder, rounds)
    ratio = statistics.median(ours) / statistics.median(floor)
    print(
        f"append with its index rows    {statistics.median(ours) * 1e6:6.0f} µs   {ratio:.2f} x a bare write + fdatasync"
    )


def one_size(folder: Path, size: int) -> dict[str, float]:
    root = folder / str(size)
    root.mkdir()
    total = write_history(root, size)
    store = FileStore(root)
    start = time.perf_counter()
    for name in store.journal.layout.names():
        with store.journal.reader(name) as reader:
            for _ in Scan(reader_of(reader)):
                pass
    parsing = time.perf_counter() - start
    start = time.perf_counter()
    store.reindex()
    building = time.perf_counter() - start
    found = {
        "history": seconds([*RAWKO, "-C", str(root), "history"]),
        "--file": seconds([*RAWKO, "-C", str(root), "history", "--file", "src/m7"]),
        "--status": seconds([*RAWKO, "-C", str(root), "history", "--status", "failed"]),
    }
    mb = total / 1e6
    print(
        f"{size:7,} tasks, {mb:.0f} MB: reindex {mb / building:5.1f} MB/s, {parsing / building:.2f} of parsing alone on one core;",
        end=" ",
    )
    print("  ".join(f"{name} {value * 1000:.0f} ms" for name, value in found.items()), flush=True)
    store.close()
    return found


def reader_of(reader: object) -> object:
    at = 0

    def read(length: int) -> bytes:
        nonlocal at
        piece: bytes = reader.fetch(at, length)  # type: ignore[attr-defined]
        at += len(piece)
        return piece

    return read


def huge_task(folder: Path) -> None:
    """`show --turn` in a task of 1 MB and in one of 1 GB."""
    found = {}
    for megabytes in (1, 1000):
        root = folder / f"huge{megabytes}"
        root.mkdir()
        store = FileStore(root)
        task = store.start("huge")
        text = "\n".join("a line of text that is not short, and not long either" for _ in range(2000))
        for _ in range(max(2, megabytes * 10**6 // len(text))):
            task.add_turn(Turn(number=1, agent="dev", status="complete", content=text))
        task.finish("success")
        store.close()
        command = [*RAWKO, "-C", str(root), "history", "show", task.id, "--turn", "2"]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        found[megabytes] = seconds(command, 7)
        after = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        print(
            f"show --turn in {megabytes:5} MB: {found[megabytes] * 1000:.0f} ms, at most {max(before, after) / 1024:.0f} MB of memory"
        )
    print(f"  1 GB / 1 MB: {found[1000] / found[1]:.2f}")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--sizes", default="1000,10000,100000")
    options.add_argument("--folder", type=Path)
    options.add_argument("--no-huge", action="store_true")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory(dir=chosen.folder or Path.cwd()) as name:
        folder = Path(name)
        if not chosen.no_huge:
            huge_task(folder)  # first, so that the largest child so far is its own
        (folder / "appends").mkdir()
        appends(folder / "appends")
        floor = seconds([sys.executable, "-c", "import click, sqlite3"])
        print(f"python -c 'import click, sqlite3'  {floor * 1000:.0f} ms")
        sizes = [int(size) for size in chosen.sizes.split(",")]
        results = {size: one_size(folder, size) for size in sizes}
        first, last = results[sizes[0]], results[sizes[-1]]
        for name in first:
            print(
                f"{name:10} {sizes[-1]:,} / {sizes[0]:,} tasks: {last[name] / first[name]:.2f}   {last[name] / floor:.2f} x the floor"
            )


if __name__ == "__main__":
    main()
