"""Following tasks: past events, then live ones, without gaps or duplicates.

A follower is nothing but a cursor. Events after the cursor come from the memory of the task's *feed* if it goes back far enough,
otherwise from the store. A feed has one reader for all followers of a task. It is woken by appends through this server, by
PostgreSQL's notifications, or by polling. A slow follower delays nobody else: once the feed has dropped the events it needs, it
reads from the store. If sending a message takes too long, it is disconnected, with a cursor from which it can reconnect.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from rawko_state.format.json_form import plain
from rawko_state.model.events import Event
from rawko_state.model.status import FINISHED
from rawko_state.store.wire import to_wire

if TYPE_CHECKING:
    from rawko_state.server.workspaces import Workspace
    from rawko_state.store.contract import EventStream

PROTOCOL: Final = 1
HEARTBEAT: Final = 15.0
SLOW: Final = 10.0
"""Maximum seconds to send one message."""
TOO_SLOW, GOING_AWAY, NOT_ADMITTED = 4008, 1012, 4001
"""WebSocket close codes. After the first two, a client may reconnect at once with its cursor."""
_ADMITTED: Final = 5.0
"""Seconds after which a follower's token is checked again. With a message that is being sent, a stream ends within 15 s."""
_BATCH: Final = 500
_REMEMBERED: Final = 2_000
_MUCH: Final = 2 << 20
"""Characters of events after which a batch ends, and no older ones are remembered. An event may be as long as a turn."""
_LOOK_EVERY: Final = 0.25
"""Seconds between polls for writes that bypass this server."""
_LOOK_EVERY_NOTIFIED: Final = 5.0
"""The same, if the database sends notifications."""


class Feed:
    """The newest events of one task, serialised, shared by all its followers."""

    def __init__(self, workspace: Workspace, task_id: str) -> None:
        self.workspace, self.task = workspace, task_id
        self.followers = 0
        self.version = 0
        self.looked = 0.0
        self.reader: EventStream | None = None
        self._events: deque[tuple[str, str]] = deque()
        """The cursor of each event, and the event as JSON."""
        self._numbers: dict[str, int] = {}
        """For each cursor, the number of the next event."""
        self._first = 0
        self._size = 0
        self._changed = asyncio.Event()

    def push(self, events: list[tuple[str, str]]) -> None:
        """Call from the event loop's thread."""
        for cursor, text in events:
            self._events.append((cursor, text))
            self._numbers[cursor] = self._first + len(self._events)
            self._size += len(text)
            while len(self._events) > _REMEMBERED or (self._size > _MUCH and len(self._events) > 1):
                gone, dropped = self._events.popleft()
                self._size -= len(dropped)
                self._first += 1
                if self._numbers.get(gone) == self._first:
                    del self._numbers[gone]
        self.wake()

    def begin(self, events: list[tuple[str, str]]) -> None:
        """The reader restarts at a later position. Followers read what it skipped from the store."""
        self._first += len(self._events)
        self._events.clear()
        self._numbers.clear()
        self._size = 0
        self.push(events)

    def wake(self) -> None:
        self.version += 1
        self._changed.set()
        self._changed = asyncio.Event()

    def after(self, cursor: str | None) -> list[tuple[str, str]] | None:
        """The events after a cursor; None if the feed does not know the cursor."""
        number = self._numbers.get(cursor) if cursor else None
        if number is None:
            return None
        start = number - self._first
        return list(islice(self._events, start, start + _BATCH))

    async def changed(self, version: int, seconds: float) -> bool:
        """Waits for a change since that version."""
        if self.version != version:
            return True
        waiting = self._changed
        try:
            await asyncio.wait_for(waiting.wait(), seconds)
        except asyncio.TimeoutError:
            return False
        return True


class Hub:
    """All feeds of a server, and the thread that reads events for them."""

    def __init__(self, *, notified: bool) -> None:
        """``notified``: the database sends notifications, so polling is only a fallback."""
        self._every = _LOOK_EVERY_NOTIFIED if notified else _LOOK_EVERY
        self._feeds: dict[tuple[str, str], Feed] = {}
        self._woken: queue.SimpleQueue[tuple[str, str] | None] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, daemon=True, name="feeds")
        self.closing = asyncio.Event()
        self._stopped = False

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def stop(self) -> None:
        """Tells every follower to reconnect. Thread-safe."""
        if self._loop is not None and not self._stopped:
            self._stopped = True
            self._woken.put(None)
            self._loop.call_soon_threadsafe(self._close)

    def _close(self) -> None:
        self.closing.set()
        for feed in self._feeds.values():
            feed.wake()

    def changed(self, workspace: str, task_id: str) -> None:
        """Reports a change to a task, or to all of them with ``*``. Thread-safe."""
        if task_id == "*" or (workspace, task_id) in self._feeds:
            self._woken.put((workspace, task_id))

    @property
    def followers(self) -> int:
        return sum(feed.followers for feed in self._feeds.values())

    @contextlib.contextmanager
    def following(self, workspace: Workspace, task_id: str) -> Any:
        key = (workspace.name, task_id)
        feed = self._feeds.get(key)
        if feed is None:
            feed = self._feeds[key] = Feed(workspace, task_id)
        feed.followers += 1
        try:
            yield feed
        finally:
            feed.followers -= 1
            if not feed.followers:
                self._feeds.pop(key, None)

    # In the feeds thread

    def _run(self) -> None:
        due = time.monotonic() + self._every
        while not self._stopped:
            chosen: set[tuple[str, str]] = set()
            try:
                woken = self._woken.get(timeout=max(0.0, due - time.monotonic()))
                while woken is not None:
                    chosen.add(woken)
                    woken = self._woken.get_nowait()
                if self._stopped:
                    return
            except queue.Empty:
                pass
            now = time.monotonic()
            for key, feed in list(self._feeds.items()):
                if key in chosen or ("*", "*") in chosen or now - feed.looked >= self._every:
                    self._look(feed)
            if now >= due:
                due = now + self._every

    def _look(self, feed: Feed) -> None:
        feed.looked = time.monotonic()
        try:
            if feed.reader is None:
                feed.reader = feed.workspace.store.event_reader(feed.task, feed.workspace.store.now(feed.task))
                self._call(feed.begin, [(event.cursor, as_text(event)) for event in feed.reader.poll()])
                return
            found = [(event.cursor, as_text(event)) for event in feed.reader.poll()]
            if found:
                self._call(feed.push, found)
        except (
            Exception
        ):  # store unreachable, task gone, or invalid draft: its followers will get the error; other feeds continue
            feed.reader = None
            self._call(lambda events: feed.wake(), [])

    def _call(self, work: Callable[[list[tuple[str, str]]], None], found: list[tuple[str, str]]) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(work, found)


def as_text(event: Event) -> str:
    return json.dumps({"type": "event", **to_wire(event)})


def batch(workspace: Workspace, task_id: str, cursor: str | None) -> list[tuple[str, str]]:
    """The next events after a cursor, from the store."""
    found: list[tuple[str, str]] = []
    size = 0
    for event in islice(workspace.store.events(task_id, cursor), _BATCH):
        found.append((event.cursor, as_text(event)))
        size += len(found[-1][1])
        if size > _MUCH:
            break
    return found


def hello(workspace: Workspace, task_id: str) -> dict[str, Any]:
    """The first message: the current state of the task."""
    store = workspace.store
    summary = store.summary(task_id)
    turn = store.open_question(task_id)
    asked = turn.question if turn is not None else None
    approval = asked is not None and asked.kind == "approval"
    warm = task_id in workspace.warm or task_id in store.alive()
    return {
        "type": "hello",
        "protocol": PROTOCOL,
        "task": task_id,
        "status": summary.status,
        "warm": warm,
        "resume": "warm" if warm else "cold",
        "isResume": summary.turns > 0,
        "resumedFromStorage": summary.turns > 0 and not warm,
        "busy": task_id in store.alive() or task_id in store.drafted(),
        "turns": summary.turns,
        "messageCount": summary.turns + summary.runs,
        "hasPendingAsk": asked is not None and not approval,
        "hasPendingApproval": approval,
        "question": plain(asked) if asked is not None and not approval else None,
        "approval": plain(asked) if approval else None,
        "cursor": store.now(task_id),
    }


def ending(workspace: Workspace, task_id: str) -> tuple[bool, bool]:
    """Whether a task is finished, and whether its process still holds it."""
    return workspace.store.status(task_id) in FINISHED, task_id in workspace.store.alive()


async def follow(
    hub: Hub,
    workspace: Workspace,
    task_id: str,
    after: str | None,
    run: Callable[..., Any],
    *,
    until_over: bool,
    may: Callable[[], object],
) -> AsyncGenerator[tuple[str, str] | None, None]:
    """Yields events as (cursor, JSON), and None when a heartbeat is due. Ends when the server stops or, with ``until_over``, with
    the task. ``run`` runs blocking calls in another thread; ``may`` raises once the client may no longer follow."""
    cursor, admitted = after, time.monotonic()
    sent = admitted
    with hub.following(workspace, task_id) as feed:
        hub.changed(workspace.name, task_id)
        while not hub.closing.is_set():
            if time.monotonic() - admitted >= _ADMITTED:
                await run(may)
                admitted = time.monotonic()
            version = feed.version
            found = feed.after(cursor)
            if found is None:
                found = await run(batch, workspace, task_id, cursor)
            for each in found:
                cursor, sent = each[0], time.monotonic()
                yield each
                if hub.closing.is_set():
                    return
                if time.monotonic() - admitted >= _ADMITTED:
                    break  # to whoever reads slowly, the rest of them may take minutes
            if found:
                continue
            wait = max(0.0, min(HEARTBEAT, _ADMITTED - (time.monotonic() - admitted)))
            if until_over:
                finished, held = await run(ending, workspace, task_id)
                if finished and not held:
                    if not await run(batch, workspace, task_id, cursor):
                        return
                    continue
                # A process that releases its finished task causes no event.
                wait = _LOOK_EVERY if finished else wait
            if not await feed.changed(version, wait) and time.monotonic() - sent >= HEARTBEAT:
                sent = time.monotonic()
                yield None
