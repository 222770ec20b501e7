"""The remote store, over HTTP: queries go to the server, bytes are read by range, and writing uses the same Task as everywhere.
Its writer sends each record on the condition that nobody else has appended meanwhile.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rawko_state.backends.base import BaseStore, entries_of
from rawko_state.backends.remote.client import Http, token_for
from rawko_state.errors import InvalidValue, RawkoError, ServerAway, StorageError, TaskNotFound
from rawko_state.format.reader import TaskReader
from rawko_state.format.records import emit_blocks, scan_bytes
from rawko_state.format.values import write_time
from rawko_state.lazy import lazy
from rawko_state.model.appended import BeforeWrite
from rawko_state.model.entries import Entry, Note, TaskHeader, ToolCall, Turn
from rawko_state.model.events import Event
from rawko_state.model.frozen import replace
from rawko_state.model.names import TaskName, parse_name
from rawko_state.store import Answer, Hit, InTrash, RetentionRow, RunRow, Said, Stats, TaskFilter, TaskSummary, TurnRow
from rawko_state.store.wire import from_wire, summary_of, to_wire
from rawko_state.tasks.events import Pace

if TYPE_CHECKING:
    from rawko_state.backends import bulk, redaction
    from rawko_state.backends.folds import FoldedTask
    from rawko_state.backends.remote import writer
    from rawko_state.redact.redactor import Redactor
    from rawko_state.tasks.writer import Writer
else:
    bulk = lazy("rawko_state.backends.bulk")
    redaction = lazy("rawko_state.backends.redaction")
    writer = lazy("rawko_state.backends.remote.writer")

_PIECE: Final = 1 << 18
_AGAIN: Final = 0.5
_ASK_EVERY: Final = 0.5
"""Seconds between two polls of all tasks."""
_LONG: Final = 600.0
"""Seconds for what the server needs to read all tasks for."""
_PATIENCE: Final = 30.0
"""Seconds for which a follower tries to reconnect to an unreachable server."""


class RemoteBytes:
    """The bytes of one task on a server, with read-ahead."""

    def __init__(self, http: Http, task_id: str, size: int) -> None:
        self._http, self._path, self._size = http, http.path("tasks", task_id, "file"), size
        self._start, self._held = 0, b""

    def size(self) -> int:
        return self._size

    def read_at(self, length: int, offset: int) -> bytes:
        return self.fetch(offset, length)

    def fetch(self, offset: int, length: int) -> bytes:
        length = min(length, self._size - offset)
        if length <= 0:
            return b""
        if not self._start <= offset or offset + length > self._start + len(self._held):
            ahead = min(max(length, _PIECE), self._size - offset)
            self._start, self._held = offset, self._http.fetch(self._path, offset, ahead)
        return self._held[offset - self._start :][:length]

    def stat(self) -> tuple[int, int]:
        return self.size(), 0

    def close(self) -> None:
        return


class _Viewed:
    """A task's bytes, as a fold sees them, at the time of one answer of the server."""

    def __init__(self, http: Http, about: Mapping[str, Any]) -> None:
        self._http, self._about = http, about

    def stamp(self) -> tuple[object, ...]:
        return self._about["seal"], self._about["end"], self._about["size"]

    def opened(self) -> TaskReader:
        source = RemoteBytes(self._http, self._about["task"]["id"], self._about["size"])
        return TaskReader(Path(self._about["file"]), source)


class _Session(threading.local):
    """What one thread has opened since it entered reading()."""

    readers: dict[str, TaskReader] | None = None


class RemoteStore(BaseStore):
    """The tasks of a server, or of one of its workspaces. ``rawko_state.open(remote=url)`` opens it.

    >>> RemoteStore("http://127.0.0.1:8080", token="").where
    'http://127.0.0.1:8080'
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        workspace: str | None = None,
        ca: str | None = None,
        root: Path | str | None = None,
        warn: Callable[[str], None] = lambda message: None,
    ) -> None:
        """``root`` is the user's current project. Without ``token``, uses RAWKO_REMOTE_TOKEN or the keyring."""
        self.http = Http(url, token if token is not None else token_for(url), workspace, ca)
        self.root = Path(root or Path.cwd()).resolve()
        self._warn = warn
        self._session = _Session()

    @cached_property
    def redactor(self) -> Redactor:
        """Redacts secrets before sending. The server redacts again."""
        return redaction.redactor_for(self.root, self._warn)

    def close(self) -> None:
        self.http.close()

    def get(self, *parts: object, **query: Any) -> Any:
        """The server's response to a GET request."""
        return self.http.ask("GET", self.http.path(*parts, **query))

    def _post(self, *parts: object, data: Any) -> Any:
        return self.http.ask("POST", self.http.path(*parts), data=data)

    def check(self) -> None:
        self.hello()

    def pace(self) -> Pace:
        return Pace(_ASK_EVERY, _ASK_EVERY)

    def hello(self) -> dict[str, Any]:
        """Identifies the server, with a short timeout."""
        found: dict[str, Any] = self.http.ask("GET", self.http.path("hello"), timeout=5.0)
        self.http.close()  # later requests may take longer
        return found

    # Lists and searches

    def history(self, wanted: TaskFilter) -> list[TaskSummary]:
        return [summary_of(each) for each in self.get("tasks", **_query(wanted), after=wanted.after)["tasks"]]

    def count(self, wanted: TaskFilter) -> int:
        given = {name: value for name, value in _query(wanted).items() if name not in ("limit", "reverse")}
        return int(self.get("count", **given)["count"])

    def search(self, query: str, wanted: TaskFilter | None = None, *, turns: bool = False) -> Answer:
        given = _query(wanted or TaskFilter(sort="relevance"))
        found = self.get("search", q=query, turns=turns or None, **given)
        hits = tuple(from_wire(Hit, {**each["hit"], "task": to_wire(summary_of(each))}) for each in found["tasks"])
        return Answer(hits, found["hint"], found["suggestion"])

    def stats(self, wanted: TaskFilter, *, days: int = 30, top: int = 10) -> Stats:
        given = {name: value for name, value in _query(wanted).items() if name not in ("sort", "limit", "reverse")}
        return from_wire(Stats, self.get("stats", days=days, top=top, **given))

    def by_source(self, prefix: str) -> dict[str, str]:
        return dict(self.get("sources", prefix=prefix)["sources"])

    def find_source(self, source: str) -> str | None:
        found = self.history(TaskFilter(source=source, sort="created", reverse=True, limit=1))
        return found[0].id if found else None

    # One task

    def about(self, prefix: str) -> dict[str, Any]:
        if not prefix.isascii() or not prefix.isalnum():
            raise TaskNotFound(prefix)
        found: dict[str, Any] = self.get("tasks", prefix)
        return found

    def find(self, prefix: str) -> TaskName:
        name = parse_name(self.about(prefix)["file"])
        if name is None:
            raise RawkoError(f"The server sent an invalid file name: {prefix!r}.")
        return name

    def summary(self, prefix: str) -> TaskSummary:
        return summary_of(self.about(prefix)["task"])

    def status(self, prefix: str) -> str:
        return self.summary(prefix).status

    def source(self, prefix: str) -> str | None:
        found: str | None = self.about(prefix)["source"]
        return found

    def children(self, task_id: str) -> list[tuple[str, int | None, str]]:
        found = self.get("tasks", task_id, "children")["children"]
        return [(each["id"], each["turn"], each["request"]) for each in found]

    def turn_rows(self, prefix: str, up_to: int | None = None, most: int | None = None) -> tuple[list[TurnRow], int]:
        found = self.get("tasks", prefix, "turns", up_to=up_to, most=most)
        return [from_wire(TurnRow, each) for each in found["turns"]], found["total"]

    def turn_page(
        self, prefix: str, *, after: int = 0, beyond: int = -1, limit: int = 200, newest: bool = False
    ) -> list[TurnRow]:
        given = {"after": after or None, "beyond": None if beyond < 0 else beyond, "newest": newest or None}
        found = self.get("tasks", prefix, "turns", limit=limit, **given)
        return [from_wire(TurnRow, each) for each in found["turns"]]

    def _viewed(self, prefix: str) -> tuple[str, FoldedTask]:
        about = self.about(prefix)
        return about["task"]["id"], _Viewed(self.http, about)

    def runs(self, prefix: str) -> list[RunRow]:
        return [from_wire(RunRow, each) for each in self.get("tasks", prefix, "runs")["runs"]]

    def files(self, prefix: str) -> list[tuple[int, str, str]]:
        found = self.get("tasks", prefix, "files")["files"]
        return [(each["turn"], each["operation"], each["path"]) for each in found]

    def snapshots(self, prefix: str) -> list[dict[str, Any]]:
        return list(self.get("tasks", prefix, "snapshots")["snapshots"])

    # Bytes

    def reader(self, prefix: str) -> TaskReader:
        about = self.about(prefix)
        source = RemoteBytes(self.http, about["task"]["id"], about["size"])
        return TaskReader(Path(about["file"]), source)

    def entries(self, prefix: str, *, whole: bool = True) -> Iterator[tuple[str, Entry]]:
        with self.reader(prefix) as reader:
            yield from entries_of(reader, whole=whole)

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """While a thread holds this, it looks each task up only once and reads its bytes ahead."""
        session = self._session
        if session.readers is not None:
            yield
            return
        session.readers = {}
        try:
            yield
        finally:
            session.readers = None

    def _opened(self, prefix: str) -> TaskReader:
        readers = self._session.readers
        if readers is None:
            return self.reader(prefix)
        if prefix not in readers:
            readers[prefix] = self.reader(prefix)
        return readers[prefix]

    def turn(self, prefix: str, number: int, *, row: TurnRow | None = None) -> Turn:
        if row is None:
            rows, _ = self.turn_rows(prefix, number)
            row = next((each for each in rows if each.turn == number), None)
        if row is not None:
            found = self._opened(prefix).turn_at(row.offset, row.length)
            if found is not None:
                return replace(found, damaged=True) if row.damaged else found
        raise RawkoError(f"Task {prefix} has no turn {number}.")

    def said(self, prefix: str, up_to: int | None = None) -> list[Said]:
        return [from_wire(Said, each) for each in self.get("tasks", prefix, "said", up_to=up_to)["said"]]

    def memory(self, prefix: str) -> dict[str, Any]:
        return dict(self.get("tasks", prefix, "memory")["memory"])

    def open_question(self, prefix: str) -> Turn | None:
        number = self.get("tasks", prefix, "question")["turn"]
        return None if number is None else self.turn(prefix, number)

    def last_note(self, prefix: str, kind: str) -> Note | None:
        block = self.get("tasks", prefix, "notes", kind).get("block")
        if block is None:
            return None
        data = block.encode("utf-8", "surrogateescape")
        for record in scan_bytes(data)[0]:
            for each in record.blocks:
                entry = each.entry(lambda at, size: data[at : at + size])
                if isinstance(entry, Note):
                    return entry
        return None

    def turn_output(self, call: ToolCall) -> str | None:
        if call.blob is None:
            return call.output
        return self._blob(call.blob.sha256, call.blob.size).decode("utf-8", "surrogatepass")

    def _blob(self, sha256: str, size: int) -> bytes:
        return self.http.fetch(self.http.path("blobs", sha256, size=size), 0, max(1, size))

    def blobs_of(self, prefix: str) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for each in self.get("tasks", prefix, "blobs")["blobs"]:
            with contextlib.suppress(RawkoError):  # missing on the server too
                found[each["sha256"]] = self._blob(each["sha256"], each["size"])
        return found

    # Events

    def events(self, prefix: str, after: str | None = None) -> Iterator[Event]:
        self.about(prefix)
        while True:
            found = self.get("tasks", prefix, "events", after=after, limit=1000)
            for each in found["events"]:
                event = from_wire(Event, each)
                after = event.cursor
                yield event
            if not found["more"]:
                return

    def follow(
        self, prefix: str, after: str | None = None, *, until: Callable[[], bool] | None = None
    ) -> Iterator[Event | None]:
        """Reconnects at its cursor when the connection is lost, and gives up after a while."""
        task_id = self.find(prefix).id
        cursor, lost = after, 0.0
        while True:
            try:
                for each in self.http.stream(
                    self.http.path("tasks", task_id, "events", "stream", until_over=True), cursor
                ):
                    lost = 0.0
                    if each is None:
                        yield None
                    else:
                        kind, mark, data = each
                        if kind == "bye":
                            bye = json.loads(data)
                            if bye["code"] == 1000:
                                return
                            break
                        if kind == "problem":
                            raise RawkoError(str(json.loads(data).get("detail")))
                        if kind == "message":
                            cursor = mark or cursor
                            yield from_wire(Event, json.loads(data))
                    if until is not None and until():
                        return
            except (ServerAway, StorageError):  # the server is away, or its database is
                lost = lost or time.monotonic()
                if time.monotonic() - lost > _PATIENCE:
                    raise
            yield None
            if until is not None and until():
                return
            time.sleep(_AGAIN)

    def now(self, prefix: str) -> str:
        return str(self.get("tasks", prefix, "cursor")["cursor"])

    def cursors(self) -> dict[str, str]:
        return dict(self.get("cursors")["cursors"])

    def active(self) -> set[str]:
        return set(self.get("active")["active"])

    def alive(self) -> set[str]:
        return set(self.get("active")["alive"])

    def event_reader(self, prefix: str, after: str | None = None) -> _Polled:
        return _Polled(self, self.find(prefix).id, after)

    # Writing

    def _new_writer(
        self,
        header: TaskHeader,
        entries: Sequence[Entry],
        *,
        attached: bool,
        before: BeforeWrite | None,
    ) -> Writer:
        return writer.RemoteWriter(self, self._made(header, entries)["task"], lease=0.0 if attached else None)

    def _find_or_new(
        self, header: TaskHeader, entries: Sequence[Entry], before: BeforeWrite | None
    ) -> tuple[Writer, bool]:
        made = self._made(header, entries, find=True)
        return writer.RemoteWriter(self, made["task"], lease=None), made["new"]

    def _made(self, header: TaskHeader, entries: Sequence[Entry], *, find: bool = False) -> dict[str, Any]:
        body = emit_blocks([replace(header, id="new"), *entries])
        path = self.http.path("records", id=header.id or None, find=find or None)
        made: dict[str, Any] = self.http.ask("POST", path, body=body, headers=_BLOCKS)
        return made

    def _open_writer(self, name: TaskName, lease: float | None = None) -> Writer:
        return writer.RemoteWriter(self, name.id, lease=lease)

    def _abandoned(self) -> list[tuple[str, bool]]:
        """The server recovers them itself."""
        return []

    def take_lease(self, prefix: str, token: str | None = None, seconds: float = 30.0) -> str:
        data = {"seconds": max(1, int(seconds)), **({"token": token} if token else {})}
        return str(self._post("tasks", prefix, "lease", data=data)["token"])

    def release_lease(self, prefix: str, token: str) -> None:
        self.http.ask("DELETE", self.http.path("tasks", prefix, "lease", token=token))

    @property
    def where(self) -> str:
        return self.http.where

    def add_task(self, name: TaskName, records: Iterable[Sequence[Entry]]) -> bool:
        return bulk.upload_task(self, self.redactor, name, records)

    def import_lock(self) -> AbstractContextManager[None]:
        """No lock: if two clients import the same session, one finds that the task has grown."""
        return contextlib.nullcontext()

    def add_file(self, filename: str, data: bytes | Iterable[bytes], blobs: Iterable[bytes] = ()) -> TaskName | None:
        name = parse_name(filename)
        if name is None:
            raise InvalidValue(f"Not a task file name: {filename!r}.")
        name = replace(name, packed=False)
        for content in blobs:
            digest = hashlib.sha256(content).hexdigest()
            self.http.ask("PUT", self.http.path("blobs", digest), body=content)
        pieces = [data] if isinstance(data, bytes) else data
        placed = self.http.upload(self.http.path("files", name.filename), pieces)
        return None if placed["task"] is None else name

    # Retention

    def retention_rows(self, task_id: str | None = None) -> list[RetentionRow]:
        return [from_wire(RetentionRow, each) for each in self.get("retention", id=task_id)["tasks"]]

    def freed_bytes(self, task_ids: Sequence[str]) -> dict[str, int]:
        found: dict[str, int] = {}
        for start in range(0, len(task_ids), 5_000):
            found |= self._post("retention", "freed", data={"ids": list(task_ids[start : start + 5_000])})["freed"]
        return found

    def move_to_trash(
        self,
        tasks: Iterable[tuple[RetentionRow, str]],
        *,
        by: str | None = None,
        proceed: Callable[[], bool] = lambda: True,
        patience: float = 60.0,
    ) -> Iterator[str]:
        everything = list(tasks)
        for start in range(0, len(everything), 500):
            if not proceed():
                return
            some = [
                {"id": task.id, "file": task.file, "size": task.size, "mtime_ns": task.mtime_ns, "rule": rule}
                for task, rule in everything[start : start + 500]
            ]
            yield from self._post("trash", data={"tasks": some})["discarded"]

    def delete(self, prefix: str, *, by: str | None = None) -> str:
        return str(self.http.ask("DELETE", self.http.path("tasks", prefix))["task"])

    def trash(self) -> list[InTrash]:
        return [from_wire(InTrash, each) for each in self.get("trash")["trash"]]

    def restore(self, prefix: str | None = None) -> list[str]:
        return list(self._post("trash", "restore", data={"id": prefix} if prefix else {})["restored"])

    def erase(self, prefix: str, *, by: str | None = None) -> str:
        return str(self._post("tasks", prefix, "erase", data={})["task"])

    def empty_trash(
        self,
        before: datetime | None = None,
        *,
        only: str | None = None,
        patience: float = 60.0,
        proceed: Callable[[], bool] = lambda: True,
    ) -> list[InTrash]:
        data = {} if before is None else {"before": write_time(before)}
        data |= {} if only is None else {"id": only}
        return [from_wire(InTrash, each) for each in self._post("trash", "empty", data=data)["deleted"]]

    def pack(self, task: RetentionRow) -> bool:
        return bool(self._post("tasks", task.id, "pack", data={})["packed"])

    def redact(self, prefix: str, *, dry_run: bool = False, by: str | None = None) -> _Redacted:
        found = self._post("tasks", prefix, "redact", data={"dry_run": dry_run})
        return _Redacted(found["task"], found["rules"], found["changed"])

    def explain(self, prefix: str) -> Iterator[redaction.Explained]:
        """With the rules of this machine; long outputs on the server are not fetched for it."""
        with self.reader(prefix) as reader:
            yield from redaction.explained(None, self.redactor, reader)

    def verify(self, prefix: str | None = None, *, repair: bool = False) -> Iterator[Any]:
        for task_id in [prefix] if prefix is not None else self._in_order():
            with contextlib.suppress(TaskNotFound):
                if repair:
                    yield _Verdict(self._post("tasks", task_id, "verify", data={}))
                else:
                    yield _Verdict(self.get("tasks", task_id, "verify"))

    def disk(self) -> dict[str, int]:
        return dict(self._doctor()["disk"])

    def health(self) -> tuple[int, str, list[str]]:
        found = self._doctor()
        return found["tasks"], f"{found['index']}, rawko {found['release']}", list(found["faults"])

    def concerns(self) -> list[tuple[str, str]]:
        return [(each["task"], each["problem"]) for each in self._doctor()["concerns"]]

    def _doctor(self) -> dict[str, Any]:
        found: dict[str, Any] = self.http.ask("GET", self.http.path("doctor"), timeout=_LONG)
        return found

    def reindex(
        self, step: Callable[[int, int], None] | None = None, flushing: Callable[[int, int], None] | None = None
    ) -> list[tuple[str, str]]:
        found = self.http.ask("POST", self.http.path("reindex"), data={}, timeout=_LONG)
        return [(each["task"], each["problem"]) for each in found["problems"]]

    def _in_order(self) -> list[str]:
        """All tasks by file name, followed by those missing from history."""
        known = [summary.id for summary in sorted(self._all(), key=lambda summary: summary.file)]
        return [*known, *sorted(self.cursors().keys() - set(known))]

    def _all(self) -> list[TaskSummary]:
        return self.history(TaskFilter(limit=None))

    # Search

    def unflushed(self) -> int:
        return 0

    def flush_due(self) -> str | None:
        return None

    def flush(self, step: Callable[[int, int], None] | None = None, *, wait: bool = False) -> int:
        return 0


_BLOCKS: Final = {"Content-Type": "text/plain; charset=utf-8"}


class _Redacted:
    def __init__(self, task: str, rules: Mapping[str, int], changed: int) -> None:
        self.task, self.rules, self.changed = task, rules, changed


class _Verdict:
    """What the server found in one chain."""

    def __init__(self, found: dict[str, Any]) -> None:
        name = parse_name(found["file"])
        assert name is not None
        self.name = name
        self.unsealed: bool = found["unsealed"]
        self.records: int = found["records"]
        self.turns: int = found["turns"]
        self.torn: int = found["torn"]
        self.faults: list[str] = found["faults"]
        self.warnings: list[str] = found.get("warnings", [])
        self.repaired: list[str] = found["repaired"]
        self.can_repair: bool = found["can_repair"]


class _Polled:
    """The events of one task, polled on demand."""

    def __init__(self, store: RemoteStore, task_id: str, after: str | None) -> None:
        self._store, self._id, self._after = store, task_id, after

    @property
    def cursor(self) -> str:
        return self._after or ""

    def poll(self) -> Iterator[Event]:
        for event in self._store.events(self._id, self._after):
            self._after = event.cursor
            yield event


def _query(wanted: TaskFilter) -> dict[str, Any]:
    labels = [name if value is None else f"{name}={value}" for name, value in wanted.labels]
    return {
        "status": list(wanted.status),
        "agent": wanted.agent,
        "file": wanted.file,
        "since": None if wanted.since is None else write_time(wanted.since),
        "until": None if wanted.until is None else write_time(wanted.until),
        "label": labels,
        "pinned": wanted.pinned,
        "model": wanted.model,
        "branch": wanted.branch,
        "source": wanted.source,
        "exact": wanted.exact,
        "ids": list(wanted.ids) if wanted.ids is not None else [],
        "sort": wanted.sort,
        "reverse": wanted.reverse or None,
        "limit": wanted.limit or 0,
    }
