"""What the stores share: opening tasks for writing, and answering queries where rows and bytes are directly accessible."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rawko_state.backends.protocols import SyncedIndex, TaskFiles
from rawko_state.errors import AmbiguousTask, InvalidValue, RawkoError, TaskNotFound
from rawko_state.format.seal import GENESIS
from rawko_state.format.values import read_json
from rawko_state.index import queries
from rawko_state.lazy import lazy
from rawko_state.model.names import TaskName
from rawko_state.model.status import FINISHED, INTERRUPTED, PENDING, RUNNING
from rawko_state.store import RELEVANCE, Answer, InTrash, RunRow, Said, Stats, TaskFilter, TaskSummary, TurnRow

if TYPE_CHECKING:
    from typing_extensions import Self

    from rawko_state.backends import redaction
    from rawko_state.format.reader import TaskReader
    from rawko_state.index import projection
    from rawko_state.model import appended
    from rawko_state.model import entries as entry_types
    from rawko_state.model.appended import BeforeWrite, Position
    from rawko_state.model.entries import Blob, Entry, Note, Parent, TaskHeader, ToolCall, Turn
    from rawko_state.model.events import Event
    from rawko_state.model.state import TaskState
    from rawko_state.redact.redactor import Redactor
    from rawko_state.search.finder import Finder
    from rawko_state.store.contract import BulkWriter, Found
    from rawko_state.tasks import events as tasks_events
    from rawko_state.tasks import task as tasks_task
    from rawko_state.tasks.events import EventReader, Pace
    from rawko_state.tasks.task import Task
    from rawko_state.tasks.writer import Writer
else:
    redaction = lazy("rawko_state.backends.redaction")
    projection = lazy("rawko_state.index.projection")
    appended = lazy("rawko_state.model.appended")
    entry_types = lazy("rawko_state.model.entries")
    tasks_events = lazy("rawko_state.tasks.events")
    tasks_task = lazy("rawko_state.tasks.task")


class BaseStore(ABC):
    """Opens tasks: starts, resumes and forks them. Only the writer differs between backends."""

    @property
    @abstractmethod
    def redactor(self) -> Redactor: ...

    @abstractmethod
    def find(self, prefix: str) -> TaskName: ...

    @abstractmethod
    def summary(self, prefix: str) -> TaskSummary: ...

    @abstractmethod
    def history(self, wanted: TaskFilter) -> list[TaskSummary]: ...

    @abstractmethod
    def turn(self, prefix: str, number: int, *, row: TurnRow | None = None) -> Turn: ...

    @abstractmethod
    def said(self, prefix: str, up_to: int | None = None) -> list[Said]: ...

    @abstractmethod
    def _new_writer(
        self,
        header: TaskHeader,
        entries: Sequence[Entry],
        *,
        attached: bool,
        before: BeforeWrite | None,
    ) -> Writer:
        """Creates a task and chooses its id. ``attached``: takes its lease too."""

    @abstractmethod
    def _open_writer(self, name: TaskName, lease: float | None = None) -> Writer:
        """Opens a task. With ``lease``, takes its lease too, waiting up to that many seconds for it."""

    @abstractmethod
    def _abandoned(self) -> list[tuple[str, bool]]:
        """Tasks whose process died or released them in the middle of a turn, and whether it died."""

    look_around: Callable[[], Mapping[str, str | None]] | None = None
    """Supplies the values about where the task runs that start() was not given."""

    is_local = False
    """Whether the tasks are files in the project."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def strangers(self) -> list[str]:
        return []

    def begin_redacting(self) -> bool:
        return False

    def redacted_so_far(self) -> set[str]:
        return set()

    def mark_redacted(self, task_id: str) -> None:
        return

    def redact_rest(self, *, dry_run: bool = False, by: str | None = None) -> Sequence[Found]:
        """Removes secrets from what is not in the list of tasks: the trash."""
        return []

    def end_redacting(self, *, changed: bool, was_due: bool) -> None:
        return

    def task_ids(self) -> list[str]:
        return sorted(task.id for task in self.history(TaskFilter()))

    def daily(self) -> AbstractContextManager[bool]:
        """Maintenance runs where the tasks are stored."""
        return nullcontext(False)

    def bulk_writer(self) -> BulkWriter | None:
        return None

    def pace(self) -> Pace:
        return tasks_events.Pace()

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
        """Starts a task; its file is durable when this returns.

        An attached task (the default) is run by this process until it is finished or closed. A detached task may be written to by
        one process after another. ``fields`` become ``X-Name:`` lines of the header. ``before`` is called with the
        first record just before the task is created. If the setting ``record.surroundings`` allows it, missing values for repo,
        branch, commit, cwd, runtime and agent are detected.
        """
        if not request.strip():
            raise InvalidValue("a task begins with a request that says something; this one is empty")
        created = created or datetime.now(timezone.utc).replace(microsecond=0)
        around = self.look_around() if self.look_around is not None else {}
        header = entry_types.TaskHeader(
            id="",
            created=created,
            status="running",
            title=title,
            parent=parent,
            agent=around.get("agent") if agent is None else agent,
            model=model,
            provider=provider,
            repo=around.get("repo") if repo is None else repo,
            branch=around.get("branch") if branch is None else branch,
            commit=around.get("commit") if commit is None else commit,
            cwd=around.get("cwd") if cwd is None else cwd,
            runtime=around.get("runtime") if runtime is None else runtime,
            labels=dict(labels or {}),
            user=user,
            writer="detached" if detached else None,
            source=source,
            extra=tuple(entry_types.Field(entry_types.x_name(name), value) for name, value in (fields or {}).items()),
            sections=tuple(entry_types.Section(name, text) for name, text in (sections or {}).items()),
        )
        entries = [entry_types.Request(text=request, by=by, at=created), entry_types.Execution()]
        return self.create(header, entries, detached=detached, before=before)

    def create(
        self,
        header: TaskHeader,
        entries: Sequence[Entry],
        *,
        detached: bool = False,
        before: BeforeWrite | None = None,
    ) -> Task:
        """Creates a task from its first record: a header and the entries after it. The id is chosen here."""
        clean = [self.redactor.entry(entry) for entry in entries]
        writer = self._new_writer(self.redactor.entry(header), clean, attached=not detached, before=before)
        return tasks_task.Task(writer, self.redactor)

    def _task(self, name: TaskName, lease: float | None = None) -> Task:
        return tasks_task.Task(self._open_writer(name, lease), self.redactor)

    def resume(
        self,
        prefix: str,
        *,
        by: str | None = None,
        wait: float = 0.0,
        detached: bool = False,
        message: str | None = None,
    ) -> Task:
        """Opens a task to continue it: takes the lease, and turns a dead writer's draft into an interrupted turn.

        With a message, a finished task gets another run that begins with it; otherwise the message is the user's next turn.
        """
        task = self._task(self.find(prefix), wait)
        try:
            task.recover()
            task.reopen(by=by, detached=detached, message=message)
        except BaseException:
            task.close()
            raise
        return task

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
        """Creates a task that continues from a turn of another task, which does not change. Turn numbers continue too."""
        parent = self.summary(prefix)
        first = 1 if parent.parent is None or "@" not in parent.parent else int(parent.parent.partition("@")[2]) + 1
        if not first <= turn <= parent.turns:
            raise InvalidValue(f"task {parent.id} has turns {first} to {parent.turns}, and no turn {turn}")
        self.turn(parent.id, turn)  # the turn must exist, not just be within the range
        asked = [said.text for said in self.said(parent.id, turn) if said.kind == "request"]
        request = message if message is not None else "".join(asked[-1:]) or "(what was asked is not known)"
        return self.start(
            request,
            title=title,
            model=parent.model,
            branch=parent.branch,
            by=by,
            parent=entry_types.Parent(parent.id, turn),
            detached=detached,
            before=before,
        )

    def attach(self, prefix: str) -> Task:
        """Opens a task to add to it without running it: notes, answers, or single turns of a detached task."""
        return self._task(self.find(prefix))

    def reconcile(self) -> list[str]:
        """Recovers tasks whose process died: turns their drafts into interrupted turns, and corrects the header's copies.
        Returns their ids. Costs one lookup when there are none."""
        seen = []
        for task_id, died in self._abandoned():
            try:
                name = self.find(task_id)
                if name.id != task_id:
                    continue
                task = self._task(name, 0.0)
            except RawkoError:
                continue  # it is gone, or another process holds it
            try:
                if task.recover() or died:
                    seen.append(task_id)
            except RawkoError:
                pass
            finally:
                task.close()
        return seen


class _Session(threading.local):
    """What one thread has looked up since it entered reading()."""

    names: dict[str, TaskName] | None = None
    readers: dict[str, TaskReader]


class IndexedStore(BaseStore):
    """A store with direct access to rows and bytes: files with SQLite, or PostgreSQL. Answers all queries about tasks."""

    journal: TaskFiles
    sync: SyncedIndex

    def __init__(self, root: Path, journal: TaskFiles, sync: SyncedIndex, warn: Callable[[str], None]) -> None:
        self.root, self.journal, self.sync, self._warn = root, journal, sync, warn
        self._session = _Session()

    @cached_property
    def redactor(self) -> Redactor:
        """Redacts every text before it goes into a task file, a draft, a blob or an export."""
        return redaction.redactor_for(self.root, self._warn)

    def close(self) -> None:
        self.sync.close()

    def said(self, prefix: str, up_to: int | None = None) -> list[Said]:
        """The requests, and the notes that are part of the conversation. Each is read with one seek."""
        name, index = self._caught_up(prefix), self.sync.index()
        last = None if up_to is None else queries.turn_place(index, name.id, up_to)
        found = []
        with self._opened(name) as reader:
            for offset, length in queries.request_places(index, name.id, up_to):
                entry = reader.entry_at(offset, length)
                if isinstance(entry, entry_types.Request):
                    found.append(Said(offset, "request", entry.text or "", entry_types.said_by(entry)))
            for offset, purpose in queries.notes_for(index, name.id):
                if purpose == entry_types.IN_CONTEXT and (last is None or offset <= last[1]):
                    note = reader.entry_at(offset, reader.size - offset)
                    if isinstance(note, entry_types.Note) and note.content:
                        found.append(Said(offset, "note", note.content, note.by))
        return sorted(found) or [Said(0, "request", "", entry_types.UNKNOWN_USER)]

    def memory(self, prefix: str) -> dict[str, Any]:
        """Values from the header, overridden by the latest note of each of these kinds."""
        name = self._caught_up(prefix)
        found: dict[str, Any] = {}
        with self._opened(name) as reader:
            header = reader.entry_at(0, reader.size)
            for section in header.sections if isinstance(header, entry_types.TaskHeader) else ():
                key = section.heading.lower().replace(" ", "_")
                if key in entry_types.MEMORY:
                    data = read_json(section.text)
                    found[key] = section.text if data is None else data
            for offset, purpose in queries.notes_for(self.sync.index(), name.id):
                if purpose in entry_types.MEMORY:
                    note = reader.entry_at(offset, reader.size - offset)
                    if isinstance(note, entry_types.Note):
                        found[purpose] = note.content if note.data is None else note.data
        return {key: found[key] for key in entry_types.MEMORY if found.get(key) is not None}

    def turn_rows(self, prefix: str, up_to: int | None = None, most: int | None = None) -> tuple[list[TurnRow], int]:
        """What the index knows about a task's turns, in order, without reading the file; and the number of turns. With ``most``,
        the first turn, and that many of the newest turns and decisions."""
        name = self._caught_up(prefix)
        return queries.turn_rows(self.sync.index(), name.id, up_to, most)

    def runs(self, prefix: str) -> list[RunRow]:
        """The runs of a task in order."""
        name = self._caught_up(prefix)
        return queries.runs(self.sync.index(), name.id)

    def files(self, prefix: str) -> list[tuple[int, str, str]]:
        """Files that a task touched: turn (0 means its result lists the file), operation, path."""
        name = self._caught_up(prefix)
        return queries.files(self.sync.index(), name.id)

    def snapshots(self, prefix: str) -> list[dict[str, Any]]:
        """All snapshots of the work tree that a task refers to."""
        name = self._caught_up(prefix)
        return queries.snapshots(self.sync.index(), name.id)

    def _caught_up(self, prefix: str, *, grown: bool = False) -> TaskName:
        """Finds a task and brings the index up to date with its file; in a session, only the first time."""
        names = self._session.names
        if names is not None and prefix in names:
            return names[prefix]
        name = self.find(prefix)
        if not names:
            self.sync.fresh()
        self.sync.catch_up(name, grown=grown)
        if names is not None:
            names[prefix] = names[name.id] = name
        return name

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Gives the current thread a consistent view: each task is found, opened and checked only once."""
        session = self._session
        if session.names is not None:
            yield
            return
        session.names, session.readers = {}, {}
        try:
            yield
        finally:
            for reader in session.readers.values():
                reader.close()
            session.names, session.readers = None, {}

    @contextmanager
    def _opened(self, name: TaskName) -> Iterator[TaskReader]:
        """A reader of the task; a session reuses one reader per task."""
        session = self._session
        if session.names is None:
            with self.journal.reader(name) as reader:
                yield reader
            return
        if name.id not in session.readers:
            session.readers[name.id] = self.journal.reader(name)
        yield session.readers[name.id]

    def position(self, prefix: str) -> Position:
        """Where a task ends, for a remote writer to continue from. Opens no files."""
        name = self._caught_up(prefix, grown=True)
        row = self.sync.index().row(name.id)
        if row is None:
            raise TaskNotFound(prefix)
        state = projection.Projector(name.id, row["file_path"], row).state
        return appended.Position(int(row["indexed_end"]), row["tail_seal"] or GENESIS, state)

    def holds(self, prefix: str, seal: str) -> bool:
        """Whether the task has a record with this seal."""
        name = self._caught_up(prefix, grown=True)
        return queries.holds(self.sync.index(), name.id, seal)

    def turn_output(self, call: ToolCall) -> str | None:
        """The output of a tool call, wherever it is kept."""
        return self.journal.output_of(call)

    def open_question(self, prefix: str) -> Turn | None:
        """The turn with the pending question."""
        name = self._caught_up(prefix)
        row = self.sync.index().row(name.id)
        return None if row is None or row["question"] is None else self.turn(name.id, row["question"])

    def find(self, prefix: str) -> TaskName:
        """The task whose id is, or uniquely starts with, ``prefix``."""
        return self.journal.find(prefix)

    def reader(self, prefix: str) -> TaskReader:
        return self.journal.reader(self.find(prefix))

    def add_clean_file(
        self, filename: str, path: Path, by: str | None = None
    ) -> tuple[TaskName | None, redaction.Found]:
        """Adds a whole task file from elsewhere; its secrets are removed before anything is stored."""
        return redaction.add_clean(cast("redaction.Places", self), self.redactor, filename, path, by)

    def explain(self, prefix: str) -> Iterator[redaction.Explained]:
        """What redaction removed from a task, and what it would remove now."""
        with self.reader(prefix) as reader:
            yield from redaction.explained(self, self.redactor, reader)

    def status(self, prefix: str) -> str:
        """The status from the records, or ``interrupted`` for a running task whose writer is gone."""
        name = self._caught_up(prefix, grown=True)
        row = self.sync.index().row(name.id)
        if row is None:
            raise TaskNotFound(prefix)
        status = str(row["status"] or PENDING)
        if status == RUNNING and not row["detached"] and self.journal.holder(name.id) is None:
            return INTERRUPTED
        return status

    def alive(self) -> set[str]:
        """The tasks that a process is running now."""
        return self.journal.alive()

    def drafted(self) -> set[str]:
        """Tasks with an unfinished live turn."""
        return self.journal.drafted()

    def put_blob(self, data: bytes) -> Blob:
        return self.journal.put_blob(data)

    def blob_bytes(self, blob: Blob) -> bytes | None:
        return self.journal.blob_bytes(blob)

    def history(self, wanted: TaskFilter) -> list[TaskSummary]:
        """Matching tasks, newest first by default."""
        alive = self.alive()
        return cast("list[TaskSummary]", self.sync.guarded(lambda index: queries.history(index, wanted, alive)))

    def summary(self, prefix: str) -> TaskSummary:
        """One task as shown in lists. Checks first whether its file was edited by hand."""
        name = self._caught_up(prefix)
        found = self.history(TaskFilter(ids=(name.id,)))
        if not found:
            raise TaskNotFound(prefix)
        return found[0]

    def children(self, task_id: str) -> list[tuple[str, int | None, str]]:
        """Tasks that name this one as their parent: id, turn, request."""
        return cast(
            "list[tuple[str, int | None, str]]",
            self.sync.guarded(lambda index: queries.children(index, task_id)),
        )

    def turn(self, prefix: str, number: int, *, row: TurnRow | None = None) -> Turn:
        """One turn, read with one seek whatever the file's size. With ``row``, the index is not queried."""
        name = self._caught_up(prefix)
        place = row[-3:] if row else queries.turn_place(self.sync.index(), name.id, number)
        if place is None:
            raise RawkoError(f"task {name.id} has no turn {number}")
        damaged, offset, length = place
        with self._opened(name) as reader:
            found = reader.turn_at(offset, length)
        if found is None:
            raise RawkoError(f"task {name.id} has no turn {number} any more")
        return replace(found, damaged=True) if damaged else found

    def entries(self, prefix: str, *, whole: bool = True) -> Iterator[tuple[str, Entry]]:
        """All blocks of a task's file, each with the kind of its record. Holds one block in memory at a time; with ``whole``,
        including its large sections."""
        with self.journal.reader(self.find(prefix)) as reader:
            yield from entries_of(reader, whole=whole)

    def blobs_of(self, prefix: str) -> dict[str, bytes]:
        """The blobs that a task refers to, by name. Leaves out missing ones."""
        found: dict[str, bytes] = {}
        for _, entry in self.entries(prefix):
            for blob in entry_types.blobs_of(entry) if isinstance(entry, entry_types.Turn) else ():
                content = self.journal.blob_bytes(blob)
                if content is not None:
                    found[blob.sha256] = content
        return found

    def events(self, prefix: str, after: str | None = None) -> Iterator[Event]:
        """Everything that has happened to a task so far, starting after a cursor."""
        return self._events(self.find(prefix), after).poll()

    def follow(
        self, prefix: str, after: str | None = None, *, until: Callable[[], bool] | None = None
    ) -> Iterator[Event | None]:
        """Like events(), then waits for new ones. Ends when the task is finished and its process has released it, or when
        ``until`` returns true. Yields None whenever there is nothing new, so that the caller can do other work."""
        name = self.find(prefix)
        reader, pace = self._events(name, after), self.pace()
        status = None
        while True:
            # Check this before polling, so that the poll below sees everything written before the release.
            status = status or self.status(name.id)
            held = status not in FINISHED or self.journal.holder(name.id) is not None
            happened = False
            for event in reader.poll():
                happened = True
                status = event.text if event.kind in ("status", "final") else status
                yield event
            if (status in FINISHED and not held) or (until is not None and until()):
                return
            if reader.is_gone and self.journal.holder(name.id) is None:
                return
            yield None
            self._rest(name.id, pace, happened)

    def _rest(self, task_id: str, pace: Pace, happened: bool) -> None:
        """Waits before polling again."""
        pace.wait(happened)

    def now(self, prefix: str) -> str:
        """The cursor after all sealed events of a task. Live events of a running turn come after it."""
        name = self._caught_up(prefix)
        end, seal = self.sync.index().position(name.id) or (0, None)
        if seal:
            return str(tasks_events.Cursor(end, seal[:8]))
        # An unsealed file has no position for a cursor except its start.
        last = ""
        for event in self._events(name, None).poll():
            last = last if event.live else event.cursor
        return last or str(tasks_events.Cursor())

    def cursors(self) -> dict[str, str]:
        """The cursor of every task, after everything that the index knows about it."""
        places = self.sync.fresh().positions()
        return {task_id: str(tasks_events.Cursor(end, seal[:8])) for task_id, (end, seal) in places.items() if seal}

    def active(self) -> set[str]:
        """Tasks that a process has open for writing."""
        return self.alive() | self.journal.marked()

    def event_reader(self, prefix: str, after: str | None = None) -> EventReader:
        """For callers that follow many tasks at once: poll it for new events at any time."""
        return self._events(self.find(prefix), after)

    def _events(self, name: TaskName, after: str | None) -> EventReader:
        def state_at(offset: int) -> TaskState | None:
            self.sync.fresh()
            self.sync.catch_up(name)
            found = queries.status_before(self.sync.index(), name.id, offset)
            return None if found is None else tasks_events.state_from(*found, name.id)

        return tasks_events.EventReader(self.journal, name, after, state_at)

    def search(self, query: str, wanted: TaskFilter | None = None, *, turns: bool = False) -> Answer:
        """Runs a search query (docs/search.md), including the latest append: one hit per task, or all hits with ``turns``."""
        return self._finder().search(query, wanted or TaskFilter(sort=RELEVANCE), turns=turns)

    @abstractmethod
    def _finder(self) -> Finder: ...

    def source(self, prefix: str) -> str | None:
        """Where a task was imported from, according to its header."""
        name = self.find(prefix)
        self.sync.fresh()
        row = self.sync.index().row(name.id)
        return None if row is None else row["source"]

    def by_source(self, prefix: str) -> dict[str, str]:
        """Tasks whose source starts with ``prefix``: source and id."""
        return cast("dict[str, str]", self.sync.guarded(lambda index: queries.by_source(index, prefix)))

    def last_note(self, prefix: str, kind: str) -> Note | None:
        """The latest note of a kind."""
        name = self._caught_up(prefix, grown=True)
        with self.journal.reader(name) as reader:
            for offset in queries.note_places(self.sync.index(), name.id):
                entry = reader.entry_at(offset, reader.size - offset)
                if isinstance(entry, entry_types.Note) and entry.kind == kind:
                    return entry
        return None

    def erase(self, prefix: str, *, by: str | None = None) -> str:
        """Deletes a task permanently, whether it is in the trash or not."""
        try:
            task_id = self.delete(prefix, by=by)
        except TaskNotFound as error:
            there = {each.id for each in self.trash() if each.id.startswith(prefix)}
            if prefix in there or len(there) == 1:
                task_id = prefix if prefix in there else there.pop()
            elif there:
                raise AmbiguousTask(prefix, sorted(there)) from None
            else:
                raise error from None
        self.empty_trash(only=task_id)
        return task_id

    @abstractmethod
    def delete(self, prefix: str, *, by: str | None = None) -> str: ...

    @abstractmethod
    def trash(self) -> list[InTrash]: ...

    @abstractmethod
    def empty_trash(self, before: datetime | None = None, *, only: str | None = None) -> list[InTrash]: ...

    def stats(self, wanted: TaskFilter, *, days: int = 30, top: int = 10) -> Stats:
        alive = self.alive()
        found = self.sync.guarded(lambda index: queries.stats(index, wanted, alive, days, top))
        return replace(cast("Stats", found), disk=self.disk())

    def disk(self) -> dict[str, int]:
        """Disk use in bytes, by purpose."""
        return self.journal.disk_use()

    def health(self) -> tuple[int, str, list[str]]:
        index = self.sync.fresh()
        return index.count(), index.name, []

    def concerns(self) -> list[tuple[str, str]]:
        alive = self.alive()
        found = queries.concerns(self.sync.fresh())
        return [(task_id, what) for task_id, what, growing in found if not (growing and task_id in alive)]


def entries_of(reader: TaskReader, *, whole: bool) -> Iterator[tuple[str, Entry]]:
    """All blocks of a task, each with the kind of its record."""
    for record in reader.records():
        if record.kind == "tail":
            yield record.kind, entry_types.Torn(length=record.torn)
        for block in record.blocks:
            entry = block.entry(reader.fetch if whole else None)
            if record.kind == "tail" and isinstance(entry, entry_types.Turn):
                # It was never finished, whatever its status says.
                entry = replace(entry, status="interrupted")
            elif record.kind == "damaged":
                entry = replace(entry, damaged=True)
            yield record.kind, entry
