"""The timeline of a task: its turns around a place, and what was asked between them.

A page holds about 200 turns, whatever the length of the task. What is left out is a gap that opens. Rows come from the index,
turns with one read each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from markupsafe import Markup

from rawko_state.exchange.facts import repeats
from rawko_state.format.reader import TaskReader
from rawko_state.model import status as words
from rawko_state.model.entries import UNKNOWN_USER, TaskHeader
from rawko_state.model.frozen import Frozen
from rawko_state.store import RunRow, TaskSummary, TurnRow
from rawko_state.store import Said as SaidRow
from rawko_state.web.fragments import markdown
from rawko_state.web.rendering import plain
from rawko_state.web.turn_view import TurnView, read_turn, turn_view
from rawko_state.web.visits import Visit

WINDOW: Final = 200
_HEAD: Final = 20
_LARGEST: Final = 3 << 20
"""Bytes of turns that one page reads, unless a single turn is larger."""


_ENDS: Final = {"success": "Completed", "failure": "Failed"}


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
        return {run: end for (run, first), end in zip(firsts, ends, strict=True) if end >= first}

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
        self._answer: str | None = None
        """What the last turn said that was read."""
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
        self._answer = turn.content
        at = self._visit.at("t", self._shape.summary.id, row.turn)
        return turn_view(
            turn, seal, at, damaged=bool(row.damaged), open_question=self._shape.question, split=self._split
        )

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
                self._answer = None
                yield from self._end(run)

    def end_of(self, run: int) -> Iterator[Item]:
        last = self._shape.last_turn_of.get(run)
        if last is not None:
            self._answer = self._visit.store.turn(self._shape.summary.id, last).content
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
        # A summary is prose; an error is what a program said, line by line.
        text = markdown(run.summary) if run.summary and not repeats(run.summary, self._answer) else Markup("")
        if run.error:
            text += Markup('<p class="pre">{}</p>').format(plain(run.error))
        status = run.status or "ended"
        yield Item(end=Ended(run, _ENDS.get(status, status.capitalize()), text or None))
