"""A turn as the page shows it: prose as HTML, one telling line for each tool call, diffs, and what it asks."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

from markupsafe import Markup

from rawko_state.exchange.telling import UNKNOWN
from rawko_state.format.reader import TaskReader, entry_of
from rawko_state.model.entries import Diff, FileTouch, Progress, Question, ToolCall, Turn, own_diffs, said_by, touched
from rawko_state.model.frozen import Frozen
from rawko_state.store import TurnRow
from rawko_state.web import fragments, wording
from rawko_state.web.wording import Said

SMALL: Final = 2_000
"""Outputs up to this many characters come with the page; longer ones when they are opened."""
_DIFF_LINES: Final = 60
"""Diffs of up to this many changed lines come with the page."""
_TAIL: Final = 256
_SEAL = re.compile(rb"(?:^|\n)\[End ([0-9a-f]{16})\]\n?")


class ToolView(Frozen):
    """A tool call: verb, what, outcome, time. The rest when it is opened."""

    number: int
    verb: str
    what: str
    outcome: str
    failed: bool
    is_open: bool
    """No result is recorded."""
    name: str
    """The whole command, or what the agent itself calls the tool, with its arguments."""
    added: int | None
    removed: int | None
    diffs: list[Markup]
    output: Markup | None
    """None: there is none, or it is fetched when it is opened."""
    size: int
    """Of an output that is fetched."""
    more: str | None
    """The address of what is fetched when it is opened."""


class TurnView(Frozen):
    number: int
    kind: str
    """user, agent or arbiter"""
    agent: str
    by: str | None
    model: str | None
    at: datetime | None
    duration_ms: int | None
    tokens: str
    cost: Said | None
    states_cost: bool
    seal: str | None
    status: str | None
    damaged: bool
    thinking: Markup | None
    peek: str
    thought: int
    content: Markup | None
    selected: str | None
    lines: list[str]
    tools: list[ToolView]
    """The last ones are diffs that belong to no tool call."""
    progress: list[str]
    files: list[FileTouch]
    question: Question | None
    is_open: bool
    """Whether its question waits for an answer."""
    answers: int | None
    fields: list[tuple[str, str]]
    sections: list[tuple[str, str]]
    changed: dict[str, tuple[int, int]]
    """Lines added and removed by path."""
    added: int = 0
    removed: int = 0
    failures: int = 0

    @property
    def took(self) -> str:
        return wording.took(self.duration_ms)


def read_turn(reader: TaskReader, row: TurnRow) -> tuple[Turn | None, str | None]:
    """A turn and the seal of its record, with one read."""
    data = reader.fetch(row.offset, row.length + _TAIL)
    found = entry_of(data[: row.length], row.offset)
    seal = _SEAL.search(data, max(0, row.length - 1))
    at, most = row.offset + len(data), row.offset + row.length + (1 << 20)
    while seal is None and len(data) >= _TAIL and at < most:  # other blocks of the same record follow
        data = data[-64:] + reader.fetch(at, 1 << 16)
        at += 1 << 16
        seal = _SEAL.search(data)
        if len(data) < 1 << 16:
            break
    return (found if isinstance(found, Turn) else None), (seal[1].decode() if seal else None)


def turn_view(
    turn: Turn,
    seal: str | None,
    at: str,
    *,
    damaged: bool = False,
    open_question: int | None = None,
    split: bool = False,
) -> TurnView:
    """``at``: the address of the turn."""
    tools, used = [], set()
    for number, call in enumerate(turn.tools, 1):
        own = own_diffs(call, turn.diffs) if isinstance(call, ToolCall) else []
        used |= {id(diff) for diff in own}
        tools.append(tool_view(number, call, turn, own, at, split=split))
    tools += [_loose(diff, diff_at(at, turn, diff), split=split) for diff in turn.diffs if id(diff) not in used]
    tokens = dict(turn.tokens)
    stated = None if turn.cost is None else f"{turn.cost.amount:f} {turn.cost.currency}"
    used_tokens: dict[str, int | None] = {name: tokens.get(name) for name in ("in", "out", "cache_read", "cache_write")}
    cost = wording.cost(stated, turn.model, used_tokens) if stated or any(tokens.values()) else None
    kind = "user" if turn.agent == "user" else "arbiter" if turn.is_arbiter else "agent"
    return TurnView(
        turn.number, kind, turn.agent, said_by(turn), turn.model,
        turn.started.astimezone() if turn.started is not None else None,
        turn.duration_ms, _tokens(tokens), cost, stated is not None, seal,
        turn.status, damaged or bool(turn.damaged),
        fragments.markdown(turn.thinking) if turn.thinking else None, wording.first_line(turn.thinking, 160),
        len(turn.thinking or ""),
        fragments.markdown(turn.content) if turn.content else None, turn.selected,
        [text for text in (turn.decision, turn.reason, turn.guidance) if text],
        tools,
        [step.text if isinstance(step, Progress) else step for step in turn.progress],
        list(touched(turn)), turn.question, open_question == turn.number and turn.question is not None, turn.answers,
        [(each.name, each.value) for each in turn.extra], [(each.heading, each.text) for each in turn.sections], _changed(turn),
        sum(diff.added for diff in turn.diffs), sum(diff.removed for diff in turn.diffs),
        sum(tool.failed for tool in tools) + (turn.status == "failed"),
    )  # fmt: skip


def diff_at(at: str, turn: Turn, diff: Diff) -> str:
    """The address of a page for one diff of the turn that is at this address."""
    number = next(number for number, each in enumerate(turn.diffs, 1) if each is diff)
    return f"{at}/diff/{number}"


def has_failed(turn: Turn) -> bool:
    """Whether something in it failed."""
    calls = (call for call in turn.tools if isinstance(call, ToolCall))
    return turn.status == "failed" or any(fragments.telling(call, turn).failed for call in calls)


def _changed(turn: Turn) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for diff in turn.diffs:
        path = diff.path or diff.old or ""
        added, removed = found.get(path, (0, 0))
        found[path] = (added + diff.added, removed + diff.removed)
    return found


def _tokens(tokens: dict[str, int]) -> str:
    parts = [f"{wording.count(tokens[name])} {name}" for name in ("in", "out") if name in tokens]
    cached = tokens.get("cache_read")
    return " · ".join(parts + ([f"{wording.count(cached)} cached"] if cached else []))


def tool_view(number: int, call: ToolCall | str, turn: Turn, own: list[Diff], at: str, *, split: bool) -> ToolView:
    if isinstance(call, str):
        return ToolView(number, "Tool", call, "", False, False, "", None, None, [], None, 0, None)
    line = fragments.telling(call, turn)
    size = call.blob.size if call.blob is not None else len(line.output)
    short = fragments.output(line.output) if call.blob is None and 0 < len(line.output) <= SMALL else None
    fits = _fits(*own)
    is_more = (short is None and size > 0) or not fits
    shown = [fragments.diff(diff, diff_at(at, turn, diff), split=split) for diff in own] if fits else []
    return ToolView(
        number, line.verb, line.subject, line.detail, line.failed, line.outcome == UNKNOWN,
        line.command or f"{call.tool} {call.args}".strip(),
        line.added if own else None, line.removed if own else None,
        shown, short, 0 if short is not None else size, f"{at}/out/{number}" if is_more else None,
    )  # fmt: skip


def _loose(diff: Diff, at: str, *, split: bool) -> ToolView:
    shown = [fragments.diff(diff, at, split=split)] if _fits(diff) else []
    return ToolView(
        0, "Edit", diff.path or "", "", False, False, "", diff.added, diff.removed, shown, None, 0,
        None if shown else at,
    )  # fmt: skip


def _fits(*diffs: Diff) -> bool:
    lines = sum(diff.added + diff.removed for diff in diffs)
    return lines <= _DIFF_LINES and all(diff.blob is None for diff in diffs)
