"""The entries of a task: one frozen value per block of a task file.

A field that is None is absent from the file; an empty string is present and empty. Unknown fields and sections are
kept in ``extra`` and ``sections``, in file order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, TypeAlias

from rawko_state.model.frozen import Frozen, field
from rawko_state.model.parts import Field as Field
from rawko_state.model.parts import Section as Section
from rawko_state.model.parts import Span as Span

Json: TypeAlias = Any


class Parent(Frozen):
    """The parent of a task: the task forked after a turn, or is a child of the whole parent task (turn is None).

    >>> Parent("fix0001", 2).turn
    2
    """

    task: str
    """Its id."""
    turn: int | None = None
    """The turn after which the task forked."""


class Money(Frozen):
    """An amount of money.

    >>> Money(Decimal("0.25")).currency
    'USD'
    """

    amount: Decimal
    currency: str = "USD"


class Blob(Frozen):
    """Output that was too long for the task file. It is in the blobs folder, in a file named by this digest.

    >>> Blob("0" * 64, 300_000).size
    300000
    """

    sha256: str
    size: int


class ToolCall(Frozen):
    """A call of a tool: what was called, with what, and what came back.

    >>> ToolCall("shell", "make test", "exit 0", output="ok").result
    'exit 0'
    """

    tool: str
    """Its name: ``shell``, ``filesystem.read``."""
    args: str = ""
    """What it was called with, in one line."""
    result: str | None = None
    """How it ended, in a few words: ``exit 0``, ``failed``."""
    time: str | None = None
    """``HH:MM:SS`` in UTC."""
    output: str | None = None
    """All that it printed or returned."""
    blob: Blob | None = None
    """Its output, if that was too long for the task file. ``Store.turn_output`` reads either."""
    more: Mapping[str, Json] = field(default_factory=dict)
    """Further data: ``id``, ``input`` (the arguments as data), ``error`` …"""


class Progress(Frozen):
    """A step that an agent reported.

    >>> Progress("3 of 10 files").kind
    'progress'
    """

    text: str
    kind: str = "progress"
    """One word: ``progress``, ``warning``, ``error`` …"""
    time: str | None = None
    """``HH:MM:SS`` in UTC."""


class FileTouch(Frozen):
    """A file that was read, written or deleted.

    >>> FileTouch("write", "auth/sso.rs").path
    'auth/sso.rs'
    """

    operation: str
    """``read``, ``write`` or ``delete``."""
    path: str


class Diff(Frozen):
    """A change to one file, as a unified diff.

    >>> Diff("a.txt", "a.txt", "@@ -1 +1 @@\\n-one\\n+two\\n", added=1, removed=1).path
    'a.txt'
    """

    old: str | None
    """The path before; None if the file was created."""
    new: str | None
    """The path after; None if the file was deleted."""
    hunks: str = ""
    """``@@ -1,5 +1,5 @@`` and the lines under it, for each place that was changed."""
    blob: Blob | None = None
    """The hunks, if they were too long for the task file."""
    added: int = 0
    """How many lines."""
    removed: int = 0

    @property
    def path(self) -> str | None:
        return self.new if self.new is not None else self.old


class Question(Frozen):
    """A question to a person.

    >>> Question("Which one?", ("first", "second"), default="first").choices
    ('first', 'second')
    """

    text: str
    choices: tuple[str, ...] = ()
    """The answers to choose from; none if any text will do."""
    default: str | None = None
    """What becomes the answer at the deadline."""
    deadline: datetime | None = None
    kind: str = "question"
    """``question``, or ``approval`` for a yes/no question about a tool call."""
    more: Mapping[str, Json] = field(default_factory=dict)
    """Further data of your own."""


class Entry(Frozen, kw_only=True):
    """A block of a task file; the fields common to all.

    >>> isinstance(store.turn("fix0001", 2), Entry)
    True
    """

    extra: tuple[Field, ...] = ()
    """Fields that this version does not know, and your own: their names begin with ``X-``."""
    sections: tuple[Section, ...] = ()
    """Sections likewise, in file order."""
    large: tuple[Span, ...] = ()
    """Sections that the reader left in the file."""
    damaged: bool | None = None
    """True if it was read from a record whose seal does not match. Never written."""


class TaskHeader(Entry, kw_only=True):
    """The first block of a task.

    >>> TaskHeader(id="", title="Login", labels={"team": "auth"}).title
    'Login'
    """

    id: str
    """Left empty, the task gets one."""
    created: datetime | None = None
    status: str | None = None
    """A copy for grep; the actual status is in TaskState."""
    duration_ms: int | None = None
    """Likewise."""
    format: int | None = None
    title: str | None = None
    parent: Parent | None = None
    agent: str | None = None
    """The main agent."""
    model: str | None = None
    provider: str | None = None
    """Who serves the model."""
    repo: str | None = None
    branch: str | None = None
    commit: str | None = None
    cwd: str | None = None
    runtime: str | None = None
    """The program that runs the agent."""
    labels: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    """Whose task it is."""
    writer: str | None = None
    """``detached``: no process stays with the task."""
    source: str | None = None
    """Your key for the task, or the session that it was imported from."""
    exact: bool | None = None
    """Whether the state, the payload and the data of notes are kept as they are, secrets included."""


class Request(Entry, kw_only=True):
    """What was asked for. Each begins a run.

    >>> Request(text="Fix the login bug", by="Ann").by
    'Ann'
    """

    text: str
    by: str | None = None
    """Who asked."""
    at: datetime | None = None


class Execution(Entry, kw_only=True):
    """The run begins.

    >>> Execution()
    Execution(...)
    """


class Turn(Entry, kw_only=True):
    """One step of an agent, or something that the user said.

    >>> Turn(agent="developer", content="Done.", tools=(ToolCall("shell", "make"),), state={"step": 1}).agent
    'developer'
    """

    number: int = 0
    """Its place among the task's turns. Writers number turns themselves: what you give is ignored."""
    agent: str
    """Who acted; ``user`` for what a person said."""
    selected: str | None = None
    """The agent that an arbiter chose to go on."""
    decision: str | None = None
    """What an arbiter decided instead: ``complete``, ``retry`` or ``continue``."""
    reason: str | None = None
    """Why: of a decision, or of how the turn ended."""
    guidance: str | None = None
    """What the chosen agent should mind."""
    status: str | None = None
    """``complete``, ``failed``, ``interrupted``, or ``waiting`` for the answer to its question."""
    duration_ms: int | None = None
    tool_calls: int | None = None
    """How many; ``tools`` may hold fewer."""
    started: datetime | None = None
    model: str | None = None
    tokens: Mapping[str, int] = field(default_factory=dict)
    """``in`` (without what came from a cache), ``out``, ``cache_read``, ``cache_write``, ``reasoning`` (a part of ``out``)."""
    cost: Money | None = None
    by: str | None = None
    """The person who spoke."""
    answers: int | None = None
    """The turn whose question this one answers."""
    thinking: str | None = None
    """The agent's reasoning."""
    content: str | None = None
    """What was said."""
    tools: tuple[ToolCall | str, ...] = ()
    """A log line that is not a valid tool line is kept as a string; the same goes for progress and files."""
    diffs: tuple[Diff, ...] = ()
    """What it changed in files, in order. A tool call's ``more["diff"]`` says which are its own, counted from 1."""
    progress: tuple[Progress | str, ...] = ()
    files: tuple[FileTouch | str, ...] = ()
    """What it read, wrote or deleted, besides what the diffs say."""
    question: Question | None = None
    state: Json = None
    """JSON of your program: what it needs to go on from here."""
    payload: str | None = None
    """The provider's messages as text: one JSON value per line."""

    @property
    def is_arbiter(self) -> bool:
        return self.selected is not None or self.decision is not None


class Result(Entry, kw_only=True):
    """How a run ended.

    >>> Result(status="success", summary="Fixed").summary
    'Fixed'
    """

    status: str | None = None
    """``success``, ``failure``, ``cancelled``, ``interrupted`` or ``unknown``."""
    completed: datetime | None = None
    duration_ms: int | None = None
    summary: str | None = None
    error: str | None = None
    reason: str | None = None
    by: str | None = None
    tokens: Mapping[str, int] = field(default_factory=dict)
    """Tokens of the run that its turns do not state; the same goes for the cost."""
    cost: Money | None = None
    files_modified: tuple[str, ...] = ()
    output: Json = None
    """JSON: what the task produced."""


class Resumed(Entry, kw_only=True):
    """A run continues.

    >>> Resumed(at=None, by="Ann").by
    'Ann'
    """

    at: datetime | None
    by: str | None = None
    agent: str | None = None
    """Who is next."""
    reason: str | None = None
    writer: str | None = None
    """As in TaskHeader, from here on."""


class Note(Entry, kw_only=True):
    """A title, labels, a pin, a status, or any data, outside the turns.

    >>> Note(kind="review", data={"ok": True}).data
    {'ok': True}
    """

    at: datetime | None = None
    by: str | None = None
    title: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    unlabel: tuple[str, ...] = ()
    """Keys of labels to take away."""
    pinned: bool | None = None
    status: str | None = None
    reason: str | None = None
    kind: str | None = None
    """Your word for it, by which notes() finds it. Data of a kind that ends in ``-data`` is neither searched nor shown."""
    context: str | None = None
    """``in``: part of the conversation; ``out``: not."""
    source: str | None = None
    """The session of another program that this task records, if its header does not say so."""
    content: str | None = None
    data: Json = None

    @property
    def is_data(self) -> bool:
        """Whether it holds data and says nothing about the task."""
        said = (self.by, self.title, self.pinned, self.status, self.reason, self.source, self.content)
        more = self.labels or self.unlabel or self.extra or self.sections
        return self.data is not None and said == (None,) * 7 and not more


class Torn(Entry, kw_only=True):
    """The first ``length`` bytes of this record are an unfinished append.

    >>> Torn(length=17).length
    17
    """

    length: int


class Unknown(Entry, kw_only=True):
    """A block of an unknown kind, perhaps of a later version: kept and shown, but not interpreted.

    >>> Unknown(marker="--- Dance ---").marker
    '--- Dance ---'
    """

    marker: str


IN_CONTEXT: Final = "in"
"""``Context:`` of a note that is part of the conversation."""
MEMORY: Final = ("system_prompt", "preferences", "context", "summary", "important_steps")
"""The parts of a task's memory, as kinds of notes; in a header they are sections, ``[System Prompt]`` and so on."""
UNKNOWN_USER: Final = "unknown_user"


def x_name(name: str) -> str:
    """The name of a user-defined field in the file, where names have no underscores."""
    name = name.replace("_", "-")
    return name if name.startswith("X-") else f"X-{name}"


def said_by(entry: Request | Turn) -> str | None:
    """Who made a request or spoke as the user. For an agent's turn, on whose behalf it acted, if stated."""
    person = isinstance(entry, Request) or entry.agent == "user"
    return entry.by or (UNKNOWN_USER if person else None)


def touched(turn: Turn) -> tuple[FileTouch, ...]:
    """The files that a turn read, wrote or deleted, each once and in order: from its Files section,
    else its tool log, and from its diffs."""
    found = [f for f in turn.files if isinstance(f, FileTouch)]
    if not found:
        for call in turn.tools:
            if isinstance(call, ToolCall) and call.args:
                namespace, _, operation = call.tool.partition(".")
                if namespace == "filesystem" and operation in ("read", "write", "delete"):
                    found.append(FileTouch(operation, call.args))
    for diff in turn.diffs:
        path = diff.path or ""
        if not any(file.path == path and file.operation != "read" for file in found):
            found.append(FileTouch("write" if diff.new is not None else "delete", path))
    return tuple(dict.fromkeys(found))


def blobs_of(turn: Turn) -> Iterator[Blob]:
    """The long texts of a turn that are kept apart."""
    for call in turn.tools:
        if isinstance(call, ToolCall) and call.blob is not None:
            yield call.blob
    for diff in turn.diffs:
        if diff.blob is not None:
            yield diff.blob


def own_diffs(call: ToolCall, diffs: tuple[Diff, ...]) -> list[Diff]:
    """The diffs of a turn that a tool call made."""
    given = call.more.get("diff")
    numbers = given if isinstance(given, list) else [given]
    return [diffs[number - 1] for number in numbers if type(number) is int and 0 < number <= len(diffs)]
