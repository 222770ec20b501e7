"""What becomes of tasks in PostgreSQL that are over: the trash and back, redaction, verification."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final

from rawko_state.backends.pgfiles import PgFiles, pieces_of, spooled
from rawko_state.errors import AmbiguousTask, RawkoError, TaskBusy, TaskNotFound
from rawko_state.index import holding
from rawko_state.index.pgtasks import PgTasks, Thrown
from rawko_state.index.postgres import Postgres
from rawko_state.model.names import TaskName, parse_name
from rawko_state.store import InTrash, Kept

if TYPE_CHECKING:
    from rawko_state.backends.redaction import Found
    from rawko_state.backends.session import Task
    from rawko_state.journal.reader import TaskReader
    from rawko_state.journal.source import Source
    from rawko_state.journal.verify import Verdict
    from rawko_state.redact.redactor import Redactor

BY_HAND: Final = "deleted"


class PgKeeping(ABC):
    """A part of PostgresStore."""

    postgres: Postgres
    tasks: PgTasks
    journal: PgFiles

    @property
    @abstractmethod
    def redactor(self) -> Redactor: ...

    @abstractmethod
    def find(self, prefix: str) -> TaskName: ...

    @abstractmethod
    def alive(self) -> set[str]: ...

    @abstractmethod
    def reader(self, prefix: str) -> TaskReader: ...

    @abstractmethod
    def borrow(self, prefix: str, token: str | None = None, seconds: float = 30.0) -> str: ...

    @abstractmethod
    def give_back(self, prefix: str, token: str) -> None: ...

    @abstractmethod
    def rewrite(self, name: TaskName, data: bytes | Iterable[bytes]) -> None: ...

    @abstractmethod
    def _put(self, name: TaskName, source: Source, *, base: int = 0) -> None: ...

    @abstractmethod
    def _task(self, name: TaskName, lease: float | None = None) -> Task: ...

    def kept(self, task_id: str | None = None) -> list[Kept]:
        alive = self.alive() | self.tasks.drafted()
        return holding.kept(self.tasks.rows, alive, self.tasks.exempt(), task_id)

    def freed(self, task_ids: Sequence[str]) -> dict[str, int]:
        from rawko_state.backends.keeping import freed_of

        return freed_of(self.tasks.rows, task_ids)

    def discard(
        self,
        tasks: Iterable[tuple[Kept, str]],
        *,
        by: str | None = None,
        proceed: Callable[[], bool] = lambda: True,
        patience: float = 60.0,
    ) -> Iterator[str]:
        for task, rule in tasks:
            if not proceed():
                return
            if self._throw(task, rule, by):
                yield task.id

    def _throw(self, task: Kept, rule: str, by: str | None) -> bool:
        with self.postgres.transaction():
            row = self.tasks.rows.row(task.id, lock=True)
            if row is None or (row["file_size"], row["file_mtime_ns"]) != (task.size, task.mtime_ns):
                return False
            busy = task.id in self.alive() or task.id in self.tasks.drafted()
            if busy or (rule != BY_HAND and task.id in self.tasks.exempt()):
                return False
            blobs = holding.blobs_of(self.tasks.rows, [task.id]).get(task.id, {})
            filename = str(row["file_path"]).rpartition("/")[2]
            self.tasks.throw(task.id, filename, rule, by, task.size, list(blobs))
            self.tasks.tell(task.id)
            return True

    def delete(self, prefix: str, *, by: str | None = None) -> str:
        name = self.find(prefix)
        task = next(iter(self.kept(name.id)), None)
        if task is None or not self._throw(task, BY_HAND, by):
            raise TaskBusy(name.id, "a process that runs it, or has changed it just now")
        return name.id

    def trash(self) -> list[InTrash]:
        return [
            InTrash(each.id, each.at.astimezone(timezone.utc), each.rule, each.size) for each in self.tasks.thrown()
        ]

    def restore(self, prefix: str | None = None) -> list[str]:
        thrown = self.tasks.thrown()
        chosen = thrown if prefix is None else [self._in_trash(prefix, thrown)]
        back = [each.id for each in chosen if self._restored(each)]
        if prefix is not None and not back:
            raise RawkoError(f"there is another task {chosen[0].id} in the workspace already")
        return back

    def _in_trash(self, prefix: str, thrown: Sequence[Thrown]) -> Thrown:
        found = {each.id: each for each in reversed(thrown) if each.id.startswith(prefix)}
        if len(found) > 1:
            raise AmbiguousTask(prefix, sorted(found))
        if not found:
            raise TaskNotFound(prefix)
        return next(iter(found.values()))

    def _restored(self, each: Thrown) -> bool:
        name = parse_name(each.filename)
        if name is None:
            return False
        with self.postgres.transaction():
            if self.tasks.size(each.id) is not None:
                return False
            with spooled(self.tasks.thrown_bytes(each.key)) as source:
                self._put(name, source)
            self.tasks.drop_thrown(each.key)
            self.tasks.set_exempt(each.id)
        return True

    def empty_trash(
        self,
        before: datetime | None = None,
        *,
        patience: float = 60.0,
        proceed: Callable[[], bool] = lambda: True,
    ) -> list[InTrash]:
        going = []
        for each in self.tasks.thrown():
            if before is not None and each.at >= before:
                continue
            if not proceed():
                break
            going.append(each)
            with self.postgres.transaction():
                self.tasks.drop_thrown(each.key)
                self.tasks.drop_unused_blobs(each.blobs)
        return [InTrash(each.id, each.at.astimezone(timezone.utc), each.rule, each.size) for each in going]

    def pack(self, task: Kept) -> bool:
        """PostgreSQL packs large values by itself."""
        return False

    def redact(self, prefix: str, *, dry_run: bool = False, by: str | None = None) -> Found:
        from rawko_state.backends.redaction import Counting, Found, noted
        from rawko_state.journal.rewrite import Rewriting, with_note

        name = self.find(prefix)
        found = Found(name.id)
        counting = Counting(self.journal, self.redactor, found, write=not dry_run)
        work = Rewriting(counting.entry, counting.text)
        if dry_run:
            with self.reader(name.id) as reader:
                for _ in work.pieces(reader):
                    pass
            return found
        token = self.borrow(name.id)
        try:
            if name.id in self.tasks.drafted():
                raise TaskBusy(name.id, "a turn that has not ended: 'rawko resume' it first")
            with self.postgres.transaction():
                self.tasks.lock_blobs()  # before the row, as those who append take them in this order
                self.tasks.rows.row(name.id, lock=True)
                with (
                    self.reader(name.id) as reader,
                    spooled(with_note(work, reader, lambda changed: noted(found, changed, by))) as source,
                ):
                    if work.changed:
                        self.rewrite(name, pieces_of(source))
                        self.tasks.drop_unused_blobs(counting.replaced)
            found.changed = work.changed
        finally:
            self.give_back(name.id, token)
        if found.changed and not work.sealed:
            with self._task(name) as task:
                task.add([noted(found, found.changed, by)])
        return found

    def verify(self, prefix: str | None = None, *, repair: bool = False) -> Iterator[Verdict]:
        from rawko_state.backends.pgdesk import repaired, verdict_of

        for task_id in [self.find(prefix).id] if prefix else self.tasks.ids():
            try:
                name = self.find(task_id)
            except TaskNotFound:
                continue
            verdict = verdict_of(self, name)
            if repair and verdict.can_repair:
                verdict = repaired(self, name, verdict)
            yield verdict
