"""The state of a task: a fold over its blocks, shared by the writer, verify and the index."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from rawko_state.errors import IllegalMove, InvalidValue
from rawko_state.model import status as words
from rawko_state.model.entries import (
    Entry,
    Execution,
    Note,
    Parent,
    Request,
    Result,
    Resumed,
    TaskHeader,
    Turn,
)
from rawko_state.model.frozen import Frozen, field, replace


class TaskState(Frozen):
    """The state of a task after a record. Small and bounded, regardless of the size of the task.

    >>> task.state.status, task.state.turns
    ('running', 0)
    """

    id: str = ""
    created: datetime | None = None
    format: int | None = None
    status: str = words.PENDING
    """See docs/reference/statuses.md."""
    duration_ms: int | None = None
    """The sum of its runs."""
    completed: datetime | None = None
    """When the latest run ended."""
    updated: datetime | None = None
    """The latest time stated by any block, to the millisecond."""
    turns: int = 0
    """The highest turn number so far."""
    runs: int = 0
    title: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    pinned: bool = False
    parent: Parent | None = None
    detached: bool = False
    """Whether one process after another may write to it."""
    exact: bool = False
    """Whether its state, payload and data of notes are kept as they are, without redaction."""
    question: int | None = None
    """The turn whose question is still open."""
    selected: str | None = None
    """The agent that the arbiter last selected, until it completes a turn."""
    by_header: bool = False
    """The status comes from the header of an unsealed file, and no record has changed it yet."""

    @property
    def is_finished(self) -> bool:
        """Whether it ended with a result. It takes no turn until it is reopened."""
        return self.status in words.FINISHED

    def apply(self, entry: Entry) -> TaskState:
        """The state after one more block. Never fails: any block may follow any other, because people edit files by hand."""
        if isinstance(entry, Turn):
            return self._turn(entry)
        if isinstance(entry, TaskHeader):
            return self._header(entry)
        if isinstance(entry, Request):
            now = self.status if self.by_header else words.PENDING
            return replace(self, runs=self.runs + 1, status=now, updated=_later(self.updated, entry.at))
        if isinstance(entry, Execution):
            return self if self.by_header else replace(self, status=words.RUNNING)
        if isinstance(entry, Result):
            return self._result(entry)
        if isinstance(entry, Resumed):
            detached = entry.writer == "detached"
            # A question stays open until it is answered, whoever resumes the task.
            status = words.RUNNING if self.question is None else words.WAITING
            updated = _later(self.updated, entry.at)
            return replace(self, status=status, completed=None, updated=updated, by_header=False, detached=detached)
        if isinstance(entry, Note):
            return self._note(entry)
        return self

    def step(self, entry: Entry) -> TaskState:
        """apply() for writers: rejects entries that may not follow. Every write goes through this check."""
        after = self.apply(entry)
        if isinstance(entry, Turn):
            if entry.status is not None:
                words.turn_status(entry.status)
            # Keep the turn of a writer that died, whatever the task's status is now.
            left_over = entry.status == words.INTERRUPTED
            if not left_over and (self.is_finished or self.status == words.PENDING):
                advice = f"Reopen it first: rawko resume --open {self.id}"
                raise IllegalMove(self.id, self.status, words.RUNNING, advice=advice)
            if self.status == words.PAUSED and after.status == words.WAITING:
                raise IllegalMove(self.id, self.status, after.status)  # only a resume with an open question may do this
            if entry.answers is not None and entry.answers != self.question:
                raise InvalidValue(f"Task {self.id}: turn {entry.answers} has no open question.")
        elif isinstance(entry, Result) and self.is_finished:
            raise IllegalMove(self.id, self.status, after.status)
        if after.status != self.status and not words.is_legal(self.status, after.status):
            raise IllegalMove(self.id, self.status, after.status)
        return after

    def apply_damaged(self, entry: Entry) -> TaskState:
        """The state after a block of a record whose seal does not match. The task's identity and requests are still trusted:
        nothing else states them, and people fix typos by hand. Outcomes are not: a result means that the task ended, not how. A
        turn's number counts as used."""
        if isinstance(entry, (TaskHeader, Request, Execution)):
            return self.apply(entry)
        if isinstance(entry, Turn):
            return replace(self, turns=max(self.turns, entry.number))
        if isinstance(entry, Result):
            return replace(self, status=words.UNKNOWN, question=None, by_header=False)
        return self

    def apply_all(self, entries: Iterable[Entry]) -> TaskState:
        state = self
        for entry in entries:
            state = state.apply(entry)
        return state

    def _header(self, header: TaskHeader) -> TaskState:
        state = replace(
            self,
            id=self.id or header.id,
            created=header.created,
            updated=_later(self.updated, header.created),
            format=header.format,
            title=header.title,
            labels=dict(header.labels),
            parent=header.parent,
            # A fork continues after the turn it was forked at.
            turns=header.parent.turn or 0 if header.parent is not None else 0,
            detached=header.writer == "detached",
            exact=header.exact is True,
        )
        if header.format is None and header.status:
            state = replace(
                state, status=words.canonical(header.status), duration_ms=header.duration_ms, by_header=True
            )
        return state

    def _turn(self, turn: Turn) -> TaskState:
        status, question, selected = self.status, self.question, self.selected
        by_header = self.by_header
        if turn.status == words.WAITING:
            status, question, by_header = words.WAITING, turn.number, False
        elif turn.answers is not None and turn.answers == question:
            question = None
            if status == words.WAITING:
                status = words.RUNNING
        if turn.is_arbiter:
            selected = turn.selected
        elif turn.agent == selected and turn.status == "complete":
            selected = None
        return replace(
            self,
            status=status,
            question=question,
            selected=selected,
            by_header=by_header,
            turns=max(self.turns, turn.number),
            updated=_later(self.updated, turn.started),
        )

    def _result(self, result: Result) -> TaskState:
        word = result.status or ""
        duration = self.duration_ms
        if result.duration_ms is not None:
            duration = result.duration_ms + (0 if duration is None or self.by_header else duration)
        return replace(
            self,
            status=words.RESULT_STATUS.get(word, word or words.COMPLETED),
            completed=result.completed,
            updated=_later(self.updated, result.completed),
            duration_ms=duration,
            question=None,
            by_header=False,
        )

    def _note(self, note: Note) -> TaskState:
        labels = {**self.labels, **note.labels}
        for key in note.unlabel:
            labels.pop(key, None)
        status = self.status if note.status is None else words.canonical(note.status)
        completed, duration = self.completed, self.duration_ms
        if status in words.FINISHED and status != self.status:
            # Earlier versions cancelled tasks with a note. Its time gives the end and the duration of a first run.
            completed = note.at
            if note.at is not None and self.created is not None and self.runs <= 1 and duration is None:
                duration = max(0, int((note.at - self.created).total_seconds() * 1000))
        return replace(
            self,
            completed=completed,
            duration_ms=duration,
            updated=_later(self.updated, note.at),
            question=None if status in words.FINISHED else self.question,
            title=self.title if note.title is None else note.title,
            labels=labels,
            pinned=self.pinned if note.pinned is None else note.pinned,
            status=status,
            by_header=self.by_header and note.status is None,
        )


def _later(known: datetime | None, stated: datetime | None) -> datetime | None:
    """The later of two times, to the millisecond."""
    if stated is None or stated.tzinfo is None:  # ambiguous without a time zone; the writer rejects such times
        return known
    if stated.microsecond % 1000:
        stated = stated.replace(microsecond=stated.microsecond // 1000 * 1000)
    return stated if known is None or stated > known else known
