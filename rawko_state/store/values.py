"""What a store is asked for and what it answers, as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, NamedTuple

from rawko_state.errors import InvalidValue
from rawko_state.model import status as words

SORTS: Final = ("updated", "created", "completed", "duration", "turns", "tokens")
RELEVANCE, TIME = "relevance", "time"
"""How what a search found may be sorted besides."""


@dataclass(frozen=True, slots=True)
class TaskFilter:
    """Which tasks, in which order. Everything that is given must hold."""

    status: tuple[str, ...] = ()
    agent: str | None = None
    file: str | None = None
    """An exact path, a folder, or a glob; matches what was touched, not what was mentioned."""
    since: datetime | None = None
    """At or after, by the time that is sorted by: created or completed, else updated."""
    until: datetime | None = None
    """Before, likewise."""
    labels: tuple[tuple[str, str | None], ...] = ()
    """Name and value; a value of None asks only for the name."""
    pinned: bool | None = None
    model: str | None = None
    branch: str | None = None
    ids: tuple[str, ...] | None = None
    sort: str = "updated"
    reverse: bool = False
    limit: int | None = None
    after: str | None = None
    """The id of the last task that was listed: what follows it, in the same order."""

    def __post_init__(self) -> None:
        if self.sort not in (*SORTS, RELEVANCE, TIME):
            raise InvalidValue(f"tasks are not sorted by {self.sort!r}{_nearest(self.sort, SORTS)}")
        for word in self.status:
            if words.canonical(word) not in words.STATUSES:
                raise InvalidValue(f"no status {word!r}{_nearest(word, words.STATUSES)}")
        if isinstance(self.limit, int) and self.limit < 0:
            raise InvalidValue(f"at most {self.limit} tasks cannot be listed")


def _nearest(word: str, known: Sequence[str]) -> str:
    import difflib  # only when something was mistyped

    near = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}"


@dataclass(frozen=True, slots=True)
class TaskSummary:
    """One task as a list shows it."""

    id: str
    created: str | None
    updated: str | None
    """When something last happened to it, as its records say."""
    completed: str | None
    status: str
    duration_ms: int | None
    request: str | None
    summary: str | None
    title: str | None
    agents: tuple[str, ...]
    labels: Mapping[str, str]
    pinned: bool
    turns: int
    runs: int
    parent: str | None
    model: str | None
    branch: str | None
    tokens_in: int | None
    tokens_out: int | None
    cost: str | None
    file: str
    """The task file, relative to the project."""
    damaged: int = 0
    touched: tuple[tuple[str, str], ...] = ()
    """With a file filter: what was done to which matching path."""


@dataclass(frozen=True, slots=True)
class Stats:
    """Figures over all tasks."""

    tasks: int
    turns: int
    duration_ms: int
    by_status: Mapping[str, int]
    time_by_status_ms: Mapping[str, int]
    by_agent: Mapping[str, tuple[int, int]]
    """Turns, and milliseconds."""
    by_day: Mapping[str, int]
    by_file: Mapping[str, int]
    tokens_in: int | None
    tokens_out: int | None
    cost: str | None
    disk: Mapping[str, int] = field(default_factory=dict)
    """Bytes in tasks, blobs and the index."""


class RetentionRow(NamedTuple):
    """One task as retention sees it."""

    id: str
    last: str | None
    """When something last happened to it, as its records say."""
    status: str
    pinned: bool
    exempt: bool
    """Brought back from the trash."""
    parent: str | None
    file: str
    size: int
    """Of its file, on the disk,"""
    mtime_ns: int
    """and when that was changed."""
    damaged: bool = False

    @property
    def is_packed(self) -> bool:
        return self.file.endswith(".gz")


@dataclass(frozen=True, slots=True)
class InTrash:
    """A task in the trash."""

    id: str
    at: datetime
    rule: str
    """What took it there."""
    size: int


class TurnRow(NamedTuple):
    """One turn as a list shows it."""

    turn: int
    agent: str
    status: str | None
    selected: str | None
    decision: str | None
    reason: str | None
    tool_calls: int | None
    run: int
    damaged: int
    offset: int
    length: int


class Said(NamedTuple):
    """What was said between the turns of a task: a request, or a note that is part of the conversation."""

    offset: int
    """Where it stands in the file."""
    kind: str
    """``request`` or ``note``."""
    text: str
    by: str | None


class RunRow(NamedTuple):
    """One run as a list shows it: a request, and what came of it."""

    run: int
    status: str | None
    request: str | None
    by: str | None
    first_turn: int | None
    completed: str | None
    duration_ms: int | None
    summary: str | None
    error: str | None
    output: str | None
    """JSON, if there is any."""


@dataclass(frozen=True, slots=True)
class Hit:
    """Something that a search found: a task, and where in it."""

    task: TaskSummary
    kind: str
    """turn, request, result, task (its title), note or other; empty when the task matched by what is not text."""
    turn: int | None
    agent: str | None
    offset: int | None
    """Where the turn stands in the task's file."""
    length: int | None
    score: float
    words: int
    """How many of the query's words and phrases it holds."""
    excerpt: str
    highlights: tuple[tuple[int, int], ...]
    """Where in the excerpt they stand."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a search came to."""

    hits: tuple[Hit, ...]
    hint: str | None = None
    """How the query was understood, if not as it was meant."""
    suggestion: str | None = None
    """With no hits: a query that has some."""
