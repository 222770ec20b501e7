"""Opening tasks to write to them: new ones, ones that go on, forks. The same on every backend, but for where the desk is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from rawko_state.errors import InvalidValue, RawkoError

# What only some calls need is imported by them: `rawko history` must feel instant.
if TYPE_CHECKING:
    from rawko_state.backends.desk import Desk
    from rawko_state.backends.session import Task
    from rawko_state.model.entries import Entry, Parent, TaskHeader, Turn
    from rawko_state.model.names import TaskName
    from rawko_state.redact.redactor import Redactor
    from rawko_state.store import TaskSummary


class Opening(ABC):
    """The part of a store that hands out tasks to be written to."""

    @property
    @abstractmethod
    def redactor(self) -> Redactor: ...

    @abstractmethod
    def find(self, prefix: str) -> TaskName: ...

    @abstractmethod
    def summary(self, prefix: str) -> TaskSummary: ...

    @abstractmethod
    def turn(self, prefix: str, number: int) -> Turn: ...

    @abstractmethod
    def requests(self, prefix: str, up_to: int | None = None) -> list[str]: ...

    @abstractmethod
    def _create(
        self,
        header: TaskHeader,
        entries: Sequence[Entry],
        *,
        attached: bool,
        before: Callable[[str, str], None] | None,
    ) -> Desk:
        """A new task; its id is chosen here. ``attached``: with its lease."""

    @abstractmethod
    def _desk(self, name: TaskName, lease: float | None = None) -> Desk:
        """An open task; with its lease, for which so many seconds are waited."""

    @abstractmethod
    def _abandoned(self) -> list[tuple[str, bool]]:
        """The tasks that somebody was running when he died, or left; and whether he died."""

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
        """Starts a task; its file is durable when this returns.

        An attached task (the default) is run by this process until it is finished or closed; a detached one may be written
        to by one process after another. ``fields`` become ``X-Name:`` lines of the header. ``before`` is told the id and the
        first seal just before the task comes into being.
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
        entries = [self.redactor.entry(Request(text=request, by=by)), Execution()]
        return Task(
            self._create(self.redactor.entry(header), entries, attached=not detached, before=before), self.redactor
        )

    def _task(self, name: TaskName, lease: float | None = None) -> Task:
        from rawko_state.backends.session import Task

        return Task(self._desk(name, lease), self.redactor)

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
        before: Callable[[str, str], None] | None = None,
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
            before=before,
        )

    def attach(self, prefix: str) -> Task:
        """Opens a task to add to it without running it: notes, answers, single turns of a detached task."""
        return self._task(self.find(prefix))

    def reconcile(self) -> list[str]:
        """Sees to the tasks whose process has died: what it had said becomes an interrupted turn, and the header's copies are
        made right. Returns their ids. Costs one look when there are none."""
        seen = []
        for task_id, died in self._abandoned():
            try:
                name = self.find(task_id)
                if name.id != task_id:
                    continue
                task = self._task(name, 0.0)
            except RawkoError:
                continue  # it is gone, or somebody is at it
            try:
                if task.recover() or died:
                    seen.append(task_id)
            except RawkoError:
                pass
            finally:
                task.close()
        return seen


def _own(name: str) -> str:
    return name if name.startswith("X-") else f"X-{name}"
