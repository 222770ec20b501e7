"""The one interface of every backend: Local, PostgreSQL and Remote, and any that others write.

A store keeps tasks. A task is a chain of records, and its bytes are the same on every backend: what one gives out, another takes
in without a change. ``rawko_state.testing`` is the suite that a backend must pass; import it and give it a store.

Where a method takes a ``prefix``, the whole id or any beginning of it that names one task will do; TaskNotFound and AmbiguousTask
say otherwise. Whatever a method writes is durable when it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol

from rawko_state.model.appended import Appended
from rawko_state.model.entries import Entry, Json, Note, Parent, Question, ToolCall, Turn
from rawko_state.model.events import Event
from rawko_state.model.names import TaskName
from rawko_state.model.state import TaskState
from rawko_state.store.values import (
    Answer,
    InTrash,
    Kept,
    RunRow,
    Stats,
    TaskFilter,
    TaskSummary,
    TurnRow,
)


class LiveTurn(Protocol):
    """A turn while it happens. As a context manager, an exception ends it as failed and goes on.

    Every method raises Stopped, after what it was given is kept, when somebody has paused or cancelled the task.
    """

    agent: str

    def say(self, text: str) -> None:
        """A piece of its text."""

    def tool(
        self,
        tool: str,
        args: str = "",
        result: str | None = None,
        *,
        output: str | None = None,
        time: str | None = None,
        more: Mapping[str, Json] | None = None,
    ) -> None:
        """A tool call that has been made."""

    def begin_tool(
        self, tool: str, args: str = "", *, time: str | None = None, more: Mapping[str, Json] | None = None
    ) -> str:
        """A tool call that is being made; returns the key for end_tool()."""

    def end_tool(
        self,
        key: str,
        result: str | None = None,
        *,
        output: str | None = None,
        more: Mapping[str, Json] | None = None,
    ) -> None:
        """What the call came to."""

    def progress(self, text: str, kind: str = "progress") -> None:
        """A step."""

    def touch(self, operation: str, path: str) -> None:
        """A file that was read, written or deleted."""

    def end(
        self,
        outcome: str = "complete",
        *,
        content: str | None = None,
        tokens: Mapping[str, int] | None = None,
        cost: Decimal | str | None = None,
        state: Json = None,
        payload: str | None = None,
        question: Question | None = None,
        reason: str | None = None,
        sections: Mapping[str, str] | None = None,
        snapshot: Json = None,
    ) -> Appended:
        """The turn as one record."""

    def ask(
        self,
        question: str,
        choices: Iterable[str] = (),
        *,
        default: str | None = None,
        deadline: datetime | None = None,
        kind: str = "question",
        timeout: float | None = None,
    ) -> str:
        """Ends the turn with a question and waits for the answer."""

    def approve(
        self, tool: str, args: str = "", *, deadline: datetime | None = None, timeout: float | None = None
    ) -> bool:
        """Asks for a yes or no."""

    def leave(self) -> None:
        """Leaves what was said to whoever resumes the task."""

    def __enter__(self) -> Any: ...

    def __exit__(self, *_: Any) -> None: ...


class Task(Protocol):
    """One task, open for writing. As a context manager it records how the block ended."""

    id: str

    @property
    def state(self) -> TaskState:
        """What the task was when it was last looked at."""

    @property
    def root(self) -> Path: ...

    @property
    def seal(self) -> str:
        """The last seal: what a conditional append compares with."""

    def refresh(self) -> TaskState:
        """What the task is now, with what others have added."""

    def holds(self, seal: str) -> bool:
        """Whether that record is there; ask this after OutcomeUnknown, before trying again."""

    def check(self) -> None:
        """Raises Stopped if somebody has paused or cancelled the task."""

    def turn(self, agent: str, *, model: str | None = None, durable: bool = False) -> LiveTurn:
        """A live turn. Needs the lease: a task that was started, or resumed, attached."""

    def add_turn(self, turn: Turn, *, expect: str | None = None, snapshot: Json = None) -> Appended:
        """A turn that has happened; with ``expect``, ChainMoved unless that is the last seal."""

    def add(self, entries: Sequence[Entry], *, expect: str | None = None) -> Appended:
        """Several entries as one record."""

    def decide(
        self,
        *,
        selected: str | None = None,
        decision: str | None = None,
        reason: str | None = None,
        guidance: str | None = None,
        agent: str = "arbiter",
    ) -> Appended: ...

    def ask(self, agent: str, question: Question, *, content: str | None = None) -> Appended:
        """A turn that ends in a question; the task waits."""

    def question(self) -> Question | None: ...

    def wait_for_answer(self, timeout: float | None = None, *, number: int | None = None) -> str: ...

    def answer(self, text: str, *, by: str | None = None) -> Appended: ...

    def say(self, text: str, *, by: str | None = None) -> Appended: ...

    def note(
        self,
        text: str | None = None,
        *,
        title: str | None = None,
        labels: Mapping[str, str] | None = None,
        unlabel: Sequence[str] = (),
        pinned: bool | None = None,
        by: str | None = None,
        kind: str | None = None,
        data: Json = None,
        in_context: bool | None = None,
    ) -> Appended: ...

    def set_status(self, wanted: str, *, by: str | None = None, reason: str | None = None) -> Appended: ...

    def finish(
        self,
        outcome: str = "success",
        summary: str | None = None,
        *,
        files: Iterable[str] = (),
        error: str | None = None,
        by: str | None = None,
        output: Json = None,
        duration_ms: int | None = None,
        completed: datetime | None = None,
    ) -> Appended: ...

    def close(self) -> None:
        """Lets go of the task without finishing it."""

    def __enter__(self) -> Any: ...

    def __exit__(self, *_: Any) -> None: ...


class Reader(Protocol):
    """A task's bytes."""

    size: int

    def fetch(self, offset: int, length: int) -> bytes: ...

    def records(self) -> Iterator[Any]: ...

    def __enter__(self) -> Any: ...

    def __exit__(self, *_: object) -> None: ...


class EventStream(Protocol):
    """The events of one task, asked for whenever."""

    @property
    def cursor(self) -> str: ...

    def poll(self) -> Iterator[Event]: ...


class Cleaner(Protocol):
    """What texts pass on their way out: ``redactor`` of a store."""

    def text(self, text: str) -> str: ...

    def entry(self, entry: Any) -> Any: ...


class Found(Protocol):
    """The secrets of one task: how many by which rule, and how many blocks were written anew."""

    @property
    def rules(self) -> Mapping[str, int]: ...

    @property
    def changed(self) -> int: ...


class Verdict(Protocol):
    """What was found in one task's chain; all is well without ``faults``."""

    name: TaskName
    unsealed: bool
    records: int
    turns: int
    torn: int
    faults: list[str]
    repaired: list[str]
    can_repair: bool


class Store(Protocol):
    """The tasks of one project, or of one workspace of a team."""

    root: Path
    """The project around the user, whose settings count; where the tasks are is the store's own affair."""

    @property
    def where(self) -> str:
        """Where they are, for people, and to tell one store from another."""

    @property
    def redactor(self) -> Cleaner: ...

    def close(self) -> None: ...

    # Lists and searches

    def history(self, wanted: TaskFilter) -> list[TaskSummary]:
        """The tasks that match, newest first unless told otherwise."""

    def search(self, query: str, wanted: TaskFilter | None = None, *, turns: bool = False) -> Answer:
        """What a query finds (docs/search.md), fresh to the last append."""

    def stats(self, wanted: TaskFilter, *, days: int = 30, top: int = 10) -> Stats:
        """Figures over the tasks that match."""

    def by_source(self, prefix: str) -> dict[str, str]:
        """The tasks whose header says that they came from there: what it says, and their ids."""

    def to_resume(self) -> str | None:
        """The newest task that was interrupted, waits or is paused."""

    # One task, by what is known of it

    def find(self, prefix: str) -> TaskName: ...

    def summary(self, prefix: str) -> TaskSummary: ...

    def status(self, prefix: str) -> str:
        """What the records say, or ``interrupted`` for a running task whose writer is gone."""

    def children(self, task_id: str) -> list[tuple[str, int | None, str]]:
        """The tasks that name this one as their parent: id, turn, request."""

    def turn_rows(self, prefix: str, up_to: int | None = None, most: int | None = None) -> tuple[list[TurnRow], int]:
        """The turns in order, and how many there are; with ``most``, the first, and the newest turns and decisions."""

    def runs(self, prefix: str) -> list[RunRow]:
        """The runs in order."""

    def files(self, prefix: str) -> list[tuple[int, str, str]]:
        """What was touched: turn, operation, path."""

    def snapshots(self, prefix: str) -> list[dict[str, Any]]:
        """Every snapshot of the work tree that a task names."""

    def snapshot(self, prefix: str, turn: int) -> dict[str, Any] | None:
        """The last one at or before a turn, its parents' included."""

    def source(self, prefix: str) -> str | None:
        """Where a task came from, as its header says."""

    # One task, by its bytes

    def reader(self, prefix: str) -> Reader:
        """Any span of a task's bytes, and its records."""

    def entries(self, prefix: str, *, whole: bool = True) -> Iterator[tuple[str, Entry]]:
        """Everything that a task says, block by block: the kind of its record, and the block."""

    def turn(self, prefix: str, number: int) -> Turn:
        """One turn, by one seek, whatever the size of the task."""

    def requests(self, prefix: str, up_to: int | None = None) -> list[str]:
        """What was asked, run by run; with ``up_to``, in the runs that had begun by that turn."""

    def open_question(self, prefix: str) -> Turn | None:
        """The turn whose question has no answer yet."""

    def last_note(self, prefix: str, kind: str) -> Note | None: ...

    def turn_output(self, call: ToolCall) -> str | None:
        """The output of a tool call, wherever it is kept."""

    def blobs_of(self, prefix: str) -> dict[str, bytes]:
        """The long outputs that a task refers to, by their names."""

    # What happens

    def events(self, prefix: str, after: str | None = None) -> Iterator[Event]:
        """Everything that has happened to a task, from a cursor on, up to now."""

    def follow(
        self, prefix: str, after: str | None = None, *, until: Callable[[], bool] | None = None
    ) -> Iterator[Event | None]:
        """The same, and then what happens, as it happens; None now and then while nothing does."""

    def now(self, prefix: str) -> str:
        """The cursor after everything that has ended."""

    def cursors(self) -> dict[str, str]:
        """That of every task."""

    def active(self) -> set[str]:
        """The tasks that somebody has open for writing now."""

    def alive(self) -> set[str]:
        """The tasks that somebody runs now."""

    def event_reader(self, prefix: str, after: str | None = None) -> EventStream:
        """For those who follow many tasks at once."""

    # Writing

    def start(
        self,
        request: str,
        *,
        title: str | None = None,
        agent: str | None = None,
        model: str | None = None,
        provider: str | None = None,
        repo: str | None = None,
        branch: str | None = None,
        commit: str | None = None,
        cwd: str | None = None,
        runtime: str | None = None,
        labels: Mapping[str, str] | None = None,
        user: str | None = None,
        by: str | None = None,
        source: str | None = None,
        parent: Parent | None = None,
        created: datetime | None = None,
        detached: bool = False,
        fields: Mapping[str, str] | None = None,
        sections: Mapping[str, str] | None = None,
        before: Callable[[str, str], None] | None = None,
    ) -> Task:
        """A new task. ``before`` is told its id and first seal just before it comes into being; not by a remote store, whose
        server keeps for itself what it must know."""

    def resume(
        self,
        prefix: str,
        *,
        by: str | None = None,
        wait: float = 0.0,
        detached: bool = False,
        message: str | None = None,
    ) -> Task:
        """Goes on with a task: takes its lease (TaskBusy), turns what a dead writer left into an interrupted turn."""

    def fork(
        self,
        prefix: str,
        turn: int,
        *,
        message: str | None = None,
        by: str | None = None,
        detached: bool = False,
        title: str | None = None,
        before: Callable[[str, str], None] | None = None,
    ) -> Task:
        """A new task that goes on after a turn of another one."""

    def attach(self, prefix: str) -> Task:
        """Opens a task to add to it without running it."""

    def reconcile(self) -> list[str]:
        """Sees to the tasks whose writer has died. Returns their ids."""

    def take_lease(self, prefix: str, token: str | None = None, seconds: float = 30.0) -> str:
        """Takes the lease of a task for a while, or keeps the one with this token for longer; TaskBusy when others have it."""

    def release_lease(self, prefix: str, token: str) -> None: ...

    def place(self, filename: str, data: bytes | Iterable[bytes], blobs: Iterable[bytes] = ()) -> TaskName | None:
        """A whole task as it is, byte for byte. None when it is there already; an error when another one is."""

    def bring(self, name: TaskName, records: Iterable[Sequence[Entry]]) -> bool:
        """A whole new task from its records; False when there is one of its id."""

    def importing(self) -> AbstractContextManager[None]:
        """While this is held, nobody else brings the sessions of other agents in."""

    # Keeping

    def kept(self, task_id: str | None = None) -> list[Kept]:
        """Every task, or one, as retention sees it."""

    def freed(self, task_ids: Sequence[str]) -> dict[str, int]:
        """The bytes of long outputs that go with some tasks, if all of these go."""

    def discard(
        self,
        tasks: Iterable[tuple[Kept, str]],
        *,
        by: str | None = None,
        proceed: Callable[[], bool] = lambda: True,
        patience: float = 60.0,
    ) -> Iterator[str]:
        """Puts tasks into the trash, each with its rule; yields the ids of those that went."""

    def delete(self, prefix: str, *, by: str | None = None) -> str:
        """Puts one task into the trash."""

    def trash(self) -> list[InTrash]:
        """What is in it, the last one first."""

    def restore(self, prefix: str | None = None) -> list[str]:
        """Brings tasks back, byte for byte; all of them without an id."""

    def empty_trash(
        self,
        before: datetime | None = None,
        *,
        patience: float = 60.0,
        proceed: Callable[[], bool] = lambda: True,
    ) -> list[InTrash]:
        """Deletes for good what came into the trash before a time; may stop early, if not to ``proceed``."""

    def pack(self, task: Kept) -> bool:
        """Makes a finished task smaller, where the backend can; False if it did nothing."""

    def redact(self, prefix: str, *, dry_run: bool = False, by: str | None = None) -> Found:
        """Takes secrets out of a task that was recorded with them."""

    def verify(self, prefix: str | None = None, *, repair: bool = False) -> Iterator[Verdict]:
        """Walks one chain, or all of them."""

    def unflushed(self) -> int:
        """How many bytes a search has to look through besides its index."""

    def can_flush(self) -> bool: ...

    def flush(self, step: Callable[[int, int], None] | None = None, *, wait: bool = False) -> int: ...
