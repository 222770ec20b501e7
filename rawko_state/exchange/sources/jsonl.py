"""JSON lines of messages (``{"role": "user", "content": "…"}``), one session per file: a format that anyone can write."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from rawko_state.exchange.sources.messages import Reader
from rawko_state.exchange.transcript import Session, Step, Trouble, lines, safely
from rawko_state.format.fair_json import shallow


def found(paths: list[Path], root: Path, wrong: list[Trouble]) -> Iterator[Session]:
    if not paths:
        wrong.append(Trouble(root, "Name the files to import: rawko import jsonl FILE…"))
    for path in paths:
        if path.is_dir():
            for file in sorted(path.rglob("*.jsonl")):
                yield Session("jsonl", str(file.resolve()), file, _read, folder=root, agent="assistant")
        elif path.is_file():
            yield Session("jsonl", str(path.resolve()), path, _read, folder=root, agent="assistant")
        else:
            wrong.append(Trouble(path, "No such file or folder"))


def _read(session: Session, start: int, wrong: list[str]) -> Iterator[tuple[int, Step]]:
    reader = Reader(session.agent)
    for place, line in lines(session.path, start, wrong):
        yield place, safely(lambda text: _step(reader, text), line)


def _step(reader: Reader, line: str) -> Step:
    try:
        message = json.loads(shallow(line))
    except ValueError:
        message = None
    return reader.step_of(line, message) if isinstance(message, dict) else Step(line, unknown="not an object")
