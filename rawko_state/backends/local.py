"""The local store: task files in the project. The embedded default; needs nothing running."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rawko_state.backends.catalogue import Catalogue
from rawko_state.errors import InvalidValue, RawkoError, TaskNotFound
from rawko_state.index import queries
from rawko_state.journal.journal import Journal
from rawko_state.journal.layout import TaskName, parse_name
from rawko_state.model.status import FINISHED
from rawko_state.store import RELEVANCE, Answer, Event, Stats, TaskFilter, TaskSummary, TurnRow

# What only some calls need is imported by them: `rawko history` must feel instant.
if TYPE_CHECKING:
    from rawko_state.backends.events import EventReader
    from rawko_state.backends.finder import Finder
    from rawko_state.backends.session import Task
    from rawko_state.index.database import Index
    from rawko_state.journal.chain import Chain
    from rawko_state.journal.reader import TaskReader
    from rawko_state.journal.verify import Verdict
    from rawko_state.model.entries import Entry, Parent, ToolCall, Turn
    from rawko_state.model.state import TaskState


class LocalStore:
    """The tasks of one project."""

    def __init__(self, root: Path | str, *, warn: Callable[[str], None] | None = None) -> None:
        """``warn`` is told, once each, of trouble that is dealt with: an index that is rebuilt or falls behind."""
        self.root = Path(root).resolve()
        self.journal = Journal(self.root)
        self._tell = _warn if warn is None else warn
        self.catalogue = Catalogue(self.journal, self._tell)

    def close(self) -> None:
        self.catalogue.close()

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
    ) -> Task:
        """Starts a task; its file is durable when this returns.

        An attached task (the default) is run by this process until it is finished or closed; a detached one may be written
        to by one process after another. ``fields`` become ``X-Name:`` lines of the header.
        """
        from rawko_state.backends.session import Task
        from rawko_state.model.entries import Execution, Field, Request, Section, TaskHeader

        header = TaskHeader(
            id="",
            created=created or datetime.now(timezone.utc).replace(microsecond=0),
            status="running",
            title=title,
            parent=parent,
            agent=agent,
            model=model,
            provider=provider,
            repo=repo,
            branch=branch,
            commit=commit,
            cwd=cwd,
            runtime=runtime,
            labels=dict(labels or {}),
            user=user,
            writer="detached" if detached else None,
            source=source,
            extra=tuple(Field(_own(name), value) for name, value in (fields or {}).items()),
            sections=tuple(Section(name, text) for name, text in (sections or {}).items()),
        )
        new = self.journal.create(
            header, [Request(text=request, by=by), Execution()], lease=not detached, taken=self._taken()
        )
        projector = self.catalogue.created(new.name, new.stamps)
        return Task(self.catalogue, new.name, new.chain, new.lease, projector)

    def _taken(self) -> Callable[[str], bool] | None:
        """Looks an id up in the index, if that knows the whole folder as it is now."""
        try:
            index = self.catalogue.index()
            if index.meta("tasks_stamp") == self.journal.layout.stamp():
                return lambda task_id: index.position(task_id) is not None
        except RawkoError:
            pass
        return None

    def resume(
        self,
        prefix: str,
        *,
        by: str | None = None,
        wait: float = 0.0,
        detached: bool = False,
        message: str | None = None,
    ) -> Task:
        """Opens a task to go on with it: takes the lease, turns what a dead writer left into an interrupted turn.

        With a message, a finished task gets a second run that begins with it; in another one it is the user's next turn.
        """
        from rawko_state.backends.session import Task

        name = self.find(prefix)
        lease = self.journal.lease(name.id, wait)
        try:
            task = Task(self.catalogue, name, self._open(name), lease)
        except BaseException:
            lease.release()
            raise
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
    ) -> Task:
        """A new task that goes on after a turn of another one, which stays as it is. Its turns begin with the next number."""
        from rawko_state.model.entries import Parent

        parent = self.summary(prefix)
        first = 1 if parent.parent is None or "@" not in parent.parent else int(parent.parent.partition("@")[2]) + 1
        if not first <= turn <= parent.turns:
            raise InvalidValue(f"task {parent.id} has turns {first} to {parent.turns}, and no turn {turn}")
        self.turn(parent.id, turn)  # it must be there, not only be within the range
        request = message if message is not None else self.requests(parent.id, turn)[-1]
        return self.start(
            request,
            title=title,
            model=parent.model,
            branch=parent.branch,
            by=by,
            parent=Parent(parent.id, turn),
            detached=detached,
        )

    def requests(self, prefix: str, up_to: int | None = None) -> list[str]:
        """What was asked, run by run, by one seek each; with ``up_to``, in the runs that had begun by that turn."""
        from rawko_state.model.entries import Request

        name = self.find(prefix)
        self.catalogue.fresh()
        self.catalogue.catch_up(name)
        found = []
        with self.journal.reader(name) as reader:
            for offset, length in queries.request_places(self.catalogue.index(), name.id, up_to):
                entry = reader.entry_at(offset, length)
                if isinstance(entry, Request):
                    found.append(entry.text or "")
        return found or [""]

    def reconcile(self) -> list[str]:
        """Sees to the tasks whose process has died: what it had said becomes an interrupted turn, and the header's copies are
        made right. Returns their ids. Costs a look into one folder when there are none."""
        seen = []
        for task_id in self.journal.abandoned():
            try:
                name = self.find(task_id)
                lease = self.journal.lease(task_id)
            except RawkoError:
                continue  # it is gone, or somebody is at it
            try:
                from rawko_state.backends.session import Task

                task = Task(self.catalogue, name, self._open(name), lease)
            except RawkoError:
                lease.release()
                continue
            try:
                task.recover()
                seen.append(task_id)
            except RawkoError:
                pass
            finally:
                task.close()
        return seen

    def to_resume(self) -> str | None:
        """The newest task that was interrupted or waits for an answer."""
        found = self.history(TaskFilter(status=("interrupted", "waiting", "paused"), limit=1))
        return found[0].id if found else None

    def turn_rows(self, prefix: str, up_to: int | None = None, most: int | None = None) -> tuple[list[TurnRow], int]:
        """What the index knows of the turns of a task, in order, none of it read from the file; and how many turns there are.
        With ``most``, the first, and the newest turns and decisions, so many of each."""
        name = self.find(prefix)
        self.catalogue.fresh()
        self.catalogue.catch_up(name)
        return queries.turn_rows(self.catalogue.index(), name.id, up_to, most)

    def turn_output(self, call: ToolCall) -> str | None:
        """The output of a tool call, wherever it is kept."""
        return self.journal.output_of(call)

    def snapshot(self, prefix: str, turn: int) -> dict[str, Any] | None:
        """The last snapshot of the work tree at or before a turn, its parent's included."""
        summary = self.summary(prefix)
        found = queries.snapshot_at(self.catalogue.index(), summary.id, turn)
        if found is None and summary.parent and "@" in summary.parent:
            parent, _, at = summary.parent.partition("@")
            return self.snapshot(parent, min(turn, int(at)))
        return found

    def attach(self, prefix: str) -> Task:
        """Opens a task to add to it without running it: notes, answers, single turns of a detached task."""
        from rawko_state.backends.session import Task

        name = self.find(prefix)
        return Task(self.catalogue, name, self._open(name), None)

    def _open(self, name: TaskName) -> Chain:
        return self.journal.open(name, self.catalogue.checkpoint(name))

    def find(self, prefix: str) -> TaskName:
        """The one task whose id is, or starts with, this. The index is asked first, the folder where that does not help."""
        try:
            row = self.catalogue.index().row(prefix)
            name = parse_name(Path(row["file_path"]).name) if row else None
            if name is not None and self.journal.layout.path(name).exists():
                return name
        except RawkoError:
            pass
        return self.journal.find(prefix)

    def reader(self, prefix: str) -> TaskReader:
        return self.journal.reader(self.find(prefix))

    def status(self, prefix: str) -> str:
        """What the records say, or ``interrupted`` for a running task whose writer is gone."""
        name = self.find(prefix)
        chain = self._open(name)
        try:
            state = chain.state
        finally:
            chain.close()
        if state.status == "running" and not state.detached and self.journal.holder(name.id) is None:
            return "interrupted"
        return state.status

    def alive(self) -> set[str]:
        """The tasks that a process is running now."""
        found = set()
        for path in self.journal.layout.leases():
            task_id = path.name.removesuffix(".lease")
            if self.journal.holder(task_id) is not None:
                found.add(task_id)
        return found

    def history(self, wanted: TaskFilter) -> list[TaskSummary]:
        """The tasks that match, newest first unless told otherwise."""
        alive = self.alive()
        return cast("list[TaskSummary]", self.catalogue.guarded(lambda index: queries.history(index, wanted, alive)))

    def summary(self, prefix: str) -> TaskSummary:
        """One task as a list shows it, after a look whether its file was edited by hand."""
        name = self.find(prefix)
        self.catalogue.fresh()
        self.catalogue.catch_up(name)
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

        name = self.find(prefix)
        self.catalogue.fresh()
        self.catalogue.catch_up(name)
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
        from rawko_state.model.entries import Torn, Turn

        with self.journal.reader(self.find(prefix)) as reader:
            for record in reader.records():
                if record.kind == "tail":
                    yield record.kind, Torn(length=record.torn)
                for block in record.blocks:
                    entry = block.entry(reader.fetch if whole else None)
                    if record.kind == "tail" and isinstance(entry, Turn):
                        # Whatever it says of itself, it was not finished.
                        entry = replace(entry, status="interrupted")
                    yield record.kind, entry

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

    def place(self, filename: str, data: bytes, blobs: Sequence[bytes] = ()) -> TaskName | None:
        """Puts a whole task file into the project, as it is, and its blobs before it. None when it is there already."""
        name = parse_name(filename)
        if name is None:
            raise InvalidValue(f"not the name of a task file: {filename!r}")
        for content in blobs:
            self.journal.put_blob(content)
        return name if self.journal.place(name, data) else None

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
            yield None
            pace.wait(happened)

    def now(self, prefix: str) -> str:
        """The cursor after everything that has happened to a task; what its running turn has said so far follows it."""
        from rawko_state.backends.events import Cursor

        name = self.find(prefix)
        self.catalogue.fresh()
        self.catalogue.catch_up(name)
        end, seal = self.catalogue.index().position(name.id) or (0, None)
        return str(Cursor(end, seal[:8]) if seal else Cursor())

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

    def fold(self, step: Callable[[int, int], None] | None = None, *, wait: bool = False) -> int:
        """Takes what is new into the search index. Searches find it without that, only slower. Returns how many bytes."""
        return self._finder().fold(step=step, wait=wait)

    def unfolded(self) -> int:
        """How many bytes of the history the search index has not taken in."""
        return self._finder().tail_bytes()

    def can_fold(self) -> bool:
        """Whether there is a place for a search index, and nobody is writing to it just now."""
        from rawko_state.backends.folding import is_busy

        return not is_busy(self.catalogue.index(), self.journal)

    def search_trouble(self) -> str | None:
        """Why the search index cannot be used, if so."""
        return self._finder().trouble()

    def _finder(self) -> Finder:
        from rawko_state.backends.finder import Finder

        return Finder(self.catalogue, self.alive, self._tell)

    def stats(self, wanted: TaskFilter, *, days: int = 30, top: int = 10) -> Stats:
        alive = self.alive()
        found = self.catalogue.guarded(lambda index: queries.stats(index, wanted, alive, days, top))
        return replace(cast("Stats", found), disk=self.disk())

    def disk(self) -> dict[str, int]:
        """Bytes on the disk, by what they are for."""
        return self.journal.disk_use()

    def reindex(
        self, step: Callable[[int, int], None] | None = None, folding: Callable[[int, int], None] | None = None
    ) -> list[tuple[str, str]]:
        """Rebuilds the index and the search index from the files. Returns the tasks whose files could not be fully read, and
        why. ``step`` is told of files done and in all, ``folding`` of bytes."""
        from rawko_state.backends.folding import fold_anew, locked

        self.journal.layout.make()
        with contextlib.ExitStack() as stack:
            mine = False
            try:
                mine = stack.enter_context(locked(self.catalogue.index(), wait=True))
            except RawkoError as trouble:
                self._tell(f"{trouble}; searches read the task files")

            def then(index: Index) -> None:
                try:
                    if mine:
                        fold_anew(index, self.journal, folding)
                except (RawkoError, OSError) as trouble:
                    self._tell(f"{trouble}; searches read the task files")

            return self.catalogue.reindex(step, then)

    def verify(self, prefix: str | None = None, *, repair: bool = False) -> Iterator[Verdict]:
        """Walks one chain, or all of them in order of their names."""
        from rawko_state.journal.verify import verify

        layout = self.journal.layout
        names = [self.find(prefix)] if prefix else sorted(layout.names())
        seen: set[str] = set()
        for name in names:
            verdict = verify(layout, name)
            if repair and verdict.can_repair:
                # A repair appends too, so the index must hear of it, also if this process dies.
                mark = self.catalogue.mark(name.id)
                verdict = verify(layout, name, repair=True)
                try:
                    self.catalogue.catch_up(name, grown=True)
                    self.catalogue.settle(mark, current=True)
                except RawkoError:
                    self.catalogue.settle(mark, current=False)
            if name.id in seen:
                verdict.faults.append(f"a second file with the id {name.id}; the first one counts")
            seen.add(name.id)
            yield verdict


def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=2)


def _own(name: str) -> str:
    return name if name.startswith("X-") else f"X-{name}"
