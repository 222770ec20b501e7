"""What a project is asked: lists, one task, its turns and events, searches, figures. Nothing here writes to a task file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rawko_state.backends.ports import Bytes, Known
from rawko_state.errors import RawkoError, TaskNotFound
from rawko_state.index import queries
from rawko_state.model.names import TaskName
from rawko_state.model.status import FINISHED, INTERRUPTED, PENDING, RUNNING
from rawko_state.store import RELEVANCE, Answer, RunRow, Stats, TaskFilter, TaskSummary, TurnRow

# What only some calls need is imported by them: `rawko history` must feel instant.
if TYPE_CHECKING:
    from rawko_state.backends.events import EventReader, Pace
    from rawko_state.backends.finder import Finder
    from rawko_state.journal.reader import TaskReader
    from rawko_state.model.entries import Entry, Note, ToolCall, Turn
    from rawko_state.model.events import Event
    from rawko_state.model.state import TaskState
    from rawko_state.redact.redactor import Redactor


class Reads(ABC):
    """The tasks of one project or workspace, to be read."""

    journal: Bytes
    catalogue: Known

    def __init__(self, root: Path, journal: Bytes, catalogue: Known, tell: Callable[[str], None]) -> None:
        self.root, self.journal, self.catalogue, self._tell = root, journal, catalogue, tell

    @cached_property
    def redactor(self) -> Redactor:
        """What every text passes on its way into a task file, a draft, a blob or an export."""
        from rawko_state.backends.secrets import redactor_for

        return redactor_for(self.root, self._tell)

    def close(self) -> None:
        self.catalogue.close()

    def requests(self, prefix: str, up_to: int | None = None) -> list[str]:
        """What was asked, run by run, by one seek each; with ``up_to``, in the runs that had begun by that turn."""
        from rawko_state.model.entries import Request

        name = self._caught_up(prefix)
        found = []
        with self.journal.reader(name) as reader:
            for offset, length in queries.request_places(self.catalogue.index(), name.id, up_to):
                entry = reader.entry_at(offset, length)
                if isinstance(entry, Request):
                    found.append(entry.text or "")
        return found or [""]

    def to_resume(self) -> str | None:
        """The newest task that was interrupted or waits for an answer."""
        found = self.history(TaskFilter(status=("interrupted", "waiting", "paused"), limit=1))
        return found[0].id if found else None

    def turn_rows(self, prefix: str, up_to: int | None = None, most: int | None = None) -> tuple[list[TurnRow], int]:
        """What the index knows of the turns of a task, in order, none of it read from the file; and how many turns there are.
        With ``most``, the first, and the newest turns and decisions, so many of each."""
        name = self._caught_up(prefix)
        return queries.turn_rows(self.catalogue.index(), name.id, up_to, most)

    def runs(self, prefix: str) -> list[RunRow]:
        """The runs of a task in order."""
        name = self._caught_up(prefix)
        return queries.runs(self.catalogue.index(), name.id)

    def files(self, prefix: str) -> list[tuple[int, str, str]]:
        """What a task touched: turn (0: its result says so), operation, path."""
        name = self._caught_up(prefix)
        return queries.files(self.catalogue.index(), name.id)

    def snapshots(self, prefix: str) -> list[dict[str, Any]]:
        """Every snapshot of the work tree that a task names."""
        name = self._caught_up(prefix)
        return queries.snapshots(self.catalogue.index(), name.id)

    def _caught_up(self, prefix: str, *, grown: bool = False) -> TaskName:
        """The task, with the index as fresh as its file."""
        name = self.find(prefix)
        self.catalogue.fresh()
        self.catalogue.catch_up(name, grown=grown)
        return name

    def standing(self, prefix: str) -> tuple[TaskState, str, int]:
        """A task's state, its last seal, and where that stands: what a writer who is far away goes on from. Opens nothing."""
        from rawko_state.format.seal import GENESIS
        from rawko_state.index.projection import Projector

        name = self._caught_up(prefix, grown=True)
        row = self.catalogue.index().row(name.id)
        if row is None:
            raise TaskNotFound(prefix)
        return Projector(name.id, row["file_path"], row).state, row["tail_seal"] or GENESIS, int(row["indexed_end"])

    def holds(self, prefix: str, seal: str) -> bool:
        """Whether a record with this seal is there."""
        name = self._caught_up(prefix, grown=True)
        return queries.holds(self.catalogue.index(), name.id, seal)

    def turn_output(self, call: ToolCall) -> str | None:
        """The output of a tool call, wherever it is kept."""
        return self.journal.output_of(call)

    def snapshot(self, prefix: str, turn: int) -> dict[str, Any] | None:
        """The last snapshot of the work tree at or before a turn, its parents' included."""
        seen: set[str] = set()
        while True:
            summary = self.summary(prefix)
            found = queries.snapshot_at(self.catalogue.index(), summary.id, turn)
            if found is not None or not summary.parent or "@" not in summary.parent or summary.id in seen:
                return found
            seen.add(summary.id)
            prefix, _, at = summary.parent.partition("@")
            turn = min(turn, int(at))

    def open_question(self, prefix: str) -> Turn | None:
        """The turn whose question has no answer yet."""
        name = self._caught_up(prefix)
        row = self.catalogue.index().row(name.id)
        return None if row is None or row["question"] is None else self.turn(name.id, row["question"])

    def find(self, prefix: str) -> TaskName:
        """The one task whose id is, or starts with, this."""
        return self.journal.find(prefix)

    def reader(self, prefix: str) -> TaskReader:
        return self.journal.reader(self.find(prefix))

    def status(self, prefix: str) -> str:
        """What the records say, or ``interrupted`` for a running task whose writer is gone."""
        name = self._caught_up(prefix, grown=True)
        row = self.catalogue.index().row(name.id)
        if row is None:
            raise TaskNotFound(prefix)
        status = str(row["status"] or PENDING)
        if status == RUNNING and not row["detached"] and self.journal.holder(name.id) is None:
            return INTERRUPTED
        return status

    def alive(self) -> set[str]:
        """The tasks that a process is running now."""
        return self.journal.alive()

    def history(self, wanted: TaskFilter) -> list[TaskSummary]:
        """The tasks that match, newest first unless told otherwise."""
        alive = self.alive()
        return cast("list[TaskSummary]", self.catalogue.guarded(lambda index: queries.history(index, wanted, alive)))

    def summary(self, prefix: str) -> TaskSummary:
        """One task as a list shows it, after a look whether its file was edited by hand."""
        name = self._caught_up(prefix)
        found = self.history(TaskFilter(ids=(name.id,)))
        if not found:
            raise TaskNotFound(prefix)
        return found[0]

    def children(self, task_id: str) -> list[tuple[str, int | None, str]]:
        """The tasks that name this one as their parent: id, turn, request."""
        return cast(
            "list[tuple[str, int | None, str]]",
            self.catalogue.guarded(lambda index: queries.children(index, task_id)),
        )

    def turn(self, prefix: str, number: int) -> Turn:
        """One turn, by one seek, whatever the size of the file."""
        from rawko_state.format.scan import Scan
        from rawko_state.model.entries import Turn

        name = self._caught_up(prefix)
        place = queries.turn_place(self.catalogue.index(), name.id, number)
        if place is None:
            raise RawkoError(f"task {name.id} has no turn {number}")
        with self.journal.reader(name) as reader:
            offset, length = place
            for record in Scan(BytesIO(reader.fetch(offset, length)).read, start=offset):
                for block in record.blocks:
                    entry = block.entry(lambda at, size: reader.fetch(at, size))
                    if isinstance(entry, Turn):
                        return entry
        raise RawkoError(f"task {name.id} has no turn {number} any more")

    def entries(self, prefix: str, *, whole: bool = True) -> Iterator[tuple[str, Entry]]:
        """Everything that a task's file says, block by block: the kind of its record, and the block. One block at a time is
        held; with ``whole`` its large sections too."""
        with self.journal.reader(self.find(prefix)) as reader:
            yield from entries_of(reader, whole=whole)

    def blobs_of(self, prefix: str) -> dict[str, bytes]:
        """The long outputs that a task refers to, as far as they are there, by their names."""
        from rawko_state.model.entries import ToolCall, Turn

        found: dict[str, bytes] = {}
        for _, entry in self.entries(prefix):
            for call in entry.tools if isinstance(entry, Turn) else ():
                if isinstance(call, ToolCall) and call.blob is not None:
                    content = self.journal.blob_bytes(call.blob)
                    if content is not None:
                        found[call.blob.sha256] = content
        return found

    def events(self, prefix: str, after: str | None = None) -> Iterator[Event]:
        """Everything that has happened to a task, from a cursor on, up to now."""
        return self._events(self.find(prefix), after).poll()

    def follow(
        self, prefix: str, after: str | None = None, *, until: Callable[[], bool] | None = None
    ) -> Iterator[Event | None]:
        """The same, and what happens from now on, as it happens. Ends when the task has been finished and its process has let
        go of it, or when ``until`` says so; None comes whenever there is nothing new, so that one can do other things."""
        from rawko_state.backends.events import Pace

        name = self.find(prefix)
        reader, pace = self._events(name, after), Pace()
        status = None
        while True:
            # Before the look at the file: what is written until it is let go of is seen below.
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
        """Waits until it is worth looking again."""
        pace.wait(happened)

    def now(self, prefix: str) -> str:
        """The cursor after everything that has happened to a task; what its running turn has said so far follows it."""
        from rawko_state.backends.events import Cursor

        name = self._caught_up(prefix)
        end, seal = self.catalogue.index().position(name.id) or (0, None)
        if seal:
            return str(Cursor(end, seal[:8]))
        # An unsealed file has no place to stand on but its beginning.
        last = ""
        for event in self._events(name, None).poll():
            last = last if event.live else event.cursor
        return last or str(Cursor())

    def cursors(self) -> dict[str, str]:
        """For every task the cursor after all that the index knows of it."""
        from rawko_state.backends.events import Cursor

        places = self.catalogue.fresh().positions()
        return {task_id: str(Cursor(end, seal[:8])) for task_id, (end, seal) in places.items() if seal}

    def active(self) -> set[str]:
        """The tasks that some process has open for writing now."""
        return self.alive() | self.journal.marked()

    def event_reader(self, prefix: str, after: str | None = None) -> EventReader:
        """For those who follow many tasks at once: ask it for what is new, whenever."""
        return self._events(self.find(prefix), after)

    def _events(self, name: TaskName, after: str | None) -> EventReader:
        from rawko_state.backends.events import EventReader, state_from

        def state_at(offset: int) -> TaskState | None:
            self.catalogue.fresh()
            self.catalogue.catch_up(name)
            found = queries.status_before(self.catalogue.index(), name.id, offset)
            return None if found is None else state_from(*found, name.id)

        return EventReader(self.journal, name, after, state_at)

    def search(self, query: str, wanted: TaskFilter | None = None, *, turns: bool = False) -> Answer:
        """What a query finds (docs/search.md), fresh to the last append: one hit a task, or with ``turns`` every one."""
        return self._finder().search(query, wanted or TaskFilter(sort=RELEVANCE), turns=turns)

    @abstractmethod
    def _finder(self) -> Finder: ...

    def source(self, prefix: str) -> str | None:
        """Where a task came from, as its header says."""
        name = self.find(prefix)
        self.catalogue.fresh()
        row = self.catalogue.index().row(name.id)
        return None if row is None else row["source"]

    def by_source(self, prefix: str) -> dict[str, str]:
        """The tasks whose header says that they came from there: what it says, and their ids."""
        return cast("dict[str, str]", self.catalogue.guarded(lambda index: queries.by_source(index, prefix)))

    def last_note(self, prefix: str, kind: str) -> Note | None:
        """The last note of a kind."""
        from rawko_state.model.entries import Note

        name = self._caught_up(prefix, grown=True)
        with self.journal.reader(name) as reader:
            for offset in queries.note_places(self.catalogue.index(), name.id):
                entry = reader.entry_at(offset, reader.size - offset)
                if isinstance(entry, Note) and entry.kind == kind:
                    return entry
        return None

    def stats(self, wanted: TaskFilter, *, days: int = 30, top: int = 10) -> Stats:
        alive = self.alive()
        found = self.catalogue.guarded(lambda index: queries.stats(index, wanted, alive, days, top))
        return replace(cast("Stats", found), disk=self.disk())

    def disk(self) -> dict[str, int]:
        """Bytes on the disk, by what they are for."""
        return self.journal.disk_use()


def entries_of(reader: TaskReader, *, whole: bool) -> Iterator[tuple[str, Entry]]:
    """Everything that a task's bytes say, block by block: the kind of its record, and the block."""
    from rawko_state.model.entries import Torn, Turn

    for record in reader.records():
        if record.kind == "tail":
            yield record.kind, Torn(length=record.torn)
        for block in record.blocks:
            entry = block.entry(reader.fetch if whole else None)
            if record.kind == "tail" and isinstance(entry, Turn):
                # Whatever it says of itself, it was not finished.
                entry = replace(entry, status="interrupted")
            yield record.kind, entry
