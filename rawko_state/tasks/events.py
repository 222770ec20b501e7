"""One ordered stream of events per task: from its file, and from its draft while a turn is running.

A cursor names a position in the file: the end of a record, the first digits of its seal, and the number of events delivered after
it. So it stays valid after a reindex, a restart or packing, and shows if the file was rewritten before that position. While a
turn runs, a cursor may also point into its draft. If that draft has become a turn since, the reader gets the turn, marked as
replacing the live events.

Following means polling two sizes, the file's and the draft's: every few milliseconds while there is activity, less often
otherwise.
"""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from rawko_state.errors import InvalidValue, StorageError
from rawko_state.format.events import KINDS_OF_PROGRESS, RecordEvent, damaged_event, entry_events, time_text, torn_event
from rawko_state.format.reader import TaskReader
from rawko_state.format.scan import Record, bounded
from rawko_state.format.seal import GENESIS, SEAL_LENGTH, read_seal
from rawko_state.late import late
from rawko_state.model import status as words
from rawko_state.model.entries import Turn
from rawko_state.model.events import Event
from rawko_state.model.frozen import Frozen, replace
from rawko_state.model.names import TaskName
from rawko_state.model.state import TaskState
from rawko_state.tasks.source import EventSource

_CURSOR = late(
    r"([0-9]{1,18})-([0-9a-f]{8})(?:\.([0-9]{1,9}))?"
    r"(?:~([0-9TZ:.-]{1,40}),([0-9]{1,18}),([0-9]{1,9}),([0-9]{1,9}))?"
)
_SOON, _LATE = 0.005, 0.1
_BUSY_FOR: Final = 2.0


class Cursor(Frozen):
    """How much of a task has been delivered."""

    offset: int = 0
    """Everything up to the end of this record,"""
    seal: str = GENESIS[:8]
    count: int = 0
    """this many events after it,"""
    draft: str = ""
    read: int = 0
    """this many bytes of the draft with this start time,"""
    tools: int = 0
    steps: int = 0
    """including this many tool calls and steps."""

    def __str__(self) -> str:
        text = f"{self.offset}-{self.seal}"
        text += f".{self.count}" if self.count else ""
        return f"{text}~{self.draft},{self.read},{self.tools},{self.steps}" if self.draft else text

    @classmethod
    def parse(cls, text: str) -> Cursor:
        match = _CURSOR.fullmatch(text)
        if match is None:
            raise InvalidValue(f"Not a cursor: {text!r}. Use the 'cursor' of an event.")
        count, read, tools, steps = (int(match[group] or 0) for group in (3, 5, 6, 7))
        return cls(int(match[1]), match[2], count, match[4] or "", read, tools, steps)


class EventReader:
    """Delivers each event of a task once, in order. ``poll`` yields what is new since the last call."""

    def __init__(
        self, source: EventSource, name: TaskName, after: str | None, state_at: Callable[[int], TaskState | None]
    ) -> None:
        """``state_at`` returns the task's state at the end of a record, as far as events depend on it."""
        self._source, self._name, self._state_at = source, name, state_at
        self._at = Cursor.parse(after) if after else Cursor()
        self._seal = GENESIS
        self._state: TaskState | None = None
        """The state at the cursor's record. None if not looked up yet."""
        self._file: tuple[int, int, int, int] | None = None
        """Device, inode, size and mtime of the file when it was last read."""
        self._live = self._at.draft if self._at.read else ""
        """The draft that was partly delivered, and whose turn was not."""
        self._looked_at: tuple[int, ...] | None = None
        """The draft's stamp when it had been read completely."""
        self._ended = ""
        """The draft whose turn was delivered last. Its writer may not have removed it yet."""

    @property
    def cursor(self) -> str:
        return str(self._at)

    def poll(self) -> Iterator[Event]:
        """Yields a turn after all its live events, and live events after everything sealed."""
        if self._live:
            yield from self._draft(self._live)
        yield from self._sealed()
        yield from self._draft()

    # The file

    def _sealed(self) -> Iterator[Event]:
        before = self._file
        try:
            now = self._source.look(self._name)
            if now == before:
                return
            reader = self._source.reader(self._name)
        except StorageError as error:
            if error.errno != errno.ENOENT:
                raise  # unreachable for now, which does not mean it is gone
            self._file = (0, 0, -1, 0)
            if before != self._file:
                yield self._gap("the task file is gone")
            return
        with reader:
            if before is not None and before[:2] != now[:2]:
                self._state = None  # another file has replaced it: is the cursor still valid?
            elif self._at.offset and self._seal_at(reader) != self._seal:
                self._state = None  # it was rewritten in place
            if self._state is None:
                problem = self._find_place(reader)
                if problem is not None:
                    yield self._gap(problem)
            yield from self._records(reader)
        self._file = now  # read completely; otherwise the next poll continues

    def _records(self, reader: TaskReader) -> Iterator[Event]:
        assert self._state is not None
        state, delivered, passed = self._state, self._at.count, 0
        for record in reader.scan((self._at.offset, self._seal) if self._at.offset else None):
            if record.kind == "tail":
                return  # still being written
            events, state = record_events(record, state, reader)
            for event in events:
                passed += 1
                if passed > delivered:
                    yield from self._delivered(Event(self._name.id, "", **event._asdict()), passed)
            if record.kind in ("sealed", "torn"):
                # Content without its own seal (a damaged record, an unsealed file) stays counted from the last seal.
                self._seal, self._state = record.seal or GENESIS, state
                self._at = replace(self._at, offset=record.end, seal=self._seal[:8], count=0)
                delivered = passed = 0

    def _delivered(self, event: Event, count: int) -> Iterator[Event]:
        self._at = replace(self._at, count=count)
        if event.kind == "turn" and event.data["started"] is not None:
            replaces = event.data["started"] == self._live
            self._ended = str(event.data["started"])
            if replaces:
                self._live = ""
                self._at = replace(self._at, draft="", read=0, tools=0, steps=0)
            yield replace(event, cursor=str(self._at), replaces=replaces)
        elif self._live and event.data.get("of") == self._live and self._was_told(event):
            pass
        else:
            yield replace(event, cursor=str(self._at))

    def _was_told(self, event: Event) -> bool:
        """Whether a tool call or step was delivered live. The cursor counts how many were."""
        which = "tools" if event.kind == "tool" else "steps"
        left = getattr(self._at, which)
        if left:
            self._at = replace(self._at, **{which: left - 1})
        return bool(left)

    def _find_place(self, reader: TaskReader) -> str | None:
        """Looks up the cursor's position. Returns why it is invalid, if so."""
        if not self._at.offset:
            self._seal, self._state = GENESIS, TaskState(id=self._name.id)
            return None
        seal = self._seal_at(reader)
        if seal is not None and seal[:8] == self._at.seal:
            self._seal, self._state = seal, self._state_at(self._at.offset)
        return "the file was changed before this point" if self._state is None else None

    def _seal_at(self, reader: TaskReader) -> str | None:
        """The seal just before the cursor's position."""
        return read_seal(reader.fetch(max(0, self._at.offset - SEAL_LENGTH), SEAL_LENGTH).strip())

    @property
    def is_gone(self) -> bool:
        """Whether the task's file was missing at the last poll."""
        return self._file is not None and self._file[2] < 0

    def _gap(self, reason: str) -> Event:
        """Reports that the events after the cursor are lost. Delivery restarts from the beginning."""
        self._at, self._seal = Cursor(), GENESIS
        self._state, self._live = TaskState(id=self._name.id), ""
        return Event(self._name.id, str(self._at), "gap", text=reason)

    # The draft

    def _draft(self, only: str = "") -> Iterator[Event]:
        """New lines of the draft; with ``only``, if it has that start time."""
        looked_at = self._source.draft_stamp(self._name.id)
        if looked_at is None or looked_at == self._looked_at:
            return
        try:
            with self._source.draft(self._name.id).opened() as (line, lines):
                head = _json(line)
                started, agent = head.get("started"), head.get("agent")
                if not isinstance(started, str) or not isinstance(agent, str) or started == self._ended:
                    return
                if only and started != only:
                    return
                if started != self._at.draft:
                    since = head.get("since")
                    if isinstance(since, int) and self._at.offset < since:
                        return  # the file has grown since it was read, and its new records come before this turn
                    if self._has_ended(head, started):
                        self._ended = started
                        return
                    self._at = replace(self._at, draft=started, read=len(line), tools=0, steps=0)
                for line in lines(self._at.read):
                    event = live_event(self._name.id, agent, _json(line))
                    self._at = _counted(replace(self._at, read=self._at.read + len(line)), event)
                    if event is not None:
                        self._live = started
                        yield replace(event, cursor=str(self._at), at=event.at or started)
                self._looked_at = looked_at
        except OSError:
            return

    def _has_ended(self, head: dict[str, Any], started: str) -> bool:
        """Whether a draft's turn is in the file before the cursor: its writer died before it could remove the draft."""
        since, seal = head.get("since"), head.get("seal")
        if not isinstance(since, int) or not isinstance(seal, str) or self._at.offset <= since:
            return False
        try:
            with self._source.reader(self._name) as reader:
                for record in reader.scan((since, seal) if since else None):
                    if record.offset >= self._at.offset:
                        break
                    for block in record.blocks if record.counts else ():
                        entry = block.entry(head_only=True)
                        if isinstance(entry, Turn) and time_text(entry.started) == started:
                            return True
        except StorageError:
            pass
        return False


def live_event(task_id: str, agent: str, line: dict[str, Any]) -> Event | None:
    """The event for one line of a draft."""
    kind = line.get("kind")
    event = Event(task_id, "", str(kind), agent=agent, live=True)
    if kind == "text":
        return replace(event, text=str(line.get("text", "")))
    if kind == "tool":
        data = {
            "args": line.get("args"),
            "result": line.get("result"),
            "time": line.get("time"),
            "key": line.get("key"),
        }
        return replace(event, text=str(line.get("tool", "")), data={**data, "running": bool(line.get("open"))})
    if kind == "tool_end":
        return replace(
            event, kind="tool", data={"key": line.get("key"), "result": line.get("result"), "running": False}
        )
    if kind == "progress":
        of = str(line.get("of", "progress"))
        kind = of if of in KINDS_OF_PROGRESS else "progress"
        return replace(event, kind=kind, text=str(line.get("text", "")), data={"time": line.get("time"), "kind": of})
    if kind == "think":
        return replace(event, kind="thinking", text=str(line.get("text", "")))
    if kind == "tool_output":
        return replace(event, kind="output", text=str(line.get("text", "")), data={"key": line.get("key")})
    if kind == "edit":
        data = {name: line.get(name) for name in ("added", "removed")}
        return replace(event, text=str(line.get("new") or line.get("old")), data=data)
    if kind == "file":
        return replace(event, text=str(line.get("path", "")), data={"operation": line.get("operation")})
    return replace(event, data=line) if isinstance(kind, str) else None


def record_events(record: Record, state: TaskState, reader: TaskReader) -> tuple[list[RecordEvent], TaskState]:
    """A record's events and the state after it. The same bytes give the same events, so an event count is a position."""
    found: list[RecordEvent] = []
    if record.kind == "torn":
        found.append(torn_event(record.torn))
    if record.kind == "damaged":
        found.append(damaged_event())
    fetch = bounded(reader.fetch)
    for block in record.blocks:
        entry = block.entry(fetch)
        if record.kind == "damaged":
            state = state.apply_damaged(entry)
            continue
        before, state = state, state.apply(entry)
        found.extend(entry_events(entry, before, state))
    return found, state


_NOT_REPEATED: Final = frozenset(("text", "thinking", "output", "file", "edit"))
"""Live events that have no event of their own once the turn has ended."""


def _counted(at: Cursor, event: Event | None) -> Cursor:
    if event is None or event.kind in _NOT_REPEATED:
        return at
    if event.kind == "tool":
        return replace(at, tools=at.tools + 1) if event.text is not None else at
    return replace(at, steps=at.steps + 1)


def _json(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


class Pace:
    """How long to wait between polls: briefly during activity, longer otherwise."""

    def __init__(self, soon: float = _SOON, late: float = _LATE) -> None:
        self._soon, self._late = soon, late
        self._busy_until = time.monotonic() + _BUSY_FOR

    def wait(self, happened: bool) -> None:
        now = time.monotonic()
        if happened:
            self._busy_until = now + _BUSY_FOR
        time.sleep(self._soon if now < self._busy_until else self._late)


def state_from(status: str | None, turn: int | None, task_id: str) -> TaskState:
    """The part of a state that events depend on."""
    found = TaskState(id=task_id, status=status or words.PENDING)
    return replace(found, question=turn) if status == words.WAITING else found
