"""The store on PostgreSQL: for teams and many machines. The record bytes are rows, and so is all that is derived from them, one
append in one transaction. Any number of processes may use it at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from rawko_state.backends.expiring import LEASE, ExpiringLease
from rawko_state.backends.opening import Opening
from rawko_state.backends.pgdesk import PgDesk, projected
from rawko_state.backends.pgfiles import BytesSource, PgCatalogue, PgFiles, pieces_of, spooled
from rawko_state.backends.pgkeeping import PgKeeping
from rawko_state.backends.reads import Reads
from rawko_state.errors import InvalidValue, RawkoError, StorageError, TaskNotFound
from rawko_state.format.seal import GENESIS
from rawko_state.index.pgtasks import PgTasks, holder_name
from rawko_state.index.postgres import PgRows, Postgres, is_duplicate
from rawko_state.index.postgres_names import DEFAULT, check_workspace, schema_of
from rawko_state.journal.source import Source
from rawko_state.model.names import TaskName, parse_name

if TYPE_CHECKING:
    from rawko_state.backends.desk import Desk
    from rawko_state.backends.events import Pace
    from rawko_state.backends.pgfinder import PgFinder
    from rawko_state.model.entries import Entry, TaskHeader


class PostgresStore(Reads, Opening, PgKeeping):
    """The tasks of one workspace."""

    journal: PgFiles
    catalogue: PgCatalogue

    def __init__(
        self,
        database: str | Postgres,
        workspace: str = DEFAULT,
        *,
        root: Path | str | None = None,
        warn: Callable[[str], None] = lambda message: None,
    ) -> None:
        """``root`` is the project whose settings (of redaction) count."""
        self._own = not isinstance(database, Postgres)
        self.postgres = database if isinstance(database, Postgres) else Postgres(database)
        self.workspace = check_workspace(workspace)
        try:
            rows = PgRows(self.postgres, schema_of(workspace))
        except BaseException:
            self.postgres.close()
            raise
        self.tasks = PgTasks(rows)
        files = PgFiles(self.tasks)
        super().__init__(Path(root or Path.cwd()).resolve(), files, PgCatalogue(rows, files), warn)
        self._listener: _Listener | None = None

    def close(self) -> None:
        if self._listener is not None:
            self._listener.stop()
            self._listener = None
        if self._own:
            self.postgres.teller.close()  # it begins anew when there is something to tell
        self.catalogue.close()

    # Finding

    def find(self, prefix: str) -> TaskName:
        try:
            return self.journal.find(prefix)
        except TaskNotFound as error:
            in_trash = any(each.id.startswith(prefix) for each in self.tasks.thrown())
            raise TaskNotFound(prefix, error.closest, in_trash=in_trash) from None

    def _finder(self) -> PgFinder:
        from rawko_state.backends.pgfinder import PgFinder

        return PgFinder(self.catalogue, self.tasks, self.alive, self._tell)

    def _rest(self, task_id: str, pace: Pace, happened: bool) -> None:
        if self._listener is None:
            self._listener = _Listener(self.postgres, self.tasks.rows.schema)
        if not happened:
            self._listener.wait(1.0)

    # Opening

    def _create(
        self,
        header: TaskHeader,
        entries: Sequence[Entry],
        *,
        attached: bool,
        before: Callable[[str, str], None] | None,
    ) -> Desk:
        from rawko_state.format.codec import FORMAT_VERSION
        from rawko_state.format.records import emit_record
        from rawko_state.journal.layout import new_id
        from rawko_state.model.names import name_for

        created = header.created or datetime.now(timezone.utc).replace(microsecond=0)
        wanted = header.id
        while True:
            name = name_for(created, wanted or new_id())
            header = replace(header, id=name.id, created=created, format=FORMAT_VERSION)
            data, seal = emit_record([header, *entries])
            lease = self._lease(name.id) if attached else None
            try:
                with self.postgres.transaction():
                    if before is not None:
                        before(name.id, seal)
                    self._put(name, BytesSource(name.filename, data))
                return PgDesk(self, name, lease)
            except StorageError as error:
                if lease is not None:
                    lease.release()
                if not is_duplicate(error):
                    raise
                if wanted:
                    raise RawkoError(f"there is a task {wanted} already") from None
            except BaseException:
                if lease is not None:
                    lease.release()
                raise

    def _desk(self, name: TaskName, lease: float | None = None) -> Desk:
        held = None if lease is None else self._lease(name.id, lease)
        try:
            return PgDesk(self, name, held)
        except BaseException:
            if held is not None:
                held.release()
            raise

    def _lease(self, task_id: str, wait: float = 0.0) -> ExpiringLease:
        tasks, holder = self.tasks, holder_name()
        return ExpiringLease(
            task_id,
            lambda token: tasks.borrow(task_id, token, holder, LEASE),
            lambda token: tasks.give_back(task_id, token),
            wait=wait,
            done=self.postgres.close,
        )

    def _abandoned(self) -> list[tuple[str, bool]]:
        return [(task_id, True) for task_id in self.tasks.abandoned()]

    def borrow(self, prefix: str, token: str | None = None, seconds: float = LEASE) -> str:
        return self.tasks.borrow(self.find(prefix).id, token, holder_name(), seconds)

    def check_lease(self, task_id: str, token: str) -> None:
        """TaskBusy unless this token has the task now."""
        self.tasks.check_lease(task_id, token)

    def give_back(self, prefix: str, token: str) -> None:
        self.tasks.give_back(prefix, token)

    @contextlib.contextmanager
    def importing(self) -> Iterator[None]:
        """While this is held, nobody else brings the sessions of other agents in."""
        key = int.from_bytes(hashlib.sha256(f"import {self.workspace}".encode()).digest()[:8], "big", signed=True)
        with self.postgres.transaction() as connection:
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (key,))
            yield

    def place(self, filename: str, data: bytes | Iterable[bytes], blobs: Iterable[bytes] = ()) -> TaskName | None:
        name = parse_name(filename)
        if name is None:
            raise InvalidValue(f"not the name of a task file: {filename!r}")
        name = replace(name, packed=False)
        with spooled(data) as source, self.tasks.keeping_blobs(), self.postgres.transaction():
            there = self.tasks.size(name.id)
            if there is not None:
                if there == source.size() and self._is_same(name.id, source):
                    return None
                raise RawkoError(f"there is another task {name.id} already")
            for content in blobs:
                self.journal.put_blob(content)
            try:
                self._put(name, source)
            except StorageError as error:
                if is_duplicate(error):
                    raise RawkoError(f"there is another task {name.id} already") from None
                raise
        return name

    def replace(self, name: TaskName, data: Iterable[bytes], blobs: Iterable[bytes], size: int, seal: str) -> bool:
        """A longer writing of a task, if the one that is there is still so long and ends with that seal."""
        with spooled(data) as source, self.tasks.keeping_blobs(), self.postgres.transaction():
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

    def _is_same(self, task_id: str, source: Source) -> bool:
        at = 0
        while piece := source.fetch(at, 1 << 20):
            if self.tasks.fetch(task_id, at, len(piece)) != piece:
                return False
            at += len(piece)
        return True

    @property
    def where(self) -> str:
        return f"the workspace {self.workspace} of {self.postgres.name}"

    def bring(self, name: TaskName, records: Iterable[Sequence[Entry]]) -> bool:
        from rawko_state.backends.bringing import carried

        return self.tasks.size(name.id) is None and carried(self, self.redactor, name, records)

    def _put(self, name: TaskName, source: Source, *, base: int = 0) -> None:
        """A whole task, new or anew. Inside a transaction; whoever listens may hear of it a moment before it is there, and looks
        again when he finds nothing."""
        projected(self.tasks, name, source, base)
        self.tasks.tell(name.id)

    def rewrite(self, name: TaskName, data: bytes | Iterable[bytes]) -> None:
        """Other bytes in place of a task's. Inside a transaction that holds its row."""
        stamp = self.tasks.stamp(name.id)
        with spooled(data) as source:
            self.tasks.rows.forget(name.id)
            self._put(name, source, base=(stamp[0] if stamp else 0) + 1)

    def unfolded(self) -> int:
        """Searches need nothing besides their index, which every append brings up to date."""
        return 0

    def can_fold(self) -> bool:
        return False

    def fold(self, step: Callable[[int, int], None] | None = None, *, wait: bool = False) -> int:
        return 0


class _Listener:
    """Wakes whoever follows tasks of one workspace."""

    def __init__(self, postgres: Postgres, schema: str) -> None:
        self._schema = schema
        self._stop, self._woken, ready = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(
            target=postgres.listen, args=(self._stop, self._told), kwargs={"ready": ready}, daemon=True
        )
        self._thread.start()
        ready.wait(5)

    def _told(self, payload: str) -> None:
        if payload == "*" or payload.split(" ", 1)[0] == self._schema:
            self._woken.set()

    def wait(self, seconds: float) -> None:
        self._woken.wait(seconds)
        self._woken.clear()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(2)
