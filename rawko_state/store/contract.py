"""The interface of every backend: Local, PostgreSQL, Remote and third-party ones.

A store has four levels: core (``core.py``), search, live and retention. Commands and the server need all of them; a program that
keeps tasks and reads them needs the core.

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
from typing import TYPE_CHECKING, Protocol

from rawko_state.model.appended import Position
from rawko_state.model.entries import Blob, Entry
from rawko_state.model.events import Event
from rawko_state.model.names import TaskName
from rawko_state.store.core import Cleaner as Cleaner
from rawko_state.store.core import CoreStore as CoreStore
from rawko_state.store.values import (
    Answer,
    InTrash,
    RetentionRow,
    Stats,
    TaskFilter,
    Usage,
)

if TYPE_CHECKING:
    from rawko_state.tasks.events import Pace


class EventStream(Protocol):
    """The events of one task; poll it at any time.

    >>> stream = store.event_reader("fix0001")
    >>> [event.kind for event in stream.poll()][-1]
    'final'
    """

    @property
    def cursor(self) -> str: ...

    def poll(self) -> Iterator[Event]: ...


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


class SecretsFound(Protocol):
    """The secrets that were found in a task.

    >>> sum(store.redact("fix0001", dry_run=True).rules.values())
    0
    """

    @property
    def rules(self) -> Mapping[str, int]:
        """How many, by the rule that found them."""

    @property
    def changed(self) -> int:
        """How many blocks were rewritten."""


class Verdict(Protocol):
    """The result of verifying one task's chain. It is sound if there are no ``faults`` and no ``warnings``.

    >>> [verdict.turns for verdict in store.verify("fix0001")]
    [2]
    """

    name: TaskName
    unsealed: bool
    """Whether it is a file without seals, so that changes in it can't be noticed."""
    records: int
    turns: int
    torn: int
    """Bytes of marked appends that did not finish. They are kept, and are not a fault."""
    faults: list[str]
    """What is wrong, in words; the first one is about the first bad record."""
    warnings: list[str]
    """What may be missing, although what is there is intact."""
    repaired: list[str]
    """What ``repair=True`` has put right."""
    can_repair: bool
    """Whether ``repair=True`` would put something right."""


class SearchStore(Protocol):
    """Finds words in tasks, and counts."""

    def search(self, query: str, wanted: TaskFilter | None = None, *, turns: bool = False) -> Answer:
        """The results of a query (docs/reference/query.md), up to date with the last append.

        >>> [hit.task.id for hit in store.search("clock skew").hits]
        ['fix0001']
        """

    def stats(self, wanted: TaskFilter, *, days: int = 30, top: int = 10) -> Stats:
        """Statistics of the tasks that match.

        >>> store.stats(TaskFilter()).by_status
        {'completed': 1}
        """

    def unflushed(self) -> int:
        """How many bytes a search has to scan in addition to its index."""

    def flush_due(self) -> str | None:
        """Whether there is enough unindexed data to flush: ``now`` if that is cheap, else ``background``. None if not."""

    def flush(self, step: Callable[[int, int], None] | None = None, *, wait: bool = False) -> int:
        """Adds new data to the search index; searches find it before that too, but more slowly. Returns the number of bytes."""

    def reindex(
        self, step: Callable[[int, int], None] | None = None, flushing: Callable[[int, int], None] | None = None
    ) -> list[tuple[str, str]]:
        """Rebuilds what is derived from the tasks' bytes. Returns the tasks that could not be fully read, and why."""


class LiveStore(Protocol):
    """Tells what is happening, while it happens; and who runs what."""

    def events(self, prefix: str, after: str | None = None) -> Iterator[Event]:
        """All events of a task so far, starting after a cursor.

        >>> [event.kind for event in store.events("fix0001")][:3]
        ['status', 'request', 'status']
        """

    def follow(
        self, prefix: str, after: str | None = None, *, until: Callable[[], bool] | None = None
    ) -> Iterator[Event | None]:
        """All events of a task, starting after a cursor, then new ones as they happen. Yields None from time to time while there
        are none.

        >>> [event.text for event in store.follow("fix0001") if event and event.kind == "final"]
        ['completed']
        """

    def now(self, prefix: str) -> str:
        """The cursor after the last completed record.

        >>> list(store.events("fix0001", after=store.now("fix0001")))
        []
        """

    def cursors(self) -> dict[str, str]:
        """The cursor after the last completed record of every task.

        >>> list(store.cursors())
        ['fix0001']
        """

    def active(self) -> set[str]:
        """The tasks that are currently open for writing.

        >>> store.active()
        set()
        """

    def alive(self) -> set[str]:
        """The tasks that are currently being run.

        >>> store.alive()
        set()
        """

    def event_reader(self, prefix: str, after: str | None = None) -> EventStream:
        """For following many tasks at once."""

    def pace(self) -> Pace:
        """How long to wait between polls."""

    def take_lease(self, prefix: str, token: str | None = None, seconds: float = 30.0) -> str:
        """Takes the lease of a task for some seconds, or renews the one with this token. TaskBusy if another client holds it."""

    def release_lease(self, prefix: str, token: str) -> None: ...


class RetentionStore(Protocol):
    """Cleans up: the trash, retention, redaction afterwards, verification; and imports."""

    def import_lock(self) -> AbstractContextManager[None]:
        """While this is held, no other process imports sessions of other agents."""

    def bulk_writer(self) -> BulkWriter | None:
        """For writing many tasks from several processes. None if the backend cannot; then use add_task()."""

    def add_task(self, name: TaskName, records: Iterable[Sequence[Entry]]) -> bool:
        """Adds a whole new task from its records. False if the id already exists."""

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
        """Moves one task to the trash.

        >>> store.delete("fix0001")
        'fix0001'
        """

    def trash(self) -> list[InTrash]:
        """The tasks in the trash, most recent first.

        >>> store.trash()
        []
        """

    def restore(self, prefix: str | None = None) -> list[str]:
        """Restores a task from the trash, byte for byte; all of them if no id is given.

        >>> _ = store.delete("fix0001")
        >>> store.restore("fix0001")
        ['fix0001']
        """

    def erase(self, prefix: str, *, by: str | None = None) -> str:
        """Permanently deletes one task, in the trash or not: its bytes, the long outputs that no other task uses, its index rows
        and its search terms. Logs the deletion. Returns the id.

        >>> store.erase("fix0001")
        'fix0001'
        >>> store.history(TaskFilter())
        []
        """

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

    def redact(self, prefix: str, *, dry_run: bool = False, by: str | None = None) -> SecretsFound:
        """Removes secrets from a recorded task.

        >>> store.redact("fix0001").changed
        0
        """

    def redact_rest(self, *, dry_run: bool = False, by: str | None = None) -> Sequence[SecretsFound]:
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
        """Verifies one chain, or all of them.

        >>> [verdict.faults for verdict in store.verify("fix0001")]
        [[]]
        """

    def strangers(self) -> list[str]:
        """Names in the tasks folder that are not task files."""

    def disk(self) -> Mapping[str, int]:
        """Disk usage in bytes, by purpose."""

    def concerns(self) -> list[tuple[str, str]]:
        """Problems with task files, as far as the index can tell: ids and messages."""

    def health(self) -> tuple[int, str, list[str]]:
        """The number of tasks in the index, its location, and its problems. Updates the index first."""

    def daily(self) -> AbstractContextManager[bool]:
        """For daily maintenance: True in the one process that should do it, while it holds this."""


class Store(CoreStore, SearchStore, LiveStore, RetentionStore, Protocol):
    """The tasks of one project, or of one workspace of a team.

    >>> with rawko.open(":memory:") as store:
    ...     with store.start("Say hello") as task:
    ...         pass
    ...     store.summary(task.id).status
    'completed'
    """


class BulkWriter(Protocol):
    """Writes whole tasks, in any process: pass it to workers. The process that created it indexes what they wrote."""

    def write(self, name: TaskName, records: Iterable[Sequence[Entry]], *, pack: bool = False) -> object:
        """Writes one new task. It is recorded once commit() returns."""

    def commit(self) -> set[str]:
        """Puts all that this process wrote in place, durable when this returns: one sync for all. Returns the ids that already
        exist, and whose tasks were not written."""

    def index(self, written: Iterable[object]) -> None:
        """Indexes what workers wrote. If that fails, the next scan of the folder does it."""


BeforeDraft = Callable[[int], None]
"""Called just before lines go to a draft, with their place in it. What it writes to the same database joins their transaction. If
it raises, nothing is written."""


class HostedStore(Store, Protocol):
    """What a server also needs from a store, because it writes on behalf of remote clients."""

    def paths(self, part: str = "", *, after: str = "", limit: int = 200) -> list[tuple[str, int]]:
        """The files that tasks touched, in the order of their paths, from after a path on; only those whose path contains a text.
        With each, how many tasks touched it."""

    def used(self, ids: Sequence[str]) -> Mapping[str, tuple[Usage, ...]]:
        """What the turns of listed tasks have used, by task. Tasks without turns are left out."""

    def files_changed(self, ids: Sequence[str]) -> Mapping[str, int]:
        """How many files each of the listed tasks changed."""

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

    def add_clean_file(self, filename: str, path: Path, by: str | None = None) -> tuple[TaskName | None, SecretsFound]:
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
