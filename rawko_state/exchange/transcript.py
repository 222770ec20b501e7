"""The output of importers: the records of another agent's session, one step each, in agent-neutral terms.

An importer turns bytes into steps and knows nothing about tasks, stores or indexes. What it does not understand, it passes on
unchanged, with the name of its kind, so that nothing is lost.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import json
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Final, NamedTuple

from rawko_state.format.fair_json import shallow
from rawko_state.model.entries import Diff
from rawko_state.model.frozen import Frozen, field, replace

_MARKED: Final = 1024
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
HANDED_OVER: Final = "rawko"
"""The key by which a record that rawko wrote into an agent's session names the task it came from, and the last turn of it."""
_AHEAD: Final = 32
_AHEAD_BYTES: Final = 1 << 20
_PIECE: Final = 1 << 20
LONGEST_LINE: Final = 512 << 20
"""Longer records are skipped and reported."""


class Call(Frozen):
    """A tool call."""

    id: str
    tool: str
    args: str
    touches: tuple[tuple[str, str], ...] = ()
    """Operation (read, write or delete) and path, as in the source."""
    diffs: tuple[Diff, ...] = ()
    """What it changes if it succeeds, as far as its arguments tell."""


class Output(Frozen):
    """The output of a call."""

    id: str
    text: str
    failed: bool = False
    diffs: tuple[Diff, ...] = ()
    """What the call changed, if the source says so: then what its arguments tell does not count."""
    is_unchanged: bool = False
    """The source says that the file was written as it was."""
    exit_code: int | None = None
    """Of a command, if the text does not tell it."""
    goes_on: bool = False
    """The call has only begun something that goes on, such as a sub-agent in the background."""


class Usage(NamedTuple):
    """Tokens and cost. Input from a cache counts as ``cache_read`` and not as ``in``; ``reasoning`` is a part of ``out``."""

    tokens: Mapping[str, int] = {}
    cost: Decimal | None = None
    """US dollars, as the source states them."""


class Aside(NamedTuple):
    """Something that happened to the session and belongs to no turn, such as a compaction."""

    kind: str
    text: str


class Step(Frozen):
    """One record of the source."""

    raw: str
    """The original record, without its line ending."""
    at: datetime | None = None
    turn: str | None = None
    """The agent's turn that it belongs to; a new value begins a new turn. None: it belongs to the current turn."""
    agent: str | None = None
    prompt: str | None = None
    """What a person said; begins a turn of the user."""
    text: str | None = None
    thinking: str | None = None
    model: str | None = None
    tokens: Mapping[str, int] = field(default_factory=dict)
    """Of the turn. Several steps of one turn repeat it as it grows; steps without a turn add to the current one."""
    cost: Decimal | None = None
    """Of the turn, likewise."""
    used: Usage | None = None
    """Tokens and cost of the run so far that no turn states. The last one counts."""
    spent: Usage | None = None
    """Tokens and cost of the whole session so far: also of earlier runs, sub-agents, and the session that it was forked from."""
    calls: tuple[Call, ...] = ()
    outputs: tuple[Output, ...] = ()
    touches: tuple[tuple[str, str], ...] = ()
    diffs: tuple[Diff, ...] = ()
    """What was changed in files by the call named in ``by_call``, or by the last one that has no output yet."""
    by_call: str | None = None
    inside: str | None = None
    """The call that started the sub-agent to which this belongs, where both are in one stream."""
    outcome: str | None = None
    """The sub-agent named by ``inside`` has ended, and how: a word of a result."""
    aside: Aside | None = None
    title: str | None = None
    aborted: bool | None = None
    """True if this stopped the agent, False if it continues."""
    failed: str | None = None
    """What went wrong with the agent's work as a whole, in the source's own words."""
    working: bool | None = None
    """Whether the agent is at work from here on; for sources that say when it begins and ends."""
    unsure: bool = False
    """The source does not tell whether the agent's work ended here: a tool may have been called that is not recorded yet."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """Facts about the session: cwd, branch, commit, repo, version, parent, provider, session, forked."""
    key: str | None = None
    """The id of the record, if copies in another session have the same."""
    follows: str | None = None
    """The key of the record that this one comes after, if the source says so: then its place in the file does not matter."""
    unknown: str | None = None
    """The kind of a record that was not understood and is only passed on."""
    continued: bool = False
    """The text goes on where that of the step before stopped, even in the middle of a word."""

    @property
    def happened(self) -> bool:
        """Whether anybody said or did anything. Agents also write records for themselves, even after they have ended."""
        signs = (self.prompt, self.turn, self.text, self.aside, self.aborted, self.failed, self.working)
        return any(sign is not None for sign in signs) or bool(self.calls or self.outputs or self.touches or self.diffs)


@dataclass(slots=True)
class Trouble:
    """A problem with a file; the rest of the file was still read."""

    path: Path
    text: str


class Session(Frozen):
    """One session of a source: a file, or a part of one."""

    source: str
    key: str
    """Identifies the session; stable across imports."""
    path: Path
    read: Callable[[Session, int, list[str]], Iterator[tuple[int, Step]]]
    """Given a place to start from and a list to add problems to, yields each step with the place after it."""
    parent: str | None = None
    """The key of the parent session."""
    at: Any = None
    """Whatever the importer needs to find it in the file."""
    folder: Path | None = None
    """The folder it was run in, if known before it is read."""
    agent: str = ""
    about: Mapping[str, str] = field(default_factory=dict)
    """What is known about it from elsewhere than its records."""
    also: Path | None = None
    """Another file that tells of it, and may change without the first."""

    def is_marked(self, place: int, mark: object) -> bool:
        """Whether this may be the file that a mark was made from. A file that the agent has since compressed has no mark."""
        mine = self.marked(place).get("mark")
        return mark is None or mine is None or mark == mine

    def marked(self, place: int) -> dict[str, str]:
        """A fingerprint of the bytes before a place, to recognise the file later. Empty unless it is a plain file of lines."""
        if self.path.suffix != ".jsonl":
            return {}
        with open(self.path, "rb") as stream:
            stream.seek(max(0, place - _MARKED))
            return {"mark": hashlib.sha256(stream.read(min(place, _MARKED))).hexdigest()[:16]}

    def steps(self, start: int, wrong: list[str]) -> Iterator[tuple[int, Step]]:
        return self.read(self, start, wrong)

    def end(self) -> int:
        """The place after its last record."""
        if self.path.suffix == ".jsonl":
            return self.path.stat().st_size
        return max((place for place, _ in self.steps(0, [])), default=0)


class Unfinished(str):
    """A problem report about a last line that is still being written. Callers that will read again can ignore it."""


def lines(path: Path, start: int, wrong: list[str]) -> Iterator[tuple[int, str]]:
    """The lines of a file from a place on, each with the place after it. A last line without a line ending is still being
    written, unless it is a complete object, so it is left for next time. Bytes that are not UTF-8 become lone surrogates, which
    are written back as the same bytes."""
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
                    wrong.append(Unfinished(f"the last line ({len(line)} bytes) is incomplete; skipped for now"))
                    return
                length = len(line)
                while line and not line.endswith(b"\n"):
                    line = stream.readline(LONGEST_LINE)
                    length += len(line)
                wrong.append(f"skipped a line of {length:,} bytes at byte {place}: too long")
                place += length
                continue
            place += len(line)
            if line.strip():
                yield place, line[:-1].decode("utf-8", "surrogateescape")


def _is_whole(line: bytes) -> bool:
    """Many programs do not end their last line. Part of an object never parses as an object, so one that parses is complete."""
    try:
        return isinstance(json.loads(shallow(line.decode("utf-8", "surrogateescape"))), dict)
    except ValueError:
        return False


def time_of(value: object) -> datetime | None:
    """A time as written in these files: ISO 8601, or milliseconds or seconds since 1970."""
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
    """Token counts, under our names."""
    if not isinstance(usage, dict):
        return {}
    found = {ours: usage.get(theirs) for theirs, ours in names.items()}
    return {name: count for name, count in found.items() if type(count) is int and 0 <= count < 1 << 53}


def dollars(value: object) -> Decimal | None:
    """An amount of money as these files state it; None if it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        found = Decimal(str(value))
    except InvalidOperation:
        return None
    return round(found, 10).normalize() if found.is_finite() and 0 <= found < 10**9 else None


def stated(cost: Decimal | None, tokens: Mapping[str, int]) -> Decimal | None:
    """What a source says that tokens cost. Agents write 0 for models whose prices they do not know."""
    return None if cost == 0 and any(tokens.values()) else cost


def since(before: Usage, total: Usage) -> Usage:
    """What was used between two totals. A smaller one has begun anew."""
    if before.cost is None or total.cost is None or total.cost < before.cost:
        return total
    tokens = {name: max(0, count - before.tokens.get(name, 0)) for name, count in total.tokens.items()}
    return Usage(tokens, total.cost - before.cost)


def in_order(steps: Iterable[tuple[int, Step]], start: int) -> Iterator[tuple[int, Step]]:
    """Puts steps behind those that they follow, where a source wrote them a little earlier. While one is put back, the place of
    the others is before it, so that whoever stops there reads it again. Looks ahead only if a step follows none of the last
    ones."""
    ahead: deque[tuple[int, Step]] = deque()
    waiting: dict[str, list[Step]] = {}
    follows: dict[str, str | None] = {}
    """Of the steps that are ahead or waiting, by their keys."""
    passed: dict[str, None] = {}
    """The keys of the last steps that came."""
    size, safe, place = 0, start, start

    def is_ready(step: Step) -> bool:
        return step.follows is None or step.follows in passed

    def is_early(step: Step) -> bool:
        before = step.follows
        for _ in follows:
            if before not in follows:
                break
            before = follows[before]
        return step.follows in follows and before not in follows  # else they follow one another in a circle

    def passes(step: Step) -> Step:
        if step.key is not None:
            passed[step.key] = None
            if len(passed) > _AHEAD:
                del passed[next(iter(passed))]
        return step

    def come(step: Step) -> Iterator[Step]:
        follows.pop(step.key or "", None)
        yield passes(step)
        for each in waiting.pop(step.key or "", ()):
            yield from come(each)

    def first() -> Iterator[tuple[int, Step]]:
        nonlocal size, safe, place
        place, step = ahead.popleft()
        size -= len(step.raw)
        if not is_ready(step) and is_early(step):
            waiting.setdefault(step.follows or "", []).append(step)
            return
        found = list(come(step))
        safe = safe if waiting else place
        for each in found:
            yield safe, each

    for at, step in steps:
        if not ahead and not waiting and is_ready(step):
            safe = at
            yield at, passes(step)
            continue
        ahead.append((at, step))
        size += len(step.raw)
        if step.key is not None:
            follows[step.key] = step.follows
        while ahead and (is_ready(ahead[0][1]) or len(ahead) > _AHEAD or (size > _AHEAD_BYTES and len(ahead) > 1)):
            yield from first()
    while ahead:
        yield from first()


class NotAnObject(ValueError):
    """A line that holds something else than one JSON object."""


def safely(step_of: Callable[[str], Step], line: str) -> Step:
    """A step for any record; if it cannot be read, one that is only passed on."""
    try:
        return step_of(line)
    except NotAnObject as error:
        return Step(line, unknown=str(error))
    except Exception as error:  # values of the wrong type can fail anywhere
        return Step(line, unknown=f"odd ({type(error).__name__})")


def handed_over(record: Mapping[str, Any], at: datetime | None, facts: Mapping[str, str]) -> Step | None:
    """The step of a record that rawko wrote: it belongs to the task that it names, so only that is passed on."""
    mark = record.get(HANDED_OVER)
    if not isinstance(mark, str):
        return None
    known = {name: facts[name] for name in ("cwd", "session") if name in facts}
    return Step(json.dumps({HANDED_OVER: mark}), at, facts={**known, "continues": mark})


def read_lines(path: Path, start: int, wrong: list[str], step_of: Callable[[str], Step]) -> Iterator[tuple[int, Step]]:
    """The steps of a file of lines from a place on. The lines before it are read too, for readers that remember them."""
    return after(start, ((place, safely(step_of, line)) for place, line in lines(path, 0, wrong)))


def after(start: int, steps: Iterable[tuple[int, Step]]) -> Iterator[tuple[int, Step]]:
    """The steps after a place, with what they need of those before: the facts, the turn, and calls whose outputs come now."""
    facts: dict[str, str] = {}
    waiting: dict[str, Call] = {}
    turn: Step | None = None
    """The turn that goes on, until another one begins."""
    for place, step in steps:
        if place <= start:
            facts = {**step.facts, **facts}
            turn = step if step.turn is not None else None if step.prompt is not None else turn
            waiting |= {call.id: call for call in step.calls}
            for output in step.outputs:
                waiting.pop(output.id, None)
            continue
        if step.turn is not None or step.prompt is not None:
            turn = None
        begun = tuple(waiting.pop(output.id) for output in step.outputs if output.id in waiting)
        if begun:
            step = replace(step, calls=(*begun, *step.calls))
        if turn is not None and (
            step.calls or step.outputs or step.text or step.thinking or step.diffs or step.touches
        ):
            step = replace(step, turn=turn.turn, agent=turn.agent, model=turn.model)
            turn = None
        yield place, replace(step, facts={**facts, **step.facts}) if facts else step
        facts = {}


def files(paths: list[Path], folders: list[Path], pattern: str, wrong: list[Trouble]) -> Iterator[Path]:
    """The files in the given paths, or in an agent's own folders if there are none. Links to folders are not followed."""
    for path in paths or folders:
        if path.is_dir():
            yield from walked(path, pattern, wrong)
        elif path.is_file():
            yield path
        elif paths:
            wrong.append(Trouble(path, "No such file or folder"))


def session_id(name: str, told: Callable[[], object]) -> str:
    """The id of a session that has a file of its own: the file's name, or what the records tell if it was renamed or copied."""
    if is_session_id(name):
        return name
    said = told()
    return said if isinstance(said, str) and is_session_id(said) else name


def is_session_id(text: str) -> bool:
    return _UUID.fullmatch(text) is not None


def walked(folder: Path, pattern: str, wrong: list[Trouble]) -> Iterator[Path]:
    """The files below a folder whose names match, in order. The listing says what each name is: looking at thousands of files one
    by one would take longer than the rest of an import that finds nothing new."""
    found: list[list[str]] = []
    left = [str(folder)]
    while left:
        place = left.pop()
        with contextlib.suppress(OSError), os.scandir(place) as entries:  # it went, or is not ours to read
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    left.append(entry.path)
                if fnmatch.fnmatchcase(entry.name, pattern):
                    with contextlib.suppress(OSError):  # a link that leads to itself
                        if entry.is_file():
                            found.append([*place.split(os.sep), entry.name])
                        elif entry.is_dir():
                            wrong.append(Trouble(Path(entry.path), "Expected a session file, found a folder"))
    for parts in sorted(found):
        yield Path(os.sep.join(parts))


def holds(path: Path, text: str) -> bool:
    """Whether a file has this text in it."""
    wanted, before = text.encode("utf-8", "replace"), b""
    try:
        with open(path, "rb") as stream:
            while piece := stream.read(_PIECE):
                if wanted in before + piece:
                    return True
                before = piece[-len(wanted) :]
    except OSError:
        pass
    return False


def first_record(path: Path) -> dict[str, Any]:
    """The first line of a file, if it is an object; else an empty one."""
    try:
        with open(path, "rb") as stream:
            return mapping(json.loads(shallow(stream.readline(1 << 20).decode("utf-8", "surrogateescape"))))
    except (OSError, ValueError):
        return {}


def object_of(line: str) -> dict[str, Any]:
    """The JSON object in a line. Raises NotAnObject."""
    try:
        found = json.loads(shallow(line))
    except ValueError:
        raise NotAnObject("not JSON") from None
    if not isinstance(found, dict):
        raise NotAnObject("not an object")
    return found


def mapping(value: object) -> dict[str, Any]:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def objects(value: object) -> list[dict[str, Any]]:
    """The objects in a list."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def only(**values: object) -> dict[str, str]:
    """The values that are non-empty strings."""
    return {name: value for name, value in values.items() if isinstance(value, str) and value}


def uncached(tokens: Mapping[str, int]) -> dict[str, int]:
    """Token counts of a source that counts cached input as input, in our terms."""
    cached = tokens.get("cache_read", 0) + tokens.get("cache_write", 0)
    return {**tokens, "in": tokens["in"] - cached} if tokens.get("in", -1) >= cached else dict(tokens)


def text_of(value: object) -> str:
    """The text of a message's content: a string, or a list of parts with text."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(part for part in map(text_of, value) if part)
    if isinstance(value, dict):
        for name in ("text", "content", "output", "value"):
            if name in value:
                return text_of(value[name])
        kind = value.get("type")
        return f"[{kind}]" if isinstance(kind, str) else ""
    return ""


def words(value: Mapping[str, object], *names: str) -> dict[str, str]:
    """The named values that are non-empty strings."""
    return {name: found for name in names if isinstance(found := value.get(name), str) and found}
