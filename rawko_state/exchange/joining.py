"""Joins signals that tell of one thing, so that it is recorded once and whole.

- A model's messages may come in events of their own, beside the span of the request (the conventions until 1.36).
- A client may tell of its HTTP request in a span inside that of whoever instruments it: both have the same response id.
- A program that calls tools itself has no spans of them: what they returned stands in the input of the next request.
- The outermost span may be one of the program around the agent, which ends what ran in it.
- Claude Code tells of a request in two events, one with the tokens, one with what the model said.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from rawko_state.exchange.signals import CHAT, INPUT, OUTPUT, Signal, data, first, parts
from rawko_state.model.frozen import replace

_REMEMBERED: Final = 2_000
_NEAR: Final = 20
"""An event that belongs to another is among so many that follow it."""
_ROLES: Final = {
    "gen_ai.user.message": "user",
    "gen_ai.system.message": "system",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
}
_CHOICE: Final = "gen_ai.choice"
_DETAILS: Final = "gen_ai.client.inference.operation.details"
MESSAGES: Final = (*_ROLES, _CHOICE, _DETAILS)
"""Events with the messages of a request."""
_HTTP: Final = ("http.request.method", "url.full", "http.url")
Value = TypeVar("Value")


class Joiner:
    """Knows what was told and what is still to be joined, of the latest signals. Not thread-safe."""

    def __init__(self) -> None:
        self._messages: OrderedDict[str, dict[str, list[Any]]] = OrderedDict()
        """By span: messages that came before it."""
        self._spans: OrderedDict[str, Signal] = OrderedDict()
        """Spans of requests whose messages may still come."""
        self._bare: OrderedDict[tuple[str, Any], Signal] = OrderedDict()
        """HTTP requests that may be told again by the span around them."""
        self._tools: OrderedDict[tuple[str, str], None] = OrderedDict()
        """Tool calls that were told, by conversation and id."""
        self._traces: OrderedDict[str, dict[str, Signal]] = OrderedDict()
        """By trace: a signal of each conversation in it."""

    def joined(self, signals: Sequence[Signal]) -> Iterator[tuple[list[Signal], list[Signal]]]:
        """What to record, in order, each time with the signals that it stands for."""
        for signal in signals:
            if signal.is_event and signal.name in MESSAGES:
                self._hear(signal)
        for signal, response in _with_responses(signals):
            yield list(self._whole(signal)), [signal, *([response] if response is not None else [])]

    def waiting(self) -> list[Signal]:
        """What has waited for the span around it."""
        found = list(self._bare.values())
        self._bare.clear()
        return found

    def _whole(self, signal: Signal) -> Iterator[Signal]:
        if signal.is_event:
            yield from self._late(signal) if signal.name in MESSAGES else (signal,)
            return
        if signal.operation is None:
            yield from self._released(signal.trace)
            around = self._traces.pop(signal.trace, {}) if signal.outermost else {}
            for inner in around.values():
                yield replace(signal, attributes=inner.whose)
            return
        if signal.operation in CHAT:
            said = self._messages.pop(signal.key, {})
            about = (signal.trace, signal.attributes.get("gen_ai.response.id"))
            request = self._bare.pop(about, None) if about[1] is not None else None
            told = request.attributes if request is not None else {}
            signal = replace(signal, attributes={**told, **said, **signal.attributes})
            if about[1] is not None and not signal.outermost and _is_bare(signal):
                _keep(self._bare, about, signal)
                return
            yield from self._results(signal)
            _keep(self._spans, signal.key, signal)
        else:
            yield from self._released(signal.trace)
            if signal.operation == "execute_tool":
                known = signal.attributes.get("gen_ai.tool.call.id") or signal.attributes.get("gen_ai.tool.name")
                _keep(self._tools, (signal.conversation, str(known)), None)
        yield self._in_its_trace(signal)

    def _released(self, trace: str) -> Iterator[Signal]:
        for about in [about for about in self._bare if about[0] == trace]:
            yield self._in_its_trace(self._bare.pop(about))

    def _in_its_trace(self, signal: Signal) -> Signal:
        self._traces.setdefault(signal.trace, {})[signal.conversation] = signal
        _bounded(self._traces)
        return signal

    def _results(self, signal: Signal) -> Iterator[Signal]:
        """The tool calls whose results are new in the input of a request, as spans of them would tell."""
        given = data(signal.attributes.get(INPUT))
        messages = [each for each in given if isinstance(each, dict)] if isinstance(given, list) else []
        last = max((at for at, each in enumerate(messages) if each.get("role") == "assistant"), default=len(messages))
        calls = {
            str(part.get("id")): part
            for part in parts(messages[last : last + 1], "assistant")
            if part.get("type") == "tool_call"
        }
        for part in parts(messages[last + 1 :], "tool", "user"):
            call, key = calls.get(str(part.get("id"))), (signal.conversation, str(part.get("id")))
            if part.get("type") != "tool_call_response" or call is None or key in self._tools:
                continue
            if (signal.conversation, str(call.get("name"))) in self._tools:
                continue
            _keep(self._tools, key, None)
            about = {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.call.id": part.get("id"),
                "gen_ai.tool.name": call.get("name"),
                "gen_ai.tool.call.arguments": call.get("arguments"),
                "gen_ai.tool.call.result": first(part, "response", "result", "content"),
            }
            yield replace(
                signal,
                key=f"{signal.key}/{part.get('id')}",
                attributes={**signal.whose, **about},
                ended=None,
                error=None,
                outermost=False,
            )

    # Messages that come in events

    def _hear(self, event: Signal) -> None:
        if event.within not in self._spans:
            said = self._messages.setdefault(event.within, {})
            for name, messages in _told(event).items():
                said.setdefault(name, []).extend(messages)
            _bounded(self._messages)

    def _late(self, event: Signal) -> Iterator[Signal]:
        """An event whose span was recorded before it came: what was said is a turn of its own."""
        span = self._spans.get(event.within)
        if span is None or span.attributes.get(OUTPUT) is not None:
            return
        told = _told(event)
        about = {**span.whose, **told}
        if any(part.get("type") == "text" for part in parts(told.get(OUTPUT), "assistant")):
            about["gen_ai.operation.name"] = "chat"
        elif event.name != "gen_ai.user.message":
            return
        yield replace(
            span, key=event.key, at=event.at, ended=None, error=None, outermost=False, attributes=about, late=True
        )


def _is_bare(signal: Signal) -> bool:
    """Whether it tells of an HTTP request and not of what was said."""
    is_http = any(name in signal.attributes for name in _HTTP)
    return is_http and signal.attributes.get(INPUT) is None and signal.attributes.get(OUTPUT) is None


def _told(event: Signal) -> dict[str, list[Any]]:
    """The messages in an event, as the attributes of its span would hold them."""
    if event.name == _DETAILS:
        found = {name: data(event.attributes.get(name)) for name in (INPUT, OUTPUT)}
        return {name: messages for name, messages in found.items() if isinstance(messages, list)}
    body = data(event.body)
    if not isinstance(body, dict):
        return {}
    if event.name == _CHOICE:
        inner = body.get("message")
        return {OUTPUT: [_message("assistant", inner)]} if isinstance(inner, dict) else {}
    return {INPUT: [_message(_ROLES[event.name], body)]}


def _message(role: str, body: Mapping[str, Any]) -> dict[str, Any]:
    found: list[dict[str, Any]] = []
    content = body.get("content")
    if role == "tool":
        found.append({"type": "tool_call_response", "id": body.get("id"), "response": content})
    elif isinstance(content, str):
        found.append({"type": "text", "content": content})
    elif isinstance(content, list):
        found += [
            {"type": "text", "content": each["text"]} for each in content if isinstance(each, dict) and "text" in each
        ]
    calls = body.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            about = {"name": function.get("name"), "arguments": data(function.get("arguments"))}
            found.append({"type": "tool_call", "id": call.get("id"), **about})
    return {"role": role, "parts": found}


def _keep(known: OrderedDict[Any, Value], key: Any, value: Value) -> None:
    known[key] = value
    _bounded(known)


def _bounded(known: OrderedDict[Any, Any]) -> None:
    while len(known) > _REMEMBERED:
        known.popitem(last=False)


def _with_responses(signals: Sequence[Signal]) -> Iterator[tuple[Signal, Signal | None]]:
    """Each signal, and the event with the response that was merged into it: Claude Code tells of a request in two events, one
    with the tokens, one with what the model said."""
    merged = set[int]()
    for at, signal in enumerate(signals):
        if id(signal) in merged:
            continue
        response = None
        if signal.kind == "api_request":
            about = _about(signal)
            after = (each for each in signals[at + 1 : at + _NEAR] if _about(each) == about)
            found = next((each for each in after if each.kind in ("api_request", "assistant_response")), None)
            response = found if found is not None and found.kind == "assistant_response" else None
        if response is None:
            yield signal, None
        else:
            merged.add(id(response))
            said = {"response": response.attributes.get("response")}
            yield replace(signal, attributes={**signal.attributes, **said}), response


def _about(signal: Signal) -> tuple[Any, ...]:
    return (signal.conversation, *map(signal.attributes.get, ("request_id", "prompt.id", "query_source", "model")))
