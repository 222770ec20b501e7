"""One task in PostgreSQL, open for writing: an append is one transaction, with the task's row locked from its beginning."""

from __future__ import annotations

import contextlib
import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rawko_state.backends.desk import BeforeWrite, Make
from rawko_state.backends.expiring import ExpiringLease
from rawko_state.backends.far_desk import FarDesk
from rawko_state.backends.intake import file_path
from rawko_state.errors import ChainMoved, NewerFormat, OutcomeUnknown, RawkoError, StorageError, TaskNotFound
from rawko_state.format.blocks import emit_block
from rawko_state.format.codec import FORMAT_VERSION, copy_value, encode
from rawko_state.format.records import seal_record
from rawko_state.format.scan import Scan
from rawko_state.format.seal import GENESIS, HEADER_LIMIT, header_shape
from rawko_state.format.values import write_duration
from rawko_state.index.pgtasks import PgTasks
from rawko_state.index.projection import Laid, Placed, Projector, Row, Rows, laid
from rawko_state.journal.blobs import OUTPUT_LIMIT
from rawko_state.journal.chain import Chain
from rawko_state.journal.draft import Draft, Spoken, spoken_of
from rawko_state.journal.reader import TaskReader
from rawko_state.journal.source import Source
from rawko_state.journal.verify import Verdict, walk
from rawko_state.model.appended import Appended
from rawko_state.model.entries import Entry, ToolCall, Turn
from rawko_state.model.names import TaskName
from rawko_state.model.state import TaskState
from rawko_state.search.documents import Document, documents
from rawko_state.search.words import Counts

if TYPE_CHECKING:
    from rawko_state.backends.pgkeeping import PgKeeping
    from rawko_state.backends.postgres import PostgresStore

_PIECE: Final = 1 << 20
_MOST_WORDS: Final = 900_000
"""Bytes of different words of one document; PostgreSQL takes no more than a megabyte of them."""
TOOL: Final = "tool:"
"""Stands before the name of a tool among the words of a document."""


class _DraftSink:
    def __init__(self, tasks: PgTasks, task_id: str) -> None:
        self._tasks, self._id = tasks, task_id
        with tasks.rows.postgres.transaction(durable=False):
            self._key = tasks.begin_draft(task_id)

    def write(self, data: bytes, *, durable: bool) -> None:
        with self._tasks.rows.postgres.transaction(durable=durable):
            if not self._tasks.add_to_draft(self._id, data, self._key):
                raise StorageError(f"task {self._id}: its draft is gone; somebody has taken the task over", self._id)
        self._tasks.tell(self._id)

    def discard(self) -> None:
        with contextlib.suppress(RawkoError):
            self._tasks.drop_draft(self._id, self._key)

    def leave(self) -> None:
        return


class PgDesk(FarDesk):
    """``Desk`` on PostgreSQL."""

    def __init__(self, store: PostgresStore, name: TaskName, lease: ExpiringLease | None) -> None:
        self.id = name.id
        self._store = self._far = store
        self._tasks, self._name, self._lease = store.tasks, name, lease
        self._take(self._row())

    def _row(self, *, lock: bool = False) -> Row:
        row = self._tasks.rows.row(self.id, lock=lock)
        if row is None:
            raise TaskNotFound(self.id)
        return row

    def _take(self, row: Row) -> None:
        self._state = Projector(self.id, row["file_path"], row).state
        self._seal, self._end = row["tail_seal"] or GENESIS, row["indexed_end"]
        self._size, self._changed = row["file_size"], row["file_mtime_ns"]

    def refresh(self) -> TaskState:
        self._take(self._row())
        return self._state

    def has_grown(self) -> bool:
        stamp = self._tasks.stamp(self.id)
        return stamp is None or stamp[1:] != (self._size, self._changed)

    def holds(self, seal: str) -> bool:
        with self._store.reader(self.id) as reader:
            return any(record.seal == seal and record.counts for record in reader.records())

    def append(self, make: Make, expect: str | None = None, before: BeforeWrite | None = None) -> Appended:
        seal = ""

        def told(value: str) -> None:
            nonlocal seal
            seal = value
            if before is not None:
                before(value)

        try:
            with self._tasks.rows.postgres.transaction():
                row = self._tasks.rows.row(self.id, lock=True)
                if row is None:
                    raise ChainMoved(f"task {self.id} is gone")
                if self._lease is not None:
                    self._lease.check()  # somebody may have taken the task over while this process was stopped
                is_plain = row["tail_seal"] is not None and row["indexed_end"] == row["file_size"]
                done = (self._append if is_plain else self._append_to_file)(row, make, expect, told)
        except StorageError as error:
            if seal and not isinstance(error, OutcomeUnknown):
                raise OutcomeUnknown(str(error), self.id, None, seal) from error
            raise
        self._tasks.tell(self.id)
        return done

    def _append(self, row: Row, make: Make, expect: str | None, before: BeforeWrite) -> Appended:
        projector = Projector(self.id, row["file_path"], row)
        parent, offset = row["tail_seal"], row["file_size"]
        if expect is not None and expect != parent:
            raise ChainMoved(f"task {self.id} has grown: its last seal is {parent}, not {expect}")
        if row["format"] is not None and row["format"] > FORMAT_VERSION:
            raise NewerFormat(f"task {self.id} is of format {row['format']}; this rawko writes {FORMAT_VERSION}")
        entries = list(make(projector.state))
        state = projector.state
        for entry in entries:
            state = state.step(entry)
        pieces = [emit_block(encode(entry)) for entry in entries]
        data, seal = seal_record(b"".join(pieces), parent)
        before(seal)
        placed, at = [], offset
        for entry, piece in zip(entries, pieces, strict=True):
            placed.append(Placed(entry, at, len(piece)))
            at += len(piece)
        old = (projector.state.status, projector.state.duration_ms)
        new = projector.take(Laid("sealed", offset, len(data), seal, parent, 0, tuple(placed)))
        _stamped(projector, offset + len(data))
        copies = self._copies(state) if (state.status, state.duration_ms) != old else []
        with self._tasks.rows.connection.pipeline():
            self._tasks.put_bytes(self.id, offset, data)
            self._tasks.rows.put(projector, new)
            _put_besides(self._tasks, self.id, data, offset, parent, [block.entry for block in placed])
            for place, value in copies:
                self._tasks.overwrite(self.id, place, value)
        self._take(projector.row)
        blocks = tuple((block.entry, block.offset, block.length) for block in placed)
        return Appended(seal, parent, offset, offset + len(data), state, blocks)

    def _copies(self, state: TaskState) -> list[tuple[int, bytes]]:
        """The header's two values, where they stand."""
        return copies_of(state, lambda offset, length: self._tasks.fetch(self.id, offset, length))

    def _append_to_file(self, row: Row, make: Make, expect: str | None, before: BeforeWrite) -> Appended:
        """A task that was written by hand, or has a torn end: as a file would take it, which happens to it once."""
        with tempfile.TemporaryDirectory(prefix="rawko-") as folder:
            path = Path(folder) / self._name.filename
            path.write_bytes(self._tasks.fetch(self.id, 0, row["file_size"]))
            chain = Chain(path, self.id)
            try:
                done = chain.append(make, expect=expect, before=before)
            finally:
                chain.close()
            self._store.rewrite(self._name, path.read_bytes())
        self._take(self._row())
        return done

    def last_turns(self) -> Iterator[Turn]:
        from rawko_state.index import queries

        with self._store.reader(self.id) as reader:
            for offset, length in list(queries.turn_places(self._tasks.rows, self.id)):
                found = reader.turn_at(offset, length)
                if found is not None:
                    yield found

    def keeping_blobs(self, turn: Turn | None = None) -> contextlib.AbstractContextManager[None]:
        long = turn is None or any(isinstance(call, ToolCall) and _is_long(call) for call in turn.tools)
        return self._tasks.keeping_blobs() if long else contextlib.nullcontext()

    def with_blobs(self, turn: Turn, redact: Callable[[str], str]) -> Turn:
        from dataclasses import replace

        def kept(call: ToolCall | str) -> ToolCall | str:
            if not isinstance(call, ToolCall) or not _is_long(call):
                return call
            data = redact(call.output or "").encode("utf-8", "surrogatepass")
            return replace(call, output=None, blob=self._store.journal.put_blob(data))

        return replace(turn, tools=tuple(kept(call) for call in turn.tools)) if turn.tools else turn

    def draft(self, agent: str, fields: dict[str, Any], durable: bool) -> Draft:
        return Draft(_DraftSink(self._tasks, self.id), agent, self._end, self._seal, fields, durable)

    def spoken(self) -> Spoken | None:
        return spoken_of(self._tasks.draft_from(self.id, 0).splitlines(keepends=True))

    def draft_text(self) -> str:
        return self._tasks.draft_from(self.id, 0).decode("utf-8", "replace")

    def drop_draft(self) -> None:
        self._tasks.drop_draft(self.id)


def _is_long(call: ToolCall) -> bool:
    output = call.output
    return output is not None and len(output.encode("utf-8", "surrogatepass")) > OUTPUT_LIMIT


def projected(tasks: PgTasks, name: TaskName, source: Source, base: int = 0) -> None:
    """A whole task: its bytes, and all that is derived from them. Inside a transaction, which fails if there is one already."""
    projector = Projector(name.id, file_path(name))
    _stamped(projector, source.size())
    row = {**projector.row, "fold_base": base}
    columns, marks = ", ".join(f'"{column}"' for column in row), ", ".join("%s" for _ in row)
    tasks.rows.connection.execute(
        f"INSERT INTO {tasks.rows.at('tasks')} ({columns}) VALUES ({marks})", tuple(row.values())
    )
    projector.saved = dict(projector.row)
    at = 0
    # Not closed: its owner does that.
    reader = TaskReader(Path(name.filename), source)
    for record in reader.records():
        at = _put_pieces(tasks, name.id, source, at, record.offset + record.length)
        tasks.rows.put(projector, projector.take(laid(record, reader.fetch)))
        if record.kind not in ("torn", "tail"):
            tasks.put_words(name.id, _words(documents([record], reader.fetch)))
            for block in record.blocks if record.counts else ():
                _put_state(tasks, name.id, block.entry(reader.fetch))
    _put_pieces(tasks, name.id, source, at, source.size())
    tasks.rows.put(projector, Rows())


def _put_pieces(tasks: PgTasks, task_id: str, source: Source, at: int, end: int) -> int:
    while at < end:
        piece = source.fetch(at, min(_PIECE, end - at))
        tasks.put_bytes(task_id, at, piece)
        at += len(piece)
    return at


def _put_besides(tasks: PgTasks, task_id: str, data: bytes, offset: int, parent: str, entries: list[Entry]) -> None:
    """What searches and queries on JSON ask for."""
    scan = Scan(BytesIO(data).read, start=offset, parent=parent)
    tasks.put_words(task_id, _words(documents(scan, lambda at, length: data[at - offset : at - offset + length])))
    for entry in entries:
        _put_state(tasks, task_id, entry)


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


def _put_state(tasks: PgTasks, task_id: str, entry: Entry) -> None:
    if isinstance(entry, Turn) and (entry.state is not None or entry.payload is not None):
        lines = (entry.payload or "").splitlines()
        payload = [_json_of(line) for line in lines if line.strip()] if entry.payload is not None else None
        tasks.put_state(task_id, entry.number, _safe_json(entry.state), _safe_json(payload))


def _json_of(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return line


def _safe_json(value: Any) -> str | None:
    """As JSONB takes it: without NUL, lone surrogates and what is not a number. The bytes keep them."""
    if value is None:
        return None
    try:
        return json.dumps(_safe(value), ensure_ascii=False, allow_nan=False)
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


def copies_of(state: TaskState, fetch: Callable[[int, int], bytes]) -> list[tuple[int, bytes]]:
    """The header's Status and Duration as they should be, where they differ: place and bytes."""
    start = fetch(0, HEADER_LIMIT)
    shape = header_shape(start)
    if shape.format is None or shape.status is None or shape.duration is None:
        return []
    duration = "-" if state.duration_ms is None else write_duration(state.duration_ms)
    found = []
    for (first, last), value in ((shape.status, state.status), (shape.duration, duration)):
        wanted = copy_value(value, last - first).encode()
        if len(wanted) == last - first and wanted != start[first:last]:
            found.append((first, wanted))
    return found


class _Walked:
    """A chain in PostgreSQL as verify walks it."""

    def __init__(self, store: PgKeeping, name: TaskName) -> None:
        self._store, self._id = store, name.id
        self._reader = store.reader(name.id)

    def scan_again(self) -> Scan:
        return self._reader.scan()

    def fetch(self, offset: int, length: int) -> bytes:
        return self._reader.fetch(offset, length)

    def look_again(self) -> tuple[int, bool]:
        row = self._store.tasks.rows.row(self._id)
        if row is None:
            raise TaskNotFound(self._id)
        torn = row["file_size"] - row["indexed_end"] if row["tail_seal"] is not None else 0
        state = Projector(self._id, row["file_path"], row).state
        return torn, bool(copies_of(state, self._reader.fetch))


def verdict_of(store: PgKeeping, name: TaskName) -> Verdict:
    verdict = Verdict(name)
    try:
        walk(_Walked(store, name), verdict, lambda blob: store.journal.blob_bytes(blob) is not None)
    except RawkoError as error:
        verdict.faults.append(str(error))
    return verdict


def repaired(store: PgKeeping, name: TaskName, verdict: Verdict) -> Verdict:
    """As a file is mended: a torn end is marked, the header's copies are written again."""
    from rawko_state.journal.layout import Layout
    from rawko_state.journal.verify import verify

    with store.postgres.transaction(), tempfile.TemporaryDirectory(prefix="rawko-") as folder:
        store.tasks.rows.row(name.id, lock=True)
        size = store.tasks.size(name.id) or 0
        layout = Layout(Path(folder))
        layout.make()
        path = layout.path(name)
        path.write_bytes(store.tasks.fetch(name.id, 0, size))
        mended = verify(layout, name, repair=True)
        store.rewrite(name, path.read_bytes())
    verdict.repaired = mended.repaired
    return verdict
