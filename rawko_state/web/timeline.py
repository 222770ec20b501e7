"""A task: its turns around a place, what was asked between them, and what is known of the whole.

A page holds about 200 turns, whatever the length of the task. What is left out is a gap that opens. Rows come from the index,
turns with one read each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from markupsafe import Markup

from rawko_state.errors import InvalidValue, RawkoError
from rawko_state.exchange.facts import Facts, facts_of
from rawko_state.format.reader import TaskReader
from rawko_state.format.seal import GENESIS, SEAL_LENGTH, read_seal
from rawko_state.lifecycle.prices import estimated
from rawko_state.model import status as words
from rawko_state.model.entries import UNKNOWN_USER, TaskHeader
from rawko_state.model.frozen import Frozen
from rawko_state.server.problems import Refused
from rawko_state.store import RunRow, TaskSummary, TurnRow
from rawko_state.store import Said as SaidRow
from rawko_state.web import wording
from rawko_state.web.continuing import offered
from rawko_state.web.fragments import markdown
from rawko_state.web.tasks import Row, row_of
from rawko_state.web.turn_view import TurnView, read_turn, turn_view
from rawko_state.web.visits import Reply, View, Visit

WINDOW: Final = 200
_HEAD: Final = 20
_LARGEST: Final = 3 << 20
"""Bytes of turns that one page reads, unless a single turn is larger."""
_OUTLINE: Final = 60
_RELATIVES: Final = 40
_SCANNED: Final = 400
"""Turns that are read to find the next error."""
_NUMBER = re.compile(r"[1-9][0-9]{0,14}")


class Gap(NamedTuple):
    first: int
    last: int

    @property
    def turns(self) -> int:
        return self.last - self.first + 1


class Prompt(NamedTuple):
    """A request, or something else said to the agent between turns."""

    key: str
    by: str | None
    at: datetime | None
    text: Markup
    is_request: bool
    run: int


class Ended(NamedTuple):
    """The end of a run."""

    run: RunRow
    title: str
    text: Markup | None


class Item(Frozen):
    """One thing on the timeline; one of its fields is set."""

    turn: TurnView | None = None
    prompt: Prompt | None = None
    gap: Gap | None = None
    end: Ended | None = None


@dataclass(slots=True)
class Shape:
    """What is known of a task without reading its turns."""

    summary: TaskSummary
    runs: list[RunRow]
    said: list[SaidRow]
    files: list[tuple[int, str, str]]
    question: int | None
    owner: str | None
    """Who asked, by the head of the task."""

    @property
    def last_turn_of(self) -> dict[int, int]:
        """The last turn of each run that has turns."""
        firsts = [(run.run, run.first_turn) for run in self.runs if run.first_turn is not None]
        ends = [first - 1 for _, first in firsts[1:]] + [self.summary.turns]
        return {run: end for (run, _), end in zip(firsts, ends, strict=True)}

    @property
    def edits(self) -> set[int]:
        return {turn for turn, operation, _ in self.files if turn and operation != "read"}


def shape_of(visit: Visit, task_id: str) -> Shape:
    store = visit.store
    summary = store.summary(task_id)
    question = store.open_question(task_id) if summary.status == words.WAITING else None
    return Shape(
        summary,
        store.runs(task_id),
        store.said(task_id),
        store.files(task_id),
        question.number if question else None,
        _owner(visit, task_id),
    )


def _owner(visit: Visit, task_id: str) -> str | None:
    head = next((entry for _, entry in visit.store.entries(task_id)), None)
    return head.user if isinstance(head, TaskHeader) else None


def spans_around(total: int, anchor: int | None) -> list[tuple[int, int]]:
    """The turns to show: all, or those around a place, or the first few and the newest."""
    if total <= WINDOW:
        return [(1, total)] if total else []
    if anchor is None:
        return [(1, _HEAD), (total - (WINDOW - _HEAD) + 1, total)]
    first = max(1, min(anchor - WINDOW // 2, total - WINDOW + 1))
    return [(first, first + WINDOW - 1)]


class Timeline:
    """Makes the items of spans of turns."""

    def __init__(self, visit: Visit, shape: Shape, *, split: bool) -> None:
        self._visit, self._shape, self._split = visit, shape, split
        self._read = 0
        self.turns: list[TurnView] = []

    def items(self, spans: list[tuple[int, int]], *, gaps: bool = True) -> Iterator[Item]:
        total, at = self._shape.summary.turns, 1
        if not spans:
            yield from self._between(None, None)
        for first, last in spans:
            if gaps and first > at:
                yield Item(gap=Gap(at, first - 1))
            at = last + 1
            for item in self._span(first, last):
                if item.gap is not None:  # too much to read: it goes on there
                    yield Item(gap=Gap(item.gap.first, total if gaps else last))
                    return
                yield item
        if gaps and spans and at <= total:
            yield Item(gap=Gap(at, total))

    def _span(self, first: int, last: int) -> Iterator[Item]:
        shape, store = self._shape, self._visit.store
        rows = store.turn_page(shape.summary.id, after=max(0, first - 2), limit=last - first + 3)
        by_number = {row.turn: row for row in rows}
        before, after = by_number.get(first - 1), by_number.get(last + 1)
        own = [row for row in rows if first <= row.turn <= last]
        ends = {turn: run for run, turn in shape.last_turn_of.items()}
        at = before.offset if before is not None else None
        with store.reader(shape.summary.id) as reader:
            for row in own:
                yield from self._between(at, row.offset)
                if self._read > _LARGEST:
                    yield Item(gap=Gap(row.turn, last))
                    return
                self._read += row.length
                view = self._turn(reader, row)
                if view is not None:
                    self.turns.append(view)
                    yield Item(turn=view)
                if row.turn in ends:
                    yield from self._end(ends[row.turn])
                at = row.offset
        yield from self._between(at, after.offset if after is not None else None)

    def _turn(self, reader: TaskReader, row: TurnRow) -> TurnView | None:
        turn, seal = read_turn(reader, row)
        if turn is None:
            return None
        return turn_view(turn, seal, damaged=bool(row.damaged), open_question=self._shape.question, split=self._split)

    def _between(self, start: int | None, end: int | None) -> Iterator[Item]:
        """What was said between two places of the file."""
        run = 0
        for number, said in enumerate(self._shape.said):
            run += said.kind == "request"
            if (start is not None and said.offset <= start) or (end is not None and said.offset >= end):
                continue
            is_request = said.kind == "request"
            key = f"r{run}" if is_request else f"n{number}"
            first = is_request and run == 1 and said.by == UNKNOWN_USER
            by = (self._shape.owner if first else None) or said.by
            at = said.at.astimezone() if said.at is not None else None
            yield Item(prompt=Prompt(key, by, at, markdown(said.text), is_request, run))
            if is_request and run not in self._shape.last_turn_of:
                yield from self._end(run)

    def end_of(self, run: int) -> Iterator[Item]:
        yield from self._end(run)

    def newest_prompt(self) -> Iterator[Item]:
        found = list(self._between(None, None))
        yield from [item for item in found if item.prompt is not None][-1:]

    def _end(self, number: int) -> Iterator[Item]:
        run = next((each for each in self._shape.runs if each.run == number), None)
        if run is None or (
            run.completed is None and run.status not in (words.CANCELLED, words.FAILED, words.COMPLETED)
        ):
            return
        title = {
            "completed": "Completed",
            "failed": "Failed",
            "cancelled": "Cancelled",
            "success": "Completed",
            "failure": "Failed",
        }
        text = "\n\n".join(each for each in (run.summary, run.error) if each)
        yield Item(
            end=Ended(
                run,
                title.get(run.status or "", (run.status or "ended").capitalize()),
                markdown(text) if text else None,
            )
        )


# The page


def task(visit: Visit) -> Reply:
    prefix = visit.params["id"]
    name = visit.store.find(prefix)
    if name.id != prefix:
        return Reply(to=visit.at("t", name.id, *([visit.params["n"]] if "n" in visit.params else [])))
    anchor = _number(visit.params.get("n"))
    with visit.store.reading():
        shape = shape_of(visit, name.id)
        total = shape.summary.turns
        if anchor is not None and anchor > total:
            raise Refused(
                404, "NoTurn", f"Task {name.id} has {wording.counted(total, 'turn')}; there is no turn {anchor}."
            )
        cursor = visit.store.now(name.id)
        split = visit.get("diff") == "split"
        line = Timeline(visit, shape, split=split)
        items = list(line.items(spans_around(total, anchor)))
        seal = _checked_seal(visit, name.id, anchor) if anchor is not None and visit.get("seal") else None
    values: dict[str, Any] = {
        "place": "tasks",
        "shape": shape,
        "task": shape.summary,
        "row": row_of(visit, shape.summary),
        "runs": offered(visit, shape.summary),
        "used": _used(visit, name.id) if total <= _SUMMED else None,
        "items": items,
        "anchor": anchor,
        "cursor": cursor,
        "split": split,
        "tools_open": visit.get("tools") == "open",
        "seal": seal,
        "family": family(visit, shape.summary),
        "outline": _outline(visit, shape, items),
        "files": _files(shape, line, whole=len(line.turns) == total),
        "strip": strip(line.turns) if len(line.turns) == total else None,
        "added": sum(turn.added for turn in line.turns) if len(line.turns) == total else None,
        "removed": sum(turn.removed for turn in line.turns),
        "unstated": sum(turn.kind == "agent" and not turn.states_cost for turn in line.turns)
        if len(line.turns) == total
        else 0,
        "alive": name.id in visit.store.alive(),
        "draft": _draft(visit, name.id) if shape.summary.status in (words.RUNNING, words.WAITING) else None,
        "message": visit.get("said"),
        "filename": name.filename,
    }
    return Reply("task.html", values)


def turns(visit: Visit) -> Reply:
    """Some turns, for a gap that opens."""
    name = visit.store.find(visit.params["id"])
    first, last = visit.number("from"), visit.number("to")
    if not first or not last or last < first:
        raise InvalidValue("Say which turns: from=21&to=120.")
    if not visit.is_part:
        return Reply(to=f"{visit.at('t', name.id, first)}#t{first}")
    with visit.store.reading():
        shape = shape_of(visit, name.id)
        last = min(last, shape.summary.turns)
        end = min(last, first + WINDOW - 1)
        items = list(Timeline(visit, shape, split=visit.get("diff") == "split").items([(first, end)], gaps=False))
    if end < last and not (items and items[-1].gap is not None):
        items.append(Item(gap=Gap(end + 1, last)))
    return Reply("items.html", {"items": items, "task": shape.summary, "tools_open": False})


def following(visit: Visit) -> Reply:
    """The next or previous prompt, edit or error: found here, as the browser has only some of the turns."""
    name = visit.store.find(visit.params["id"])
    kind, back = visit.get("kind"), visit.get("back") == "1"
    at = visit.number("from") or 0
    with visit.store.reading():
        shape = shape_of(visit, name.id)
        if kind == "edit":
            found = sorted(shape.edits)
        elif kind == "prompt":
            found = sorted(_prompts(visit, shape))
        elif kind == "error":
            found = [number] if (number := _error(visit, shape, at, back=back)) else []
        else:
            raise InvalidValue("Say what to look for: kind=prompt, edit or error.")
    chosen = (
        max((n for n in found if n < at), default=None) if back else min((n for n in found if n > at), default=None)
    )
    if chosen is None:
        said = f"no-{'earlier' if back else 'later'}-{kind}"
        return Reply(to=visit.at("t", name.id, at, said=said) + f"#t{at}" if at else visit.at("t", name.id, said=said))
    return Reply(to=f"{visit.at('t', name.id, chosen)}#t{chosen}")


def _prompts(visit: Visit, shape: Shape) -> set[int]:
    """The turns in which a user speaks, and the first turn of each run: its request stands above it."""
    rows, _ = visit.store.turn_rows(shape.summary.id)
    return {row.turn for row in rows if row.agent == "user"} | {run.first_turn for run in shape.runs if run.first_turn}


def _error(visit: Visit, shape: Shape, at: int, *, back: bool) -> int | None:
    """The next turn with a failure. Reads at most some hundred turns."""
    total = shape.summary.turns
    numbers = range(at - 1, max(0, at - 1 - _SCANNED), -1) if back else range(at + 1, min(total, at + _SCANNED) + 1)
    if not numbers:
        return None
    rows = visit.store.turn_page(shape.summary.id, after=min(numbers) - 1, limit=len(numbers))
    by_number = {row.turn: row for row in rows}
    with visit.store.reader(shape.summary.id) as reader:
        for number in numbers:
            row = by_number.get(number)
            turn, seal = read_turn(reader, row) if row is not None else (None, None)
            if row is not None and (row.status in ("failed", "interrupted") or row.damaged):
                return number
            if turn is not None and turn_view(turn, seal).failures:
                return number
    return None


def _number(text: str | None) -> int | None:
    if text is None:
        return None
    if _NUMBER.fullmatch(text) is None:
        raise Refused(404, "NoTurn", f"Not the number of a turn: {text[:40]!r}.")
    return int(text)


# Seals


class SealCheck(NamedTuple):
    state: str
    """``same``, ``changed``, ``damaged`` or ``unknown``"""
    given: str
    found: str | None


def _checked_seal(visit: Visit, task_id: str, number: int) -> SealCheck:
    """Whether a turn is still what a link was made for: the seal is the same, and the record's bytes fit it."""
    given = (visit.get("seal") or "").lower()
    rows = visit.store.turn_page(task_id, after=number - 1, limit=1)
    row = next((each for each in rows if each.turn == number), None)
    if row is None or not re.fullmatch(r"[0-9a-f]{8,16}", given):
        return SealCheck("unknown", given[:16], None)
    with visit.store.reader(task_id) as reader:
        _, seal = read_turn(reader, row)
        if seal is None:
            return SealCheck("unknown", given, None)
        if not seal.startswith(given):
            return SealCheck("changed", given, seal)
        fits = _fits(reader, row.offset)
    if row.damaged or fits is False:
        return SealCheck("damaged", given, seal)
    return SealCheck("same" if fits else "unknown", given, seal)


def _fits(reader: TaskReader, offset: int) -> bool | None:
    """Whether the seal of the record at this place matches its bytes. None if its start is not found."""
    start = _record_start(reader, offset)
    if start is None:
        return None
    for record in reader.scan(start if start[0] else None):
        return record.kind == "sealed"
    return None


def _record_start(reader: TaskReader, offset: int) -> tuple[int, str] | None:
    """The end of the record before this place, and its seal."""
    at = offset
    while at > 0:
        length = min(1 << 16, at)
        data = reader.fetch(at - length, length)
        place = data.rfind(b"\n[End ")
        if place >= 0:
            seal = read_seal(data[place + 1 : place + SEAL_LENGTH])
            return (at - length + place + 1 + SEAL_LENGTH, seal) if seal is not None else None
        at -= length - 64 if length > 64 and at > length else length
        if offset - at > 8 << 20:
            return None
    return 0, GENESIS


# Beside the timeline


class Touched(NamedTuple):
    """A file that was changed: in how many turns, and how many lines, if all turns were read and say so."""

    path: str
    turns: int
    lines: tuple[int, int] | None


def _files(shape: Shape, line: Timeline, *, whole: bool) -> list[Touched]:
    found: dict[str, set[int]] = {}
    for turn, operation, path in shape.files:
        if operation != "read":
            found.setdefault(path, set()).add(turn)
    lines: dict[str, tuple[int, int]] = {}
    for view in line.turns if whole else ():
        for path, (added, removed) in view.changed.items():
            known = lines.get(path, (0, 0))
            lines[path] = (known[0] + added, known[1] + removed)
    return [Touched(path, len(turns), lines.get(path)) for path, turns in found.items()]


class Heading(NamedTuple):
    """A line of the outline: where it leads, the number of its turn, and what is there."""

    address: str
    number: int | None
    text: str
    kind: str
    """``p`` for a prompt, ``bad`` for a failure, or nothing"""


def _outline(visit: Visit, shape: Shape, items: list[Item]) -> list[Heading]:
    """What was asked, edited and decided, what failed, and how each run ended. Of a part of the task that is not on the page only
    the requests are known."""
    shown = [heading for item in items if (heading := _heading(item)) is not None]
    here = {heading.address for heading in shown}
    first = {run.run: run.first_turn for run in shape.runs}
    elsewhere, run = [], 0
    for said in shape.said:
        run += said.kind == "request"
        turn = first.get(run)
        if said.kind == "request" and f"#r{run}" not in here and turn is not None:
            address = f"{visit.at('t', shape.summary.id, turn)}#r{run}"
            elsewhere.append(Heading(address, turn, wording.first_line(said.text, 80), "p"))
    return [*elsewhere, *shown][-_OUTLINE:]


def _heading(item: Item) -> Heading | None:
    if item.prompt is not None:
        return Heading(f"#{item.prompt.key}", None, wording.first_line(item.prompt.text.striptags(), 80), "p")
    if item.end is not None:
        return Heading(f"#e{item.end.run.run}", None, item.end.title, "")
    turn = item.turn
    if turn is None:
        return None
    at = f"#t{turn.number}"
    if turn.question is not None:
        asks = "Wants leave" if turn.question.kind == "approval" else "Asks"
        return Heading(at, turn.number, f"{asks}: {wording.first_line(turn.question.text, 80)}", "")
    if turn.kind == "user":
        return Heading(at, turn.number, wording.first_line(turn.content.striptags() if turn.content else "", 80), "p")
    if turn.status == "interrupted":
        return Heading(at, turn.number, "Interrupted", "")
    failed = next((tool for tool in turn.tools if tool.failed), None)
    if failed is not None:
        return Heading(at, turn.number, f"{wording.first_line(failed.what, 50)}: {failed.outcome or 'failed'}", "bad")
    edits = sum(tool.added is not None for tool in turn.tools) or len(turn.loose)
    if not edits:
        return None
    passed = next((tool.outcome for tool in reversed(turn.tools) if "passed" in tool.outcome), "")
    return Heading(at, turn.number, ", ".join(filter(None, (wording.counted(edits, "edit"), passed))), "")


class Relative(NamedTuple):
    row: Row | None
    id: str
    turn: int | None
    title: str
    is_this: bool
    children: list[Relative]


_SUMMED: Final = 200
"""Turns that are read to sum up what they used. A longer task shows what its turns say one by one."""


def _used(visit: Visit, task_id: str) -> Facts:
    """Tokens and cost, in the words of ``rawko show``."""
    return facts_of((entry for _, entry in visit.store.entries(task_id)), estimated)


def family(visit: Visit, summary: TaskSummary) -> Relative | None:
    """The tree of forks and sub-agents that a task belongs to; None if it has no relatives."""
    root, seen = summary, {summary.id}
    while root.parent and len(seen) < _RELATIVES:
        parent = root.parent.partition("@")[0]
        if parent in seen:
            break
        seen.add(parent)
        try:
            root = visit.store.summary(parent)
        except RawkoError:
            break
    left = [_RELATIVES]

    def tree(task_id: str, turn: int | None, title: str, known: set[str]) -> Relative:
        left[0] -= 1
        children = []
        for child, at, request in visit.store.children(task_id):
            if child not in known and left[0] > 0:
                children.append(tree(child, at, request, known | {child}))
        try:
            row = row_of(visit, visit.store.summary(task_id))
        except RawkoError:
            row = None
        return Relative(row, task_id, turn, wording.first_line(title, 60), task_id == summary.id, children)

    found = tree(root.id, None, root.title or root.request or "", {root.id})
    return found if found.children else None


class Bar(NamedTuple):
    number: int
    agent: str
    kind: str
    x: str
    width: str
    edits: bool
    fails: bool
    middle: str


def strip(turns: list[TurnView]) -> list[Bar] | None:
    """The whole task on one line: each turn as wide as it took, at least a little."""
    if len(turns) < 2:
        return None
    weights = [1.0 if turn.kind == "user" else max(2.0, _seconds(turn) ** 0.5 * 3) for turn in turns]
    whole, at, bars = sum(weights), 0.0, []
    for turn, weight in zip(turns, weights, strict=True):
        x, width = at / whole * 100, weight / whole * 100
        kind = "w" if turn.is_open else "p" if turn.kind == "user" else "b"
        bars.append(
            Bar(
                turn.number,
                turn.agent,
                kind,
                f"{x:.2f}%",
                f"{max(0.1, width - 0.12):.2f}%",
                turn.added + turn.removed > 0,
                turn.failures > 0,
                f"{x + width / 2:.2f}%",
            )
        )
        at += weight
    return bars


def _seconds(turn: TurnView) -> float:
    return 1.0 if not turn.took else _parsed(turn.took)


def _parsed(text: str) -> float:
    units = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
    return sum(float(number) * units[unit] for number, unit in re.findall(r"([0-9.]+) ?([smhd])", text))


def _draft(visit: Visit, task_id: str) -> dict[str, Any] | None:
    """What a running turn has said so far, for browsers without scripts; scripts follow it live."""
    import json

    lines = visit.store.draft_lines(task_id)
    if not lines:
        return None
    try:
        head, *rest = [json.loads(line) for line in lines if line.endswith(b"\n")]
    except ValueError:
        return None
    text = "".join(str(each.get("text", "")) for each in rest if isinstance(each, dict) and each.get("kind") == "text")
    return {"agent": str(head.get("agent", "")), "text": text}


VIEWS: Final = (
    View("/t/{id}", task),
    View("/t/{id}/turns", turns),
    View("/t/{id}/next", following),
    View("/t/{id}/{n:int}", task),
)
