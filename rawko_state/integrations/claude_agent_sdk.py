"""A session store for the Claude Agent SDK: each transcript is a task (``[claude-agent-sdk]``).

    from rawko_state.integrations.claude_agent_sdk import RawkoSessionStore

    options = ClaudeAgentOptions(session_store=RawkoSessionStore(rawko_state.open(".")))

What was said and done are turns of the task, for people; the entries themselves are kept beside them, exactly. A sub-agent's
transcript is a task of its own. Deleting a session moves its tasks to the trash.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

from claude_agent_sdk import fold_session_summary

from rawko_state.exchange.sources.claude_code import MAIN, step_of
from rawko_state.exchange.transcript import Step, safely
from rawko_state.integrations.readable import Teller
from rawko_state.integrations.task_log import TaskLogs
from rawko_state.store import TaskFilter

if TYPE_CHECKING:
    from rawko_state.store.contract import Store

_AGENT: Final = "claude-agent-sdk"
_LATEST: Final = 200
"""Entries in which a call may be whose result comes in another process."""


class _Transcript:
    """The entries of a transcript, each once, and the SDK's summary of them."""

    def __init__(self) -> None:
        self.entries: list[Any] = []
        self.summary: Any = None
        self.teller: Teller | None = None
        self._known: set[str] = set()

    def take(self, value: Any) -> None:
        self.entries += self.new(value["entries"])
        self.summary = value["summary"]

    def forget(self) -> None:
        self.entries, self.summary, self.teller, self._known = [], None, None, set()

    def new(self, entries: Sequence[Any]) -> list[Any]:
        """The entries that are not there yet, by their uuid."""
        found = []
        for entry in entries:
            key = entry.get("uuid")
            if not isinstance(key, str) or key not in self._known:
                found.append(entry)
                self._known.update([key] if isinstance(key, str) else [])
        return found


class RawkoSessionStore:
    """Keeps transcripts in a store. May be used from any thread and event loop, and by several processes."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._logs = TaskLogs(store, f"{_AGENT}:", _AGENT, _Transcript)

    def close(self) -> None:
        """Lets go of the open tasks. The store can still be used afterwards."""
        self._logs.close()

    async def append(self, key: Any, entries: list[Any]) -> None:
        """Durable when it returns. An entry whose uuid is known is left out."""
        if entries:
            await asyncio.to_thread(self._append, key, entries)

    async def load(self, key: Any) -> list[Any] | None:
        found = await asyncio.to_thread(self._logs.read, _name(key))
        return None if found is None else list(found.entries)

    async def list_sessions(self, project_key: str) -> list[Any]:
        return await asyncio.to_thread(self._listed, project_key)

    async def list_session_summaries(self, project_key: str) -> list[Any]:
        return await asyncio.to_thread(self._summaries, project_key)

    async def delete(self, key: Any) -> None:
        await asyncio.to_thread(self._delete, key)

    async def list_subkeys(self, key: Any) -> list[str]:
        return await asyncio.to_thread(lambda: [unquote(name.split("/")[2]) for name in self._below(key)])

    def _append(self, key: Any, entries: list[Any]) -> None:
        log, transcript = self._logs.of(_name(key))
        log.asks(next(_asked(entries), None))
        tried: list[Teller] = []

        def made() -> list[Any]:
            known = {entry.get("uuid") for entry in transcript.entries} - {None}
            fresh = [entry for entry in entries if entry.get("uuid") not in known]
            if not fresh and transcript.entries:
                return []
            # Not that of a sub-agent: it must not count for the session's.
            told = (
                fold_session_summary(_whole(transcript.summary, key), key, fresh)["data"]
                if "subpath" not in key
                else None
            )
            tried[:] = [self._teller(transcript).copied()]
            return [*tried[0].entries(map(_step, fresh)), {"entries": fresh, "summary": told}]

        with log.lock:
            log.append_next(made)
            transcript.teller = tried[0] if tried else transcript.teller

    def _teller(self, transcript: _Transcript) -> Teller:
        if transcript.teller is None:
            transcript.teller = Teller(MAIN, self.store.root)
            transcript.teller.entries(map(_step, transcript.entries[-_LATEST:]))
        return transcript.teller

    def _listed(self, project_key: str) -> list[Any]:
        ids = {task_id: session for session, task_id in self._sessions(project_key).items()}
        found = self.store.history(TaskFilter(ids=tuple(ids))) if ids else []
        return [{"session_id": ids[task.id], "mtime": _milliseconds(task.updated)} for task in found]

    def _summaries(self, project_key: str) -> list[Any]:
        found = []
        for each in self._listed(project_key):
            log, _ = self._logs.of(_name({"project_key": project_key, "session_id": each["session_id"]}))
            note = self.store.last_note(self._sessions(project_key)[each["session_id"]], log.kind)
            if note is not None and isinstance(note.data, dict) and note.data.get("summary") is not None:
                found.append({**each, "data": note.data["summary"]})
        return found

    def _delete(self, key: Any) -> None:
        self._logs.delete(_name(key))
        for name in list(self._below(key)) if "subpath" not in key else ():
            self._logs.delete(name)

    def _sessions(self, project_key: str) -> dict[str, str]:
        parts = {tuple(map(unquote, name.split("/"))): task_id for name, task_id in self._logs.names().items()}
        return {each[1]: task_id for each, task_id in parts.items() if len(each) == 2 and each[0] == project_key}

    def _below(self, key: Any) -> Iterator[str]:
        prefix = f"{quote(key['project_key'], safe='')}/{quote(key['session_id'], safe='')}/"
        return (name for name in self._logs.names() if name.startswith(prefix))


def _name(key: Any) -> str:
    """Project, session and maybe the path of a sub-agent: three parts, whatever they hold."""
    parts = [key["project_key"], key["session_id"], *([key["subpath"]] if "subpath" in key else [])]
    return "/".join(quote(part, safe="") for part in parts)


def _step(entry: Any) -> Step:
    return safely(step_of, json.dumps(entry))


def _whole(data: Any, key: Any) -> Any:
    return None if data is None else {"session_id": key["session_id"], "mtime": 0, "data": data}


def _asked(entries: Sequence[Any]) -> Iterator[str]:
    """What the user said: the first of it becomes the request of the task."""
    for entry in entries:
        message = entry.get("message") if entry.get("type") == "user" else None
        content = message.get("content") if isinstance(message, dict) else None
        parts = content if isinstance(content, list) else [{"text": content}]
        yield from (part["text"] for part in parts if isinstance(part, dict) and _says(part.get("text")))


def _says(text: Any) -> bool:
    return isinstance(text, str) and bool(text.strip())


def _milliseconds(time: str | None) -> int:
    return int(datetime.fromisoformat((time or "1970-01-01T00:00:00Z").replace("Z", "+00:00")).timestamp() * 1000)
