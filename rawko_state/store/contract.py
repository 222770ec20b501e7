"""The interface of every backend: Local, PostgreSQL, Remote and third-party ones.

A store keeps tasks. A task is a chain of records, and its bytes are the same on every backend: what one exports, another imports
unchanged. ``rawko_state.testing`` is the suite that a backend must pass.

Where a method takes a ``prefix``, pass the whole id or any unambiguous prefix of it. Otherwise the method raises TaskNotFound or
AmbiguousTask. Whatever a method writes is durable when it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rawko_state.model.appended import BeforeWrite, Position
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
    """The events of one task; poll it at any time."""

    @property
    def cursor(self) -> str: ...

    def poll(self) -> Iterator[Event]: ...


class Cleaner(Protocol):
    """A store's ``redactor``: cleans texts on their way out."""

    def text(self, text: str) -> str: ...

    def entry(self, entry: Any) -> Any: ...

    def value(self, value: Any) -> Any: ...


class Explained(Protocol):
    """One redaction: the rule, where it is, and the text around it, without the secret."""

    @property
    def rule(self) -> str: ...

    @property
    def tag(self) -> str:
        """What the setting ``redact.allow`` takes."""

    @property
    def place(self) -> str: ...

    @property
    def before(self) -> str: ...

    @property
    def after(self) -> str: ...

    @property
    def removed(self) -> bool:
        """Whether it was removed already."""


class Found(Protocol):
    """The secrets found in one task: how many by each rule, and how many blocks were rewritten."""

    @property
    def rules(self) -> Mapping[str, int]: ...

    @property
    def changed(self) -> int: ...


class Verdict(Protocol):
    """The result of verifying one task's chain. It is sound if there are no ``faults`` and no ``warnings``."""

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
    """The user's project, whose settings apply. The tasks may be elsewhere."""

    look_around: Callable[[], Mapping[str, str | None]] | None
    """Supplies what start() was not given: repo, branch, commit, cwd, runtime, agent. None: nothing is added."""

    @property
    def where(self) -> str:
        """The location of the tasks, for display and to tell stores apart."""

    @property
    def redactor(self) -> Cleaner: ...

    @property
    def is_local(self) -> bool:
        """Whether the tasks are files of the project at ``root``."""

    def close(self) -> None:
        """Releases open resources. The store can still be used afterwards."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    # Lists and searches

    def history(self, wanted: TaskFilter) -> list[TaskSummary]:
        """The tasks that match, newest first by default."""

    def search(self, query: str, wanted: TaskFilter | None = None, *, turns: bool = False) -> Answer:
        """The results of a query (docs/search.md), up to date with the last append."""

    def stats(self, wanted: TaskFilter, *, days: int = 30, top: int = 10) -> Stats:
        """Statistics of the tasks that match."""

    def by_source(self, prefix: str) -> dict[str, str]:
        """The tasks whose ``Source:`` header starts with a prefix: a mapping of source to id."""

    # One task, by its metadata

    def find(self, prefix: str) -> TaskName: ...

    def summary(self, prefix: str) -> TaskSummary: ...

    def status(self, prefix: str) -> str:
        """The recorded status, or ``interrupted`` for a running task whose writer is gone."""

    def children(self, task_id: str) -> list[tuple[str, int | None, str]]:
        """The tasks that name this one as their parent: id, turn, request."""

    def turn_rows(self, prefix: str, up_to: int | None = None, most: int | None = None) -> tuple[list[TurnRow], int]:
        """The turns in order, and their number. With ``most``, only the first few and the newest turns and decisions."""

    def runs(self, prefix: str) -> list[RunRow]:
        """The runs in order."""

    def files(self, prefix: str) -> list[tuple[int, str, str]]:
        """The files touched: turn, operation, path."""

    def snapshots(self, prefix: str) -> list[dict[str, Any]]:
        """Every snapshot of the work tree that a task refers to."""

    def source(self, prefix: str) -> str | None:
        """Where a task came from, according to its header."""

    # One task, by its bytes

    def reader(self, prefix: str) -> TaskReader:
        """A reader for any span of a task's bytes, and for its records."""

    def entries(self, prefix: str, *, whole: bool = True) -> Iterator[tuple[str, Entry]]:
        """All blocks of a task, each with the kind of its record."""

    def reading(self) -> AbstractContextManager[None]:
        """While a thread holds this, each task that it reads is found, opened and scanned only once, and seen as of then."""

    def turn(self, prefix: str, number: int, *, row: TurnRow | None = None) -> Turn:
        """One turn, with a single seek, regardless of the size of the task. Passing its row saves the lookup."""

    def said(self, prefix: str, up_to: int | None = None) -> list[Said]:
        """The requests of all runs and the notes that are part of the conversation, in order; ``up_to`` a turn, if given."""

    def memory(self, prefix: str) -> dict[str, Any]:
        """The memory of a task: those of system_prompt, preferences, context, summary and important_steps that it has. The header
        sets them, and notes of these kinds change them: the last one counts."""

    def open_question(self, prefix: str) -> Turn | None:
        """The turn whose question is still open."""

    def last_note(self, prefix: str, kind: str) -> Note | None: ...

    def turn_output(self, call: ToolCall) -> str | None:
        """The output of a tool call, wherever it is kept."""

    def blobs_of(self, prefix: str) -> dict[str, bytes]:
        """The long outputs that a task refers to, by name."""

    # Events

    def events(self, prefix: str, after: str | None = None) -> Iterator[Event]:
        """All events of a task so far, starting after a cursor."""

    def follow(
        self, prefix: str, after: str | None = None, *, until: Callable[[], bool] | None = None
    ) -> Iterator[Event | None]:
        """The same, then new events as they happen. Yields None from time to time while there are none."""

    def now(self, prefix: str) -> str:
        """The cursor after the last completed record."""

    def cursors(self) -> dict[str, str]:
        """The same for every task."""

    def active(self) -> set[str]:
        """The tasks that are currently open for writing."""

    def alive(self) -> set[str]:
        """The tasks that are currently being run."""

    def event_reader(self, prefix: str, after: str | None = None) -> EventStream:
        """For following many tasks at once."""

    def pace(self) -> Pace:
        """How long to wait between polls."""

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
        before: BeforeWrite | None = None,
    ) -> Task:
        """Starts a new task. ``before`` is called with its first record just before it is created. A remote store does not
        call it: the server records what it needs itself."""

    def resume(
        self,
        prefix: str,
        *,
        by: str | None = None,
        wait: float = 0.0,
        detached: bool = False,
        message: str | None = None,
    ) -> Task:
        """Resumes a task: takes its lease (or raises TaskBusy) and turns the draft of a dead writer into an interrupted turn."""

    def fork(
        self,
        prefix: str,
        turn: int,
        *,
        message: str | None = None,
        by: str | None = None,
        detached: bool = False,
        title: str | None = None,
        before: BeforeWrite | None = None,
    ) -> Task:
        """Starts a new task that continues after a turn of another one."""

    def attach(self, prefix: str) -> Task:
        """Opens a task to append to it without running it."""

    def reconcile(self) -> list[str]:
        """Reconciles the tasks whose writer has died. Returns their ids."""

    def create(
        self,
        header: TaskHeader,
        entries: Sequence[Entry],
        *,
        detached: bool = False,
        before: BeforeWrite | None = None,
    ) -> Task:
        """Creates a task from its first record: the header, which gets a new id, and the entries that follow it."""

    def take_lease(self, prefix: str, token: str | None = None, seconds: float = 30.0) -> str:
        """Takes the lease of a task for some seconds, or renews the one with this token. TaskBusy if another client holds it."""

    def release_lease(self, prefix: str, token: str) -> None: ...

    def add_file(self, filename: str, data: bytes | Iterable[bytes], blobs: Iterable[bytes] = ()) -> TaskName | None:
        """Adds a whole task, byte for byte. None if it is already there; an error if a different one is."""

    def add_task(self, name: TaskName, records: Iterable[Sequence[Entry]]) -> bool:
        """Adds a whole new task from its records. False if the id already exists."""

    def import_lock(self) -> AbstractContextManager[None]:
        """While this is held, no other process imports sessions of other agents."""

    def bulk_writer(self) -> BulkWriter | None:
        """For writing many tasks from several processes. None if the backend cannot; then use add_task()."""

    # Retention

    def retention_rows(self, task_id: str | None = None) -> list[RetentionRow]:
        """Every task, or one, as retention sees it."""

    def freed_bytes(self, task_ids: Sequence[str]) -> dict[str, int]:
        """How many bytes of long outputs each task frees, if all of these tasks are deleted."""

    def move_to_trash(
        self,
        tasks: Iterable[tuple[RetentionRow, str]],
        *,
        by: str | None = None,
        proceed: Callable[[], bool] = lambda: True,
        patience: float = 60.0,
    ) -> Iterator[str]:
        """Moves tasks to the trash, each with the rule that applied. Yields the ids of those that were moved."""

    def delete(self, prefix: str, *, by: str | None = None) -> str:
        """Moves one task to the trash."""

    def trash(self) -> list[InTrash]:
        """The tasks in the trash, most recent first."""

    def restore(self, prefix: str | None = None) -> list[str]:
        """Restores a task from the trash, byte for byte; all of them if no id is given."""

    def erase(self, prefix: str, *, by: str | None = None) -> str:
        """Permanently deletes one task, in the trash or not: its bytes, the long outputs that no other task uses, its index rows
        and its search terms. Logs the deletion. Returns the id."""

    def empty_trash(
        self,
        before: datetime | None = None,
        *,
        only: str | None = None,
        patience: float = 60.0,
        proceed: Callable[[], bool] = lambda: True,
    ) -> list[InTrash]:
        """Permanently deletes what was trashed before a time, or ``only`` one task. Stops early if ``proceed`` returns False."""

    def pack(self, task: RetentionRow) -> bool:
        """Compresses a finished task, if the backend can. False if nothing was done."""

    def redact(self, prefix: str, *, dry_run: bool = False, by: str | None = None) -> Found:
        """Removes secrets from a recorded task."""

    def redact_rest(self, *, dry_run: bool = False, by: str | None = None) -> Sequence[Found]:
        """Removes secrets from the trash."""

    def redacted_so_far(self) -> set[str]:
        """The tasks that an interrupted redaction has finished, with the same rules, and that have not changed since."""

    def mark_redacted(self, task_id: str) -> None:
        """Remembers that a task is finished, until ``end_redacting``."""

    def explain(self, prefix: str) -> Iterator[Explained]:
        """What redaction removed from a task, and what it would remove now."""

    def begin_redacting(self) -> bool:
        """Call this before redacting many tasks. Returns whether an earlier redaction was interrupted."""

    def end_redacting(self, *, changed: bool, was_due: bool) -> None:
        """Call this afterwards: deletes what was derived from the old bytes."""

    def task_ids(self) -> list[str]:
        """Every task, including those that lists do not show."""

    def verify(self, prefix: str | None = None, *, repair: bool = False) -> Iterator[Verdict]:
        """Verifies one chain, or all of them."""

    def strangers(self) -> list[str]:
        """Names in the tasks folder that are not task files."""

    def check(self) -> None:
        """Raises RawkoError if the tasks cannot be reached now."""

    def disk(self) -> Mapping[str, int]:
        """Disk usage in bytes, by purpose."""

    def concerns(self) -> list[tuple[str, str]]:
        """Problems with task files, as far as the index can tell: ids and messages."""

    def health(self) -> tuple[int, str, list[str]]:
        """The number of tasks in the index, its location, and its problems. Updates the index first."""

    def reindex(
        self, step: Callable[[int, int], None] | None = None, flushing: Callable[[int, int], None] | None = None
    ) -> list[tuple[str, str]]:
        """Rebuilds what is derived from the tasks' bytes. Returns the tasks that could not be fully read, and why."""

    def daily(self) -> AbstractContextManager[bool]:
        """For daily maintenance: True in the one process that should do it, while it holds this."""

    # The search index

    def unflushed(self) -> int:
        """How many bytes a search has to scan in addition to its index."""

    def flush_due(self) -> str | None:
        """Whether there is enough unindexed data to flush: ``now`` if that is cheap, else ``background``. None if not."""

    def flush(self, step: Callable[[int, int], None] | None = None, *, wait: bool = False) -> int:
        """Adds new data to the search index; searches find it before that too, but more slowly. Returns the number of bytes."""


class BulkWriter(Protocol):
    """Writes whole tasks, in any process: pass it to workers. The process that created it indexes what they wrote."""

    def write(self, name: TaskName, records: Iterable[Sequence[Entry]], *, pack: bool = False) -> object | None:
        """Writes one new task, durable when this returns. None if the id already exists."""

    def index(self, written: Iterable[object]) -> None:
        """Indexes what workers wrote. If that fails, the next scan of the folder does it."""


BeforeDraft = Callable[[int], None]
"""Called just before lines go to a draft, with their place in it. What it writes to the same database joins their transaction. If
it raises, nothing is written."""


class HostedStore(Store, Protocol):
    """What a server also needs from a store, because it writes on behalf of remote clients."""

    def position(self, prefix: str) -> Position:
        """The end of a task, from which a remote writer continues. Opens nothing."""

    def holds(self, prefix: str, seal: str) -> bool:
        """Whether the task has a record with this seal."""

    def replace_task(self, name: TaskName, data: Iterable[bytes], blobs: Iterable[bytes], size: int, seal: str) -> bool:
        """Replaces a task with a longer version, if the current one still has this size and ends with this seal."""

    def check_lease(self, task_id: str, token: str) -> None:
        """Raises TaskBusy unless this token holds the task's lease."""

    def expire_leases(self) -> None:
        """Releases leases that were not renewed in time, on backends where nothing else does."""

    def begin_draft(self, task_id: str, lines: bytes, *, before: BeforeDraft | None = None) -> None:
        """Starts the draft of a live turn with its head, and maybe more lines."""

    def add_to_draft(self, task_id: str, lines: bytes, *, before: BeforeDraft | None = None) -> bool:
        """Appends lines to the draft. False if there is none."""

    def extend_draft(self, task_id: str, lines: bytes, lease: str, *, before: BeforeDraft | None = None) -> str | None:
        """The same for the holder of a lease; TaskBusy for anyone else. Returns the task's last seal, which tells the holder
        whether others have appended to the task. None if there is no draft."""

    def drop_draft(self, task_id: str) -> None: ...

    def draft_lines(self, task_id: str) -> list[bytes]: ...

    def add_clean_file(self, filename: str, path: Path, by: str | None = None) -> tuple[TaskName | None, Found]:
        """Adds a whole task file; its secrets are removed before anything is stored."""

    def drafted(self) -> set[str]:
        """The tasks with an unfinished live turn."""

    def put_blob(self, data: bytes) -> Blob:
        """Stores a long output. Call this before adding the task that refers to it."""

    def blob_bytes(self, blob: Blob) -> bytes | None:
        """None if it is missing or changed."""


class ProjectStore(HostedStore, Protocol):
    """The task files of a project, with operations that only work where the files are."""

    @property
    def state_folder(self) -> Path:
        """The folder with the task files and everything that belongs to them."""

    def search_trouble(self) -> str | None:
        """Why the search index cannot be used; None if it can."""

    def lock(self, name: str, *, timeout: float = 60.0) -> AbstractContextManager[None]:
        """A named lock of this project, shared between processes. Raises StorageError on timeout."""
