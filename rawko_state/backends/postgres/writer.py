"""One task in PostgreSQL, open for writing: an append is one transaction that locks the task's row first."""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rawko_state.backends.leases import ExpiringLease
from rawko_state.backends.postgres.connection import ConditionFailed
from rawko_state.backends.postgres.tables import TaskTables
from rawko_state.errors import (
    ChainMoved,
    NewerFormat,
    OutcomeUnknown,
    RawkoError,
    StorageError,
    TaskNotFound,
)
from rawko_state.format import fair_json
from rawko_state.format.codec import FORMAT_VERSION
from rawko_state.format.fair_json import shallow
from rawko_state.format.reader import TaskBytes, TaskReader
from rawko_state.format.records import BuiltRecord, HeaderCopy, build_record, header_copies
from rawko_state.format.scan import Scan
from rawko_state.format.seal import GENESIS, HEADER_LIMIT, header_shape
from rawko_state.index import queries
from rawko_state.index.projection import LocatedRecord, NewRows, Projector, Row, located
from rawko_state.journal.chain import Chain
from rawko_state.model.appended import Appended, Position
from rawko_state.model.entries import Blob, Entry, Turn
from rawko_state.model.long_texts import apart
from rawko_state.model.names import TaskName
from rawko_state.model.state import TaskState
from rawko_state.search.documents import Document, documents
from rawko_state.search.words import Counts
from rawko_state.tasks.draft import Draft, DraftContent, draft_content
from rawko_state.tasks.writer import BeforeWrite, Make, Writer

if TYPE_CHECKING:
    from rawko_state.backends.postgres.store import PostgresStore

_PIECE: Final = 1 << 20
_MOST_WORDS: Final = 900_000
"""Bytes of distinct words per document. PostgreSQL accepts at most one megabyte."""
TOOL: Final = "tool:"
"""Prefix of a tool's name among a document's words."""


class _DraftSink:
    def __init__(self, tasks: TaskTables, task_id: str) -> None:
        self._tasks, self._id = tasks, task_id
        with tasks.rows.postgres.transaction(durable=False):
            self._key = tasks.begin_draft(task_id)

    def write(self, data: bytes, *, durable: bool) -> None:
        with self._tasks.rows.postgres.transaction(durable=durable):
            if not self._tasks.add_to_draft(self._id, data, self._key):
                raise StorageError(f"Task {self._id}: its draft is gone because another process took over.", self._id)
        self._tasks.notify(self._id)

    def discard(self) -> None:
        with contextlib.suppress(RawkoError):
            self._tasks.drop_draft(self._id, self._key)

    def leave(self) -> None:
        return


class PostgresWriter(Writer):
    """A task's row, its bytes, and everything derived from them. An append is one transaction."""

    def __init__(self, store: PostgresStore, name: TaskName, lease: ExpiringLease | None) -> None:
        self.id = name.id
        self._store, self._tasks, self._name, self._lease = store, store.tasks, name, lease
        self._blobs: dict[str, bytes] = {}
        """Long outputs that the next record names."""
        self._take(self._row())

    @property
    def root(self) -> Path:
        return self._store.root

    @property
    def is_leased(self) -> bool:
        return self._lease is not None

    def position(self) -> Position:
        return self._position

    def _row(self) -> Row:
        row = self._tasks.rows.row(self.id)
        if row is None:
            raise TaskNotFound(self.id)
        return row

    def _take(self, row: Row, state: TaskState | None = None) -> None:
        """``state`` is given if it is known, since reading it from the row takes longer."""
        state = state or Projector(self.id, row["file_path"], row).state
        self._position = Position(row["indexed_end"], row["tail_seal"] or GENESIS, state)
        self._known: Row | None = row
        """The task's row, as far as this writer knows."""
        self._size, self._changed = row["file_size"], row["file_mtime_ns"]

    def refresh(self) -> TaskState:
        self._take(self._row())
        return self._position.state

    def has_grown(self) -> bool:
        stamp = self._tasks.stamp(self.id)
        return stamp is None or stamp[1:] != (self._size, self._changed)

    def holds(self, seal: str) -> bool:
        with self.reader() as reader:
            return any(record.seal == seal and record.counts for record in reader.records())

    def reader(self) -> TaskReader:
        return self._store.reader(self.id)

    def append(self, make: Make, expect: str | None = None, before: BeforeWrite | None = None) -> Appended:
        postgres = self._tasks.rows.postgres
        done = None
        if not postgres.in_transaction:
            done = postgres.retrying(lambda: self._append_quickly(make, expect, before))
        if done is None:
            done = postgres.retrying(lambda: self._append_once(make, expect, before))
        self._blobs = {}
        self._tasks.notify(self.id)
        return done

    def _append_quickly(self, make: Make, expect: str | None, before: BeforeWrite | None) -> Appended | None:
        """Appends in one statement, on the condition that the task is still as this writer left it. None if it is not, or if
        this record needs more."""
        row, lease = self._known, self._lease
        if row is None or lease is not None or self._blobs or row["tail_seal"] is None:
            return None
        if row["indexed_end"] != row["file_size"] or (expect is not None and expect != row["tail_seal"]):
            return None
        if row["format"] is not None and row["format"] > FORMAT_VERSION:
            return None
        self._known = None
        projector = Projector(self.id, row["file_path"], row)
        old, size, seal = projector.state, row["file_size"], row["tail_seal"]
        try:
            record = build_record(make(old), old, seal, size)
        except RawkoError:
            return None  # others may have appended what makes it possible
        state = record.state
        new = projector.take(LocatedRecord("sealed", size, len(record.data), record.seal, seal, 0, record.blocks))
        # A change of status also changes the header; and one statement can't insert a row and update it.
        if (state.status, state.duration_ms) != (old.status, old.duration_ms) or new.runs or new.run_updates:
            return None
        _stamped(projector, record.end)
        done = record.appended()
        try:
            with self._tasks.rows.postgres.gathered():
                self._tasks.rows.put(projector, new, after=(size, seal))  # first: it has the condition
                self._tasks.put_bytes(self.id, size, record.data)
                _put_besides(self._tasks, self.id, record)
                if before is not None:
                    before(done)
        except ConditionFailed:
            return None
        except StorageError as error:
            raise OutcomeUnknown(str(error), self.id, None, record.seal) from error
        self._take(projector.row, record.state)
        return done

    def _append_once(self, make: Make, expect: str | None, before: BeforeWrite | None) -> Appended:
        seal = ""

        def note_seal(done: Appended) -> None:
            nonlocal seal
            seal = done.seal
            if before is not None:
                before(done)

        try:
            with self._tasks.rows.postgres.transaction():
                if self._blobs:
                    self._tasks.keep_blobs()  # before the row: whoever deletes blobs takes the locks in this order
                row = self._tasks.rows.row(self.id, lock=True)
                if row is None:
                    raise ChainMoved(f"Task {self.id} no longer exists.")
                if self._lease is not None:
                    self._lease.check()  # another process may have taken over the task while this one was stopped
                is_plain = row["tail_seal"] is not None and row["indexed_end"] == row["file_size"]
                return (self._append if is_plain else self._append_to_file)(row, make, expect, note_seal)
        except StorageError as error:
            if seal and not isinstance(error, OutcomeUnknown):
                raise OutcomeUnknown(str(error), self.id, None, seal) from error
            raise

    def _append(self, row: Row, make: Make, expect: str | None, before: BeforeWrite) -> Appended:
        projector = Projector(self.id, row["file_path"], row)
        parent, offset = row["tail_seal"], row["file_size"]
        if expect is not None and expect != parent:
            raise ChainMoved(f"Task {self.id} has changed: its last seal is {parent}, not {expect}.", last=parent)
        if row["format"] is not None and row["format"] > FORMAT_VERSION:
            raise NewerFormat(
                f"Task {self.id} has format {row['format']}; this rawko writes {FORMAT_VERSION}. Update rawko."
            )
        old = projector.state
        record = build_record(make(old), old, parent, offset)
        done = record.appended()
        before(done)
        located = LocatedRecord("sealed", offset, len(record.data), record.seal, parent, 0, record.blocks)
        new = projector.take(located)
        _stamped(projector, record.end)
        state = record.state
        changed = (state.status, state.duration_ms) != (old.status, old.duration_ms)
        copies = self._stale_copies(state) if changed else []
        self._tasks.put_bytes(self.id, offset, record.data)
        for named in new.blobs:
            if named["sha256"] in self._blobs:
                self._tasks.put_blob(named["sha256"], self._blobs[named["sha256"]])
        self._tasks.rows.put(projector, new)
        _put_besides(self._tasks, self.id, record)
        for copy in copies:
            if copy.data is not None:
                self._tasks.overwrite(self.id, copy.offset, copy.data)
        self._take(projector.row, record.state)
        return done

    def _stale_copies(self, state: TaskState) -> list[HeaderCopy]:
        start = self._tasks.fetch(self.id, 0, HEADER_LIMIT)
        return header_copies(header_shape(start), lambda offset, length: start[offset : offset + length], state)

    def _append_to_file(self, row: Row, make: Make, expect: str | None, before: BeforeWrite) -> Appended:
        """Appends to a task that was written by hand or has a torn end, the way a file would. Happens at most once per task."""
        with tempfile.TemporaryDirectory(prefix="rawko-") as folder:
            path = Path(folder) / self._name.filename
            path.write_bytes(self._tasks.fetch(self.id, 0, row["file_size"]))
            chain = Chain(path, self.id)
            try:
                done = chain.append(make, expect=expect, before=before)
            finally:
                chain.close()
            for sha256, data in self._blobs.items():
                self._tasks.put_blob(sha256, data)
            self._store.rewrite(self._name, path.read_bytes())
        self._take(self._row())
        return done

    def last_turns(self) -> Iterator[Turn]:
        with self.reader() as reader:
            for offset, length in list(queries.turn_places(self._tasks.rows, self.id)):
                found = reader.turn_at(offset, length)
                if found is not None:
                    yield found

    def keeping_blobs(self, turn: Turn | None = None) -> contextlib.AbstractContextManager[None]:
        """Nothing to do: they are written in the transaction of the record that names them."""
        return contextlib.nullcontext()

    def with_blobs(self, turn: Turn, redact: Callable[[str], str]) -> Turn:
        def put(text: str) -> Blob:
            data = redact(text).encode("utf-8", "surrogatepass")
            blob = Blob(hashlib.sha256(data).hexdigest(), len(data))
            self._blobs[blob.sha256] = data
            return blob

        return apart(turn, put)

    def draft(self, agent: str, fields: dict[str, Any], durable: bool) -> Draft:
        sink = _DraftSink(self._tasks, self.id)
        return Draft(sink, agent, self._position.end, self._position.seal, fields, durable)

    def left_draft(self) -> DraftContent | None:
        return draft_content(self._tasks.draft_from(self.id, 0).splitlines(keepends=True))

    def draft_text(self) -> str:
        return self._tasks.draft_from(self.id, 0).decode("utf-8", "replace")

    def drop_draft(self) -> None:
        self._tasks.drop_draft(self.id)

    def release_lease(self) -> None:
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    def close(self) -> None:
        self.release_lease()


def projected(tasks: TaskTables, name: TaskName, source: TaskBytes, base: int = 0) -> None:
    """Writes a whole task: its bytes and everything derived from them. Call inside a transaction; fails if the task exists."""
    projector = Projector(name.id, name.file_path)
    _stamped(projector, source.size())
    row = {**projector.row, "fold_base": base}
    columns, marks = ", ".join(f'"{column}"' for column in row), ", ".join("%s" for _ in row)
    tasks.rows.connection.execute(
        f"INSERT INTO {tasks.rows.at('tasks')} ({columns}) VALUES ({marks})", tuple(row.values())
    )
    projector.saved = dict(projector.row)
    at = 0
    # Not closed here: the owner closes it.
    reader = TaskReader(Path(name.filename), source)
    for record in reader.records():
        at = _put_pieces(tasks, name.id, source, at, record.offset + record.length)
        tasks.rows.put(projector, projector.take(located(record, reader.fetch)))
        if record.kind not in ("torn", "tail"):
            tasks.put_words(name.id, _words(documents([record], reader.fetch)))
            for block in record.blocks if record.counts else ():
                _put_state(tasks, name.id, block.entry(reader.fetch))
    _put_pieces(tasks, name.id, source, at, source.size())
    tasks.rows.put(projector, NewRows())


def _put_pieces(tasks: TaskTables, task_id: str, source: TaskBytes, at: int, end: int) -> int:
    while at < end:
        piece = source.fetch(at, min(_PIECE, end - at))
        tasks.put_bytes(task_id, at, piece)
        at += len(piece)
    return at


def _put_besides(tasks: TaskTables, task_id: str, record: BuiltRecord) -> None:
    """Writes the data for searches and JSON queries."""
    data, offset = record.data, record.offset
    scan = Scan(BytesIO(data).read, start=offset, parent=record.parent)
    tasks.put_words(task_id, _words(documents(scan, lambda at, length: data[at - offset : at - offset + length])))
    for block in record.blocks:
        _put_state(tasks, task_id, block.entry)


_remembered = threading.local()


def _words(found: Iterator[Document]) -> Iterator[tuple[int, int, list[str]]]:
    counts: Counts | None = getattr(_remembered, "counts", None)
    if counts is None:
        counts = _remembered.counts = Counts()
    for document in found:
        words: list[str] = []
        size = 0
        for word in (*counts.of(document.parts), *(TOOL + tool[:200] for tool in sorted(document.tools))):
            size += len(word.encode()) + 4
            if size > _MOST_WORDS:
                break
            words.append(word)
        yield document.offset, document.length, words


def _put_state(tasks: TaskTables, task_id: str, entry: Entry) -> None:
    if isinstance(entry, Turn) and (entry.state is not None or entry.payload is not None):
        lines = (entry.payload or "").splitlines()
        payload = [_json_of(line) for line in lines if line.strip()] if entry.payload is not None else None
        tasks.put_state(task_id, entry.number, _safe_json(entry.state), _safe_json(payload))


def _json_of(line: str) -> Any:
    try:
        return json.loads(shallow(line))
    except ValueError:
        return line


def _safe_json(value: Any) -> str | None:
    """Converts to what JSONB accepts: no NUL, no lone surrogates, no NaN or infinity. The task's bytes keep them."""
    if value is None:
        return None
    try:
        return fair_json.dumps(_safe(value), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return None


def _safe(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("\x00", "\N{SYMBOL FOR NULL}").encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_safe(key): _safe(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_safe(inner) for inner in value]
    return value


def _stamped(projector: Projector, size: int) -> None:
    projector.row["file_size"], projector.row["file_mtime_ns"] = size, time.time_ns()
