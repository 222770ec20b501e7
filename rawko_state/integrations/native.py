"""Writes a task as a session of another agent, in that agent's own form, so that it can be resumed there with its history.

Each record names the task and the turn up to which it goes. An import of the session later takes only what came after, as a task
that continues this one.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final, NamedTuple

from rawko_state.exchange.sources import claude_code, codex
from rawko_state.exchange.transcript import HANDED_OVER
from rawko_state.lifecycle.context import Context
from rawko_state.model.entries import ToolCall, Turn
from rawko_state.store.contract import Store

_OUTPUT: Final = 4_000
"""Characters of a tool's output."""
_NOT_IN_FOLDERS = re.compile(r"[^A-Za-z0-9]")


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
            parts += [output if len(output) <= _OUTPUT else f"{output[:_OUTPUT]}\n[cut]"] if output else []
    return "\n\n".join(parts)


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
