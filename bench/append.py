"""The cost of a durable append, beside a bare write and sync of the same bytes; and the speed of reading.

    python bench/append.py [--folder DIR]

Figures are ratios within one run: the machine's own speed drops out.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rawko_state.backends.files.store import FileStore
from rawko_state.format.records import emit_record
from rawko_state.format.scan import Scan
from rawko_state.format.seal import GENESIS
from rawko_state.journal.chain import Chain
from rawko_state.journal.journal import Journal
from rawko_state.model.entries import Execution, Request, TaskHeader, ToolCall, Turn
from rawko_state.model.frozen import replace

WORDS = [
    "the",
    "token",
    "check",
    "in",
    "auth/sso.rs",
    "ignores",
    "clock",
    "skew",
    "so",
    "that",
    "users",
    "cannot",
    "log",
    "in",
    "tests",
    "fail",
]


def text(length: int, chance: random.Random) -> str:
    lines, size = [], 0
    while size < length:
        line = " ".join(chance.choice(WORDS) for _ in range(chance.randint(4, 14)))
        lines.append(line)
        size += len(line) + 1
    return "\n".join(lines)


def a_turn(chance: random.Random) -> Turn:
    """About 2 KB."""
    tools = tuple(ToolCall("filesystem.read", f"src/module_{n}.py", "2048 bytes", "10:30:05") for n in range(4))
    return Turn(
        number=1, agent="developer", status="complete", duration_ms=8300, content=text(1650, chance), tools=tools
    )


def add(chain: Chain, turn: Turn) -> None:
    chain.append(lambda state: [replace(turn, number=state.turns + 1)])


def beside_bare(
    ours: Callable[[int], object], record: bytes, folder: Path, rounds: int
) -> tuple[list[float], list[float]]:
    """The seconds of each call, and of a bare write and sync of the same bytes: alternating, so that both see the same machine."""
    bare = os.open(folder / "bare", os.O_RDWR | os.O_CREAT)
    took, floor, offset = [], [], 0
    for number in range(rounds):
        start = time.perf_counter()
        ours(number)
        middle = time.perf_counter()
        os.pwrite(bare, record, offset)
        os.fdatasync(bare)
        end = time.perf_counter()
        offset += len(record)
        took.append(middle - start)
        floor.append(end - middle)
    os.close(bare)
    return took, floor


def appends(folder: Path, rounds: int) -> None:
    chance = random.Random(1)
    header = TaskHeader(id="", status="running")
    chain = Journal(folder).create(header, [Request(text="a request"), Execution()]).chain
    turns = [a_turn(chance) for _ in range(50)]
    size = chain.path.stat().st_size
    add(chain, turns[0])
    record = chain.path.read_bytes()[size:]
    ours, floor = beside_bare(lambda number: add(chain, turns[number % 50]), record, folder, rounds)
    early, late = ours[: rounds // 10], ours[-rounds // 10 :]
    floor_early, floor_late = floor[: rounds // 10], floor[-rounds // 10 :]
    median = statistics.median
    print(f"append of {len(record)} bytes, {rounds} times")
    print(f"  bare write + fdatasync    {median(floor) * 1e6:8.0f} µs")
    print(f"  rawko, journal only       {median(ours) * 1e6:8.0f} µs   {median(ours) / median(floor):.2f} x bare")
    growth = (median(late) / median(floor_late)) / (median(early) / median(floor_early))
    print(f"  last tenth / first tenth  {median(late) / median(early):8.2f}      {growth:.2f} relative to bare")


def with_rows(folder: Path, rounds: int) -> None:
    """The same through a store: redaction, the journal, and the rows in the index before it returns."""
    chance = random.Random(1)
    store = FileStore(folder / "project")
    task = store.start("a request")
    turns = [a_turn(chance) for _ in range(50)]
    for turn in turns:
        task.add_turn(turn)
    (path,) = (folder / "project/.rawko/state/tasks").iterdir()
    record = b"x" * (path.stat().st_size // 50)
    store.sync.index().connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    for turn in turns:
        task.add_turn(turn)
    pages = (folder / "project/.rawko/state/index.db-wal").stat().st_size / 4_120 / len(turns)
    ours, floor = beside_bare(lambda number: task.add_turn(turns[number % 50]), record, folder, rounds)
    median = statistics.median
    print(f"append with rows, {rounds} times, four files named in each")
    print(f"  bare write + fdatasync    {median(floor) * 1e6:8.0f} µs")
    print(f"  rawko, with its rows      {median(ours) * 1e6:8.0f} µs   {median(ours) / median(floor):.2f} x bare")
    print(f"  pages of the index        {pages:8.1f}")
    task.close()


def parsing(megabytes: int) -> None:
    chance = random.Random(2)
    data, seal = emit_record(
        [TaskHeader(id="bench1", status="running", format=1), Request(text="x"), Execution()], GENESIS
    )
    turns = [a_turn(chance) for _ in range(200)]
    pieces, size, number = [data], len(data), 0
    while size < megabytes << 20:
        piece, seal = emit_record([turns[number % 200]], seal)
        pieces.append(piece)
        size += len(piece)
        number += 1
    whole = b"".join(pieces)

    def seconds(action: object) -> float:
        best = 1e9
        for _ in range(3):
            start = time.perf_counter()
            action()  # type: ignore[operator]
            best = min(best, time.perf_counter() - start)
        return best

    def split() -> None:
        for _ in io.BytesIO(whole):
            pass

    def scan() -> None:
        for _ in Scan(io.BytesIO(whole).read):
            pass

    def decode() -> None:
        for record in Scan(io.BytesIO(whole).read):
            for block in record.blocks:
                block.entry()

    mb = len(whole) / 1e6
    floor, reading, decoding = seconds(split), seconds(scan), seconds(decode)
    print(f"reading {mb:.0f} MB of {number} turns")
    print(f"  split into lines          {mb / floor:8.0f} MB/s")
    print(f"  records, seals checked    {mb / reading:8.0f} MB/s   {floor / reading:.2f} of splitting")
    print(f"  and every value decoded   {mb / decoding:8.0f} MB/s   {floor / decoding:.2f} of splitting")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--folder", type=Path, help="where to write (default: a temporary folder here)")
    options.add_argument("--rounds", type=int, default=10_000)
    options.add_argument("--megabytes", type=int, default=100)
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory(dir=chosen.folder or Path.cwd()) as folder:
        appends(Path(folder), chosen.rounds)
        with_rows(Path(folder), chosen.rounds)
    parsing(chosen.megabytes)


if __name__ == "__main__":
    main()
