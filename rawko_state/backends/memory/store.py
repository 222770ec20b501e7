"""The in-memory store: the smallest one that passes the conformance suite and can back a server.

Tasks are Python bytes, rows are in an in-memory SQLite database, and one lock guards both. All is lost when the process ends.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import hashlib
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from rawko_state.backends.bulk import upload_task
from rawko_state.backends.indexed import IndexedStore
from rawko_state.backends.known import IndexedTasks
from rawko_state.backends.memory.writer import MemoryWriter
from rawko_state.backends.redaction import Counting, Found, noted
from rawko_state.errors import (
    AmbiguousTask,
    InvalidValue,
    RawkoError,
    StorageError,
    TaskBusy,
    TaskExists,
    TaskNotFound,
)
from rawko_state.format.reader import MemoryBytes, TaskReader
from rawko_state.format.records import first_record, header_copies
from rawko_state.format.rewriting import Rewriting, with_note
from rawko_state.format.scan import Scan
from rawko_state.format.seal import HEADER_LIMIT, header_shape
from rawko_state.format.values import seconds
from rawko_state.index import flushed, retention
from rawko_state.index.database import Index
from rawko_state.index.projection import NewRows, Projector, located
from rawko_state.journal.layout import Layout, new_id
from rawko_state.journal.verify import Verdict, verify, walk
from rawko_state.model.appended import BeforeWrite
from rawko_state.model.entries import Blob, Entry, TaskHeader, ToolCall
from rawko_state.model.frozen import replace
from rawko_state.model.names import TaskName, name_for, parse_name
from rawko_state.search import engine
from rawko_state.search.documents import Document
from rawko_state.search.finder import Finder, Tail, terms_of
from rawko_state.search.pages import Filling, TurnRef
from rawko_state.search.query import Query, Text
from rawko_state.search.scoring import PostingSource
from rawko_state.search.words import Counts
from rawko_state.store import Answer, InTrash, RetentionRow, TaskFilter
from rawko_state.store.contract import BeforeDraft
from rawko_state.tasks.writer import Writer

BY_HAND: Final = "deleted"
_LEASE: Final = 30.0
_POLL: Final = 0.02


@dataclass(slots=True)
class Held:
    """One task."""

    name: TaskName
    data: bytes
    inode: int = 0
    mtime_ns: int = field(default_factory=time.time_ns)

    def changed(self) -> None:
        self.mtime_ns = max(time.time_ns(), self.mtime_ns + 1)


@dataclass(slots=True)
class Thrown:
    held: Held
    at: datetime
    rule: str
    by: str | None


class _Draft:
    def __init__(self, data: bytes) -> None:
        self._data = data

    @contextlib.contextmanager
    def opened(self) -> Iterator[tuple[bytes, Callable[[int], Iterator[bytes]]]]:
        if not self._data:
            raise FileNotFoundError("draft")
        head = self._data[: self._data.find(b"\n") + 1]
        yield (
            head,
            lambda start: (line for line in self._data[start:].splitlines(keepends=True) if line.endswith(b"\n")),
        )


class MemoryFiles:
    """Access to tasks, drafts and blobs: implements ``TaskFiles``."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def find(self, prefix: str) -> TaskName:
        held = self._store.held
        found = (
            [held[prefix]]
            if prefix in held
            else [each for key, each in held.items() if prefix and key.startswith(prefix)]
        )
        if len(found) > 1:
            raise AmbiguousTask(prefix, sorted(each.name.id for each in found))
        if not found:
            raise TaskNotFound(prefix, difflib.get_close_matches(prefix, held, n=3, cutoff=0.5))
        return found[0].name

    def _held(self, task_id: str) -> Held:
        held = self._store.held.get(task_id)
        if held is None:
            raise StorageError(f"Task {task_id} no longer exists.", task_id, errno.ENOENT)
        return held

    def reader(self, name: TaskName) -> TaskReader:
        return TaskReader(Path(name.filename), MemoryBytes(self._held(name.id).data))

    def reader_at(self, file_path: str) -> TaskReader:
        name = parse_name(file_path.rpartition("/")[2])
        if name is None:
            raise StorageError(f"{file_path} is not a task file.", file_path)
        return self.reader(name)

    def look(self, name: TaskName) -> tuple[int, int, int, int]:
        held = self._held(name.id)
        return 0, held.inode, len(held.data), held.mtime_ns

    def draft_stamp(self, task_id: str) -> tuple[int, ...] | None:
        draft = self._store.drafts.get(task_id)
        return None if draft is None else (len(draft), hash(draft))

    def draft(self, task_id: str) -> _Draft:
        return _Draft(self._store.drafts.get(task_id, b""))

    def alive(self) -> set[str]:
        now = self._store.clock()
        return {task_id for task_id, (_, until) in dict(self._store.leases).items() if until > now}

    def marked(self) -> set[str]:
        return self.drafted()

    def drafted(self) -> set[str]:
        return set(self._store.drafts)

    def holder(self, task_id: str) -> object | None:
        return "this process" if task_id in self.alive() else None

    def output_of(self, call: ToolCall) -> str | None:
        if call.blob is None:
            return call.output
        data = self.blob_bytes(call.blob)
        if data is None:
            raise StorageError(f"The stored output {call.blob.sha256} is missing.", call.blob.sha256)
        return data.decode("utf-8", "surrogatepass")

    def blob_bytes(self, blob: Blob) -> bytes | None:
        return self._store.blobs.get(blob.sha256)

    def put_blob(self, data: bytes) -> Blob:
        blob = Blob(hashlib.sha256(data).hexdigest(), len(data))
        self._store.blobs[blob.sha256] = data
        return blob

    def disk_use(self) -> dict[str, int]:
        return {
            "tasks": sum(len(held.data) for held in self._store.held.values()),
            "blobs": sum(map(len, self._store.blobs.values())),
        }


class MemorySync:
    """Access to the rows: implements ``SyncedIndex``. Rows are written together with the bytes, so they are always current."""

    def __init__(self, index: Index, files: MemoryFiles) -> None:
        self._index, self.journal = index, files

    def index(self) -> Index:
        return self._index

    def fresh(self, only: str | None = None) -> Index:
        return self._index

    def guarded(self, ask: Callable[[Index], object]) -> object:
        return ask(self._index)

    def catch_up(self, name: TaskName, index: Any = None, *, grown: bool = False) -> None:
        return

    def close(self) -> None:
        return


class MemoryStore(IndexedStore):
    """Tasks that live as long as this object. Thread-safe. ``rawko_state.open(":memory:")`` opens one.

    >>> MemoryStore().history(TaskFilter())
    []
    """

    journal: MemoryFiles
    sync: MemorySync
    clock = staticmethod(time.monotonic)
    """Leases run out by it."""
    lock: AbstractContextManager[object]
    leases: MutableMapping[str, tuple[str, float]]
    drafts: MutableMapping[str, bytes]
    blobs: MutableMapping[str, bytes]

    def __init__(self, *, root: Path | str | None = None, warn: Callable[[str], None] = lambda message: None) -> None:
        """``root`` is the project whose redaction settings apply."""
        self.lock = threading.RLock()
        self.held: dict[str, Held] = {}
        self.drafts, self.leases, self.blobs = {}, {}, {}
        self._thrown: list[Thrown] = []
        self._exempt: set[str] = set()
        self._import_lock = threading.RLock()
        files = MemoryFiles(self)
        super().__init__(Path(root or Path.cwd()).resolve(), files, MemorySync(Index(None), files), warn)

    @property
    def where(self) -> str:
        return "the memory of this process"

    def find(self, prefix: str) -> TaskName:
        try:
            return self.journal.find(prefix)
        except TaskNotFound as error:
            in_trash = any(each.held.name.id.startswith(prefix) for each in self._thrown)
            raise TaskNotFound(prefix, error.closest, in_trash=in_trash) from None

    def check(self) -> None:
        """Memory is always available."""

    def _finder(self) -> MemoryFinder:
        return MemoryFinder(self)

    # Opening

    def _new_writer(
        self,
        header: TaskHeader,
        entries: Sequence[Entry],
        *,
        attached: bool,
        before: BeforeWrite | None,
    ) -> Writer:
        created = header.created or datetime.now(timezone.utc).replace(microsecond=0)
        with self.lock:
            if header.id and header.id in self.held:
                raise TaskExists(header.id)
            task_id = header.id or new_id()
            while task_id in self.held:
                task_id = new_id()
            name = name_for(created, task_id)
            record = first_record(replace(header, id=task_id, created=created), entries)
            if before is not None:
                before(record.appended())
            self.put(name, record.data)
            return MemoryWriter(self, task_id, self._own_lease(task_id) if attached else None)

    def _making(self) -> AbstractContextManager[object]:
        return self.lock

    def _open_writer(self, name: TaskName, lease: float | None = None) -> Writer:
        token = None if lease is None else self._wait_for_lease(name.id, lease)
        try:
            return MemoryWriter(self, name.id, token)
        except BaseException:
            if token is not None:
                self.release_lease(name.id, token)
            raise

    def _wait_for_lease(self, task_id: str, seconds_: float) -> str:
        until = time.monotonic() + seconds_
        while True:
            try:
                return self._own_lease(task_id)
            except TaskBusy:
                if time.monotonic() >= until:
                    raise
                time.sleep(_POLL)

    def _own_lease(self, task_id: str) -> str:
        """Nothing renews leases within a process, so this one must not expire. A Task dropped without close() keeps it."""
        return self.take_lease(task_id, seconds=10**9)

    # What a store that keeps its tasks elsewhere does besides

    def kept(self, held: Held) -> None:
        """Called with a task that was changed in memory."""

    def gone(self, name: TaskName) -> None:
        """Called when a task has left the list."""

    def _throw(self, thrown: Thrown) -> None:
        self._thrown.append(thrown)

    def _unthrow(self, thrown: Thrown) -> None:
        self._thrown.remove(thrown)

    def _except(self, task_id: str) -> None:
        """No cleanup takes this task."""
        self._exempt.add(task_id)

    def _abandoned(self) -> list[tuple[str, bool]]:
        return [(task_id, True) for task_id in sorted(set(self.drafts) - self.alive())]

    def reindex(
        self, step: Callable[[int, int], None] | None = None, flushing: Callable[[int, int], None] | None = None
    ) -> list[tuple[str, str]]:
        with self.lock:
            for held in list(self.held.values()):
                self.put(held.name, held.data)
        return [(task_id, what) for task_id, what in self.concerns() if "damaged" in what]

    def put(self, name: TaskName, data: bytes) -> None:
        """Adds a whole task, or replaces an existing one."""
        with self.lock:
            self.kept(self._take(name, data))

    def _take(self, name: TaskName, data: bytes) -> Held:
        """Takes a task's bytes and rows into memory."""
        before = self.held.get(name.id)
        held = self.held[name.id] = Held(name, data, before.inode + 1 if before else 0)
        index, projector = self.sync.index(), Projector(name.id, name.file_path)
        with index.transaction():
            index.forget(name.id)
            projector.row["file_size"], projector.row["file_mtime_ns"] = len(data), held.mtime_ns
            index.put(projector, NewRows())
            with self.journal.reader(name) as reader:
                for record in reader.records():
                    rows = projector.take(located(record, reader.fetch))
                    index.put(projector, rows)
        return held

    # Leases and drafts

    def take_lease(self, prefix: str, token: str | None = None, seconds: float = _LEASE) -> str:
        task_id = self.find(prefix).id
        with self.lock:
            held = self.leases.get(task_id)
            if held is not None and held[1] > self.clock() and held[0] != token:
                raise TaskBusy(task_id)
            token = token or secrets.token_hex(16)
            self.leases[task_id] = (token, self.clock() + seconds)
            return token

    def check_lease(self, task_id: str, token: str) -> None:
        held = self.leases.get(task_id)
        if held is None or held[0] != token or held[1] <= self.clock():
            raise TaskBusy(task_id, reason="lost")

    def release_lease(self, prefix: str, token: str) -> None:
        with self.lock:
            if self.leases.get(prefix, ("",))[0] == token:
                del self.leases[prefix]

    def expire_leases(self) -> None:
        """Does nothing: leases expire by the clock."""

    def begin_draft(self, task_id: str, lines: bytes, *, before: BeforeDraft | None = None) -> None:
        if before is not None:
            before(0)
        self.drafts[task_id] = lines

    def add_to_draft(self, task_id: str, lines: bytes, *, before: BeforeDraft | None = None) -> bool:
        with self.lock:
            if task_id not in self.drafts:
                return False
            if before is not None:
                before(len(self.drafts[task_id]))
            self.drafts[task_id] += lines
            return True

    def extend_draft(self, task_id: str, lines: bytes, lease: str, *, before: BeforeDraft | None = None) -> str | None:
        self.check_lease(task_id, lease)
        return self.position(task_id).seal if self.add_to_draft(task_id, lines, before=before) else None

    def drop_draft(self, task_id: str) -> None:
        self.drafts.pop(task_id, None)

    def draft_lines(self, task_id: str) -> list[bytes]:
        return self.drafts.get(task_id, b"").splitlines(keepends=True)

    # Adding

    def import_lock(self) -> AbstractContextManager[Any]:
        return self._import_lock

    def add_file(self, filename: str, data: bytes | Iterable[bytes], blobs: Iterable[bytes] = ()) -> TaskName | None:
        name = parse_name(filename)
        if name is None:
            raise InvalidValue(f"Not a task file name: {filename!r}.")
        name = replace(name, packed=False)
        whole = data if isinstance(data, bytes) else b"".join(data)
        with self.lock:
            there = self.held.get(name.id)
            if there is not None:
                if there.data == whole:
                    return None
                raise TaskExists(name.id)
            for content in blobs:
                self.put_blob(content)
            self.put(name, whole)
        return name

    def add_task(self, name: TaskName, records: Iterable[Sequence[Entry]]) -> bool:
        return name.id not in self.held and upload_task(self, self.redactor, name, records)

    def replace_task(self, name: TaskName, data: Iterable[bytes], blobs: Iterable[bytes], size: int, seal: str) -> bool:
        with self.lock:
            position = self.position(name.id)
            if (len(self.held[name.id].data), position.seal) != (size, seal) or name.id in self.alive():
                return False
            for content in blobs:
                self.put_blob(content)
            self.put(self.held[name.id].name, b"".join(data))
        return True

    # Retention

    def retention_rows(self, task_id: str | None = None) -> list[RetentionRow]:
        return retention.rows(self.sync.index(), self.alive() | self.drafted(), self._exempt, task_id)

    def freed_bytes(self, task_ids: Sequence[str]) -> dict[str, int]:
        return retention.freed(self.sync.index(), task_ids)

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
            with self.lock:
                held = self.held.get(task.id)
                if held is None or (len(held.data), held.mtime_ns) != (task.size, task.mtime_ns):
                    continue
                busy = task.id in self.alive() or task.id in self.drafts
                if busy or (rule != BY_HAND and task.id in self._exempt):
                    continue
                self._throw(Thrown(self.held.pop(task.id), datetime.now(timezone.utc), rule, by))
                self.gone(held.name)
                index = self.sync.index()
                with index.transaction():
                    index.forget(task.id)
            yield task.id

    def delete(self, prefix: str, *, by: str | None = None) -> str:
        name = self.find(prefix)
        rows = self.retention_rows(name.id)
        if not rows or not list(self.move_to_trash([(rows[0], BY_HAND)], by=by)):
            raise TaskBusy(name.id, reason="changed")
        return name.id

    def trash(self) -> list[InTrash]:
        return [InTrash(each.held.name.id, each.at, each.rule, len(each.held.data)) for each in reversed(self._thrown)]

    def restore(self, prefix: str | None = None) -> list[str]:
        with self.lock:
            chosen = [each for each in self._thrown if prefix is None or each.held.name.id.startswith(prefix)]
            ids = sorted({each.held.name.id for each in chosen})
            if prefix is not None and len(ids) != 1:
                raise AmbiguousTask(prefix, ids) if ids else TaskNotFound(prefix)
            back = []
            for each in chosen:
                name = each.held.name
                if name.id in self.held:
                    if prefix is not None:
                        raise TaskExists(name.id, " in memory")
                    continue
                self._unthrow(each)
                self._except(name.id)
                self.put(name, each.held.data)
                back.append(name.id)
            return back

    def empty_trash(
        self,
        before: datetime | None = None,
        *,
        only: str | None = None,
        patience: float = 60.0,
        proceed: Callable[[], bool] = lambda: True,
    ) -> list[InTrash]:
        with self.lock:
            going = [
                each
                for each in (self._thrown if proceed() else ())
                if (before is None or each.at < before) and only in (None, each.held.name.id)
            ]
            for each in going:
                self._unthrow(each)
            named = {blob for task_id in self.held for blob in self.blobs_of(task_id)}
            for blob in [] if self._thrown else [key for key in self.blobs if key not in named]:
                del self.blobs[blob]
        return [InTrash(each.held.name.id, each.at, each.rule, len(each.held.data)) for each in reversed(going)]

    def pack(self, task: RetentionRow) -> bool:
        return False

    def redact(self, prefix: str, *, dry_run: bool = False, by: str | None = None) -> Found:
        name = self.find(prefix)
        found = Found(name.id)
        counting = Counting(self.journal, self.redactor, found, write=not dry_run)
        work = Rewriting(counting.entry, counting.text)
        with self.lock, self.reader(name.id) as reader:
            if dry_run:
                for _ in work.pieces(reader):
                    pass
                return found
            if name.id in self.alive() or name.id in self.drafts:
                raise TaskBusy(name.id, reason="draft")
            data = b"".join(with_note(work, reader, lambda changed: noted(found, changed, by)))
            if work.changed:
                self.put(name, data)
                named = {blob for task_id in self.held for blob in self.blobs_of(task_id)}
                for blob in set(counting.replaced) - named:
                    self.blobs.pop(blob, None)
            found.changed = work.changed
        if found.changed and not work.sealed:
            with self._task(name) as task:
                task.add([noted(found, found.changed, by)])
        return found

    def verify(self, prefix: str | None = None, *, repair: bool = False) -> Iterator[Verdict]:
        names = [self.find(prefix)] if prefix else sorted(held.name for held in list(self.held.values()))
        for name in names:
            verdict = Verdict(name)
            try:
                walk(_Walked(self, name), verdict, lambda blob: self.blob_bytes(blob) is not None)
            except RawkoError as error:
                verdict.faults.append(str(error))
            if repair and verdict.can_repair:
                self._repair(name, verdict)
            yield verdict

    def _repair(self, name: TaskName, verdict: Verdict) -> None:
        with self.lock, tempfile.TemporaryDirectory(prefix="rawko-") as folder:
            layout = Layout(Path(folder))
            layout.make()
            layout.path(name).write_bytes(self.held[name.id].data)
            verdict.repaired = verify(layout, name, repair=True).repaired
            self.put(name, layout.path(name).read_bytes())

    # Search

    def unflushed(self) -> int:
        return 0

    def flush_due(self) -> str | None:
        return None

    def flush(self, step: Callable[[int, int], None] | None = None, *, wait: bool = False) -> int:
        return 0


class _Walked:
    """An in-memory chain, for verify to walk."""

    def __init__(self, store: MemoryStore, name: TaskName) -> None:
        self._store, self._id, self._reader = store, name.id, store.reader(name.id)

    def scan_again(self) -> Scan:
        return self._reader.scan()

    def fetch(self, offset: int, length: int) -> bytes:
        return self._reader.fetch(offset, length)

    def look_again(self) -> tuple[int, bool]:
        row = self._store.sync.index().row(self._id)
        if row is None:
            raise TaskNotFound(self._id)
        torn = row["file_size"] - row["indexed_end"] if row["tail_seal"] is not None else 0
        state = Projector(self._id, row["file_path"], row).state
        return torn, bool(header_copies(header_shape(self.fetch(0, HEADER_LIMIT)), self.fetch, state))


class MemoryFinder(Finder):
    """Searches by reading every task. Fine for the few that fit in memory."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store.journal, lambda message: None)
        self._store = store

    def _tasks(self, index: Index) -> IndexedTasks:
        return IndexedTasks(index, self._store.alive())

    def search(self, text: str, wanted: TaskFilter, *, turns: bool = False) -> Answer:
        return self._search(self._store.sync.index(), text, wanted, turns)

    def _sources(self, index: Index, query: Query, stack: contextlib.ExitStack) -> list[PostingSource]:
        terms, prefixes = terms_of([leaf.sought for leaf in query.leaves() if isinstance(leaf, Text)])
        filling = Filling(Counts(), terms, prefixes)
        for each in flushed.everything(index):
            filling.own(each.id, engine.FRESH, seconds(each.created))
            for document in self._documents.stretch(each):
                filling.add(document)
        return [Tail(filling)]

    def _truth(self, index: Index) -> engine.Truth:
        return _Truth(index, self)

    def _vocabulary(self, index: Index, letters: tuple[str, ...]) -> set[str]:
        return self._documents.vocabulary(flushed.everything(index), letters)


class _Truth:
    def __init__(self, index: Index, finder: MemoryFinder) -> None:
        self._index, self._finder = index, finder

    def flushed(self, task_id: str) -> tuple[int, int] | None:
        return None if self._index.position(task_id) is None else (0, 2**62)

    def document(self, task_id: str, place: TurnRef) -> Document | None:
        row = self._index.row(task_id)
        return None if row is None else self._finder._documents.one(task_id, row["file_path"], place)

    def data(self, task_id: str, places: Sequence[TurnRef]) -> Sequence[bytes | None]:
        row = self._index.row(task_id)
        return [None] * len(places) if row is None else self._finder._documents.data(row["file_path"], places)
