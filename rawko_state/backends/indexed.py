"""A store whose rows and bytes are directly accessible: answers every query about tasks."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rawko_state.backends.base import BaseStore, entries_of
from rawko_state.errors import AmbiguousTask, RawkoError, TaskNotFound
from rawko_state.format.values import read_json
from rawko_state.index import queries
from rawko_state.lazy import lazy
from rawko_state.model.frozen import replace
from rawko_state.model.names import TaskName
from rawko_state.model.status import FINISHED, INTERRUPTED, PENDING, RUNNING
from rawko_state.store import RELEVANCE, Answer, InTrash, RunRow, Said, Stats, TaskFilter, TaskSummary, TurnRow, Usage

if TYPE_CHECKING:
    from rawko_state.backends import redaction
    from rawko_state.backends.folds import FoldedTask
    from rawko_state.backends.protocols import SyncedIndex, TaskFiles
    from rawko_state.format import seal, taken_back
    from rawko_state.format.reader import TaskReader
    from rawko_state.index import projection, survey
    from rawko_state.index import stats as index_stats
    from rawko_state.model import appended
    from rawko_state.model import entries as entry_types
    from rawko_state.model.appended import BeforeWrite, Position
    from rawko_state.model.entries import Blob, Entry, Note, TaskHeader, ToolCall, Turn
    from rawko_state.model.events import Event
    from rawko_state.model.state import TaskState
    from rawko_state.redact.redactor import Redactor
    from rawko_state.search.finder import Finder
    from rawko_state.tasks import events as tasks_events
    from rawko_state.tasks import task as tasks_task
    from rawko_state.tasks.events import EventReader, Pace
    from rawko_state.tasks.writer import Writer
else:
    redaction = lazy("rawko_state.backends.redaction")
    seal = lazy("rawko_state.format.seal")
    projection = lazy("rawko_state.index.projection")
    survey = lazy("rawko_state.index.survey")
    index_stats = lazy("rawko_state.index.stats")
    taken_back = lazy("rawko_state.format.taken_back")
    appended = lazy("rawko_state.model.appended")
    entry_types = lazy("rawko_state.model.entries")
    tasks_events = lazy("rawko_state.tasks.events")
    tasks_task = lazy("rawko_state.tasks.task")


class _Session(threading.local):
    """What one thread has looked up since it entered reading()."""

    names: dict[str, TaskName] | None = None
    readers: dict[str, TaskReader]


class _Viewed:
    """A task's bytes, as a fold sees them."""

    def __init__(self, journal: TaskFiles, name: TaskName) -> None:
        self._journal, self._name = journal, name

    def stamp(self) -> tuple[int, int, int, int]:
        return self._journal.look(self._name)

    def opened(self) -> TaskReader:
        return self._journal.reader(self._name)


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
                    found.append(Said(offset, "request", entry.text or "", entry_types.said_by(entry), entry.at))
            for offset, purpose in queries.notes_for(index, name.id):
                if purpose == entry_types.IN_CONTEXT and (last is None or offset <= last[1]):
                    note = reader.entry_at(offset, reader.size - offset)
                    if isinstance(note, entry_types.Note) and note.content:
                        found.append(Said(offset, "note", note.content, note.by, note.at))
        return sorted(found, key=lambda said: said.offset) or [Said(0, "request", "", entry_types.UNKNOWN_USER)]

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

    def turn_page(
        self, prefix: str, *, after: int = 0, beyond: int = -1, limit: int = 200, newest: bool = False
    ) -> list[TurnRow]:
        """Some of the turns, from the index."""
        name = self._caught_up(prefix)
        return queries.turn_page(self.sync.index(), name.id, after, beyond, limit, newest=newest)

    def notes(self, prefix: str, kind: str | None = None, *, last: int | None = None) -> Iterator[Note]:
        """The notes in order. Each is read with one seek."""
        name = self._caught_up(prefix, grown=True)
        places = queries.note_places(self.sync.index(), name.id)
        with self._opened(name) as reader:
            if last is not None:
                newest = self._notes_at(reader, places, kind)
                yield from reversed([note for note, _ in zip(newest, range(last), strict=False)])
            else:
                yield from self._notes_at(reader, reversed(places), kind)

    @staticmethod
    def _notes_at(reader: TaskReader, places: Iterable[int], kind: str | None) -> Iterator[Note]:
        taken = taken_back.TakenBack(reader)
        for offset in places:
            entry = reader.entry_at(offset, reader.size - offset)
            if isinstance(entry, entry_types.Note) and (kind is None or entry.kind == kind):
                yield taken.left_out(entry, offset)

    def _viewed(self, prefix: str) -> tuple[str, FoldedTask]:
        name = self.find(prefix)
        return name.id, _Viewed(self.journal, name)

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
            self.sync.fresh(name.id)
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
        return appended.Position(int(row["indexed_end"]), row["tail_seal"] or seal.GENESIS, state)

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

    def count(self, wanted: TaskFilter) -> int:
        """How many tasks match."""
        alive = self.alive()
        return cast("int", self.sync.guarded(lambda index: queries.count(index, wanted, alive)))

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
        place = (row.damaged, row.offset, row.length) if row else queries.turn_place(self.sync.index(), name.id, number)
        if place is None:
            raise RawkoError(f"Task {name.id} has no turn {number}.")
        damaged, offset, length = place
        with self._opened(name) as reader:
            found = reader.turn_at(offset, length)
        if found is None:
            raise RawkoError(f"Turn {number} of task {name.id} no longer exists.")
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
            self.sync.fresh(name.id)
            self.sync.catch_up(name)
            found = queries.status_before(self.sync.index(), name.id, offset)
            return None if found is None else tasks_events.state_from(*found, name.id)

        return tasks_events.EventReader(self.journal, name, after, state_at)

    def search(self, query: str, wanted: TaskFilter | None = None, *, turns: bool = False) -> Answer:
        """Runs a query (docs/reference/query.md), including the latest append: one hit per task, or all hits with ``turns``."""
        return self._finder().search(query, wanted or TaskFilter(sort=RELEVANCE), turns=turns)

    @abstractmethod
    def _finder(self) -> Finder: ...

    def _making(self) -> AbstractContextManager[object]:
        """Held while a source is looked up and its task made. A database that does both in one transaction needs none."""
        return nullcontext()

    def _find_or_new(
        self, header: TaskHeader, entries: Sequence[Entry], before: BeforeWrite | None
    ) -> tuple[Writer, bool]:
        found = self._with_source(header.source or "")
        if found is not None:
            return found, False
        with self._making():
            found = self._with_source(header.source or "")
            if found is not None:
                return found, False
            return self._new_writer(header, entries, attached=False, before=before), True

    def _with_source(self, source: str) -> Writer | None:
        task_id = self.find_source(source)
        try:
            return None if task_id is None else self._open_writer(self.find(task_id))
        except TaskNotFound:
            return None  # it was deleted just now

    def find_source(self, source: str) -> str | None:
        """The oldest task with exactly this source."""
        return cast("str | None", self.sync.guarded(lambda index: queries.find_source(index, source)))

    def source(self, prefix: str) -> str | None:
        """The first session that a task records: where it was imported from, according to its header."""
        name = self.find(prefix)
        self.sync.fresh(name.id)
        row = self.sync.index().row(name.id)
        return None if row is None or row["source"] is None else row["source"].partition("\n")[0]

    def by_source(self, prefix: str) -> dict[str, str]:
        """Tasks with a source that starts with ``prefix``: source and id. A task that was handed over has several."""
        return cast("dict[str, str]", self.sync.guarded(lambda index: queries.by_source(index, prefix)))

    def last_note(self, prefix: str, kind: str) -> Note | None:
        """The latest note of a kind."""
        name = self._caught_up(prefix, grown=True)
        with self.journal.reader(name) as reader:
            return next(self._notes_at(reader, queries.note_places(self.sync.index(), name.id), kind), None)

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
        found = self.sync.guarded(lambda index: index_stats.stats(index, wanted, alive, days, top))
        return replace(cast("Stats", found), disk=self.disk())

    def paths(self, part: str = "", *, after: str = "", limit: int = 200) -> list[tuple[str, int]]:
        found = self.sync.guarded(lambda index: queries.paths(index, part, after, limit))
        return cast("list[tuple[str, int]]", found)

    def used(self, ids: Sequence[str]) -> dict[str, tuple[Usage, ...]]:
        return index_stats.used(self.sync.index(), ids)

    def files_changed(self, ids: Sequence[str]) -> dict[str, int]:
        return index_stats.files_changed(self.sync.index(), ids)

    def disk(self) -> dict[str, int]:
        """Disk use in bytes, by purpose."""
        return self.journal.disk_use()

    def health(self) -> tuple[int, str, list[str]]:
        index = self.sync.fresh()
        return index.count(), index.name, []

    def concerns(self) -> list[tuple[str, str]]:
        alive = self.alive()
        found = survey.concerns(self.sync.fresh())
        return [(task_id, what) for task_id, what, growing in found if not (growing and task_id in alive)]
