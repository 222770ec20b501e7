"""The PostgreSQL store, for teams and many machines. Record bytes are rows, and so is everything derived from them. An append is
one transaction. Any number of processes may use the store at once.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rawko_state.backends.bulk import upload_task
from rawko_state.backends.indexed import IndexedStore
from rawko_state.backends.leases import LEASE, ExpiringLease
from rawko_state.backends.postgres.bytes import PostgresBytes, PostgresFiles, PostgresSync, pieces_of, spooled
from rawko_state.backends.postgres.connection import IMPORT, OPEN, Postgres, is_taken
from rawko_state.backends.postgres.names import DEFAULT, check_workspace, schema_of
from rawko_state.backends.postgres.rows import PostgresDatabase
from rawko_state.backends.postgres.tables import TaskTables, Thrown, holder_name
from rawko_state.backends.postgres.verify import repaired, verdict_of
from rawko_state.backends.postgres.writer import PostgresWriter, projected
from rawko_state.backends.redaction import Counting, Found, count_draft, noted
from rawko_state.errors import AmbiguousTask, InvalidValue, RawkoError, StorageError, TaskBusy, TaskExists, TaskNotFound
from rawko_state.format.reader import MemoryBytes, TaskBytes, TaskReader, entry_of
from rawko_state.format.records import BuiltRecord, first_record
from rawko_state.format.rewriting import Rewriting, with_note
from rawko_state.format.seal import GENESIS
from rawko_state.index import queries, retention
from rawko_state.journal.layout import new_id
from rawko_state.journal.verify import Verdict
from rawko_state.model.appended import BeforeWrite
from rawko_state.model.entries import Entry, TaskHeader, Turn
from rawko_state.model.frozen import replace
from rawko_state.model.names import TaskName, name_for, parse_name
from rawko_state.store import InTrash, RetentionRow, TurnRow
from rawko_state.tasks.writer import Writer

if TYPE_CHECKING:
    from rawko_state.backends.postgres.search import PostgresFinder
    from rawko_state.store.contract import BeforeDraft
    from rawko_state.tasks.events import Pace

BY_HAND: Final = "deleted"


class PostgresStore(IndexedStore):
    """The tasks of one workspace in a PostgreSQL database. Connects when it is made.

    >>> PostgresStore("postgresql://127.0.0.1:9/none")
    Traceback (most recent call last):
    StorageAway: ...
    """

    journal: PostgresFiles
    sync: PostgresSync

    def __init__(
        self,
        database: str | Postgres,
        workspace: str = DEFAULT,
        *,
        root: Path | str | None = None,
        warn: Callable[[str], None] = lambda message: None,
    ) -> None:
        """``root`` is the project whose redaction settings apply."""
        self._own = not isinstance(database, Postgres)
        self.postgres = database if isinstance(database, Postgres) else Postgres(database)
        self.workspace = check_workspace(workspace)
        try:
            rows = PostgresDatabase(self.postgres, schema_of(workspace))
        except BaseException:
            self.postgres.close()
            raise
        self.tasks = TaskTables(rows)
        files = PostgresFiles(self.tasks)
        super().__init__(Path(root or Path.cwd()).resolve(), files, PostgresSync(rows, files), warn)
        self._listener: _Listener | None = None

    def close(self) -> None:
        if self._listener is not None:
            self._listener.stop()
            self._listener = None
        if self._own:
            self.postgres.notifier.close()  # it restarts when there is something to send
        self.sync.close()

    # Finding

    def find(self, prefix: str) -> TaskName:
        try:
            return self.journal.find(prefix)
        except TaskNotFound as error:
            in_trash = any(each.id.startswith(prefix) for each in self.tasks.thrown())
            raise TaskNotFound(prefix, error.closest, in_trash=in_trash) from None

    def turn(self, prefix: str, number: int, *, row: TurnRow | None = None) -> Turn:
        """One statement, if the id is given in full."""
        found = None if row is not None else self.tasks.turn(prefix, number)
        if found is not None and len(found[3]) == found[2]:
            damaged, offset, _, data = found
            turn = entry_of(data, offset)
            if isinstance(turn, Turn):
                return replace(turn, damaged=True) if damaged else turn
        return super().turn(prefix, number, row=row)

    def _finder(self) -> PostgresFinder:
        from rawko_state.backends.postgres.search import PostgresFinder

        return PostgresFinder(self.sync, self.tasks, self.alive, self._warn)

    def _rest(self, task_id: str, pace: Pace, happened: bool) -> None:
        if self._listener is None:
            self._listener = _Listener(self.postgres, self.tasks.rows.schema)
        if not happened:
            self._listener.wait(1.0)

    # Opening

    def _new_writer(
        self,
        header: TaskHeader,
        entries: Sequence[Entry],
        *,
        attached: bool,
        before: BeforeWrite | None,
    ) -> Writer:
        made = self._made(header, entries, attached=attached, before=before)
        assert made is not None
        return made

    def _find_or_new(
        self, header: TaskHeader, entries: Sequence[Entry], before: BeforeWrite | None
    ) -> tuple[Writer, bool]:
        while True:
            found = self._with_source(header.source or "")
            if found is not None:
                return found, False
            made = self._made(header, entries, attached=False, before=before, unless=header.source)
            if made is not None:
                return made, True

    def _made(
        self,
        header: TaskHeader,
        entries: Sequence[Entry],
        *,
        attached: bool,
        before: BeforeWrite | None,
        unless: str | None = None,
    ) -> Writer | None:
        """Creates a task; None if there is one with the source ``unless``."""
        created = header.created or datetime.now(timezone.utc).replace(microsecond=0)
        wanted = header.id
        while True:
            name = name_for(created, wanted or new_id())
            record = first_record(replace(header, id=name.id, created=created), entries)
            lease = self._lease(name.id) if attached else None
            try:
                made = self.postgres.retrying(functools.partial(self._create, name, record, before, unless))
                return PostgresWriter(self, name, lease) if made else None
            except StorageError as error:
                if lease is not None:
                    lease.release()
                if not is_taken(error):
                    raise
                if wanted:
                    raise TaskExists(wanted) from None
            except BaseException:
                if lease is not None:
                    lease.release()
                raise

    def _create(self, name: TaskName, record: BuiltRecord, before: BeforeWrite | None, unless: str | None) -> bool:
        with self.postgres.transaction():
            if unless is not None:
                self.postgres.lock_made_row(self.tasks.rows.schema, OPEN)
                if queries.find_source(self.tasks.rows, unless) is not None:
                    return False
            if before is not None:
                before(record.appended())
            self._put(name, MemoryBytes(record.data))
        return True

    def _open_writer(self, name: TaskName, lease: float | None = None) -> Writer:
        held = None if lease is None else self._lease(name.id, lease)
        try:
            return PostgresWriter(self, name, held)
        except BaseException:
            if held is not None:
                held.release()
            raise

    def _lease(self, task_id: str, wait: float = 0.0) -> ExpiringLease:
        tasks, holder = self.tasks, holder_name()
        return ExpiringLease(
            task_id,
            lambda token: tasks.take_lease(task_id, token, holder, LEASE),
            lambda token: tasks.release_lease(task_id, token),
            wait=wait,
            done=self.postgres.close,
        )

    def _abandoned(self) -> list[tuple[str, bool]]:
        return [(task_id, True) for task_id in self.tasks.abandoned()]

    def take_lease(self, prefix: str, token: str | None = None, seconds: float = LEASE) -> str:
        return self.tasks.take_lease(self.find(prefix).id, token, holder_name(), seconds)

    def expire_leases(self) -> None:
        """Does nothing: leases expire by PostgreSQL's clock."""

    def begin_draft(self, task_id: str, lines: bytes, *, before: BeforeDraft | None = None) -> None:
        def begin() -> None:
            with self.postgres.transaction(durable=False):
                if before is not None:
                    before(0)
                self.tasks.begin_draft(task_id)
                self.tasks.add_to_draft(task_id, lines)

        self.postgres.retrying(begin)
        self.tasks.notify(task_id)

    def add_to_draft(self, task_id: str, lines: bytes, *, before: BeforeDraft | None = None) -> bool:
        def add() -> bool:
            with self.postgres.transaction(durable=False):
                found = self.tasks.add_to_draft(task_id, lines)
                if found and before is not None:
                    before(0)  # it joins this transaction, so the place does not matter
                return found

        found = self.postgres.retrying(add)
        self.tasks.notify(task_id)
        return found

    def extend_draft(self, task_id: str, lines: bytes, lease: str, *, before: BeforeDraft | None = None) -> str | None:
        def extend() -> tuple[bool, bool, str | None]:
            with self.postgres.transaction():
                if before is not None:
                    before(0)
                found = self.tasks.extend_draft(task_id, lines, lease)
                if not found[1]:
                    raise _Undone(*found)  # without its line, the key must not be kept either
                return found

        try:
            seal = self.postgres.retrying(extend)[2]
        except _Undone as error:
            if not error.held:
                raise TaskBusy(task_id, self.tasks.holder(task_id) or "nobody", reason="lost") from None
            return None
        self.tasks.notify(task_id)
        return seal or GENESIS

    def drop_draft(self, task_id: str) -> None:
        self.tasks.drop_draft(task_id)

    def draft_lines(self, task_id: str) -> list[bytes]:
        return self.tasks.draft_from(task_id, 0).splitlines(keepends=True)

    def check(self) -> None:
        """Reads from the workspace's own tables, which may be on another node than the others."""
        with self.tasks.rows.mapped():
            for table in ("tasks", "record_bytes"):
                self.postgres.connection.execute(f"SELECT 1 FROM {self.tasks.rows.at(table)} LIMIT 1")

    def check_lease(self, task_id: str, token: str) -> None:
        """Raises TaskBusy unless this token holds the lease."""
        self.tasks.check_lease(task_id, token)

    def release_lease(self, prefix: str, token: str) -> None:
        self.tasks.release_lease(prefix, token)

    @contextlib.contextmanager
    def import_lock(self) -> Iterator[None]:
        """Prevents other processes from importing other agents' sessions meanwhile."""
        with self.postgres.transaction():
            self.postgres.lock_row(self.tasks.rows.schema, IMPORT)
            yield

    def add_file(self, filename: str, data: bytes | Iterable[bytes], blobs: Iterable[bytes] = ()) -> TaskName | None:
        name = parse_name(filename)
        if name is None:
            raise InvalidValue(f"Not a task file name: {filename!r}.")
        name = replace(name, packed=False)
        outputs = list(blobs)
        with spooled(data) as source:
            try:
                return self.postgres.retrying(lambda: self._add(name, source, outputs))
            except StorageError as error:
                if is_taken(error):
                    raise TaskExists(name.id) from None
                raise

    def _add(self, name: TaskName, source: TaskBytes, blobs: Sequence[bytes]) -> TaskName | None:
        with self.postgres.transaction():
            self.tasks.keep_blobs()
            there = self.tasks.size(name.id)
            if there is not None:
                if there == source.size() and self._is_same(name.id, source):
                    return None
                raise TaskExists(name.id)
            for content in blobs:
                self.journal.put_blob(content)
            self._put(name, source)
        return name

    def replace_task(self, name: TaskName, data: Iterable[bytes], blobs: Iterable[bytes], size: int, seal: str) -> bool:
        """Replaces a task with a longer version, if it still has this size and ends with this seal."""
        outputs = list(blobs)
        with spooled(data) as source:
            return self.postgres.retrying(lambda: self._replaced(name, source, outputs, size, seal))

    def _replaced(self, name: TaskName, source: TaskBytes, blobs: Sequence[bytes], size: int, seal: str) -> bool:
        with self.postgres.transaction():
            self.tasks.keep_blobs()
            row = self.tasks.rows.row(name.id, lock=True)
            if (
                row is None
                or (row["file_size"], row["tail_seal"] or GENESIS) != (size, seal)
                or name.id in self.alive()
            ):
                return False
            for content in blobs:
                self.journal.put_blob(content)
            self.rewrite(TaskName(str(row["file_path"]).rpartition("/")[2][:19], name.id), pieces_of(source))
        return True

    def _is_same(self, task_id: str, source: TaskBytes) -> bool:
        at = 0
        while piece := source.fetch(at, 1 << 20):
            if self.tasks.fetch(task_id, at, len(piece)) != piece:
                return False
            at += len(piece)
        return True

    @property
    def where(self) -> str:
        return f"the workspace {self.workspace} of {self.postgres.name}"

    def add_task(self, name: TaskName, records: Iterable[Sequence[Entry]]) -> bool:
        return self.tasks.size(name.id) is None and upload_task(self, self.redactor, name, records)

    def _put(self, name: TaskName, source: TaskBytes, *, base: int = 0) -> None:
        """Writes a whole task, new or rewritten. Call inside a transaction. Listeners may be notified just before the commit, and
        look again if they find nothing."""
        projected(self.tasks, name, source, base)
        self.tasks.notify(name.id)

    def rewrite(self, name: TaskName, data: bytes | Iterable[bytes]) -> None:
        """Replaces a task's bytes. Call inside a transaction that has locked its row."""
        stamp = self.tasks.stamp(name.id)
        with spooled(data) as source:
            self.tasks.rows.forget(name.id)
            self._put(name, source, base=(stamp[0] if stamp else 0) + 1)

    # Retention

    def retention_rows(self, task_id: str | None = None) -> list[RetentionRow]:
        alive = self.alive() | self.tasks.drafted()
        return retention.rows(self.tasks.rows, alive, self.tasks.exempt(), task_id)

    def freed_bytes(self, task_ids: Sequence[str]) -> dict[str, int]:
        return retention.freed(self.tasks.rows, task_ids)

    def move_to_trash(
        self,
        tasks: Iterable[tuple[RetentionRow, str]],
        *,
        by: str | None = None,
        proceed: Callable[[], bool] = lambda: True,
        patience: float = 60.0,
    ) -> Iterator[str]:
        for task, rule in tasks:
            if not proceed():
                return
            if self.postgres.retrying(functools.partial(self._throw, task, rule, by)):
                yield task.id

    def _throw(self, task: RetentionRow, rule: str, by: str | None) -> bool:
        with self.postgres.transaction():
            row = self.tasks.rows.row(task.id, lock=True)
            if row is None or (row["file_size"], row["file_mtime_ns"]) != (task.size, task.mtime_ns):
                return False
            busy = task.id in self.alive() or task.id in self.tasks.drafted()
            if busy or (rule != BY_HAND and task.id in self.tasks.exempt()):
                return False
            blobs = retention.blobs_of(self.tasks.rows, [task.id]).get(task.id, {})
            filename = str(row["file_path"]).rpartition("/")[2]
            self.tasks.throw(task.id, filename, rule, by, task.size, list(blobs))
            self.tasks.notify(task.id)
            return True

    def delete(self, prefix: str, *, by: str | None = None) -> str:
        name = self.find(prefix)
        task = next(iter(self.retention_rows(name.id)), None)
        if task is None or not self.postgres.retrying(functools.partial(self._throw, task, BY_HAND, by)):
            raise TaskBusy(name.id, reason="changed")
        return name.id

    def trash(self) -> list[InTrash]:
        return [
            InTrash(each.id, each.at.astimezone(timezone.utc), each.rule, each.size) for each in self.tasks.thrown()
        ]

    def restore(self, prefix: str | None = None) -> list[str]:
        thrown = self.tasks.thrown()
        chosen = thrown if prefix is None else [self._in_trash(prefix, thrown)]
        back = [each.id for each in chosen if self.postgres.retrying(functools.partial(self._restored, each))]
        if prefix is not None and not back:
            raise TaskExists(chosen[0].id, " in the workspace")
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
            if not self.tasks.lock_thrown(each.key) or self.tasks.size(each.id) is not None:
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
        only: str | None = None,
        patience: float = 60.0,
        proceed: Callable[[], bool] = lambda: True,
    ) -> list[InTrash]:
        going = []
        for each in self.tasks.thrown():
            if (before is not None and each.at >= before) or (only is not None and each.id != only):
                continue
            if not proceed():
                break
            going.append(each)
            self.postgres.retrying(functools.partial(self._drop_thrown, each))
        return [InTrash(each.id, each.at.astimezone(timezone.utc), each.rule, each.size) for each in going]

    def _drop_thrown(self, each: Thrown) -> None:
        with self.postgres.transaction():
            self.tasks.lock_blobs()
            self.tasks.drop_thrown(each.key)
            self.tasks.drop_unused_blobs(each.blobs)

    def pack(self, task: RetentionRow) -> bool:
        """PostgreSQL compresses large values itself."""
        return False

    def redact(self, prefix: str, *, dry_run: bool = False, by: str | None = None) -> Found:
        name = self.find(prefix)
        found = Found(name.id)
        counting = Counting(self.journal, self.redactor, found, write=not dry_run)
        work = Rewriting(counting.entry, counting.text)
        if dry_run:
            with self.reader(name.id) as reader:
                for _ in work.pieces(reader):
                    pass
            count_draft(self.draft_lines(name.id), counting)
            return found
        token = self.take_lease(name.id)
        try:
            if name.id in self.tasks.drafted():
                # What a dead writer left becomes an interrupted turn, without secrets.
                with self._task(name) as task:
                    task.recover()
            with self.postgres.transaction():
                self.tasks.lock_blobs()  # before the row: appends take the locks in this order
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
            self.release_lease(name.id, token)
        if found.changed and not work.sealed:
            with self._task(name) as task:
                task.add([noted(found, found.changed, by)])
        return found

    def redact_rest(self, *, dry_run: bool = False, by: str | None = None) -> list[Found]:
        """Removes secrets from the tasks in the trash."""
        results = []
        for each in self.tasks.thrown():
            found = Found(each.id)
            results.append(found)
            counting = Counting(self.journal, self.redactor, found, write=not dry_run)
            work = Rewriting(counting.entry, counting.text)
            with self.postgres.transaction():
                if not dry_run:
                    self.tasks.lock_blobs()  # before the task, as when the trash is emptied
                if not self.tasks.lock_thrown(each.key):
                    continue  # restored or deleted meanwhile
                with spooled(self.tasks.thrown_bytes(each.key)) as source:
                    reader = TaskReader(Path(each.filename), source)
                    if dry_run:
                        for _ in work.pieces(reader):
                            pass
                        continue
                    with spooled(
                        with_note(work, reader, lambda changed, found=found: noted(found, changed, by))  # type: ignore[misc]
                    ) as new:
                        if work.changed:
                            blobs = [counting.renamed.get(blob, blob) for blob in each.blobs]
                            self.tasks.replace_thrown(each.key, pieces_of(new), new.size(), blobs)
                            self.tasks.drop_unused_blobs(counting.replaced)
            found.changed = work.changed
        return results

    def verify(self, prefix: str | None = None, *, repair: bool = False) -> Iterator[Verdict]:
        for task_id in [self.find(prefix).id] if prefix else self.tasks.ids():
            try:
                name = self.find(task_id)
            except TaskNotFound:
                continue
            verdict = verdict_of(self, name)
            if repair and verdict.can_repair:
                verdict = repaired(self, name, verdict)
            yield verdict

    def reindex(
        self, step: Callable[[int, int], None] | None = None, flushing: Callable[[int, int], None] | None = None
    ) -> list[tuple[str, str]]:
        """Derives the rows of every task from its bytes again, task by task. Others may read and write meanwhile."""
        ids = self.tasks.ids()
        for number, task_id in enumerate(ids, 1):
            self.postgres.retrying(functools.partial(self._reindexed, task_id))
            if step is not None:
                step(number, len(ids))
        return [(task_id, what) for task_id, what in self.concerns() if "damaged" in what]

    def _reindexed(self, task_id: str) -> None:
        with self.postgres.transaction():
            self.tasks.keep_blobs()
            row = self.tasks.rows.row(task_id, lock=True)
            if row is None:
                return  # deleted meanwhile
            name = parse_name(str(row["file_path"]).rpartition("/")[2])
            assert name is not None
            with spooled(pieces_of(PostgresBytes(self.tasks, task_id))) as source:
                self.tasks.rows.forget(task_id)
                self._put(name, source, base=row["fold_base"])

    # Search

    def unflushed(self) -> int:
        """Searches need only the index, which every append updates."""
        return 0

    def flush_due(self) -> str | None:
        return None

    def flush(self, step: Callable[[int, int], None] | None = None, *, wait: bool = False) -> int:
        return 0


class _Undone(RawkoError):
    """A line was not added to a draft."""

    def __init__(self, held: bool, added: bool, seal: str | None) -> None:
        super().__init__("no draft")
        self.held = held


class _Listener:
    """Wakes followers of one workspace's tasks."""

    def __init__(self, postgres: Postgres, schema: str) -> None:
        self._schema = schema
        self._stop, self._woken, ready = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(
            target=postgres.listen, args=(self._stop, self._heard), kwargs={"ready": ready}, daemon=True
        )
        self._thread.start()
        ready.wait(5)

    def _heard(self, payload: str) -> None:
        if payload == "*" or payload.split(" ", 1)[0] == self._schema:
            self._woken.set()

    def wait(self, seconds: float) -> None:
        self._woken.wait(seconds)
        self._woken.clear()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(2)
