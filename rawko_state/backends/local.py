"""The local store: task files in the project. The embedded default; needs nothing running."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from rawko_state.backends.reads import Reads
from rawko_state.errors import InvalidValue, RawkoError, TaskBusy
from rawko_state.journal.layout import TaskName, parse_name

# What only some calls need is imported by them: `rawko history` must feel instant.
if TYPE_CHECKING:
    from rawko_state.backends.redaction import Found
    from rawko_state.backends.session import Task
    from rawko_state.index.database import Index
    from rawko_state.journal.locks import Lease
    from rawko_state.journal.verify import Verdict
    from rawko_state.model.entries import Parent
    from rawko_state.store import InTrash, Kept


class LocalStore(Reads):
    """The tasks of one project."""

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
            self.redactor.entry(header),
            [self.redactor.entry(Request(text=request, by=by)), Execution()],
            lease=not detached,
            taken=self._taken(),
        )
        projector = self.catalogue.created(new.name, new.stamps)
        return Task(self.catalogue, self.redactor, new.name, new.chain, new.lease, projector)

    def _task(self, name: TaskName, lease: Lease | None) -> Task:
        from rawko_state.backends.session import Task

        if name.packed:
            from rawko_state.backends.keeping import unpack

            name = unpack(self.catalogue, name)
        return Task(self.catalogue, self.redactor, name, self._open(name), lease)

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
        name = self.find(prefix)
        lease = self.journal.lease(name.id, wait)
        try:
            task = self._task(name, lease)
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

    def reconcile(self) -> list[str]:
        """Sees to the tasks whose process has died: what it had said becomes an interrupted turn, and the header's copies are
        made right. Returns their ids. Costs a look into one folder when there are none."""
        seen = []
        for task_id in self.journal.abandoned():
            try:
                name = self.find(task_id)
                if name.id != task_id:
                    continue
                had_lease = self.journal.layout.lease(task_id).exists()
                lease = self.journal.lease(task_id)
            except RawkoError:
                continue  # it is gone, or somebody is at it
            try:
                task = self._task(name, lease)
            except RawkoError:
                lease.release()
                continue
            try:
                if task.recover() or had_lease:
                    seen.append(task_id)
            except RawkoError:
                pass
            finally:
                task.close()
        return seen

    def attach(self, prefix: str) -> Task:
        """Opens a task to add to it without running it: notes, answers, single turns of a detached task."""
        name = self.find(prefix)
        return self._task(name, None)

    def place(self, filename: str, data: bytes, blobs: Sequence[bytes] = ()) -> TaskName | None:
        """Puts a whole task file into the project, as it is, and its blobs before it. None when it is there already."""
        name = parse_name(filename)
        if name is None:
            raise InvalidValue(f"not the name of a task file: {filename!r}")
        with self.journal.keeping_blobs():
            for content in blobs:
                self.journal.put_blob(content)
            return name if self.journal.place(name, data) else None

    def discard(
        self,
        tasks: Iterable[tuple[Kept, str]],
        *,
        by: str | None = None,
        proceed: Callable[[], bool] = lambda: True,
        patience: float = 60.0,
    ) -> Iterator[str]:
        """Puts tasks into the trash, as they were when kept() told of them, each with the rule that takes it. Yields the ids of
        those that went: one that has changed since, or is being run, stays."""
        from rawko_state.backends import keeping

        return keeping.discard(self.catalogue, tasks, by, proceed, patience)

    def delete(self, prefix: str, *, by: str | None = None) -> str:
        """Puts one task into the trash, whatever its age."""
        from rawko_state.journal.trash import BY_HAND

        name = self.find(prefix)
        task = next(iter(self.kept(name.id)), None)
        if task is None or not list(self.discard([(task, BY_HAND)], by=by)):
            raise TaskBusy(name.id, "a process that runs it, or has changed it just now")
        return name.id

    def restore(self, prefix: str | None = None) -> list[str]:
        """Brings tasks back from the trash, byte for byte; all of them without an id. Cleanups leave them alone from now on."""
        from rawko_state.backends import keeping

        return keeping.restore(self.catalogue, prefix) if self.journal.layout.trash.exists() or prefix else []

    def empty_trash(self, before: datetime | None = None, *, patience: float = 60.0) -> list[InTrash]:
        """Deletes for good what came into the trash before a time; all of it without one."""
        from rawko_state.backends import keeping

        return keeping.empty(self.catalogue, before, patience)

    def pack(self, task: Kept) -> bool:
        """Makes a finished task a ``.task.gz``, which all else can read. False if it has changed since, or is being run."""
        from rawko_state.backends import keeping

        return keeping.pack(self.catalogue, task) is not None

    def redact(self, prefix: str, *, dry_run: bool = False, by: str | None = None) -> Found:
        """Takes the secrets out of a task that was recorded with them: its file is written and sealed anew, and says so. The
        index and the search index still know them until reindex() has made new ones."""
        from rawko_state.backends import redaction

        name = self.find(prefix)
        if dry_run:
            return redaction.look(self.catalogue, self.redactor, name)
        lease = self.journal.lease(name.id)
        try:
            if name.id in self.journal.drafted():
                raise TaskBusy(name.id, "a turn that has not ended: 'rawko resume' it first")
            found = redaction.redact(self.catalogue, self.redactor, name, by)
        finally:
            lease.release()
        if found.changed and not self._is_sealed(name):
            with self._task(name, None) as task:
                task.note(kind="redacted", data={"blocks": found.changed, "secrets": dict(found.rules)}, by=by)
        return found

    def _is_sealed(self, name: TaskName) -> bool:
        with self.journal.reader(name) as reader:
            return any(record.kind == "sealed" for record in reader.records())

    def fold(self, step: Callable[[int, int], None] | None = None, *, wait: bool = False) -> int:
        """Takes what is new into the search index. Searches find it without that, only slower. Returns how many bytes."""
        return self._finder().fold(step=step, wait=wait)

    def reindex(
        self, step: Callable[[int, int], None] | None = None, folding: Callable[[int, int], None] | None = None
    ) -> list[tuple[str, str]]:
        """Rebuilds the index and the search index from the files. Returns the tasks whose files could not be fully read, and
        why. ``step`` is told of files done and in all, ``folding`` of bytes."""
        from rawko_state.backends.folding import clear_away, fold_anew, locked

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

            problems = self.catalogue.reindex(step, then)
            if mine:
                with contextlib.suppress(RawkoError, OSError):
                    clear_away(self.catalogue.index(), self.root)
            return problems

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


def _own(name: str) -> str:
    return name if name.startswith("X-") else f"X-{name}"
