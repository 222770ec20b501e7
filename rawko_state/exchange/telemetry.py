"""Records agents from their telemetry: spans and events of OpenTelemetry become turns of tasks.

The names are those of the semantic conventions for generative AI (``gen_ai.…``), and of the events that Claude Code and Codex
send. A conversation is a task. It appears with the first span of it that ends, which is not the outermost. A model's answer is a
turn, and so is each tool call; the outermost span ends the run. What belongs to no agent is left out.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Final

from rawko_state.exchange.sources import apply_patch
from rawko_state.exchange.sources.messages import asked_of, call_of
from rawko_state.model.entries import Diff, Field, FileTouch, Money, ToolCall, Turn
from rawko_state.model.frozen import Frozen, replace

if TYPE_CHECKING:
    from rawko_state.store.contract import Store
    from rawko_state.tasks.task import Task

_CONVERSATION: Final = ("gen_ai.conversation.id", "session.id", "conversation.id")
_CHAT: Final = frozenset(("chat", "text_completion", "generate_content"))
_REMEMBERED: Final = 20_000
"""Signals that are recognised when they are sent again."""
_NEAR: Final = 20
"""An event that belongs to another is among so many that follow it."""
_EVENTS: Final = ("claude_code.", "codex.", "gemini_cli.", "qwen-code.")


class Signal(Frozen):
    """A span or an event, whatever it came by."""

    key: str
    """Recognises it when it is sent again."""
    name: str
    trace: str
    at: datetime | None
    attributes: Mapping[str, Any]
    resource: Mapping[str, Any]
    duration_ms: int | None = None
    error: str | None = None
    outermost: bool = False
    is_event: bool = False


class TelemetryRecorder:
    """Writes signals into a store. Thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._seen: OrderedDict[str, None] = OrderedDict()

    def record(self, signals: Sequence[Signal]) -> set[str]:
        """Records what is new, in the order in which it ended. Returns the tasks that were written to."""
        written: set[str] = set()
        with self._lock:
            new = [each for each in sorted(signals, key=_end) if each.key not in self._seen and _is_of_an_agent(each)]
            for signal, response in _with_responses(self._prompts_first(new)):
                task_id = self._recorded(signal)
                written |= {task_id} if task_id is not None else set()
                for each in filter(None, (signal, response)):
                    self._seen[each.key] = None
                while len(self._seen) > _REMEMBERED:
                    self._seen.popitem(last=False)
        return written

    def _prompts_first(self, signals: list[Signal]) -> list[Signal]:
        """Puts the prompt that opens a conversation first: Claude Code asks for a title before it tells of the prompt."""
        opened = set[str]()
        for prompt in [each for each in signals if each.is_event and _asked(each)]:
            name = _conversation(prompt)
            if name in opened:
                continue
            first = next(each for each in signals if _conversation(each) == name)
            if first is not prompt and self._store.find_source(_source(name)) is None:
                signals.remove(prompt)
                signals.insert(signals.index(first), prompt)
            opened.add(name)
        return signals

    def _recorded(self, signal: Signal) -> str | None:
        asked = _asked(signal)
        if _turn(signal) is None and not asked and not signal.outermost:
            return None
        task = self._store.open_task(
            _source(_conversation(signal)),
            asked or signal.name,
            agent=_agent(signal),
            model=_model(signal),
            provider=_text(signal, "gen_ai.provider.name", "gen_ai.system"),
            created=signal.at,
        )
        with task:
            self._written(task, signal, asked)
            return task.id

    def _written(self, task: Task, signal: Signal, asked: str | None) -> None:
        turn = _turn(signal)
        if task.state.is_finished and (turn is not None or asked):
            task.reopen(detached=True, message=asked)  # another run of the same conversation
        elif asked and signal.is_event and not task.is_new:
            task.say(asked)
        if turn is not None:
            task.add_turn(turn)
        title = _title(signal)
        if title is not None and task.state.title is None:
            task.note(title=title)
        if signal.outermost and not task.state.is_finished:
            said = _text(signal, "final_result", "gen_ai.output") or _said(signal)[0] or None
            task.finish("failure" if signal.error else "success", said, error=signal.error)


def _source(conversation: str) -> str:
    return f"otel:{conversation}"


def _conversation(signal: Signal) -> str:
    return next((str(signal.attributes[key]) for key in _CONVERSATION if signal.attributes.get(key)), signal.trace)


def _with_responses(signals: Sequence[Signal]) -> Iterator[tuple[Signal, Signal | None]]:
    """Each signal, and the event with the response that was merged into it: Claude Code tells of a request in two events, one
    with the tokens, one with what the model said."""
    merged = set[int]()
    for at, signal in enumerate(signals):
        if id(signal) in merged:
            continue
        response = None
        if _kind(signal) == "api_request":
            about = _about(signal)
            after = (each for each in signals[at + 1 : at + _NEAR] if _about(each) == about)
            found = next((each for each in after if _kind(each) in ("api_request", "assistant_response")), None)
            response = found if found is not None and _kind(found) == "assistant_response" else None
        if response is None:
            yield signal, None
        else:
            merged.add(id(response))
            said = {"response": response.attributes.get("response")}
            yield replace(signal, attributes={**signal.attributes, **said}), response


def _about(signal: Signal) -> tuple[Any, ...]:
    return (_conversation(signal), *map(signal.attributes.get, ("request_id", "prompt.id", "query_source", "model")))


def _kind(signal: Signal) -> str:
    return signal.name.partition(".")[2] if signal.is_event else ""


def _title(signal: Signal) -> str | None:
    """The title that Claude Code asks a model for."""
    if signal.attributes.get("query_source") != "generate_session_title":
        return None
    found = _data(signal.attributes.get("response"))
    return _string(found.get("title")) if isinstance(found, dict) else None


def _end(signal: Signal) -> tuple[float, bool]:
    started = signal.at.timestamp() if signal.at is not None else 0.0
    return started + (signal.duration_ms or 0) / 1000, signal.outermost


def _is_of_an_agent(signal: Signal) -> bool:
    if signal.is_event:
        return signal.name.startswith(_EVENTS)
    return "gen_ai.operation.name" in signal.attributes


def _turn(signal: Signal) -> Turn | None:
    """The turn that a signal stands for; None if it stands for none."""
    given = signal.attributes
    operation = given.get("gen_ai.operation.name")
    kind = _kind(signal)
    content = thinking = None
    tools: tuple[ToolCall, ...] = ()
    files: tuple[FileTouch, ...] = ()
    diffs: tuple[Diff, ...] = ()
    if operation == "execute_tool" or kind == "tool_result":
        tools, files, diffs = _tool(signal)
    elif operation in _CHAT:
        content, thinking = _said(signal)
    elif kind == "api_error":
        content = str(given.get("error") or given.get("error.message") or "")
    elif kind in ("api_request", "assistant_response") and (_response(signal) or _tokens(given)):
        content = _response(signal)
    elif kind not in ("api_response", "sse_event") or not _tokens(given):
        return None  # several events tell of one request; that with the tokens counts
    failed = signal.error is not None or kind == "api_error" or _is_false(given.get("success"))
    return Turn(
        number=1,
        agent=_agent(signal) or "agent",
        status="failed" if failed else "complete",
        started=signal.at,
        duration_ms=signal.duration_ms if signal.duration_ms is not None else _count(given, "duration_ms"),
        model=_model(signal) if not tools else None,
        tokens=_tokens(given),
        cost=_cost(given.get("cost_usd")),
        content=content or None,
        thinking=thinking or None,
        reason=signal.error,
        tools=tools,
        tool_calls=len(tools) or None,
        files=files,
        diffs=diffs,
        extra=(Field("X-Span", signal.key),),
    )


def _tool(signal: Signal) -> tuple[tuple[ToolCall, ...], tuple[FileTouch, ...], tuple[Diff, ...]]:
    given = signal.attributes
    name = _text(signal, "gen_ai.tool.name", "tool_name", "function_name") or signal.name
    arguments = _data(_first(given, "gen_ai.tool.call.arguments", "tool_input", "tool_parameters", "arguments"))
    call = call_of({"id": given.get("gen_ai.tool.call.id") or given.get("call_id"), "name": name, "input": arguments})
    output = _first(given, "gen_ai.tool.call.result", "output", "tool_output")
    shown = output if output is None or isinstance(output, str) else json.dumps(output, ensure_ascii=False)
    failed = signal.error or (str(given.get("error") or "failed") if _is_false(given.get("success")) else None)
    more: dict[str, Any] = {"id": call.id} if call.id != "None" else {}
    more |= {"input": arguments} if isinstance(arguments, dict) else {}
    more |= {"error": failed} if failed else {}
    patch = arguments if isinstance(arguments, str) and not failed else ""
    diffs = apply_patch.diffs(patch)  # Codex sends the text of the patch
    more |= {"diff": list(range(1, len(diffs) + 1)) if len(diffs) > 1 else 1} if diffs else {}
    if diffs:
        args = asked_of({"patch": patch})
    elif isinstance(arguments, dict) and arguments:
        args = asked_of(arguments)
    else:
        args = "" if arguments is None else str(arguments)
    time = signal.at.astimezone(timezone.utc).strftime("%H:%M:%S") if signal.at is not None else None
    tool = ToolCall(name, " ".join(args.split())[:500], "failed" if failed else "ok", time, shown or None, more=more)
    touches = () if failed else (*call.touches, *apply_patch.touched(patch))
    return (tool,), tuple(FileTouch(operation, path) for operation, path in touches), diffs


def _said(signal: Signal) -> tuple[str, str]:
    """What a model said, and what it thought."""
    said, thought = list[str](), list[str]()
    for part in _parts(signal.attributes.get("gen_ai.output.messages"), "assistant"):
        text = part.get("content") or part.get("text")
        if isinstance(text, str):
            (thought if part.get("type") in ("thinking", "reasoning") else said).append(text)
    return "\n\n".join(said), "\n\n".join(thought)


def _response(signal: Signal) -> str | None:
    """What Claude Code says that the model said; but not what it asked a model for itself."""
    said = _text(signal, "response")
    return said if said != "<REDACTED>" and _title(signal) is None else None


def _asked(signal: Signal) -> str | None:
    """What the user said last, if nobody has answered it yet."""
    if signal.is_event:
        prompt = signal.attributes.get("prompt")
        return prompt if signal.name.endswith(".user_prompt") and isinstance(prompt, str) and prompt.strip() else None
    messages = _data(signal.attributes.get("gen_ai.input.messages"))
    last = messages[-1:] if isinstance(messages, list) else []
    texts = [part.get("content") or part.get("text") for part in _parts(last, "user") if part.get("type") == "text"]
    return "\n".join(text for text in texts if isinstance(text, str)).strip() or None


def _parts(messages: Any, role: str) -> Iterator[Mapping[str, Any]]:
    found = _data(messages)
    for message in found if isinstance(found, list) else ():
        if isinstance(message, dict) and message.get("role") == role:
            parts = message.get("parts", message.get("content"))
            parts = [{"type": "text", "content": parts}] if isinstance(parts, str) else parts
            yield from (part for part in (parts if isinstance(parts, list) else ()) if isinstance(part, dict))


def _tokens(given: Mapping[str, Any]) -> dict[str, int]:
    """The tokens in our terms: input from a cache counts apart. The conventions count it as input; Claude Code does not."""
    found = {
        "in": _count(given, "gen_ai.usage.input_tokens", "input_tokens", "input_token_count"),
        "out": _count(given, "gen_ai.usage.output_tokens", "output_tokens", "output_token_count"),
        "cache_read": _count(given, "gen_ai.usage.cache_read.input_tokens", "cache_read_tokens", "cached_token_count"),
        "cache_write": _count(
            given, "gen_ai.usage.cache_creation.input_tokens", "cache_creation_tokens", "cache_write_token_count"
        ),
        "reasoning": _count(given, "gen_ai.usage.reasoning.output_tokens", "reasoning_token_count"),
    }  # fmt: skip
    tokens = {name: count for name, count in found.items() if count is not None}
    cached = tokens.get("cache_read", 0) + tokens.get("cache_write", 0)
    if "input_tokens" not in given and tokens.get("in", -1) >= cached:
        tokens["in"] -= cached
    return {name: count for name, count in tokens.items() if count or name in ("in", "out")}


def _agent(signal: Signal) -> str | None:
    if signal.is_event:
        return {"claude_code": "claude", "gemini_cli": "gemini", "qwen-code": "qwen"}.get(
            signal.name.partition(".")[0], signal.name.partition(".")[0]
        )
    return _text(signal, "gen_ai.agent.name", "agent_name") or _string(signal.resource.get("service.name"))


def _model(signal: Signal) -> str | None:
    return _text(signal, "gen_ai.response.model", "gen_ai.request.model", "model")


def _text(signal: Signal, *names: str) -> str | None:
    return _string(_first(signal.attributes, *names))


def _string(value: Any) -> str | None:
    return value if isinstance(value, str) and value.strip() else None


def _first(given: Mapping[str, Any], *names: str) -> Any:
    return next((given[name] for name in names if given.get(name) is not None), None)


def _count(given: Mapping[str, Any], *names: str) -> int | None:
    value = _first(given, *names)
    try:
        count = int(float(value))
    except (TypeError, ValueError, OverflowError):
        return None
    return count if 0 <= count < 1 << 53 else None


def _cost(value: Any) -> Money | None:
    try:
        amount = Decimal(str(value))
    except InvalidOperation:
        return None
    return Money(amount) if amount.is_finite() and amount >= 0 else None


def _is_false(value: Any) -> bool:
    return value is False or value == "false"


def _data(value: Any) -> Any:
    """A value that is sent as JSON in a string, as attributes can't be nested everywhere."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value
