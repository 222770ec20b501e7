"""Text like that of real histories: words by Zipf's law, identifiers, paths, error codes, hashes; the same for the same seed."""

from __future__ import annotations

import os
import random
from datetime import datetime, timedelta, timezone
from itertools import accumulate
from pathlib import Path

from histories import task_id

from rawko_state.format.blocks import emit_block
from rawko_state.format.codec import encode
from rawko_state.format.records import seal_record
from rawko_state.format.seal import GENESIS
from rawko_state.model.entries import Execution, Request, Result, TaskHeader, ToolCall, Turn

SYLLABLES = [
    "ba",
    "con",
    "der",
    "e",
    "fi",
    "gra",
    "hol",
    "in",
    "jo",
    "ka",
    "lem",
    "mi",
    "nor",
    "o",
    "pra",
    "qui",
    "re",
    "sta",
    "tu",
    "un",
    "ver",
    "wi",
    "xen",
    "yo",
    "zil",
]
VERBS = [
    "get",
    "set",
    "parse",
    "load",
    "save",
    "check",
    "make",
    "find",
    "read",
    "write",
    "open",
    "close",
    "send",
    "fetch",
    "build",
    "merge",
    "split",
    "apply",
]
NOUNS = [
    "User",
    "Token",
    "Session",
    "Config",
    "Cache",
    "Index",
    "Record",
    "Turn",
    "Task",
    "File",
    "Path",
    "Query",
    "Result",
    "Error",
    "Request",
    "Buffer",
    "Lock",
]
FOLDERS = [
    "src",
    "lib",
    "auth",
    "api",
    "core",
    "tests",
    "tools",
    "web",
    "server",
    "client",
    "model",
    "store",
    "util",
    "config",
    "search",
    "index",
]
ENDINGS = ["py", "rs", "ts", "go", "js", "toml", "md", "sql", "yaml", "html"]
AGENTS = ["planner", "developer", "reviewer", "tester"]
RARE, PHRASE = "xylophonequartz", "clock skew tolerance"
PATH = "src/auth/sso_callback.rs"


class Corpus:
    def __init__(self, seed: int = 1) -> None:
        self.chance = random.Random(seed)
        chance = self.chance
        self.words = list(
            dict.fromkeys("".join(chance.choice(SYLLABLES) for _ in range(chance.randint(1, 4))) for _ in range(40_000))
        )
        self.weights = list(accumulate(1 / (rank + 3) for rank in range(len(self.words))))
        self.common = self.words[40]
        self.other = self.words[60]
        self.identifiers = [self._identifier() for _ in range(8_000)]
        self.paths = [self._path() for _ in range(6_000)] + [PATH]

    def _identifier(self) -> str:
        chance = self.chance
        verb, nouns = chance.choice(VERBS), [chance.choice(NOUNS) for _ in range(chance.randint(1, 3))]
        if chance.random() < 0.5:
            return verb + "".join(nouns)
        return "_".join([verb, *(noun.lower() for noun in nouns)])

    def _path(self) -> str:
        chance = self.chance
        folders = [chance.choice(FOLDERS) for _ in range(chance.randint(1, 3))]
        name = self._identifier() if chance.random() < 0.5 else chance.choice(self.words[:3000])
        return "/".join([*folders, f"{name}.{chance.choice(ENDINGS)}"])

    def sentence(self, words: int) -> str:
        chance = self.chance
        found = chance.choices(self.words, cum_weights=self.weights, k=words)
        for _ in range(words // 6):
            roll = chance.random()
            at = chance.randrange(words)
            if roll < 0.5:
                found[at] = chance.choice(self.identifiers)
            elif roll < 0.8:
                found[at] = chance.choice(self.paths)
            elif roll < 0.95:
                found[at] = f"E{chance.randint(1, 999):04d}"
            else:
                found[at] = f"{chance.getrandbits(64):016x}"
        return " ".join(found)

    def text(self, words: int) -> str:
        lines = []
        while words > 0:
            length = self.chance.randint(6, 16)
            lines.append(self.sentence(length))
            words -= length
        return "\n".join(lines)

    def turn(self, number: int) -> bytes:
        chance = self.chance
        content = self.text(200)
        roll = chance.random()
        if roll < 0.0005:
            content += f"\n{RARE}"
        elif roll < 0.004:
            content += f"\nallow for {PHRASE} there"
        elif roll < 0.007:
            content += f"\ntolerance of {PHRASE.split()[0]} is a skew question"
        tools = tuple(
            ToolCall(
                chance.choice(["filesystem.read", "filesystem.write", "shell.exec"]),
                chance.choice(self.paths),
                "ok",
                "10:30:05",
                output=self.sentence(12) if chance.random() < 0.5 else None,
            )
            for _ in range(4)
        )
        return emit_block(
            encode(
                Turn(
                    number=number,
                    agent=chance.choice(AGENTS),
                    status="complete",
                    duration_ms=chance.randint(100, 30_000),
                    content=content,
                    tools=tools,
                    tokens={"in": 1200, "out": 300},
                )
            )
        )


def write_corpus(root: Path, turns: int, *, per_task: int = 10, seed: int = 1, first: int = 0) -> int:
    """Task files with so many turns in all. Returns their size in bytes."""
    corpus = Corpus(seed + first)
    folder = root / ".rawko" / "state" / "tasks"
    folder.mkdir(parents=True, mode=0o700, exist_ok=True)
    for name in ("live", "blobs"):
        (root / ".rawko" / "state" / name).mkdir(mode=0o700, exist_ok=True)
    start = datetime(2024, 1, 1, tzinfo=timezone.utc)
    total = 0
    for number in range(first, first + turns // per_task):
        created = start + timedelta(minutes=number)
        identity = task_id(number)
        header = TaskHeader(id=identity, created=created, status="completed", format=1, duration_ms=45_200)
        begin = (header, Request(text=corpus.sentence(12)), Execution())
        data, seal = seal_record(b"".join(emit_block(encode(entry)) for entry in begin), GENESIS)
        pieces = [data]
        for turn in range(1, per_task + 1):
            data, seal = seal_record(corpus.turn(turn), seal)
            pieces.append(data)
        end = Result(status="success", summary=corpus.sentence(8), duration_ms=45_200)
        pieces.append(seal_record(emit_block(encode(end)), seal)[0])
        path = folder / f"{created.strftime('%Y-%m-%dT%H-%M-%S')}-{identity}.task"
        descriptor = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
        for piece in pieces:
            total += os.write(descriptor, piece)
        os.close(descriptor)
    return total
