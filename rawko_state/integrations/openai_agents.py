"""A session for the OpenAI Agents SDK: each session is a task (``[openai-agents]``).

    from rawko_state.integrations.openai_agents import RawkoSession

    await Runner.run(agent, "Hello", session=RawkoSession(rawko_state.open("."), "user-123"))

A popped item is hidden from every read, search and export. Its bytes stay in the task file until the task is erased. Clearing a
session, or popping its last item, moves its task to the trash.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote

from agents.memory.session import SessionABC
from agents.memory.session_settings import SessionSettings, coerce_session_settings, resolve_session_limit

from rawko_state.errors import RawkoError
from rawko_state.integrations.task_log import TaskLog

if TYPE_CHECKING:
    from rawko_state.store.contract import Store

_AGENT: Final = "openai-agents"
"""Exports know the notes of this agent, to withhold what was popped: rawko_state.format.taken_back."""
_Value = TypeVar("_Value")


class RawkoSession(SessionABC):
    """The items of one session. May be used from any thread and event loop, and by several processes."""

    def __init__(self, store: Store, session_id: str, session_settings: Any = None) -> None:
        self.store, self.session_id = store, session_id
        self.session_settings = (
            SessionSettings() if session_settings is None else coerce_session_settings(session_settings)
        )
        self._items: list[Any] = []
        source = f"{_AGENT}:{quote(session_id, safe='/:@-_.~ ')}"
        self._log = TaskLog(store, source, f"OpenAI Agents session {session_id}", _AGENT, self._take, self._items.clear)
        self._closed = False

    async def get_items(self, limit: int | None = None) -> list[Any]:
        """The items in order; with a limit, the latest of them."""
        most = resolve_session_limit(limit, self.session_settings)

        def read() -> list[Any]:
            self._log.catch_up()
            with self._log.lock:
                first = 0 if most is None or most < 0 else max(0, len(self._items) - most)
                return copy.deepcopy(self._items[first:])

        return await self._done(read)

    async def add_items(self, items: list[Any]) -> None:
        """Durable when it returns. All of them are added, or none."""
        self._check()
        if items:
            plain = json.loads(json.dumps(items))
            # Only the first item: as long as the session holds anything, it was not popped.
            self._log.asks(next(_asked(plain[:1]), None))
            await self._done(lambda: self._log.append([{"add": plain}]))

    async def pop_item(self) -> Any:
        """Hides the latest item and returns it. None if there is none. No two callers get the same one. With the last item, the
        task goes to the trash."""

        def pop() -> Any:
            popped: list[Any] = []

            def made() -> Sequence[Any]:
                popped[:] = self._items[-1:]
                return [{"pop": 1}] if popped else []

            self._log.append_next(made)
            if popped and not self._items:
                self._log.delete_emptied()  # its request may be the item that was popped
            return popped[0] if popped else None

        return await self._done(pop)

    async def clear_session(self) -> None:
        """Moves the task to the trash. Adding items later begins a new one."""
        await self._done(self._log.delete)

    def close(self) -> None:
        """Lets go of the task. The session can't be used afterwards."""
        self._closed = True
        self._log.close()

    def _take(self, value: Any) -> None:
        if "add" in value:
            self._items += value["add"]
        elif self._items:
            self._items.pop()

    def _check(self) -> None:
        if self._closed:
            raise RawkoError(f"Session {self.session_id} is closed.")

    async def _done(self, work: Callable[[], _Value]) -> _Value:
        """Runs to its end also if the caller is cancelled: what was begun is written or not, and known."""
        self._check()
        running = asyncio.ensure_future(asyncio.to_thread(work))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait({running})
            raise


def _asked(items: Sequence[Any]) -> Iterator[str]:
    """What the user said: the first of it becomes the request of the task."""
    for item in items:
        content = item.get("content") if isinstance(item, dict) and item.get("role") == "user" else None
        parts = content if isinstance(content, list) else [{"text": content}]
        for part in parts:
            text = part.get("text") if isinstance(part, dict) else None
            if isinstance(text, str) and text.strip():
                yield text
