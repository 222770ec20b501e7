"""The one interface of every backend: Local, PostgreSQL and Remote, and any that others write.

A store keeps tasks. A task is a chain of records, and its bytes are the same on every backend: what one gives out, another takes
in without a change. ``rawko_state.testing`` is the suite that a backend must pass.

Where a method takes a ``prefix``, the whole id or any beginning of it that names one task will do; TaskNotFound and AmbiguousTask
say otherwise. Whatever a method writes is durable when it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rawko_state.model.appended import Position
from rawko_state.model.entries import Blob, Entry, Note, Parent, TaskHeader, ToolCall, Turn
from rawko_state.model.events import Event
from rawko_state.model.names import TaskName
from rawko_state.store.values import (
    Answer,
    InTrash,
    RetentionRow,
    RunRow,
    Said,
    Stats,
    TaskFilter,
    TaskSummary,
    TurnRow,
)

if TYPE_CHECKING:
    from typing_extensions import Self

    from rawko_state.format.reader import TaskReader
    from rawko_state.tasks.events import Pace
    from rawko_state.tasks.task import Task


class EventStream(Protocol):
    """The events of one task, asked for whenever."""

    @property
    def cursor(self) -> str: ...

    def poll(self) -> Iterator[Event]: ...


class Cleaner(Protocol):
    """What texts pass on their way out: ``redactor`` of a store."""

    def text(self, text: str) -> str: ...

    def entry(self, entry: Any) -> Any: ...

    def value(self, value: Any) -> Any: ...


class Found(Protocol):
    """The secrets of one task: how many by which rule, and how many blocks were written anew."""

    @property
    def rules(self) -> Mapping[str, int]: ...

    @property
    def changed(self) -> int: ...


class Verdict(Protocol):
    """What was found in one task's chain; all is well without ``faults`` and ``warnings``."""

    name: TaskName
    unsealed: bool
    records: int
    turns: int
    torn: int
    faults: list[str]
    warnings: list[str]
    repaired: list[str]
    can_repair: bool


class Store(Protocol):
    """The tasks of one project, or of one workspace of a team."""

    root: Path
    """The project around the user, whose settings count; where the tasks are is the store's own affair."""

    look_around: Callable[[], Mapping[str, str | None]] | None
    """What start() asks for what it was not told: repo, branch, commit, cwd, runtime, agent. None: nothing is added."""

    @property
    def where(self) -> str:
        """Where they are, for people, and to tell one store from another."""

    @property
    def redactor(self) -> Cleaner: ...

    @property
    def is_local(self) -> bool:
        """Whether the tasks are files of the project at ``root``."""

    def close(self) -> None:
        """Releases what the store holds open. It may be used again."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    # Lists and searches

    def history(self, wanted: TaskFilter) -> list[TaskSummary]:
        """The tasks that match, newest first unless told otherwise."""

    def search(self, query: str, wanted: TaskFilter | None = None, *, turns: bool = False) -> Answer:
        """What a query finds (docs/search.md), fresh to the last append."""

    def stats(self, wanted: TaskFilter, *, days: int = 30, top: int = 10) -> Stats:
        """Figures over the tasks that match."""

    def by_source(self, prefix: str) -> dict[str, str]:
        """The tasks whose header says that they came from there: what it says, and their ids."""

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

    def source(self, prefix: str) -> str | None:
        """Where a task came from, as its header says."""

    # One task, by its bytes

    def reader(self, prefix: str) -> TaskReader:
        """Any span of a task's bytes, and its records."""

    def entries(self, prefix: str, *, whole: bool = True) -> Iterator[tuple[str, Entry]]:
        """Everything that a task says, block by block: the kind of its record, and the block."""

    def reading(self) -> AbstractContextManager[None]:
        """While a thread holds this, what it asks is answered as of now: each task is found, opened and looked at once."""

    def turn(self, prefix: str, number: int, *, row: TurnRow | None = None) -> Turn:
        """One turn, by one seek, whatever the size of the task; with its row, without looking for it."""

    def said(self, prefix: str, up_to: int | None = None) -> list[Said]:
        """What was asked, run by run, and the notes that are part of the conversation, in order; with ``up_to``, by that turn."""

    def memory(self, prefix: str) -> dict[str, Any]:
        """What a task is to keep in mind: system_prompt, preferences, context, summary, important_steps, as far as there are any.
        Its header says it, and notes of these kinds change it: the last one counts."""

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

    def pace(self) -> Pace:
        """How long to wait between two looks."""

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

    def create(
        self,
        header: TaskHeader,
        entries: Sequence[Entry],
        *,
        detached: bool = False,
        before: Callable[[str, str], None] | None = None,
    ) -> Task:
        """A new task from its first record: a header, whose id is chosen here, and what follows it."""

    def take_lease(self, prefix: str, token: str | None = None, seconds: float = 30.0) -> str:
        """Takes the lease of a task for a while, or keeps the one with this token for longer; TaskBusy when others have it."""

    def release_lease(self, prefix: str, token: str) -> None: ...

    def add_file(self, filename: str, data: bytes | Iterable[bytes], blobs: Iterable[bytes] = ()) -> TaskName | None:
        """A whole task as it is, byte for byte. None when it is there already; an error when another one is."""

    def add_task(self, name: TaskName, records: Iterable[Sequence[Entry]]) -> bool:
        """A whole new task from its records; False when there is one of its id."""

    def import_lock(self) -> AbstractContextManager[None]:
        """While this is held, nobody else brings the sessions of other agents in."""

    def bulk_writer(self) -> BulkWriter | None:
        """Writes many tasks from several processes, where the backend can; else use add_task()."""

    # Retention

    def retention_rows(self, task_id: str | None = None) -> list[RetentionRow]:
        """Every task, or one, as retention sees it."""

    def freed_bytes(self, task_ids: Sequence[str]) -> dict[str, int]:
        """The bytes of long outputs that go with some tasks, if all of these go."""

    def move_to_trash(
        self,
        tasks: Iterable[tuple[RetentionRow, str]],
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

    def erase(self, prefix: str, *, by: str | None = None) -> str:
        """Deletes one task for good, in the trash or not: its bytes, the long outputs that no other task refers to, its rows and
        its words. Says so in a log. Returns its id."""

    def empty_trash(
        self,
        before: datetime | None = None,
        *,
        only: str | None = None,
        patience: float = 60.0,
        proceed: Callable[[], bool] = lambda: True,
    ) -> list[InTrash]:
        """Deletes for good what came into the trash before a time, or ``only`` one task; stops early, if not to ``proceed``."""

    def pack(self, task: RetentionRow) -> bool:
        """Makes a finished task smaller, where the backend can; False if it did nothing."""

    def redact(self, prefix: str, *, dry_run: bool = False, by: str | None = None) -> Found:
        """Takes secrets out of a task that was recorded with them."""

    def begin_redacting(self) -> bool:
        """Before a redaction of many tasks. Whether one before was stopped before its end."""

    def end_redacting(self, *, changed: bool, was_due: bool) -> None:
        """After it: what was derived from the old bytes goes."""

    def task_ids(self) -> list[str]:
        """Every task, also one that lists do not show."""

    def verify(self, prefix: str | None = None, *, repair: bool = False) -> Iterator[Verdict]:
        """Walks one chain, or all of them."""

    def strangers(self) -> list[str]:
        """What lies among the task files and is none."""

    def check(self) -> None:
        """RawkoError if the tasks cannot be reached now."""

    def daily(self) -> AbstractContextManager[bool]:
        """Upkeep that is due once a day: True in the one process whose turn it is, while it holds this."""

    # The search index

    def unflushed(self) -> int:
        """How many bytes a search has to look through besides its index."""

    def flush_due(self) -> str | None:
        """Whether what is new should be taken in now that it has grown long: ``now`` when that is cheap, else ``background``."""

    def flush(self, step: Callable[[int, int], None] | None = None, *, wait: bool = False) -> int:
        """Takes what is new into the search index. Searches find it without that, only slower. Returns how many bytes."""


class BulkWriter(Protocol):
    """Writes whole tasks, in any process: pass it to workers. What it wrote is indexed by the process that asked for it."""

    def write(self, name: TaskName, records: Iterable[Sequence[Entry]], *, pack: bool = False) -> object | None:
        """One new task, durable when this returns. None when there is one of its id."""

    def index(self, written: Iterable[object]) -> None:
        """Takes what workers wrote into the index. If that fails, the next look at the folder does it."""


class HostedStore(Store, Protocol):
    """What a server needs of a store besides: it writes on behalf of clients who are far away."""

    def position(self, prefix: str) -> Position:
        """How far a task has come: what a distant writer continues from. Opens nothing."""

    def holds(self, prefix: str, seal: str) -> bool:
        """Whether a record with this seal is there."""

    def replace_task(self, name: TaskName, data: Iterable[bytes], blobs: Iterable[bytes], size: int, seal: str) -> bool:
        """A longer writing of a task in place of the one that is there, if that is still so long and ends with that seal."""

    def check_lease(self, task_id: str, token: str) -> None:
        """TaskBusy unless this token has the task now."""

    def expire_leases(self) -> None:
        """Releases leases that were not renewed in time, where nobody else does."""

    def begin_draft(self, task_id: str, lines: bytes) -> None:
        """The draft of a live turn: its head, and maybe more lines."""

    def add_to_draft(self, task_id: str, lines: bytes) -> bool:
        """More lines of it. False when there is none."""

    def drop_draft(self, task_id: str) -> None: ...

    def draft_lines(self, task_id: str) -> list[bytes]: ...

    def drafted(self) -> set[str]:
        """The tasks with a live turn that has not ended."""

    def put_blob(self, data: bytes) -> Blob:
        """A long output, before the task that refers to it is added."""

    def blob_bytes(self, blob: Blob) -> bytes | None:
        """None if it is missing or changed."""


class ProjectStore(HostedStore, Protocol):
    """The task files of a project: what can be done only where they are."""

    @property
    def state_folder(self) -> Path:
        """Where the task files and all that belongs to them are."""

    def disk(self) -> Mapping[str, int]:
        """Bytes, by what they are used for."""

    def concerns(self) -> list[tuple[str, str]]:
        """What is wrong with task files, as far as the index can tell: ids, and what to say."""

    def health(self) -> tuple[int, str, list[str]]:
        """How many tasks the index knows, where it is, and what is wrong with it. Catches up first."""

    def search_trouble(self) -> str | None:
        """Why the search index cannot be used, if so."""

    def reindex(
        self, step: Callable[[int, int], None] | None = None, flushing: Callable[[int, int], None] | None = None
    ) -> list[tuple[str, str]]:
        """Rebuilds the index and the search index from the files. Returns the tasks that could not be fully read, and why."""

    def lock(self, name: str, *, timeout: float = 60.0) -> AbstractContextManager[None]:
        """A lock of this project by a name of its own, between processes. StorageError when the time is up."""
