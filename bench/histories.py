"""Generated histories: whole task files with valid seals, made quickly and the same for the same seed."""

from __future__ import annotations

import os
import random
from datetime import datetime, timedelta, timezone
from pathlib import Path

from rawko_state.format.blocks import emit_block
from rawko_state.format.codec import encode
from rawko_state.format.records import seal_record
from rawko_state.format.seal import GENESIS
from rawko_state.model.entries import Execution, Request, Result, TaskHeader, ToolCall, Turn

WORDS = [
    "the",
    "token",
    "check",
    "ignores",
    "clock",
    "skew",
    "users",
    "cannot",
    "log",
    "in",
    "tests",
    "fail",
    "because",
    "cache",
]
AGENTS = ["planner", "developer", "reviewer"]
LETTERS = "0123456789abcdefghijklmnopqrstuvwxyz"


def sentence(chance: random.Random, words: int) -> str:
    return " ".join(chance.choice(WORDS) for _ in range(words))


def task_id(number: int) -> str:
    digits = ""
    value = (number * 1_000_003 + 17) % 36**6  # spread, and never the same twice
    for _ in range(6):
        value, digit = divmod(value, 36)
        digits += LETTERS[digit]
    return digits


def write_history(root: Path, tasks: int, turns: int = 10, seed: int = 1) -> int:
    """Writes the files and returns their size in bytes."""
    chance = random.Random(seed)
    folder = root / ".rawko" / "state" / "tasks"
    folder.mkdir(parents=True, mode=0o700)
    (root / ".rawko" / "state" / "live").mkdir(mode=0o700)
    (root / ".rawko" / "state" / "blobs").mkdir(mode=0o700)
    # A few hundred different turns, encoded once: only the chain differs from file to file.
    pool = {n: [_turn(chance, n) for _ in range(40)] for n in range(1, turns + 1)}
    results = [emit_block(encode(Result(status=s, summary=sentence(chance, 8), duration_ms=45_200))) for s in _STATUSES]
    start = datetime(2020, 1, 1, tzinfo=timezone.utc)
    total = 0
    for number in range(tasks):
        created = start + timedelta(minutes=number)
        identity = task_id(number)
        header = TaskHeader(id=identity, created=created, status="completed", format=1, duration_ms=45_200)
        first = b"".join(emit_block(encode(e)) for e in (header, Request(text=sentence(chance, 12)), Execution()))
        data, seal = seal_record(first, GENESIS)
        pieces = [data]
        for n in range(1, turns + 1):
            data, seal = seal_record(chance.choice(pool[n]), seal)
            pieces.append(data)
        data, seal = seal_record(results[0 if chance.random() < 0.95 else 1], seal)
        pieces.append(data)
        whole = b"".join(pieces)
        path = folder / f"{created.strftime('%Y-%m-%dT%H-%M-%S')}-{identity}.task"
        descriptor = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
        os.write(descriptor, whole)
        os.close(descriptor)
        total += len(whole)
    return total


_STATUSES = ("success", "failure")


def _turn(chance: random.Random, number: int) -> bytes:
    tools = tuple(
        ToolCall(
            f"filesystem.{chance.choice(['read', 'write'])}",
            f"src/m{chance.randint(1, 300)}/f{chance.randint(1, 9)}.py",
            "ok",
            "10:30:05",
        )
        for _ in range(3)
    )
    turn = Turn(
        number=number,
        agent=chance.choice(AGENTS),
        status="complete",
        duration_ms=chance.randint(100, 30_000),
        content="\n".join(sentence(chance, 12) for _ in range(18)),
        tools=tools,
        tool_calls=3,
        tokens={"in": 1200, "out": 300},
    )
    return emit_block(encode(turn))
