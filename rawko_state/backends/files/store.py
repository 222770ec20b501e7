"""The store of task files in a project: the embedded default. Needs nothing running."""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from rawko_state.backends.base import IndexedStore
from rawko_state.backends.files.sync import Sync
from rawko_state.errors import InvalidValue, RawkoError, StorageError, TaskBusy, TaskNotFound
from rawko_state.index import queries
from rawko_state.journal import drafts, locks
from rawko_state.journal.journal import Journal
from rawko_state.lazy import lazy
from rawko_state.model.names import TaskName, parse_name

if TYPE_CHECKING:
    from rawko_state.backends import bulk, leases
    from rawko_state.backends.files import flush, redaction, search, trash, writer
    from rawko_state.backends.files.search import FileFinder
    from rawko_state.backends.leases import LentLeases
    from rawko_state.backends.redaction import Found
    from rawko_state.index import retention
    from rawko_state.index.database import Index
    from rawko_state.journal import archive, rewrite, verify
    from rawko_state.journal import trash as journal_trash
    from rawko_state.journal.chain import Chain
    from rawko_state.journal.verify import Verdict
    from rawko_state.model.entries import Entry, TaskHeader
    from rawko_state.store import InTrash, RetentionRow
    from rawko_state.tasks.writer import Writer
else:
    # Lists and single tasks need none of these.
    bulk = lazy("rawko_state.backends.bulk")
    leases = lazy("rawko_state.backends.leases")
    flush = lazy("rawko_state.backends.files.flush")
    redaction = lazy("rawko_state.backends.files.redaction")
    search = lazy("rawko_state.backends.files.search")
    trash = lazy("rawko_state.backends.files.trash")
    writer = lazy("rawko_state.backends.files.writer")
    retention = lazy("rawko_state.index.retention")
    archive = lazy("rawko_state.journal.archive")
    rewrite = lazy("rawko_state.journal.rewrite")
    verify = lazy("rawko_state.journal.verify")
    journal_trash = lazy("rawko_state.journal.trash")

_DAY: Final = 86_400


class FileStore(IndexedStore):
    """The tasks of one project."""

    journal: Journal
    sync: Sync

    def __init__(self, root: Path | str, *, warn: Callable[[str], None] | None = None) -> None:
        """``warn`` is told, once each, of trouble that is dealt with: an index that is rebuilt or falls behind."""
        journal = Journal(Path(root).resolve())
        journal.layout.check()
        warn = _warn if warn is None else warn
        super().__init__(journal.layout.root, journal, Sync(journal, warn), warn)

    @cached_property
    def lent(self) -> LentLeases:
        """The leases that this process holds for clients of its server."""
        return leases.LentLeases(self.journal)

    is_local = True

    # Finding

    def _open(self, name: TaskName, *, read_only: bool = False) -> Chain:
        return self.journal.open(name, self.sync.checkpoint(name), read_only=read_only)

    def find(self, prefix: str) -> TaskName:
        """The one task whose id is, or starts with, this. The index is asked first, the folder where that does not help."""
        try:
            row = self.sync.index().row(prefix)
            name = parse_name(Path(row["file_path"]).name) if row else None
            if name is not None and name.packed:
                plain = replace(name, packed=False)  # a process may have unpacked it, and died before it could say so
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
        """What the records say, or ``interrupted`` for a running task whose writer is gone: by the file, not by the index."""
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
        """How many bytes of the history the search index has not taken in."""
        return self._finder().tail_bytes()

    def flush_due(self) -> str | None:
        """``now``, ``background``, or None: too short to be worth it, switched off, or somebody is at it."""
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
        before: Callable[[str, str], None] | None,
    ) -> Writer:
        new = self.journal.create(header, entries, lease=attached, taken=self._taken(), before=before)
        projector = self.sync.created(new.name, new.stamps)
        return writer.FileWriter(self.sync, new.name, new.chain, new.lease, projector)

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
        """Looks an id up in the index, if that knows the whole folder as it is now."""
        try:
            index = self.sync.index()
            if index.meta("tasks_stamp") == self.journal.layout.stamp():
                return lambda task_id: index.position(task_id) is not None
        except RawkoError:
            pass
        return None

    def take_lease(self, prefix: str, token: str | None = None, seconds: float = 30.0) -> str:
        """Takes the lease of a task for somebody else, who has to ask again before the time is up."""
        return self.lent.take(self.find(prefix).id, token, seconds)

    def expire_leases(self) -> None:
        self.lent.expire()

    def begin_draft(self, task_id: str, lines: bytes) -> None:
        self.journal.layout.make()
        sink = drafts.FileSink(self.journal.layout.draft(task_id))
        sink.write(lines, durable=False)
        sink.leave()

    def add_to_draft(self, task_id: str, lines: bytes) -> bool:
        return drafts.append_lines(self.journal.layout.draft(task_id), lines)

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
        """Where the task files and all that belongs to them are."""
        return self.journal.layout.state

    def health(self) -> tuple[int, str, list[str]]:
        """How many tasks the index knows, where it is, and what is wrong with it. Catches up first."""
        index = self.sync.fresh()
        return index.count(), index.name, index.check()

    def concerns(self) -> list[tuple[str, str]]:
        """What is wrong with task files, as far as the index can tell: ids, and what to say. rawko verify tells more."""
        index = self.sync.fresh_to_every_file()
        alive = self.alive()
        found = [
            (task_id, what) for task_id, what, growing in queries.concerns(index) if not (growing and task_id in alive)
        ]
        found += [(task_id, f"{self.sync.missing(task_id)}") for task_id in self.sync.all_missing()]
        files: dict[str, int] = {}
        for name in self.journal.layout.names():
            files[name.id] = files.get(name.id, 0) + 1
        return found + [(task_id, f"{count} files have this id") for task_id, count in files.items() if count > 1]

    def strangers(self) -> list[str]:
        return list(self.journal.layout.strangers())

    @contextlib.contextmanager
    def daily(self) -> Iterator[bool]:
        """What was left of killed processes is cleared away on the occasion."""
        stamp = self.journal.layout.live / "cleanup.lock"
        if not stamp.parent.exists() or not _is_due(stamp):
            yield False
            return
        try:
            held = locks.gate(stamp, timeout=0)
            held.__enter__()
        except StorageError:
            yield False  # another process is at it
            return
        try:
            os.utime(stamp)
            self.journal.clear_leftovers()
            yield True
        finally:
            held.__exit__(None, None, None)

    def lock(self, name: str, *, timeout: float = 60.0) -> AbstractContextManager[None]:
        """A lock of this project by a name of its own, between processes. StorageError when the time is up."""
        self.journal.layout.make()
        return locks.gate(self.journal.layout.live / name, timeout=timeout)

    def bulk_writer(self) -> bulk.FileBulkWriter:
        return bulk.FileBulkWriter(self.root, self.sync)

    def check_lease(self, task_id: str, token: str) -> None:
        """TaskBusy unless this token has the task now."""
        self.lent.check(task_id, token)

    def release_lease(self, prefix: str, token: str) -> None:
        self.lent.release(self.find(prefix).id, token)

    @property
    def where(self) -> str:
        return str(self.root)

    def add_task(self, name: TaskName, records: Iterable[Sequence[Entry]]) -> bool:
        """A whole new task from its records; False when there is one of its id."""
        self.journal.layout.make()
        rows = bulk.write_task(self.journal, self.redactor, name, records, bulk.taken(self.journal, name))
        if rows is None:
            return False
        with contextlib.suppress(RawkoError):  # then the next look at the folder sees it
            index = self.sync.index()
            with index.transaction():
                index.put_new(rows)
        return True

    def import_lock(self) -> AbstractContextManager[None]:
        """While this is held, nobody else brings the sessions of other agents in."""
        self.journal.layout.make()
        return locks.gate(self.journal.layout.live / "import.lock")

    # Keeping

    def retention_rows(self, task_id: str | None = None) -> list[RetentionRow]:
        """Every task, or one, as retention sees it."""
        alive, exempt = self.alive() | self.journal.drafted(), journal_trash.exempt(self.journal.layout)
        return cast(
            "list[RetentionRow]", self.sync.guarded(lambda index: retention.rows(index, alive, exempt, task_id))
        )

    def trash(self) -> list[InTrash]:
        """What is in the trash, the last one first."""
        return [trash.in_trash(each) for each in journal_trash.listed(self.journal.layout)]

    def freed_bytes(self, task_ids: Sequence[str]) -> dict[str, int]:
        """The bytes of long outputs that go with some tasks, if all of these go."""
        return retention.freed(self.sync.index(), task_ids)

    def add_file(self, filename: str, data: bytes | Iterable[bytes], blobs: Iterable[bytes] = ()) -> TaskName | None:
        """Puts a whole task file into the project, as it is, and its blobs before it. None when it is there already."""
        name = parse_name(filename)
        if name is None:
            raise InvalidValue(f"not the name of a task file: {filename!r}")
        with self.journal.keeping_blobs():
            for content in blobs:
                self.journal.put_blob(content)
            return name if self.journal.add_file(name, data) else None

    def replace_task(self, name: TaskName, data: Iterable[bytes], blobs: Iterable[bytes], size: int, seal: str) -> bool:
        """A longer writing of a task, if the one that is there is still so long and ends with that seal."""
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
        """Puts tasks into the trash, as they were when kept() told of them, each with the rule that takes it. Yields the ids of
        those that went: one that has changed since, or is being run, stays."""
        return trash.move_to_trash(self.sync, tasks, by, proceed, patience)

    def delete(self, prefix: str, *, by: str | None = None) -> str:
        """Puts one task into the trash, whatever its age."""
        name = self.find(prefix)
        task = next(iter(self.retention_rows(name.id)), None)
        if task is None or not list(self.move_to_trash([(task, journal_trash.BY_HAND)], by=by)):
            raise TaskBusy(name.id, reason="changed")
        return name.id

    def restore(self, prefix: str | None = None) -> list[str]:
        """Brings tasks back from the trash, byte for byte; all of them without an id. Cleanups leave them alone from now on."""
        return trash.restore(self.sync, prefix) if self.journal.layout.trash.exists() or prefix else []

    def empty_trash(
        self,
        before: datetime | None = None,
        *,
        only: str | None = None,
        patience: float = 60.0,
        proceed: Callable[[], bool] = lambda: True,
    ) -> list[InTrash]:
        """Deletes for good what came into the trash before a time; all of it without one. The oldest first, while ``proceed``."""
        return trash.empty(self.sync, before, only, patience, proceed)

    def erase(self, prefix: str, *, by: str | None = None) -> str:
        """The index and the search index are made anew: nothing of it is left in their files either."""
        was_due = self.begin_redacting()
        task_id = super().erase(prefix, by=by)
        journal_trash.log_erased(self.journal.layout, task_id, by)
        self.end_redacting(changed=True, was_due=was_due)
        return task_id

    def pack(self, task: RetentionRow) -> bool:
        """Makes a finished task a ``.task.gz``, which all else can read. False if it has changed since, or is being run."""
        return trash.pack(self.sync, task) is not None

    def redact(self, prefix: str, *, dry_run: bool = False, by: str | None = None) -> Found:
        """Takes the secrets out of a task that was recorded with them: its file is written and sealed anew, and says so. The
        index and the search index still know them until reindex() has made new ones."""
        name = self.find(prefix)
        if dry_run:
            return redaction.look(self.sync, self.redactor, name)
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

    def begin_redacting(self) -> bool:
        """Before a redaction of many tasks. Whether one before was stopped before its end."""
        due = self.journal.layout.live / "reindex.due"
        was_due = due.exists()
        self.journal.layout.make()
        due.touch(mode=0o600)
        return was_due

    def end_redacting(self, *, changed: bool, was_due: bool) -> None:
        """Their words are in the old index, also those of a redaction that was stopped: a new one is made."""
        if changed or was_due:
            self.reindex()
        if was_due:
            redaction.finish(self.sync, self.redactor)
        (self.journal.layout.live / "reindex.due").unlink(missing_ok=True)

    def task_ids(self) -> list[str]:
        """Every task file, also one that the index does not know."""
        return sorted(self.sync.names())

    def _is_sealed(self, name: TaskName) -> bool:
        with self.journal.reader(name) as reader:
            return any(record.kind == "sealed" for record in reader.records())

    def flush(self, step: Callable[[int, int], None] | None = None, *, wait: bool = False) -> int:
        """Takes what is new into the search index. Searches find it without that, only slower. Returns how many bytes."""
        return self._finder().flush(step=step, wait=wait)

    def reindex(
        self, step: Callable[[int, int], None] | None = None, folding: Callable[[int, int], None] | None = None
    ) -> list[tuple[str, str]]:
        """Rebuilds the index and the search index from the files. Returns the tasks whose files could not be fully read, and
        why. ``step`` is told of files done and in all, ``folding`` of bytes."""
        self.journal.layout.make()
        with contextlib.ExitStack() as stack:
            mine = False
            try:
                mine = stack.enter_context(flush.locked(self.sync.index(), wait=True))
            except RawkoError as trouble:
                self._warn(f"{trouble}; searches read the task files")

            def then(index: Index) -> None:
                try:
                    if mine:
                        flush.flush_anew(index, self.journal, folding)
                except (RawkoError, OSError) as trouble:
                    self._warn(f"{trouble}; searches read the task files")

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
        """Walks one chain, or all of them in order of their names."""
        names = [self.find(prefix)] if prefix else sorted(self.journal.layout.names())
        files: dict[str, list[TaskName]] = {}
        for name in self.journal.layout.names():
            files.setdefault(name.id, []).append(name)
        for name in names:
            if repair and not self.journal.layout.path(name).exists():
                continue  # the packed form, which a repair of the plain one has removed
            same = files.get(name.id, [name])
            counts = self.journal.chosen(same) if len(same) > 1 else name
            if name == counts:
                with contextlib.suppress(RawkoError):
                    self.sync.catch_up(name)  # if it was cut off, the index has to notice before it is asked
            verdict = verify.verify(self.journal.layout, name)
            self._look_beside(name, same, counts, verdict)
            if repair and (verdict.can_repair or verdict.warnings):
                verdict = self._repaired(name, verdict)
            yield verdict

    def _look_beside(self, name: TaskName, same: list[TaskName], counts: TaskName, verdict: Verdict) -> None:
        """What the file does not say itself: what the index knew of it, and other files of the same task."""
        missing = self.sync.missing(name.id) if name == counts else None
        if missing is not None:
            verdict.warnings.append(missing)
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
        """Mends a file and tells the index, also if this process dies meanwhile: then its mark stays."""
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
                chain = self.journal.open(name)  # which removes it
                chain.close()
                verdict.repaired.append("removed the packed form, which was left over")
            if self.sync.missing(name.id) is not None:
                verdict.repaired.append("took the file for what it is: what is missing is not looked for any more")
            self.sync.catch_up(name, grown=not verdict.to_rewrite)
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
    """Whether a day has passed since the last time."""
    try:
        age = time.time() - os.stat(stamp).st_mtime
    except OSError:
        return True
    return abs(age) >= _DAY
