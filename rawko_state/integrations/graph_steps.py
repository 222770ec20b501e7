"""What the nodes of a graph have said, as steps: messages, tool calls with their results, questions, errors, short values."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from rawko_state.exchange.sources.messages import Reader
from rawko_state.exchange.transcript import Step, counts, text_of
from rawko_state.integrations.readable import Teller
from rawko_state.model.entries import Note, Turn
from rawko_state.model.frozen import replace

AGENT: Final = "langgraph"
STOPS: Final = ("__interrupt__", "__error__", "__resume__")
"""Channels of what a graph stops at, and of what it goes on with."""
_INPUT: Final = "__start__"
_ROLES: Final = {"human": "user", "ai": "assistant", "AIMessageChunk": "assistant"}
_SPEAKERS: Final = ("user", "human", "assistant", "ai", "system")
_TOKENS: Final = {"input_tokens": "in", "output_tokens": "out"}
_LONGEST: Final = 4_000
_MOST: Final = 50
"""Values of a list or an object that are told."""


class GraphTeller:
    """Tells what one thread of a graph did. A message is told once, also if a graph passes on what an inner one said."""

    def __init__(self, root: Path | None) -> None:
        self._teller = Teller(AGENT, root)
        self._told: set[str] = set()
        self._nameless: Counter[str] = Counter()
        """Messages that were told before they had an id."""
        self._number = itertools.count(1)

    def knows(self, values: Mapping[str, Any]) -> None:
        """What the thread holds already, told by an earlier process."""
        self._teller.entries([step for value in values.values() for step in self._messages(value, AGENT)])

    def entries(self, writes: Sequence[tuple[str, Any]], path: str) -> list[Turn | Note]:
        """The turns of what a node wrote; none if there is nothing to read in it. ``path``: where the node is in the graph."""
        node = path.rsplit(", ", 1)[-1].lstrip("~") if "__pregel_pull" in path else AGENT
        return self._teller.entries(self._steps(writes, "user" if node == _INPUT else node))

    def _steps(self, writes: Sequence[tuple[str, Any]], node: str) -> Iterator[Step]:
        said, counted = list[str](), list[str]()
        is_told = False
        for channel, value in writes:
            if channel == "__resume__":  # from the graph itself, as the node repeats it
                yield Step("", _now(), prompt=_short(value))
            elif channel == "__error__":
                yield replace(self._spoken(node, _short(value) or type(value).__name__), failed="error")
            elif channel == "__interrupt__":
                asked = [_short(getattr(each, "value", each)) for each in _listed(value)]
                yield self._spoken(node, "\n".join(filter(None, asked)) or "Interrupted")
            elif channel == "__return__" or not channel.startswith(("__", "branch:")):
                steps = list(self._messages(value, node))
                yield from steps
                is_message = bool(steps) or any(_plain(each) is not None for each in _listed(value))
                text, is_told = "" if is_message else _short(value), is_told or is_message
                if text:
                    where = counted if isinstance(value, (bool, int, float)) else said
                    where.append(text if node == "user" or channel == "__return__" else f"{channel}: {text}")
        if said or (counted and not is_told):  # a number beside words is the program's own
            text = "\n".join(said or counted)
            yield Step("", _now(), prompt=text) if node == "user" else self._spoken(node, text)

    def _spoken(self, node: str, text: str) -> Step:
        return Step("", _now(), turn=str(next(self._number)), agent=node, text=text)

    def _messages(self, value: Any, node: str) -> Iterator[Step]:
        for each in _listed(value):
            message = _plain(each)
            if message is None or not self._is_new(message):
                continue
            step = Reader(node).step_of("", message)
            usage = counts(message["usage"], _TOKENS)
            named = str(next(self._number)) if step.turn is not None else None
            yield replace(step, at=_now(), turn=named, agent=node, tokens=usage)

    def _is_new(self, message: Mapping[str, Any]) -> bool:
        key = message["id"]
        if isinstance(key, str) and key in self._told:
            return False
        mark = json.dumps([message["role"], message["content"], message["tool_calls"]], default=str)
        if not isinstance(key, str):
            self._nameless[mark] += 1
            return True
        self._told.add(key)
        if self._nameless[mark]:
            self._nameless[mark] -= 1
            return False
        return True


def is_told_now(channel: str, path: str, late: bool) -> bool:
    """Whether a write is told at once. An answer is written by the graph, and again by the node that got it."""
    return late if channel not in STOPS else channel != "__resume__" or not path


def asked_of(values: Mapping[str, Any]) -> str | None:
    """What the input of a graph asks for, if this holds it: what the user's first turn would say."""
    given = values.get(_INPUT, values)
    writes = list(given.items()) if isinstance(given, dict) else [("__return__", given)]
    steps = GraphTeller(None)._steps([(str(name), value) for name, value in writes], "user")
    return next((step.prompt for step in steps if step.prompt), None)


def _plain(message: Any) -> dict[str, Any] | None:
    """A message of LangChain, or what it makes one of; None if it is something else."""
    if _is_pair(message):
        message = {"role": message[0], "content": message[1]}
    if not _is_message(message):
        return None
    get: Callable[[str], Any] = message.get if isinstance(message, dict) else lambda name: getattr(message, name, None)
    role = str(get("role") or get("type"))
    content = get("content")
    if isinstance(content, list):  # calls are listed apart
        content = [
            each
            for each in content
            if isinstance(each, str) or (isinstance(each, dict) and each.get("type")) in ("text", "image", "image_url")
        ]
    about = get("response_metadata")
    model = about.get("model_name") or about.get("model") if isinstance(about, dict) else None
    return {
        "role": _ROLES.get(role, role), "content": text_of(content), "id": get("id"), "model": model,
        "tool_calls": get("tool_calls") or [], "tool_call_id": get("tool_call_id"), "usage": get("usage_metadata"),
    }  # fmt: skip


def _is_message(value: Any) -> bool:
    if isinstance(value, dict):
        return isinstance(value.get("role"), str) and "content" in value
    return isinstance(getattr(value, "type", None), str) and isinstance(getattr(value, "content", None), (str, list))


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) and not _is_pair(value) else [value]


def _is_pair(value: Any) -> bool:
    """A role and what it says, which LangGraph takes for a message."""
    is_two = isinstance(value, (tuple, list)) and len(value) == 2 and all(isinstance(each, str) for each in value)
    return is_two and value[0] in _SPEAKERS


def _short(value: Any) -> str:
    """A value in words, if it is short and plain."""
    if isinstance(value, BaseException):
        value = f"{type(value).__name__}: {value}"
    if isinstance(value, str):
        return value if len(value) <= _LONGEST else f"{value[:_LONGEST]}…"
    if isinstance(value, (bool, int, float)):
        return str(value)
    if isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value):
        return _short("\n".join(value[:_MOST]))
    if isinstance(value, dict) and len(value) <= _MOST:
        plain = {str(key): each for key, each in value.items() if isinstance(each, (str, bool, int, float))}
        return _short(json.dumps(plain, ensure_ascii=False)) if plain else ""
    return ""


def _now() -> datetime:
    return datetime.now(timezone.utc).replace(microsecond=0)
