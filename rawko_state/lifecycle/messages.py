"""Turns as chat API messages, in OpenAI's or Anthropic's format; exact if a turn kept its payload."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from rawko_state.model.entries import ToolCall, Turn

if TYPE_CHECKING:
    from rawko_state.lifecycle.context import Source


DAMAGED: Final = "damaged: this was changed after it was recorded, or lost a part"
"""The description of a turn whose seal does not match."""


def of_turn(store: Source, turn: Turn, shape: str) -> list[dict[str, Any]]:
    """The messages for one turn."""
    found = _payload(turn) or _made(store, turn, shape)
    if turn.damaged:
        found.insert(0, {"role": "user", "content": f"[turn {turn.number}: {DAMAGED}]"})
    return found


def _made(store: Source, turn: Turn, shape: str) -> list[dict[str, Any]]:
    if turn.agent == "user":
        return [{"role": "user", "content": turn.content or ""}]
    if turn.is_arbiter:
        what = f"Selected {turn.selected}" if turn.selected else f"Decision: {turn.decision}"
        words = [f"[{turn.agent}] {what}.", *(part for part in (turn.reason, turn.guidance) if part)]
        return [{"role": "user", "content": " ".join(words)}]
    calls = [call for call in turn.tools if isinstance(call, ToolCall)]
    text = turn.content or ""
    if turn.question is not None:
        text = f"{text}\n\n{turn.question.text}".strip()
    if not calls:
        return [{"role": "assistant", "content": text}]
    named = [(f"turn{turn.number}-{number}", call, _result(store, call)) for number, call in enumerate(calls, 1)]
    return _anthropic(text, named) if shape == "anthropic" else _openai(text, named)


def _payload(turn: Turn) -> list[dict[str, Any]]:
    """The provider's own messages, one JSON object per line; empty if any line is something else."""
    found = []
    for line in (turn.payload or "").splitlines():
        if not line.strip():
            continue
        try:
            message = json.loads(line)
        except ValueError:
            return []
        if not isinstance(message, dict) or "role" not in message:
            return []
        found.append(message)
    return found


def _result(store: Source, call: ToolCall) -> str:
    output = store.turn_output(call)
    parts = [part for part in (call.result, output) if part]
    return "\n".join(parts) if parts else "(no result was recorded)"


def _input(call: ToolCall) -> dict[str, Any]:
    given = call.more.get("input")
    return given if isinstance(given, dict) else {"args": call.args}


def _openai(text: str, calls: list[tuple[str, ToolCall, str]]) -> list[dict[str, Any]]:
    made = [
        {"id": key, "type": "function", "function": {"name": call.tool, "arguments": json.dumps(_input(call))}}
        for key, call, _ in calls
    ]
    results = [{"role": "tool", "tool_call_id": key, "content": result} for key, _, result in calls]
    return [{"role": "assistant", "content": text or None, "tool_calls": made}, *results]


def _anthropic(text: str, calls: list[tuple[str, ToolCall, str]]) -> list[dict[str, Any]]:
    said: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
    said += [{"type": "tool_use", "id": key, "name": call.tool, "input": _input(call)} for key, call, _ in calls]
    results = [{"type": "tool_result", "tool_use_id": key, "content": result} for key, _, result in calls]
    return [{"role": "assistant", "content": said}, {"role": "user", "content": results}]
