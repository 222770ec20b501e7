"""What all stores share: opening tasks for writing. Only the writer differs between backends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rawko_state.errors import ChainMoved, InvalidValue, RawkoError
from rawko_state.lazy import lazy
from rawko_state.model import names
from rawko_state.model.frozen import replace
from rawko_state.model.names import TaskName
from rawko_state.store import RecordAt, Said, TaskFilter, TaskSummary, TurnRow

if TYPE_CHECKING:
    from typing_extensions import Self

    from rawko_state.backends import folds
    from rawko_state.backends.folds import FoldedTask, Folds
    from rawko_state.config import settings
    from rawko_state.format import taken_back
    from rawko_state.format.reader import TaskReader
    from rawko_state.model import entries as entry_types
    from rawko_state.model.appended import BeforeWrite
    from rawko_state.model.entries import Entry, Note, Parent, TaskHeader, Turn
    from rawko_state.redact.redactor import Redactor
    from rawko_state.store.contract import BulkWriter, SecretsFound
    from rawko_state.tasks import events as tasks_events
    from rawko_state.tasks import task as tasks_task
    from rawko_state.tasks.events import Pace
    from rawko_state.tasks.task import Task
    from rawko_state.tasks.writer import Writer
else:
    folds = lazy("rawko_state.backends.folds")
    settings = lazy("rawko_state.config.settings")
    taken_back = lazy("rawko_state.format.taken_back")
    entry_types = lazy("rawko_state.model.entries")
    tasks_events = lazy("rawko_state.tasks.events")
    tasks_task = lazy("rawko_state.tasks.task")


_PAGE: Final = 200


def _newest_state(text: str | None, entry: Entry) -> str | None:
    import json

    found = entry.state if isinstance(entry, entry_types.Turn) else None
    return text if found is None else json.dumps(found)


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
    def _find_or_new(
        self, header: TaskHeader, entries: Sequence[Entry], before: BeforeWrite | None
    ) -> tuple[Writer, bool]:
        """Opens the task with the header's source, or creates it, detached. Returns whether it was created. Of any number of
        processes that do this at once, one creates the task."""

    @abstractmethod
    def _open_writer(self, name: TaskName, lease: float | None = None) -> Writer:
        """Opens a task. With ``lease``, takes its lease too, waiting up to that many seconds for it."""

    @abstractmethod
    def _abandoned(self) -> list[tuple[str, bool]]:
        """Tasks whose process died or released them in the middle of a turn, and whether it died."""

    root: Path
    """The project whose settings apply."""

    @abstractmethod
    def _viewed(self, prefix: str) -> tuple[str, FoldedTask]:
        """A task's id, and its bytes."""

    @abstractmethod
    def turn_page(
        self, prefix: str, *, after: int = 0, beyond: int = -1, limit: int = 200, newest: bool = False
    ) -> list[TurnRow]: ...

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

    def redact_rest(self, *, dry_run: bool = False, by: str | None = None) -> Sequence[SecretsFound]:
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
        id: str | None = None,
        exact: bool = False,
        fields: Mapping[str, str] | None = None,
        sections: Mapping[str, str] | None = None,
        before: BeforeWrite | None = None,
    ) -> Task:
        """Starts a task; its file is durable when this returns.

        An attached task (the default) is run by this process until it is finished or closed. A detached task may be written to by
        one process after another. ``fields`` become ``X-Name:`` lines of the header. ``before`` is called with the
        first record just before the task is created. If the setting ``record.surroundings`` allows it, missing values for repo,
        branch, commit, cwd, runtime and agent are detected. An ``id`` of the caller's own must not be in use: TaskExists.
        """
        header, entries = self._first(
            request,
            by,
            created,
            id=id,
            labels=labels,
            fields=fields,
            sections=sections,
            detached=detached,
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
            user=user,
            source=source,
            exact=exact or None,
        )
        return self.create(header, entries, detached=detached, before=before)

    def open_task(
        self,
        source: str,
        request: str,
        *,
        id: str | None = None,
        exact: bool = False,
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
        parent: Parent | None = None,
        created: datetime | None = None,
        fields: Mapping[str, str] | None = None,
        sections: Mapping[str, str] | None = None,
        before: BeforeWrite | None = None,
    ) -> Task:
        """Opens the task with this source, or makes it if there is none; atomic between threads, processes and machines.

        The task is open as attach() opens it: to append to it without running it. What is given besides ``source`` counts only
        where the task is made.
        """
        header, entries = self._first(
            request,
            by,
            created,
            id=id,
            labels=labels,
            fields=fields,
            sections=sections,
            detached=True,
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
            user=user,
            source=names.checked_source(source),
            exact=exact or None,
        )
        task = self.create(header, entries, detached=True, before=before, find=True)
        if exact and not task.state.exact:
            task.close()
            raise InvalidValue(f"Task {task.id} was made without exact values. Use another source.")
        return task

    def _first(
        self,
        request: str,
        by: str | None,
        created: datetime | None,
        *,
        id: str | None,
        labels: Mapping[str, str] | None,
        fields: Mapping[str, str] | None,
        sections: Mapping[str, str] | None,
        detached: bool,
        **given: Any,
    ) -> tuple[TaskHeader, list[Entry]]:
        """The first record of a task: its header, and the entries that follow it."""
        if not isinstance(request, str) or not request.strip():
            raise InvalidValue("The request is empty. Say what is to be done.")
        created = created or datetime.now(timezone.utc).replace(microsecond=0)
        around = self.look_around() if self.look_around is not None else {}
        values: dict[str, Any] = {name: around.get(name) if value is None else value for name, value in given.items()}
        header = entry_types.TaskHeader(
            id="" if id is None else names.checked_id(id),
            created=created,
            status="running",
            labels=dict(labels or {}),
            writer="detached" if detached else None,
            extra=tuple(entry_types.Field(entry_types.x_name(name), value) for name, value in (fields or {}).items()),
            sections=tuple(entry_types.Section(name, text) for name, text in (sections or {}).items()),
            **values,
        )
        return header, [entry_types.Request(text=request, by=by, at=created), entry_types.Execution()]

    def create(
        self,
        header: TaskHeader,
        entries: Sequence[Entry],
        *,
        detached: bool = False,
        before: BeforeWrite | None = None,
        find: bool = False,
    ) -> Task:
        """Creates a task from its first record: a header and the entries after it. The id is chosen here unless it has one.

        With ``find``, opens the task with the header's source instead, if there is one.
        """
        if header.exact and not settings.load(self.root)["redact.exact"]:
            raise InvalidValue("The setting redact.exact forbids tasks with exact values.")
        clean = [self.redactor.entry(entry) for entry in entries]
        header = self.redactor.entry(header)
        if find:
            names.checked_source(header.source or "")
            writer, is_new = self._find_or_new(header, clean, before)
        else:
            writer, is_new = self._new_writer(header, clean, attached=not detached, before=before), True
        return tasks_task.Task(writer, self.redactor, is_new=is_new)

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
            there = f"turns {first} to {parent.turns}" if parent.turns > first else f"only turn {first}"
            there = there if parent.turns >= first else "no turns of its own"
            raise InvalidValue(f"Task {parent.id} has {there}; there is no turn {turn} to fork at.")
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

    # Reads for programs

    def records(self, prefix: str, after: str | None = None) -> Iterator[RecordAt]:
        """The records of a task after a cursor, one at a time."""
        task_id, task = self._viewed(prefix)
        at = tasks_events.Cursor.parse(after) if after else tasks_events.Cursor()
        with task.opened() as reader:
            seal = folds.seal_at(reader, at.offset) if at.offset else None
            if at.offset and (seal is None or not seal.startswith(at.seal)):
                raise ChainMoved(f"Task {task_id} was rewritten before {after}. Read it from the start.")
            taken = taken_back.TakenBack(reader)
            for record in reader.scan((at.offset, seal) if seal else None):
                if record.kind == "tail":
                    return  # it is being written, or its writer died
                if record.seal is not None and record.kind in ("sealed", "torn"):
                    at = tasks_events.Cursor(record.end, record.seal[:8])
                entries = tuple(taken.left_out(block.entry(reader.fetch), block.offset) for block in record.blocks)
                if record.kind == "damaged":
                    entries = tuple(replace(entry, damaged=True) for entry in entries)
                yield RecordAt(str(at), record.kind, entries)

    def turns(self, prefix: str, *, after: int = 0, last: int | None = None) -> Iterator[Turn]:
        """The turns in order, one at a time."""
        if last is not None and last < 0:
            raise InvalidValue(f"Not a number of turns: {last}. Use 0 or more.")
        beyond, left = -1, last
        if last:
            newest = self.turn_page(prefix, after=after, limit=last, newest=True)
            beyond = newest[0].offset - 1 if newest else -1
        while left is None or left > 0:
            rows = self.turn_page(prefix, after=after, beyond=beyond, limit=_PAGE if left is None else min(left, _PAGE))
            for row in rows:
                yield self.turn(prefix, row.turn, row=row)
            if not rows:
                return
            beyond = rows[-1].offset
            left = None if left is None else left - len(rows)

    def notes(self, prefix: str, kind: str | None = None, *, last: int | None = None) -> Iterator[Note]:
        """The notes in order. Reads the whole task, where there is no index of them at hand."""
        found: Iterator[Note] = (
            entry
            for record in self.records(prefix)
            for entry in (record.entries if record.kind in ("sealed", "unsealed") else ())
            if isinstance(entry, entry_types.Note) and (kind is None or entry.kind == kind)
        )
        return found if last is None else iter(deque(found, maxlen=last))

    def latest_state(self, prefix: str) -> Any:
        """The newest state. It is kept as JSON, so that a caller that changes its own copy does not change ours."""
        import json

        text = self.folded(prefix, "rawko.latest_state", lambda: None, _newest_state)
        return None if text is None else json.loads(text)

    def folded(self, prefix: str, key: str, first: Callable[[], Any], step: Callable[[Any, Entry], Any]) -> Any:
        """A value computed from a task's entries, kept up to date."""
        task_id, task = self._viewed(prefix)
        return self._folds.value((task_id, key), task, first, step)

    @cached_property
    def _folds(self) -> Folds:
        return folds.Folds()

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


def entries_of(reader: TaskReader, *, whole: bool) -> Iterator[tuple[str, Entry]]:
    """All blocks of a task, each with the kind of its record."""
    taken = taken_back.TakenBack(reader)
    for record in reader.records():
        if record.kind == "tail":
            yield record.kind, entry_types.Torn(length=record.torn)
        for block in record.blocks:
            entry = taken.left_out(block.entry(reader.fetch if whole else None), block.offset)
            if record.kind == "tail" and isinstance(entry, entry_types.Turn):
                # It was never finished, whatever its status says.
                entry = replace(entry, status="interrupted")
            elif record.kind == "damaged":
                entry = replace(entry, damaged=True)
            yield record.kind, entry
