"""The store of task files in a project: the embedded default. No server needed."""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from rawko_state.backends.files.sync import Sync
from rawko_state.backends.indexed import IndexedStore
from rawko_state.errors import InvalidValue, RawkoError, StorageError, TaskBusy, TaskNotFound
from rawko_state.journal import drafts, locks
from rawko_state.journal.journal import Journal
from rawko_state.lazy import lazy
from rawko_state.model.frozen import replace
from rawko_state.model.names import TaskName, parse_name

if TYPE_CHECKING:
    from rawko_state.backends import bulk, leases
    from rawko_state.backends.files import flush, redaction, search, trash, writer
    from rawko_state.backends.files.search import FileFinder
    from rawko_state.backends.leases import LentLeases
    from rawko_state.backends.redaction import Found
    from rawko_state.format import seal
    from rawko_state.index import retention, survey
    from rawko_state.index.database import Index
    from rawko_state.journal import archive, rewrite, verify
    from rawko_state.journal import trash as journal_trash
    from rawko_state.journal.chain import Chain
    from rawko_state.journal.verify import Verdict
    from rawko_state.model.appended import BeforeWrite
    from rawko_state.model.entries import Entry, TaskHeader
    from rawko_state.store import InTrash, RetentionRow
    from rawko_state.store.contract import BeforeDraft
    from rawko_state.tasks.writer import Writer
else:
    # Not needed for lists and single tasks.
    bulk = lazy("rawko_state.backends.bulk")
    leases = lazy("rawko_state.backends.leases")
    flush = lazy("rawko_state.backends.files.flush")
    redaction = lazy("rawko_state.backends.files.redaction")
    search = lazy("rawko_state.backends.files.search")
    trash = lazy("rawko_state.backends.files.trash")
    writer = lazy("rawko_state.backends.files.writer")
    seal = lazy("rawko_state.format.seal")
    retention = lazy("rawko_state.index.retention")
    survey = lazy("rawko_state.index.survey")
    archive = lazy("rawko_state.journal.archive")
    rewrite = lazy("rawko_state.journal.rewrite")
    verify = lazy("rawko_state.journal.verify")
    journal_trash = lazy("rawko_state.journal.trash")

_DAY: Final = 86_400
_HEADER: Final = 4_096


class FileStore(IndexedStore):
    """The tasks of one project, in its files. ``rawko_state.open`` opens it.

    >>> FileStore(folder).history(TaskFilter())
    []
    """

    journal: Journal
    sync: Sync

    def __init__(self, root: Path | str, *, warn: Callable[[str], None] | None = None) -> None:
        """``warn`` is called once for each problem that was handled, such as an index being rebuilt or falling behind."""
        journal = Journal(Path(root).resolve())
        journal.layout.check()
        warn = _warn if warn is None else warn
        super().__init__(journal.layout.root, journal, Sync(journal, warn), warn)

    @cached_property
    def lent(self) -> LentLeases:
        """Leases that this process holds for its server's clients."""
        return leases.LentLeases(self.journal)

    is_local = True

    # Finding

    def _open(self, name: TaskName, *, read_only: bool = False) -> Chain:
        return self.journal.open(name, self.sync.checkpoint(name), read_only=read_only)

    def find(self, prefix: str) -> TaskName:
        """The task whose id is, or uniquely starts with, ``prefix``. Looks in the index first, then in the folder."""
        try:
            row = self.sync.index().row(prefix)
            name = parse_name(Path(row["file_path"]).name) if row else None
            if name is not None and name.packed:
                plain = replace(name, packed=False)  # a process may have unpacked it and died before updating the index
                name = plain if self.journal.layout.path(plain).exists() else name
            if name is not None and self.journal.layout.path(name).exists():
                return name
        except RawkoError:
            pass
        try:
            return self.journal.find(prefix)
        except TaskNotFound as error:
            raise TaskNotFound(prefix, error.closest, in_trash=self._is_in_trash(prefix)) from None

    def _is_in_trash(self, prefix: str) -> bool:
        return self.journal.layout.trash.exists() and any(each.id.startswith(prefix) for each in self.trash())

    def status(self, prefix: str) -> str:
        """The status from the records, or ``interrupted`` if its writer is gone. Reads the file, not the index."""
        name = self.find(prefix)
        chain = self._open(name, read_only=True)
        try:
            state = chain.state
        finally:
            chain.close()
        if state.status == "running" and not state.detached and self.journal.holder(name.id) is None:
            return "interrupted"
        return state.status

    def unflushed(self) -> int:
        """Bytes of history that are not in the search index yet."""
        return self._finder().tail_bytes()

    def flush_due(self) -> str | None:
        """``now``, ``background``, or None: not worth it yet, disabled, or another process is flushing."""
        waiting = self.unflushed()
        if waiting < flush.WORTH_IT or flush.is_off(self.root):
            return None
        if waiting <= flush.CHEAP:
            return "now"
        return None if flush.is_busy(self.sync.index(), self.journal) else "background"

    def search_trouble(self) -> str | None:
        """Why the search index cannot be used, if so."""
        return self._finder().trouble()

    def _finder(self) -> FileFinder:
        return search.FileFinder(self.sync, self.alive, self._warn)

    # Opening

    def _new_writer(
        self,
        header: TaskHeader,
        entries: Sequence[Entry],
        *,
        attached: bool,
        before: BeforeWrite | None,
    ) -> Writer:
        new = self.journal.create(header, entries, lease=attached, taken=self._taken(), before=before)
        projector = self.sync.created(new.name, new.stamps)
        return writer.FileWriter(self.sync, new.name, new.chain, new.lease, projector)

    def _making(self) -> AbstractContextManager[None]:
        return self.lock("open.lock")

    def _open_writer(self, name: TaskName, lease: float | None = None) -> Writer:
        held = None if lease is None else self.journal.lease(name.id, lease)
        try:
            if name.packed:
                name = trash.unpack(self.sync, name)
            return writer.FileWriter(self.sync, name, self._open(name), held)
        except BaseException:
            if held is not None:
                held.release()
            raise

    def _abandoned(self) -> list[tuple[str, bool]]:
        return [(task_id, self.journal.layout.lease(task_id).exists()) for task_id in self.journal.abandoned()]

    def _taken(self) -> Callable[[str], bool] | None:
        """Looks ids up in the index, provided that it is up to date with the folder."""
        try:
            index = self.sync.index()
            if index.meta("tasks_stamp") == self.journal.layout.stamp():
                return lambda task_id: index.position(task_id) is not None
        except RawkoError:
            pass
        return None

    def take_lease(self, prefix: str, token: str | None = None, seconds: float = 30.0) -> str:
        """Takes a task's lease on behalf of a client, which must renew it in time."""
        return self.lent.take(self.find(prefix).id, token, seconds)

    def expire_leases(self) -> None:
        self.lent.expire()

    def begin_draft(self, task_id: str, lines: bytes, *, before: BeforeDraft | None = None) -> None:
        self.journal.layout.make()
        if before is not None:
            before(0)
        sink = drafts.FileSink(self.journal.layout.draft(task_id))
        sink.write(lines, durable=False)
        sink.leave()

    def add_to_draft(self, task_id: str, lines: bytes, *, before: BeforeDraft | None = None) -> bool:
        return drafts.append_lines(self.journal.layout.draft(task_id), lines, before)

    def extend_draft(self, task_id: str, lines: bytes, lease: str, *, before: BeforeDraft | None = None) -> str | None:
        self.check_lease(task_id, lease)
        return self.position(task_id).seal if self.add_to_draft(task_id, lines, before=before) else None

    def drop_draft(self, task_id: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.journal.layout.draft(task_id))

    def draft_lines(self, task_id: str) -> list[bytes]:
        return drafts.draft_lines(self.journal.layout.draft(task_id))

    def check(self) -> None:
        self.alive()
        self.sync.fresh()

    @property
    def state_folder(self) -> Path:
        """The folder of the task files and everything that belongs to them."""
        return self.journal.layout.state

    def health(self) -> tuple[int, str, list[str]]:
        """Number of tasks in the index, where it is, and its problems. Brings it up to date first."""
        index = self.sync.fresh()
        return index.count(), index.name, index.check()

    def concerns(self) -> list[tuple[str, str]]:
        """Problems with task files that the index can detect: ids and messages. rawko verify reports more."""
        index = self.sync.fresh_to_every_file()
        alive = self.alive()
        found = [
            (task_id, what) for task_id, what, growing in survey.concerns(index) if not (growing and task_id in alive)
        ]
        found += [(task_id, f"{self.sync.missing(task_id)}") for task_id in self.sync.all_missing()]
        found += [(task_id, "its file cannot be read") for task_id in sorted(self.sync.unread)]
        found += self._header_concerns(index, alive | {task_id for task_id, _ in found})
        files: dict[str, int] = {}
        for name in self.journal.layout.names():
            files[name.id] = files.get(name.id, 0) + 1
        return found + [(task_id, f"{count} files have this id") for task_id, count in files.items() if count > 1]

    def _header_concerns(self, index: Index, others: set[str]) -> Iterator[tuple[str, str]]:
        """Headers that say something else than their file's name, or than its records."""
        statuses = survey.statuses(index)
        for name in self.journal.names().values():
            if name.id in others or name.id not in statuses:
                continue
            try:
                with self.journal.reader(name) as reader:
                    start = reader.fetch(0, _HEADER)
            except RawkoError:
                continue  # it has just gone
            said = seal.header_words(start)
            if said.id is not None and said.id != name.id:
                yield name.id, f"its header says task {said.id}"
            elif said.status is not None and said.status != statuses[name.id]:
                yield name.id, f"its header says {said.status}, and its records {statuses[name.id]}"

    def strangers(self) -> list[str]:
        return list(self.journal.layout.strangers())

    @contextlib.contextmanager
    def daily(self) -> Iterator[bool]:
        """Also removes files left behind by killed processes."""
        stamp = self.journal.layout.live / "cleanup.lock"
        if not stamp.parent.exists() or not _is_due(stamp):
            yield False
            return
        try:
            held = locks.gate(stamp, timeout=0)
            held.__enter__()
        except StorageError:
            yield False  # another process is doing it
            return
        try:
            os.utime(stamp)
            self.journal.clear_leftovers()
            yield True
        finally:
            held.__exit__(None, None, None)

    def lock(self, name: str, *, timeout: float = 60.0) -> AbstractContextManager[None]:
        """A named lock of this project, between processes. Raises StorageError after the timeout."""
        self.journal.layout.make()
        return locks.gate(self.journal.layout.live / name, timeout=timeout)

    def bulk_writer(self) -> bulk.FileBulkWriter:
        return bulk.FileBulkWriter(self.root, self.sync)

    def check_lease(self, task_id: str, token: str) -> None:
        """Raises TaskBusy unless this token holds the lease."""
        self.lent.check(task_id, token)

    def release_lease(self, prefix: str, token: str) -> None:
        self.lent.release(self.find(prefix).id, token)

    @property
    def where(self) -> str:
        return str(self.root)

    def add_task(self, name: TaskName, records: Iterable[Sequence[Entry]]) -> bool:
        """Adds a whole new task from its records. False if the id is taken."""
        self.journal.layout.make()
        rows = bulk.write_one(self.journal.layout, self.redactor, name, records)
        if rows is None:
            return False
        with contextlib.suppress(RawkoError):  # the next sweep of the folder indexes it
            index = self.sync.index()
            with index.transaction():
                index.put_new(rows)
        return True

    def import_lock(self) -> AbstractContextManager[None]:
        """Prevents other processes from importing other agents' sessions meanwhile."""
        self.journal.layout.make()
        return locks.gate(self.journal.layout.live / "import.lock")

    # Retention

    def disk(self) -> dict[str, int]:
        """The index knows the sizes of task files. Asking the disk about 100,000 of them takes half a second."""
        return self.journal.disk_use(cast("int", self.sync.guarded(lambda index: index.files_size())))

    def retention_rows(self, task_id: str | None = None) -> list[RetentionRow]:
        """The retention data of all tasks, or of one."""
        alive, exempt = self.alive() | self.journal.drafted(), journal_trash.exempt(self.journal.layout)
        return cast(
            "list[RetentionRow]", self.sync.guarded(lambda index: retention.rows(index, alive, exempt, task_id))
        )

    def trash(self) -> list[InTrash]:
        """The tasks in the trash, most recent first."""
        return [trash.in_trash(each) for each in journal_trash.listed(self.journal.layout)]

    def freed_bytes(self, task_ids: Sequence[str]) -> dict[str, int]:
        """Bytes of blobs that would be freed if all these tasks were deleted."""
        return retention.freed(self.sync.index(), task_ids)

    def add_file(self, filename: str, data: bytes | Iterable[bytes], blobs: Iterable[bytes] = ()) -> TaskName | None:
        """Adds a whole task file unchanged, after its blobs. None if it already exists."""
        name = parse_name(filename)
        if name is None:
            raise InvalidValue(f"Not a task file name: {filename!r}.")
        with self.journal.keeping_blobs():
            for content in blobs:
                self.journal.put_blob(content)
            return name if self.journal.add_file(name, data) else None

    def replace_task(self, name: TaskName, data: Iterable[bytes], blobs: Iterable[bytes], size: int, seal: str) -> bool:
        """Replaces a task with a longer version, if it still has this size and ends with this seal."""
        there = self.find(name.id)
        lease = self.journal.lease(name.id)
        try:
            if there.packed:
                there = trash.unpack(self.sync, there)
            with self.journal.keeping_blobs():
                for content in blobs:
                    self.journal.put_blob(content)
                return rewrite.replaced(self.journal.layout, there, data, size, seal)
        finally:
            lease.release()

    def move_to_trash(
        self,
        tasks: Iterable[tuple[RetentionRow, str]],
        *,
        by: str | None = None,
        proceed: Callable[[], bool] = lambda: True,
        patience: float = 60.0,
    ) -> Iterator[str]:
        """Moves tasks to the trash, each with the rule that selected it. Yields the ids of the tasks moved. A task stays if it
        has changed since its retention row was read, or is being run."""
        return trash.move_to_trash(self.sync, tasks, by, proceed, patience)

    def delete(self, prefix: str, *, by: str | None = None) -> str:
        """Moves one task to the trash, regardless of its age."""
        name = self.find(prefix)
        task = next(iter(self.retention_rows(name.id)), None)
        if task is None or not list(self.move_to_trash([(task, journal_trash.BY_HAND)], by=by)):
            raise TaskBusy(name.id, reason="changed")
        return name.id

    def restore(self, prefix: str | None = None) -> list[str]:
        """Restores tasks from the trash byte for byte; without an id, all of them. Cleanups skip them from then on."""
        return trash.restore(self.sync, prefix) if self.journal.layout.trash.exists() or prefix else []

    def empty_trash(
        self,
        before: datetime | None = None,
        *,
        only: str | None = None,
        patience: float = 60.0,
        proceed: Callable[[], bool] = lambda: True,
    ) -> list[InTrash]:
        """Deletes tasks trashed before a time, or all of them, permanently. Oldest first, while ``proceed`` returns true."""
        return trash.empty(self.sync, before, only, patience, proceed)

    def erase(self, prefix: str, *, by: str | None = None) -> str:
        """Also rebuilds the index and the search index, so that no trace remains in their files."""
        with contextlib.suppress(TaskNotFound):  # it may be in the trash
            name = self.find(prefix)
            if name.id in self.alive() | self.journal.drafted():
                raise TaskBusy(name.id, reason="changed")
        was_due = self.begin_redacting()
        task_id = super().erase(prefix, by=by)
        while task_id in self.sync.names():  # another file has the same id
            super().erase(task_id, by=by)
        with journal_trash.locked(self.journal.layout):
            journal_trash.log_erased(self.journal.layout, task_id, by)
        self.end_redacting(changed=True, was_due=was_due)
        return task_id

    def pack(self, task: RetentionRow) -> bool:
        """Packs a finished task into a ``.task.gz``, which every reader can read. False if it has changed or is being run."""
        return trash.pack(self.sync, task) is not None

    def redact(self, prefix: str, *, dry_run: bool = False, by: str | None = None) -> Found:
        """Removes the secrets from a recorded task: rewrites and reseals its file, and notes that in it. The index and the search
        index still contain them until reindex() has built new ones."""
        name = self.find(prefix)
        if dry_run:
            return redaction.look(self.sync, self.redactor, name)
        if name.id in self.journal.drafted():
            # What a dead writer left becomes an interrupted turn, without secrets.
            with self._task(name, 0.0) as task:
                task.recover()
            name = self.find(name.id)
        lease = self.journal.lease(name.id)
        try:
            if name.id in self.journal.drafted():
                raise TaskBusy(name.id, reason="draft")
            found = redaction.redact(self.sync, self.redactor, name, by)
        finally:
            lease.release()
        if found.changed and not self._is_sealed(name):
            with self._task(name) as task:
                task.note(kind="redacted", data={"blocks": found.changed, "secrets": dict(found.rules)}, by=by)
        return found

    def redact_rest(self, *, dry_run: bool = False, by: str | None = None) -> list[Found]:
        """Removes secrets from the tasks in the trash."""
        return redaction.redact_trash(self.sync, self.redactor, by, dry_run=dry_run)

    def begin_redacting(self) -> bool:
        """Call before redacting many tasks. Returns whether an earlier redaction was interrupted."""
        due = self.journal.layout.live / "reindex.due"
        was_due = due.exists()
        self.journal.layout.make()
        due.touch(mode=0o600)
        return was_due

    def redacted_so_far(self) -> set[str]:
        """The tasks that an interrupted redaction has finished, with the same rules, and that have not changed since."""
        return redaction.redacted_so_far(self.sync, self.redactor)

    def mark_redacted(self, task_id: str) -> None:
        redaction.mark_redacted(self.sync, self.redactor, self.find(task_id))

    def end_redacting(self, *, changed: bool, was_due: bool) -> None:
        """Rebuilds the index if it may contain redacted words, also from an interrupted redaction."""
        redaction.so_far(self.sync).unlink(missing_ok=True)
        if changed or was_due:
            self.reindex()
        else:
            (self.journal.layout.live / "reindex.due").unlink(missing_ok=True)
        if was_due:
            redaction.finish(self.sync, self.redactor)
        if changed or was_due:
            redaction.forget_broken(self.sync)

    def task_ids(self) -> list[str]:
        """All task files, including ones that are not in the index."""
        return sorted(self.sync.names())

    def _is_sealed(self, name: TaskName) -> bool:
        with self.journal.reader(name) as reader:
            return any(record.kind == "sealed" for record in reader.records())

    def flush(self, step: Callable[[int, int], None] | None = None, *, wait: bool = False) -> int:
        """Moves the tail into the search index, and returns its size. Searches find the tail either way, but more slowly."""
        return self._finder().flush(step=step, wait=wait)

    def reindex(
        self, step: Callable[[int, int], None] | None = None, flushing: Callable[[int, int], None] | None = None
    ) -> list[tuple[str, str]]:
        """Rebuilds the index and the search index from the files. Returns the tasks whose files could not be fully read, and why.
        ``step`` is called with files done and in total, ``flushing`` with bytes."""
        self.journal.layout.make()
        with contextlib.ExitStack() as stack:
            mine = False
            try:
                mine = stack.enter_context(flush.locked(self.sync.index(), wait=True))
            except RawkoError as trouble:
                self._warn(f"{trouble} Searching the task files instead.")

            def then(index: Index) -> None:
                try:
                    if mine:
                        flush.flush_anew(index, self.journal, flushing)
                except (RawkoError, OSError) as trouble:
                    self._warn(f"{trouble} Searching the task files instead.")

            due = self.journal.layout.live / "reindex.due"
            was_due = due.exists()
            problems = self.sync.reindex(step, then)
            if was_due and mine:
                due.unlink(missing_ok=True)
            if mine:
                with contextlib.suppress(RawkoError, OSError):
                    flush.clear_away(self.sync.index(), self.root)
            return problems

    def verify(self, prefix: str | None = None, *, repair: bool = False) -> Iterator[Verdict]:
        """Verifies one chain, or all of them in order of file name."""
        names = [self.find(prefix)] if prefix else sorted(self.journal.layout.names())
        files: dict[str, list[TaskName]] = {}
        for name in self.journal.layout.names():
            files.setdefault(name.id, []).append(name)
        for name in names:
            if repair and not self.journal.layout.path(name).exists():
                continue  # the packed form, which repairing the plain one removed
            same = files.get(name.id, [name])
            counts = self.journal.chosen(same) if len(same) > 1 else name
            if name == counts:
                with contextlib.suppress(RawkoError):
                    self.sync.catch_up(name)  # if it was truncated, the index must notice before we query it
            verdict = verify.verify(self.journal.layout, name)
            if verdict.faults and name == counts:
                with contextlib.suppress(RawkoError):
                    self.sync.read_again(name)  # an edit that kept size and time, or was followed by an append
            self._look_beside(name, same, counts, verdict)
            if repair and (verdict.can_repair or verdict.warnings):
                verdict = self._repaired(name, verdict)
            yield verdict

    def _look_beside(self, name: TaskName, same: list[TaskName], counts: TaskName, verdict: Verdict) -> None:
        """Checks what the file itself does not show: what the index knew about it, and other files of the same task."""
        missing = self.sync.missing(name.id) if name == counts else None
        if missing is not None:
            verdict.warnings.append(missing)
            verdict.incomplete = True
        packed = replace(name, packed=not name.packed)
        if packed in same:
            both = f"{name.filename} and {packed.filename} are both there: packing was interrupted"
            plain = replace(name, packed=False)
            if archive.is_leftover(self.journal.layout, plain):
                verdict.warnings.append(f"{both}; the packed one is not needed")
                verdict.can_repair = True
            else:
                verdict.faults.append(f"{both}, and they differ; the plain one counts")
        if len({each.stamp for each in same}) > 1:
            if counts.stamp == name.stamp:
                verdict.warnings.append(f"another file has the id {name.id}; this one counts")
            else:
                verdict.faults.append(f"another file has the id {name.id}, and counts: {counts.filename}")

    def _repaired(self, name: TaskName, before: Verdict) -> Verdict:
        """Repairs a file and updates the index. If this process dies meanwhile, its mark remains."""
        layout = self.journal.layout
        try:
            lease = self.journal.lease(name.id) if before.to_rewrite else None
        except TaskBusy as busy:
            before.faults.append(str(busy))
            return before
        mark = self.sync.mark(name.id)
        try:
            verdict = verify.verify(layout, name, repair=True)
            verdict.faults += [fault for fault in before.faults if fault not in verdict.faults]
            verdict.warnings = before.warnings
            if archive.is_leftover(layout, name):
                chain = self.journal.open(name)  # this removes it
                chain.close()
                verdict.repaired.append("removed the packed form, which was left over")
            if before.incomplete and not verdict.faults:
                with self._task(name) as task:
                    task.note(f"Repaired: {'; '.join(before.warnings)}.", kind="repaired", in_context=False)
                verdict.repaired.append("noted in the task what is missing, which is not looked for any more")
            self.sync.catch_up(name, grown=not verdict.to_rewrite)
            if not verdict.faults or (verdict.to_rewrite and verdict.repaired):
                self.sync.accept(name.id)
            self.sync.settle(mark, current=True)
            mark = None
            return verdict
        finally:
            self.sync.settle(mark, current=False)
            if lease is not None:
                lease.release()


def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=2)


def _is_due(stamp: Path) -> bool:
    """Whether a day has passed since the last run."""
    try:
        age = time.time() - os.stat(stamp).st_mtime
    except OSError:
        return True
    return abs(age) >= _DAY
