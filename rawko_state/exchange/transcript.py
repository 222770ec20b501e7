"""What an importer gives: the records of another agent's session, one step each, in words that no agent owns.

An importer turns bytes into these and knows nothing of tasks, stores or indexes. Whatever it does not understand it passes on as
it stands, with the name of its kind, so that nothing is lost.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

_MARKED: Final = 1024
LONGEST_LINE: Final = 64 << 20
"""A record that is longer is left out, and said to be."""


@dataclass(frozen=True, slots=True)
class Call:
    """A tool that was called."""

    id: str
    tool: str
    args: str
    touches: tuple[tuple[str, str], ...] = ()
    """What it does to which file: read, write or delete, and the path as the source says it."""


@dataclass(frozen=True, slots=True)
class Output:
    """What came of a call."""

    id: str
    text: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One record of the source."""

    raw: str
    """As it stands there, without its line end."""
    at: datetime | None = None
    turn: str | None = None
    """The turn of the agent that it belongs to: another one than before begins a turn. None: it belongs to what is there."""
    agent: str | None = None
    prompt: str | None = None
    """What a person said: begins a turn of the user."""
    text: str | None = None
    thinking: str | None = None
    model: str | None = None
    tokens: Mapping[str, int] = field(default_factory=dict)
    calls: tuple[Call, ...] = ()
    outputs: tuple[Output, ...] = ()
    touches: tuple[tuple[str, str], ...] = ()
    title: str | None = None
    aborted: bool | None = None
    """Whether the agent was stopped by this, or goes on."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """Of the session: cwd, branch, commit, repo, version, parent, provider, session."""
    unknown: str | None = None
    """The kind of a record that is only passed on."""


@dataclass(slots=True)
class Trouble:
    """What was wrong with a file; the rest of it was read all the same."""

    path: Path
    text: str


@dataclass(frozen=True, slots=True)
class Session:
    """One session of a source: a file, or a part of one."""

    source: str
    key: str
    """The same whenever it is found again."""
    path: Path
    read: Callable[[Session, int, list[str]], Iterator[tuple[int, Step]]]
    """Given a place to go on from and a list for what is wrong: each step, with the place behind it."""
    parent: str | None = None
    """The key of the session that it belongs to."""
    at: Any = None
    """Whatever the importer needs to find it in the file."""
    folder: Path | None = None
    """The folder that it was run in, where that is known before it is read."""
    agent: str = ""

    def is_marked(self, place: int, mark: object) -> bool:
        """Whether this may be the file of a mark. What was packed since, as agents do with old ones, has none to compare."""
        mine = self.marked(place).get("mark")
        return mark is None or mine is None or mark == mine

    def marked(self, place: int) -> dict[str, str]:
        """A mark of what stands before a place, to know the file again by; nothing for what is no plain file of lines."""
        if self.path.suffix != ".jsonl":
            return {}
        with open(self.path, "rb") as stream:
            stream.seek(max(0, place - _MARKED))
            return {"mark": hashlib.sha256(stream.read(min(place, _MARKED))).hexdigest()[:16]}

    def steps(self, start: int, wrong: list[str]) -> Iterator[tuple[int, Step]]:
        return self.read(self, start, wrong)


class Unfinished(str):
    """A complaint about a last line that is on its way: no trouble for those who come again."""


def lines(path: Path, start: int, wrong: list[str]) -> Iterator[tuple[int, str]]:
    """The lines of a file from a place on, each with the place behind it. A last one without its end is on its way, unless it is
    a whole object: it is left for the next time. Bytes that are no UTF-8 come as lone surrogates, which are written back as they
    were."""
    with open(path, "rb") as stream:
        stream.seek(start)
        place = start
        number = 0
        while True:
            line = stream.readline(LONGEST_LINE)
            if not line:
                return
            number += 1
            if not line.endswith(b"\n"):
                if len(line) < LONGEST_LINE:
                    if _is_whole(line):
                        yield place + len(line), line.decode("utf-8", "surrogateescape")
                        return
                    wrong.append(Unfinished(f"the last line, of {len(line)} bytes, has no end: left for the next time"))
                    return
                length = len(line)
                while line and not line.endswith(b"\n"):
                    line = stream.readline(LONGEST_LINE)
                    length += len(line)
                wrong.append(f"a line of {length:,} bytes at byte {place} was left out")
                place += length
                continue
            place += len(line)
            if line.strip():
                yield place, line[:-1].decode("utf-8", "surrogateescape")


def _is_whole(line: bytes) -> bool:
    """Many programs write no line end after their last record. A part of an object is never an object, so this one is whole."""
    try:
        return isinstance(json.loads(line.decode("utf-8", "surrogateescape")), dict)
    except (ValueError, RecursionError):
        return False


def time_of(value: object) -> datetime | None:
    """A time as these files write it: ISO 8601, or milliseconds or seconds since 1970."""
    try:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return datetime.fromtimestamp(value / 1000 if value > 1e11 else value, timezone.utc)
        if not isinstance(value, str) or len(value) > 40:
            return None
        found = datetime.fromisoformat(value.replace("Z", "+00:00"))
        return (found if found.tzinfo else found.replace(tzinfo=timezone.utc)).astimezone(timezone.utc)
    except (OverflowError, OSError, ValueError):
        return None


def counts(usage: object, names: Mapping[str, str]) -> dict[str, int]:
    """Numbers of tokens, by our names for them."""
    if not isinstance(usage, dict):
        return {}
    found = {ours: usage.get(theirs) for theirs, ours in names.items()}
    return {name: count for name, count in found.items() if type(count) is int and 0 <= count < 1 << 53}


def safely(step_of: Callable[[str], Step], line: str) -> Step:
    """Whatever a record holds, it is a step; if nothing else, one that is passed on."""
    try:
        return step_of(line)
    except Exception as error:  # a number for a text, a list for a number: there is no end to it
        return Step(line, unknown=f"odd ({type(error).__name__})")


def text_of(value: object) -> str:
    """The text in whatever shape content has: a string, or a list of parts with text."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(part for part in map(text_of, value) if part)
    if isinstance(value, dict):
        for name in ("text", "content", "output"):
            if name in value:
                return text_of(value[name])
        kind = value.get("type")
        return f"[{kind}]" if isinstance(kind, str) else ""
    return ""


def words(value: Mapping[str, object], *names: str) -> dict[str, str]:
    """Those of some values that are text."""
    return {name: found for name in names if isinstance(found := value.get(name), str) and found}
