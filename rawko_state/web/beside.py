"""What stands beside a timeline: files changed, outline, family, the strip of turns, and what was used."""

from __future__ import annotations

from typing import Final, NamedTuple

from rawko_state.errors import RawkoError
from rawko_state.exchange.facts import Facts, facts_of
from rawko_state.lifecycle.prices import estimated
from rawko_state.store import TaskSummary
from rawko_state.web import wording
from rawko_state.web.tasks import Row, row_of
from rawko_state.web.timeline import Item, Shape
from rawko_state.web.turn_view import TurnView
from rawko_state.web.visits import Visit

_OUTLINE: Final = 60
_RELATIVES: Final = 40
SUMMED: Final = 200
"""Turns that are read to sum up what they used. A longer task shows what its turns say one by one."""


class Touched(NamedTuple):
    """A file that was changed: in how many turns, and how many lines, if all turns were read and say so."""

    path: str
    turns: int
    lines: tuple[int, int] | None
    is_deleted: bool


def files_of(shape: Shape, turns: list[TurnView], *, whole: bool) -> list[Touched]:
    found: dict[str, set[int]] = {}
    last: dict[str, str] = {}
    for turn, operation, path in shape.files:
        if operation != "read":
            found.setdefault(path, set()).add(turn)
            last[path] = operation
    lines: dict[str, tuple[int, int]] = {}
    for view in turns if whole else ():
        for path, (added, removed) in view.changed.items():
            known = lines.get(path, (0, 0))
            lines[path] = (known[0] + added, known[1] + removed)
    return [Touched(path, len(numbers), lines.get(path), last[path] == "delete") for path, numbers in found.items()]


class Heading(NamedTuple):
    """A line of the outline: where it leads, the number of its turn, and what is there."""

    address: str
    number: int | None
    text: str
    kind: str
    """``p`` for a prompt, ``bad`` for a failure, or nothing"""


def outline_of(visit: Visit, shape: Shape, items: list[Item]) -> list[Heading]:
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
    edits = sum(tool.added is not None for tool in turn.tools)
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


def used_by(visit: Visit, task_id: str) -> Facts:
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
    """The whole task on one line: each turn as wide as it took, at least a little. What a person said is a mark."""
    if len(turns) < 2:
        return None
    weights = [0.0 if turn.kind == "user" else max(2.0, _seconds(turn) ** 0.5 * 3) for turn in turns]
    mark = (sum(weights) or 1.0) / max(100, len(turns))
    weights = [weight or mark for weight in weights]
    whole, at, bars = sum(weights), 0.0, []
    for turn, weight in zip(turns, weights, strict=True):
        x, width = at / whole * 100, weight / whole * 100
        kind = "w" if turn.is_open else "p" if turn.kind == "user" else "b"
        edits, fails = turn.added + turn.removed > 0, turn.failures > 0
        shown = f"{max(0.1, width - 0.12):.2f}%"
        bars.append(Bar(turn.number, turn.agent, kind, f"{x:.2f}%", shown, edits, fails, f"{x + width / 2:.2f}%"))
        at += weight
    return bars


def _seconds(turn: TurnView) -> float:
    return 1.0 if turn.duration_ms is None else turn.duration_ms / 1000
