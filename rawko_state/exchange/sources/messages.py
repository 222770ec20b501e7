"""Messages with a role and content, as most programs store them: the formats of OpenAI, Anthropic and the AI SDK."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from rawko_state.exchange.sources import apply_patch
from rawko_state.exchange.transcript import Call, Output, Step, text_of, time_of, words
from rawko_state.format.fair_json import shallow

_PATHS: Final = ("file_path", "filePath", "path", "notebook_path")


class Reader:
    """Each message of the agent begins a turn, which includes the results of its tools."""

    def __init__(self, agent: str) -> None:
        self._agent = agent
        self._turn = 0

    def step_of(self, raw: str, message: Mapping[str, Any]) -> Step:
        role, content = message.get("role"), message.get("content")
        at = next(
            (time_of(message[name]) for name in ("timestamp", "ts", "created_at", "createdAt") if name in message), None
        )
        parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
        outputs = tuple(_output(part) for part in parts if part.get("type") in ("tool_result", "tool-result"))
        facts = words(message, "cwd", "branch", "session")
        if role == "tool" or outputs:
            if not outputs:
                outputs = (Output(str(message.get("tool_call_id") or message.get("name")), text_of(content)),)
            return Step(raw, at, outputs=outputs, facts=facts)
        if role == "user":
            return Step(raw, at, prompt=text_of(content), facts=facts)
        if role == "assistant":
            self._turn += 1
            calls = [call_of(part) for part in parts if part.get("type") in ("tool_use", "tool-call")]
            calls += [call_of(each) for each in message.get("tool_calls") or () if isinstance(each, dict)]
            said = [part for part in parts if part.get("type") in ("text", "output_text")] if parts else content
            model = message.get("model")
            return Step(raw, at, turn=str(self._turn), agent=str(message.get("name") or self._agent), text=text_of(said) or None,
                        model=model if isinstance(model, str) else None, calls=tuple(calls), facts=facts)  # fmt: skip
        title = message.get("title")
        known = role in ("system", "developer") or isinstance(title, str)
        return Step(
            raw,
            at,
            title=title if isinstance(title, str) else None,
            facts=facts,
            unknown=None if known else str(role or "no 'role'"),
        )


def asked_of(given: Mapping[str, Any]) -> str:
    """What a tool was asked for, in short: its command, its file or its question; else all its arguments."""
    patch = next((given[name] for name in ("patchText", "patch", "input") if isinstance(given.get(name), str)), "")
    patched = apply_patch.touched(patch)
    if patched:
        return " ".join(path for _, path in patched)
    names = ("command", "cmd", *_PATHS, "absolute_path", "dir_path", "pattern", "query", "url", "description", "prompt")
    found = next((given[name] for name in names if isinstance(given.get(name), str)), None)
    return found if found is not None else json.dumps(given, ensure_ascii=False)[:2000]


def _output(part: Mapping[str, Any]) -> Output:
    value = part.get("content", part.get("output", part.get("result")))
    text = text_of(value) or ("" if value is None else json.dumps(value))
    return Output(
        str(part.get("tool_use_id") or part.get("toolCallId")), text, bool(part.get("is_error") or part.get("isError"))
    )


def call_of(part: Mapping[str, Any]) -> Call:
    """A tool call in any of these formats."""
    function = part.get("function")
    inner = function if isinstance(function, dict) else part
    name = str(inner.get("name") or inner.get("toolName"))
    given: Any = inner.get("arguments", inner.get("input", inner.get("args")))
    if isinstance(given, str):
        try:
            given = json.loads(shallow(given))
        except ValueError:
            given = {"command": given}
    given = given if isinstance(given, dict) else {}
    path = next((given[key] for key in _PATHS if isinstance(given.get(key), str)), None)
    small = name.lower()
    touches: tuple[tuple[str, str], ...] = ()
    if path is not None and any(word in small for word in ("write", "edit", "create", "patch")):
        touches = (("write", path),)
    elif path is not None and "read" in small:
        touches = (("read", path),)
    args = next((given[key] for key in ("command", *_PATHS, "query", "url") if isinstance(given.get(key), str)), None)
    key = part.get("id") or part.get("toolCallId") or part.get("call_id")
    return Call(str(key), name, args if args is not None else json.dumps(given)[:2000], touches)
