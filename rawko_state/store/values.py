"""The queries and answers of a store, as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from rawko_state.errors import InvalidValue
from rawko_state.model import status as words
from rawko_state.model.frozen import Frozen, field

if TYPE_CHECKING:
    from rawko_state.model.entries import Entry

SORTS: Final = ("updated", "created", "completed", "duration", "turns", "tokens")
RELEVANCE, TIME = "relevance", "time"
"""Additional sort orders for search results."""


class TaskFilter(Frozen):
    """Selects and orders tasks. A task must match every condition given.

    >>> [task.id for task in store.history(TaskFilter(agent="developer", file="auth/*", sort="created", limit=10))]
    ['fix0001']
    """

    status: tuple[str, ...] = ()
    """Any of these."""
    agent: str | None = None
    """Took a turn in it: this name, or a glob. The same goes for the model and the branch."""
    file: str | None = None
    """An exact path, a folder or a glob. Matches files that were touched, not just mentioned."""
    since: datetime | None = None
    """At or after this time. Compares the time sorted by: created or completed, else updated."""
    until: datetime | None = None
    """Before this time, likewise."""
    labels: tuple[tuple[str, str | None], ...] = ()
    """Name and value, each; None matches any value."""
    pinned: bool | None = None
    model: str | None = None
    branch: str | None = None
    source: str | None = None
    """Exactly this source: the key of open_task(), or where the task was imported from."""
    exact: bool | None = None
    """Whether state and payload are kept without redaction."""
    ids: tuple[str, ...] | None = None
    """Only these."""
    sort: str = "updated"
    """``updated``, ``created``, ``completed``, ``duration``, ``turns`` or ``tokens``: most first. A search also takes
    ``relevance`` and ``time``."""
    reverse: bool = False
    """Least first."""
    limit: int | None = None
    after: str | None = None
    """The id of the last task already listed: returns those that follow it in this order."""

    def __post_init__(self) -> None:
        if self.sort not in (*SORTS, RELEVANCE, TIME):
            raise InvalidValue(f"Unknown order: {self.sort!r}.{nearest(self.sort, SORTS)}")
        for word in self.status:
            if words.canonical(word) not in words.STATUSES:
                raise InvalidValue(f"Unknown status: {word!r}.{nearest(word, words.STATUSES, words.SYNONYMS)}")
        if isinstance(self.limit, int) and self.limit < 0:
            raise InvalidValue(f"Not a number of tasks: {self.limit}. Use 0 or more.")


def nearest(word: str, known: Sequence[str], synonyms: Mapping[str, str] | None = None) -> str:
    """What was perhaps meant by a word that is not known, else all that is."""
    import difflib  # only needed for typos

    near = difflib.get_close_matches(word, [*known, *(synonyms or ())], n=1)
    return f" Did you mean {(synonyms or {}).get(near[0], near[0])}?" if near else f" Known: {', '.join(known)}."


class TaskSummary(Frozen):
    """One task, as shown in lists.

    >>> store.summary("fix0001").agents
    ('arbiter', 'developer')
    """

    id: str
    created: str | None
    """Times are texts in UTC: ``2024-01-15T10:30:00Z``."""
    updated: str | None
    """The latest time in its records."""
    completed: str | None
    status: str
    duration_ms: int | None
    request: str | None
    """Of the first run."""
    summary: str | None
    """Of the latest result."""
    title: str | None
    agents: tuple[str, ...]
    """Those that took turns, in order."""
    labels: Mapping[str, str]
    pinned: bool
    turns: int
    runs: int
    parent: str | None
    """Its id; with ``@4`` if it forked after turn 4."""
    model: str | None
    """The header's, or that of the first turn that states one."""
    branch: str | None
    tokens_in: int | None
    """Without what came from a cache."""
    tokens_out: int | None
    cost: str | None
    """In USD, if it is stated."""
    file: str
    """The task file, relative to the project."""
    damaged: int = 0
    """How many records have a seal that does not match."""
    touched: tuple[tuple[str, str], ...] = ()
    """With a file filter: operation and path of each match."""


class Usage(Frozen):
    """What turns have used, by day, agent and model, and by whether their cost is stated.

    >>> sorted(usage.agent for usage in store.stats(TaskFilter()).usage)
    ['arbiter', 'developer']
    """

    day: str | None
    agent: str
    model: str | None
    stated: bool
    """Whether these turns state their cost, or their task states that of the whole."""
    turns: int
    duration_ms: int
    tokens_in: int | None
    """Without what came from a cache."""
    tokens_out: int | None
    cache_read: int | None
    cache_write: int | None
    cost: str | None
    """In USD, if it is stated."""


class Stats(Frozen):
    """Statistics over tasks.

    >>> store.stats(TaskFilter()).turns
    2
    """

    tasks: int
    turns: int
    duration_ms: int
    by_status: Mapping[str, int]
    time_by_status_ms: Mapping[str, int]
    by_agent: Mapping[str, tuple[int, int]]
    """Turns and milliseconds."""
    by_day: Mapping[str, int]
    by_file: Mapping[str, int]
    tokens_in: int | None
    tokens_out: int | None
    cost: str | None
    disk: Mapping[str, int] = field(default_factory=dict)
    """Bytes used by tasks, blobs and the index."""
    usage: tuple[Usage, ...] = ()
    time_to_finish_ms: Mapping[str, int] = field(default_factory=dict)
    """``median`` and ``p90`` over the tasks that were completed."""


class RetentionRow(Frozen):
    """One task as retention sees it."""

    id: str
    last: str | None
    """The latest time in its records."""
    status: str
    pinned: bool
    exempt: bool
    """Restored from the trash."""
    parent: str | None
    file: str
    size: int
    """Size of its file on disk."""
    mtime_ns: int
    """Modification time of its file."""
    damaged: bool = False

    @property
    def is_packed(self) -> bool:
        return self.file.endswith(".gz")


class InTrash(Frozen):
    """A task in the trash.

    >>> _ = store.delete("fix0001")
    >>> [each.id for each in store.trash()]
    ['fix0001']
    """

    id: str
    at: datetime
    rule: str
    """The rule that moved it there."""
    size: int


class TurnRow(Frozen):
    """One turn, as shown in lists.

    >>> store.turn_rows("fix0001")[0][1].agent
    'developer'
    """

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


class RecordAt(Frozen):
    """One record of a task, as records() yields it.

    >>> [record.kind for record in store.records("fix0001")][0]
    'sealed'
    """

    cursor: str
    """Pass it as ``after`` to get the records that follow this one."""
    kind: str
    """``sealed``; ``damaged`` if its seal does not match; ``torn`` if it marks an unfinished append; ``unsealed`` in a file
    without seals."""
    entries: tuple[Entry, ...]


class Said(Frozen):
    """Something said between the turns of a task: a request, or a note that is part of the conversation.

    >>> store.said("fix0001")[0].kind
    'request'
    """

    offset: int
    """Its position in the file."""
    kind: str
    """``request`` or ``note``."""
    text: str
    by: str | None
    at: datetime | None = None


class RunRow(Frozen):
    """One run, as shown in lists: a request and its result.

    >>> store.runs("fix0001")[0].summary
    'Fixed the token check'
    """

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


class Hit(Frozen):
    """A search hit: a task, and the place in it.

    >>> hit = store.search("skew").hits[0]
    >>> hit.turn, hit.kind
    (2, 'turn')
    """

    task: TaskSummary
    kind: str
    """turn, request, result, task (its title), note or other; empty if the task matched by something other than text."""
    turn: int | None
    agent: str | None
    offset: int | None
    """The position of the turn in the task's file."""
    length: int | None
    score: float
    words: int
    """How many of the query's words and phrases it contains."""
    excerpt: str
    highlights: tuple[tuple[int, int], ...]
    """Their positions in the excerpt."""


class Answer(Frozen):
    """The result of a search.

    >>> store.search("nowhere").hits
    ()
    """

    hits: tuple[Hit, ...]
    hint: str | None = None
    """How the query was interpreted, if it could not be parsed."""
    suggestion: str | None = None
    """If there are no hits: a query that has some."""
