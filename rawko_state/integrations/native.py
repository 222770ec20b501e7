"""Writes a task as a session of another agent, in that agent's own form, so that it can be resumed there with its history.

Each record names the task and the turn up to which it goes, and the task notes that the session is now one of its own: what comes
after is added to the task. Elsewhere, where there is no such task, it becomes one that continues it.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final, NamedTuple

from rawko_state.exchange.linking import mark_recorded
from rawko_state.exchange.sources import claude_code, codex, session_named
from rawko_state.exchange.transcript import HANDED_OVER
from rawko_state.format.diffs import diff_text
from rawko_state.late import late
from rawko_state.lifecycle.context import Context
from rawko_state.model.entries import ToolCall, Turn, own_diffs
from rawko_state.store.contract import Store

_OUTPUT: Final = 4_000
"""Characters of a tool's output, or of a diff."""
_NOT_IN_FOLDERS = late(r"[^A-Za-z0-9]")


class Message(NamedTuple):
    role: str
    text: str
    at: datetime


def conversation(store: Store, context: Context) -> Iterator[Message]:
    """What was said and done, as messages of the user and of one assistant."""
    at = datetime.now(timezone.utc)
    waiting = list(context.prompts)
    for number, place in enumerate(context.conversation):
        while waiting and waiting[0].before <= number:
            yield Message("user", waiting.pop(0).said.text, at)
        turn = store.turn(place.task, place.row.turn, row=place.row)
        text = _in_words(store, turn)
        if text:
            yield Message("user" if turn.agent == "user" else "assistant", text, turn.started or at)
    for prompt in waiting:
        yield Message("user", prompt.said.text, at)


def _in_words(store: Store, turn: Turn) -> str:
    parts = [part for part in (turn.content, turn.reason) if part]
    for call in turn.tools:
        if isinstance(call, ToolCall):
            parts.append(f"[{call.tool} {call.args}]".replace(" ]", "]"))
            output = store.turn_output(call) or ""
            parts += [_shortened(output)] if output else []
            parts += [_shortened(diff_text(diff).rstrip()) for diff in own_diffs(call, turn.diffs)]
    return "\n\n".join(parts)


def _shortened(text: str) -> str:
    return text if len(text) <= _OUTPUT else f"{text[:_OUTPUT]}\n[cut]"


def write_session(agent: str, store: Store, context: Context, folder: Path) -> str:
    """Writes the session into the agent's own folder, for use in ``folder``. Returns its id."""
    session = str(uuid.uuid4())
    mark = f"{context.task.id}@{context.task.turns}"
    messages = list(conversation(store, context))
    if agent == "claude":
        name = _NOT_IN_FOLDERS.sub("-", str(folder))
        path = claude_code.home() / "projects" / name / f"{session}.jsonl"
        records = _claude(messages, session, folder)
    else:
        now = datetime.now()
        path = codex.home() / "sessions" / now.strftime("%Y/%m/%d")
        path /= f"rollout-{now.strftime('%Y-%m-%dT%H-%M-%S')}-{session}.jsonl"
        records = _codex(messages, session, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace", newline="") as stream:
        for record in records:
            stream.write(json.dumps({**record, HANDED_OVER: mark}, ensure_ascii=False) + "\n")
    written = session_named("claude-code" if agent == "claude" else "codex", session)
    if written is not None:
        mark_recorded(store, context.task.id, written)
    return session


def _claude(messages: list[Message], session: str, folder: Path) -> Iterator[dict[str, Any]]:
    parent = None
    for message in messages:
        own = str(uuid.uuid4())
        common = {
            "parentUuid": parent, "isSidechain": False, "userType": "external", "cwd": str(folder), "sessionId": session,
            "version": "2.0.0", "gitBranch": "", "uuid": own, "timestamp": _time(message.at),
        }  # fmt: skip
        if message.role == "user":
            yield {**common, "type": "user", "message": {"role": "user", "content": message.text}}
        else:
            said: dict[str, Any] = {
                "id": f"msg_{own.replace('-', '')[:24]}", "type": "message", "role": "assistant", "model": "<synthetic>",
                "content": [{"type": "text", "text": message.text}], "stop_reason": "end_turn", "stop_sequence": None,
                "usage": {"input_tokens": 0, "output_tokens": 0},
            }  # fmt: skip
            yield {**common, "type": "assistant", "message": said}
        parent = own


def _codex(messages: list[Message], session: str, folder: Path) -> Iterator[dict[str, Any]]:
    now = _time(datetime.now(timezone.utc))
    meta = {
        "id": session, "session_id": session, "timestamp": now, "cwd": str(folder), "originator": "rawko",
        "cli_version": "0.0.0", "source": "cli", "model_provider": None,
    }  # fmt: skip
    yield {"timestamp": now, "type": "session_meta", "payload": meta}
    for message in messages:
        kind = "input_text" if message.role == "user" else "output_text"
        said = {"type": "message", "role": message.role, "content": [{"type": kind, "text": message.text}]}
        yield {"timestamp": _time(message.at), "type": "response_item", "payload": said}
        # What the terminal shows when the session is opened.
        shown = "user_message" if message.role == "user" else "agent_message"
        yield {"timestamp": _time(message.at), "type": "event_msg", "payload": {"type": shown, "message": message.text}}


def _time(at: datetime) -> str:
    return at.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03d}Z"
