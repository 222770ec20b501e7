"""aider: ``.aider.chat.history.md`` in the repository, with each session under ``# aider chat started at …``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Final

from rawko_state.exchange.transcript import Call, Output, Session, Step, Trouble

NAME: Final = ".aider.chat.history.md"
_START = re.compile(r"# aider chat started at (.+?)\s*")
_ERROR = re.compile(r"> ((?:litellm\.\w*(?:Error|Exception)|The API provider|Error:).*)")
_EDITED = re.compile(r"> Applied edit to (.+)")
_MODEL = re.compile(r"> (?:Main model|Model): (\S+)")
_COMMIT = re.compile(r"> Commit ([0-9a-f]{7,40}) (.*)")
_TOKENS = re.compile(r"> Tokens: ([\d.,k]+) sent, (?:[\d.,k]+ cache [a-z]+, )*([\d.,k]+) received")


def found(paths: list[Path], root: Path, wrong: list[Trouble]) -> Iterator[Session]:
    for path in paths or [root]:
        file = path / NAME if path.is_dir() else path
        if not file.is_file():
            if paths:
                wrong.append(Trouble(path, f"no {NAME} there"))
            continue
        begun: Counter[str] = Counter()
        for start, title in _starts(file):
            # Not by its number in the file: people delete the beginning of the file.
            yield Session("aider", f"{title} #{begun[title]}", file, _read, at=start, folder=file.parent, agent="aider")
            begun[title] += 1


def _lines(path: Path, start: int) -> Iterator[tuple[int, str]]:
    """Each line with its offset. A last line without a line ending is left for next time."""
    with open(path, "rb") as stream:
        stream.seek(start)
        place = start
        for line in stream:
            if not line.endswith(b"\n"):
                return  # still being written
            yield place, line[:-1].decode("utf-8", "surrogateescape")
            place += len(line)


def _starts(path: Path) -> Iterator[tuple[int, str]]:
    for place, line in _lines(path, 0):
        match = _START.fullmatch(line)
        if match:
            yield place, match[1]


def _read(session: Session, start: int, wrong: list[str]) -> Iterator[tuple[int, Step]]:
    """A step is a run of lines of one kind: what the user said, what the program did, what the model said. Places are relative to
    the start of the session, so that they stay valid when earlier text is deleted."""
    begin = session.at + start
    kind, stretch, at = "", list[str](), None
    turn = 0
    place = begin
    end = begin
    for place, line in _lines(session.path, begin):
        end = place + len(line.encode("utf-8", "surrogateescape")) + 1
        match = _START.fullmatch(line)
        if match and place > session.at:
            break
        if match:
            at = _time(match[1])
        new = "start" if match else "user" if line.startswith("####") else "tool" if line.startswith("> ") else "model"
        if new == "model" and not line.strip():
            new = kind or "start"
        if new != kind and stretch:
            turn += kind == "user"
            yield place - session.at, _step(kind, stretch, at, turn)
            stretch = []
        kind = new
        stretch.append(line)
    else:
        place = end
    if stretch:
        yield place - session.at, _step(kind, stretch, at, turn + (kind == "user"))


def _step(kind: str, stretch: list[str], at: datetime | None, turn: int) -> Step:
    raw = "\n".join(stretch)
    if kind == "start":
        return Step(raw, at)
    if kind == "user":
        said = [line.removeprefix("####").removeprefix(" ") for line in stretch if line.startswith("####")]
        return Step(raw, at, prompt="\n".join(line.rstrip() for line in said))
    if kind == "model":
        return Step(raw, at, turn=str(turn), agent="aider", text=raw.strip())
    return _tool(raw, stretch, at, turn)


def _tool(raw: str, stretch: list[str], at: datetime | None, turn: int) -> Step:
    touches, calls, outputs, model = [], [], [], None
    failed: str | None = None
    tokens: dict[str, int] = {}
    for line in stretch:
        if wrong := _ERROR.match(line):
            failed = failed or wrong[1].strip()
        elif edited := _EDITED.match(line):
            touches.append(("write", edited[1].strip()))
        elif commit := _COMMIT.match(line):
            calls.append(Call(commit[1], "git.commit", commit[2]))
            outputs.append(Output(commit[1], commit[1]))
        elif named := _MODEL.match(line):
            model = named[1]
        elif used := _TOKENS.match(line):
            tokens = {"in": _number(used[1]), "out": _number(used[2])}
    return Step(raw, at, turn=str(turn) if turn else None, agent="aider", model=model, tokens=tokens,
                calls=tuple(calls), outputs=tuple(outputs), touches=tuple(touches), failed=failed)  # fmt: skip


def _number(text: str) -> int:
    text = text.replace(",", "")
    try:
        return int(float(text[:-1]) * 1000) if text.endswith("k") else int(float(text))
    except (ValueError, OverflowError):
        return 0


def _time(text: str) -> datetime | None:
    """Local time, as aider writes no time zone."""
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        return None
