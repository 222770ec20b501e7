"""Generated sessions of Claude Code: whole files of the documented shape, the same for the same seed."""

from __future__ import annotations

import json
import random
from datetime import datetime, timedelta, timezone
from pathlib import Path

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
    "parser",
    "module",
    "returns",
    "error",
    "index",
    "window",
    "socket",
    "retry",
    "queue",
    "handler",
    "config",
    "schema",
    "migrate",
    "deploy",
    "render",
    "layout",
    "cursor",
    "buffer",
    "stream",
    "thread",
    "worker",
    "signal",
    "timeout",
    "branch",
    "merge",
]


def sentence(chance: random.Random, words: int) -> str:
    return " ".join(chance.choices(WORDS, k=words))


def write_sessions(home: Path, project: str, sessions: int, records: int = 20, seed: int = 1, output: int = 260) -> int:
    """Writes ``sessions`` files of so many records each under ``home/projects``; returns their size in bytes."""
    folder = home / "projects" / "".join(c if c.isalnum() else "-" for c in project)
    folder.mkdir(parents=True)
    chance = random.Random(seed)
    total = 0
    begin = datetime(2026, 1, 1, tzinfo=timezone.utc)
    for number in range(sessions):
        key = f"{chance.getrandbits(32):08x}-{number:04x}-4000-8000-{chance.getrandbits(48):012x}"
        at = begin + timedelta(minutes=37 * number)
        lines = []
        parent = None
        for count in range(records):
            at += timedelta(seconds=chance.randint(1, 40))
            uuid = f"{number:08x}-{count:04x}-4000-8000-{chance.getrandbits(48):012x}"
            common = {"parentUuid": parent, "isSidechain": False, "userType": "external", "cwd": project, "sessionId": key,
                      "version": "2.0.14", "gitBranch": "main", "uuid": uuid, "timestamp": at.strftime("%Y-%m-%dT%H:%M:%S.000Z")}  # fmt: skip
            kind = count % 4
            if kind == 0:
                text = f"Please look at session{number} step{count}: " + sentence(chance, 25)
                record = {**common, "type": "user", "message": {"role": "user", "content": text}}
            elif kind == 2:
                record = {**common, "type": "user", "message": {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": f"toolu_{number}_{count - 1}", "content": sentence(chance, output)}]},
                    "toolUseResult": {"stdout": "ok"}}  # fmt: skip
            else:
                content: list[dict[str, object]] = [{"type": "text", "text": sentence(chance, 60)}]
                if kind == 1:
                    content.append({"type": "tool_use", "id": f"toolu_{number}_{count}", "name": chance.choice(["Bash", "Read", "Edit"]),
                                    "input": {"command": sentence(chance, 6), "file_path": f"{project}/src/m{chance.randint(1, 99)}.py"}})  # fmt: skip
                record = {**common, "type": "assistant", "requestId": f"req_{number}_{count}", "message": {
                    "id": f"msg_{number}_{count}", "role": "assistant", "model": "claude-sonnet-4-5", "content": content,
                    "stop_reason": "end_turn", "usage": {"input_tokens": 900 + count, "output_tokens": 80,
                                                         "cache_read_input_tokens": 4000}}}  # fmt: skip
            lines.append(json.dumps(record))
            parent = uuid
        data = ("\n".join(lines) + "\n").encode()
        total += len(data)
        (folder / f"{key}.jsonl").write_bytes(data)
    return total
