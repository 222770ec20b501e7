"""Telemetry of agents as tasks: what spans and events become, and what bad requests don't."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import rawko_state as rawko
from rawko_state.errors import InvalidValue
from rawko_state.exchange.otlp import JSON, LARGEST, signals, unpacked
from rawko_state.exchange.telemetry import TelemetryRecorder

NANO = 1_800_000_000_000_000_000


def attributes(values: dict[str, Any]) -> list[Any]:
    kinds = {str: "stringValue", int: "intValue", bool: "boolValue", float: "doubleValue"}
    return [
        {"key": key, "value": {kinds[type(value)]: str(value) if type(value) is int else value}}
        for key, value in values.items()
    ]


def span(number: int, parent: int | None, at: int, took: int, **values: Any) -> dict[str, Any]:
    given = {
        f"gen_ai.{key.replace('__', '.')}": value for key, value in values.items() if key not in ("name", "status")
    }
    return {
        "spanId": f"{number:016x}", "traceId": "ab" * 16, "parentSpanId": f"{parent:016x}" if parent else "",
        "name": values.get("name", "x"), "startTimeUnixNano": str(NANO + at * 10**9), "endTimeUnixNano": str(NANO + (at + took) * 10**9),
        "attributes": attributes(given), "status": values.get("status", {}),
    }  # fmt: skip


def spans(*found: dict[str, Any]) -> bytes:
    resource = {"attributes": attributes({"service.name": "shop"})}
    return json.dumps({"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": list(found)}]}]}).encode()


def logs(*found: dict[str, Any]) -> bytes:
    records = [{"timeUnixNano": str(NANO + n * 10**9), "attributes": attributes(each)} for n, each in enumerate(found)]
    return json.dumps({"resourceLogs": [{"resource": {}, "scopeLogs": [{"logRecords": records}]}]}).encode()


def said(role: str, kind: str, text: str) -> str:
    return json.dumps([{"role": role, "parts": [{"type": kind, "content": text}]}])


CHAT = span(
    2, 1, 0, 2, operation__name="chat", conversation__id="c1", agent__name="dev", response__model="gpt-5", usage__input_tokens=100, usage__output_tokens=7,
    usage__cache_read__input_tokens=60, input__messages=said("user", "text", "Fix the login"), output__messages=said("assistant", "text", "Looking"),
)  # fmt: skip
TOOL = span(
    3, 1, 2, 1, operation__name="execute_tool", conversation__id="c1", agent__name="dev", tool__name="write_file", tool__call__id="t1",
    tool__call__arguments='{"path": "auth.py"}', tool__call__result="ok",
)  # fmt: skip
ROOT = span(1, None, 0, 4, operation__name="invoke_agent", conversation__id="c1", agent__name="dev")


@pytest.fixture
def store(tmp_path: Path) -> Any:
    (tmp_path / ".rawko").mkdir()
    return rawko.open(tmp_path)


def turns(store: rawko.Store, task: str) -> list[rawko.Turn]:
    return [entry for _, entry in store.entries(task) if isinstance(entry, rawko.Turn)]


def test_a_task_appears_with_the_first_span_and_ends_with_the_outermost(store: rawko.Store) -> None:
    recorder = TelemetryRecorder(store)
    (task,) = recorder.record(signals(spans(CHAT), JSON, "traces"))
    assert (store.summary(task).request, store.summary(task).status) == ("Fix the login", "running")
    assert recorder.record(signals(spans(ROOT, TOOL, CHAT), JSON, "traces")) == {task}
    answer, tool = turns(store, task)
    assert (answer.agent, answer.model, answer.content, answer.duration_ms) == ("dev", "gpt-5", "Looking", 2000)
    assert answer.tokens == {"in": 40, "out": 7, "cache_read": 60}
    call = tool.tools[0]
    assert isinstance(call, rawko.ToolCall)
    assert (call.tool, call.args, call.result, call.output, call.more["id"]) == (
        "write_file",
        "auth.py",
        "ok",
        "ok",
        "t1",
    )
    assert store.files(task) == [(2, "write", "auth.py")]
    assert store.summary(task).status == "completed"
    assert recorder.record(signals(spans(ROOT, TOOL, CHAT), JSON, "traces")) == set()


def test_a_conversation_goes_on_in_its_task(store: rawko.Store) -> None:
    recorder = TelemetryRecorder(store)
    recorder.record(signals(spans(CHAT, ROOT), JSON, "traces"))
    more = {
        **CHAT,
        "spanId": "ff",
        "attributes": [
            *CHAT["attributes"][:-2],
            *attributes({"gen_ai.input.messages": said("user", "text", "And now?")}),
        ],
    }
    failed = {**ROOT, "spanId": "fe", "status": {"code": 2, "message": "boom"}}
    (task,) = recorder.record(signals(spans(more, failed), JSON, "traces"))
    assert [run.request for run in store.runs(task)] == ["Fix the login", "And now?"]
    assert (store.summary(task).status, store.runs(task)[1].error) == ("failed", "boom")


def test_the_events_of_claude_code_and_codex(store: rawko.Store) -> None:
    who = {"session.id": "s1"}
    claude = logs(
        {**who, "event.name": "claude_code.user_prompt", "prompt": "Fix it"},
        {**who, "event.name": "claude_code.api_request", "model": "claude-x", "input_tokens": 5, "output_tokens": 3, "cache_read_tokens": 50, "cost_usd": 0.5, "duration_ms": 900},
        {**who, "event.name": "claude_code.tool_result", "tool_name": "Bash", "success": "false", "error": "exit 3", "duration_ms": 10},
        {**who, "event.name": "claude_code.user_prompt", "prompt": "Go on"},
        {**who, "event.name": "claude_code.api_error", "error": "overloaded"},
    )  # fmt: skip
    (task,) = TelemetryRecorder(store).record(signals(claude, JSON, "logs"))
    request, tool, user, error = turns(store, task)
    assert store.summary(task).request == "Fix it"
    assert (request.agent, request.tokens["in"], request.tokens["cache_read"], str(request.cost.amount)) == (
        "claude",
        5,
        50,
        "0.5",
    )  # type: ignore[union-attr]
    assert (tool.status, user.content, error.status, error.content) == ("failed", "Go on", "failed", "overloaded")
    who = {"conversation.id": "x1"}
    codex = logs(
        {**who, "event.name": "codex.conversation_starts", "model": "gpt"},
        {**who, "event.name": "codex.user_prompt", "prompt": "Fix it"},
        {**who, "event.name": "codex.api_request", "duration_ms": 20},
        {**who, "event.name": "codex.sse_event", "event.kind": "response.completed", "input_token_count": 100, "cached_token_count": 60, "output_token_count": 4},
        {**who, "event.name": "codex.tool_result", "tool_name": "exec_command", "success": "true", "arguments": '{"cmd": "cat calc.py"}', "output": "x = 1", "call_id": "c"},
    )  # fmt: skip
    (task,) = TelemetryRecorder(store).record(signals(codex, JSON, "logs"))
    answer, tool = turns(store, task)
    assert answer.tokens == {"in": 40, "out": 4, "cache_read": 60}
    assert isinstance(tool.tools[0], rawko.ToolCall)
    assert tool.tools[0].output == "x = 1"


REAL = Path(__file__).parents[2] / "fixtures/real/otlp"


def test_what_claude_code_really_sends(store: rawko.Store) -> None:
    recorder = TelemetryRecorder(store)
    sent = signals((REAL / "claude-code-logs.json").read_bytes(), JSON, "logs")
    (task,) = recorder.record(sent)
    about = store.summary(task)
    # The title was asked for before the prompt was told of.
    assert (about.request, about.title, about.agents) == ("FIXBUG in calc.py", "Scripted title kiwi", ("claude",))
    said = [
        (turn.content, [tool.tool for tool in turn.tools if isinstance(tool, rawko.ToolCall)])
        for turn in turns(store, task)
    ]
    assert said == [
        (None, []),
        ("I will look at calc.py first.", []),
        (None, ["Read"]),
        ("The add function subtracts. Fixing it.", []),
        (None, ["Edit"]),
        (None, []),
        (None, ["Bash"]),
        ("Fixed: add() in calc.py subtracted instead of adding. The check passes now.", []),
    ]  # fmt: skip
    assert all(turn.tokens["out"] for turn in turns(store, task) if not turn.tools)
    assert recorder.record(sent) == set()


def test_what_claude_code_sends_piece_by_piece(store: rawko.Store) -> None:
    """The same turns, but a response that comes in a later batch than its request is a turn of its own."""
    recorder = TelemetryRecorder(store)
    sent = signals((REAL / "claude-code-logs.json").read_bytes(), JSON, "logs")
    for signal in sent:
        recorder.record([signal])
    (task,) = store.by_source("otel:").values()
    said = [turn.content for turn in turns(store, task) if turn.content and turn.agent == "claude"]
    assert said[0] == "I will look at calc.py first."
    assert len(said) == 3
    assert sum(turn.tokens.get("out", 0) for turn in turns(store, task)) == 255


def test_a_response_that_is_not_told_is_no_turn(store: rawko.Store) -> None:
    who = {"session.id": "s1"}
    sent = logs(
        {**who, "event.name": "claude_code.user_prompt", "prompt": "Fix it"},
        {**who, "event.name": "claude_code.api_request", "output_tokens": 3},
        {**who, "event.name": "claude_code.assistant_response", "response": "<REDACTED>"},
    )
    (task,) = TelemetryRecorder(store).record(signals(sent, JSON, "logs"))
    (turn,) = turns(store, task)
    assert turn.content is None


def test_what_codex_really_sends(store: rawko.Store) -> None:
    (task,) = TelemetryRecorder(store).record(signals((REAL / "codex-logs.json").read_bytes(), JSON, "logs"))
    about = store.summary(task)
    assert (about.request, about.agents) == ("FIXBUG please", ("codex",))
    tools = [(tool.tool, tool.args) for turn in turns(store, task) for tool in turn.tools if isinstance(tool, rawko.ToolCall)]  # fmt: skip
    assert tools == [("exec_command", "cat calc.py"), ("apply_patch", "calc.py"), ("exec_command", "python3 calc.py && echo TESTS_PASSED")]  # fmt: skip
    assert store.files(task) == [(4, "write", "calc.py")]
    (diff,) = turns(store, task)[3].diffs
    assert "+    return a + b  # add" in diff.hunks


def test_what_belongs_to_no_agent_is_left_out(store: rawko.Store) -> None:
    other = span(9, None, 0, 1)
    assert TelemetryRecorder(store).record(signals(spans(other), JSON, "traces")) == set()
    assert TelemetryRecorder(store).record(signals(logs({"event.name": "http.request"}), JSON, "logs")) == set()
    assert store.history(rawko.TaskFilter()) == []


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{"resourceSpans": 3}', b'{"resourceSpans": [{"scopeSpans": [{"spans": [7]}]}]}', b'{"resourceSpans": [{"resource": []}]}']
)  # fmt: skip
def test_bad_requests_are_refused(body: bytes) -> None:
    with pytest.raises(InvalidValue):
        signals(body, JSON, "traces")
    with pytest.raises(InvalidValue, match="Unknown type"):
        signals(body, "text/plain", "traces")


def test_a_compressed_body_is_bounded() -> None:
    assert unpacked(gzip.compress(b"x" * 1000), "gzip") == b"x" * 1000
    with pytest.raises(InvalidValue, match="larger"):
        unpacked(gzip.compress(bytes(LARGEST + 1)), "gzip")
    whole = gzip.compress(b"x" * 1000)
    for body, encoding in ((b"no", "gzip"), (b"", "br"), (whole[:-1], "gzip"), (whole + whole, "gzip")):
        with pytest.raises(InvalidValue):
            unpacked(body, encoding)


def told(store: rawko.Store, task: str) -> list[tuple[str | None, list[str]]]:
    """What each turn says, and the tools in it."""
    return [(turn.content, [call.tool for call in turn.tools if isinstance(call, rawko.ToolCall)]) for turn in turns(store, task)]  # fmt: skip


def message_event(name: str, within: int, body: dict[str, Any]) -> dict[str, Any]:
    inner = [{"key": key, "value": _any(value)} for key, value in body.items()]
    return {
        "eventName": name, "spanId": f"{within:016x}", "traceId": "ab" * 16, "timeUnixNano": str(NANO + within),
        "body": {"kvlistValue": {"values": inner}},
    }  # fmt: skip


def _any(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return {"kvlistValue": {"values": [{"key": key, "value": _any(each)} for key, each in value.items()]}}
    return {"arrayValue": {"values": [_any(each) for each in value]}} if isinstance(value, list) else {"stringValue": value}  # fmt: skip


def events(*records: dict[str, Any]) -> bytes:
    return json.dumps({"resourceLogs": [{"resource": {}, "scopeLogs": [{"logRecords": list(records)}]}]}).encode()


def plain(number: int, **more: Any) -> dict[str, Any]:
    """A request of a program that is no agent by itself: its outermost span is number 1."""
    return span(number, 1, number, 1, operation__name="chat", request__model="m", **more)


AROUND = {**span(1, None, 0, 9), "attributes": []}
CALL = {"type": "tool_call", "id": "t1", "name": "read_file", "arguments": {"path": "a.py"}}
MESSAGES = [
    {"role": "user", "parts": [{"type": "text", "content": "Fix it"}]},
    {"role": "assistant", "parts": [CALL]},
    {"role": "tool", "parts": [{"type": "tool_call_response", "id": "t1", "response": "x = 1"}]},
]


def test_a_clients_request_in_the_span_of_its_instrumentation_is_told_once(store: rawko.Store) -> None:
    said_in = {"input__messages": said("user", "text", "Hello"), "output__messages": said("assistant", "text", "Hi")}
    outer = plain(3, response__id="r1", usage__output_tokens=5, **said_in)
    inner = plain(2, response__id="r1", usage__output_tokens=5)
    inner["attributes"] += attributes({"http.request.method": "POST"})
    recorder = TelemetryRecorder(store)
    assert recorder.record(signals(spans(inner), JSON, "traces")) == set()
    (task,) = recorder.record(signals(spans(outer, AROUND), JSON, "traces"))
    assert (store.summary(task).request, store.summary(task).tokens_out) == ("Hello", 5)
    assert told(store, task) == [("Hi", [])]


@pytest.mark.parametrize("ends", [True, False])
def test_a_clients_request_that_nobody_else_tells_of_is_not_lost(store: rawko.Store, ends: bool) -> None:
    alone = plain(2, response__id="r1", usage__output_tokens=5)
    alone["attributes"] += attributes({"url.full": "https://x"})
    recorder = TelemetryRecorder(store)
    recorder.record(signals(spans(alone, *([AROUND] if ends else [])), JSON, "traces"))
    recorder.flush()
    (task,) = store.history(rawko.TaskFilter())
    assert (task.turns, task.tokens_out, task.status) == (1, 5, "completed" if ends else "running")


def test_tools_that_a_program_calls_itself_are_told_with_what_they_returned(store: rawko.Store) -> None:
    first = plain(2, input__messages=json.dumps(MESSAGES[:1]), output__messages=json.dumps(MESSAGES[1:2]))
    second = plain(3, input__messages=json.dumps(MESSAGES), output__messages=said("assistant", "text", "Fixed"))
    recorder = TelemetryRecorder(store)
    (task,) = recorder.record(
        signals(spans(first, second, plain(4, input__messages=json.dumps(MESSAGES))), JSON, "traces")
    )
    assert told(store, task) == [(None, []), (None, ["read_file"]), ("Fixed", []), (None, [])]
    (call,) = turns(store, task)[1].tools
    assert isinstance(call, rawko.ToolCall)
    assert (call.args, call.output) == ("a.py", "x = 1")
    assert store.files(task) == [(2, "read", "a.py")]


def test_a_tool_that_has_a_span_is_not_told_again(store: rawko.Store) -> None:
    tool = span(2, 1, 1, 1, operation__name="execute_tool", tool__name="read_file", tool__call__id="t1")
    (task,) = TelemetryRecorder(store).record(
        signals(spans(tool, plain(3, input__messages=json.dumps(MESSAGES))), JSON, "traces")
    )
    assert told(store, task) == [(None, ["read_file"]), (None, [])]


EVENTS = events(
    message_event("gen_ai.system.message", 2, {"content": "Be kind."}),
    message_event("gen_ai.user.message", 2, {"content": "Fix it"}),
    message_event("gen_ai.choice", 2, {"message": {"role": "assistant", "tool_calls": [{"id": "t1", "function": {"name": "read_file", "arguments": '{"path": "a.py"}'}}]}}),
    message_event("gen_ai.user.message", 3, {"content": "Fix it"}),
    message_event("gen_ai.assistant.message", 3, {"tool_calls": [{"id": "t1", "function": {"name": "read_file", "arguments": '{"path": "a.py"}'}}]}),
    message_event("gen_ai.tool.message", 3, {"id": "t1", "content": "x = 1"}),
    message_event("gen_ai.choice", 3, {"message": {"role": "assistant", "content": "Fixed"}}),
)  # fmt: skip


def test_messages_in_events_of_their_own_belong_to_their_span(store: rawko.Store) -> None:
    recorder = TelemetryRecorder(store)
    assert recorder.record(signals(EVENTS, JSON, "logs")) == set()
    (task,) = recorder.record(signals(spans(plain(2), plain(3), AROUND), JSON, "traces"))
    assert told(store, task) == [(None, []), (None, ["read_file"]), ("Fixed", [])]
    assert (store.summary(task).request, store.summary(task).status) == ("Fix it", "completed")


@pytest.mark.parametrize("over", [True, False])
def test_messages_that_come_after_their_span_are_not_lost(store: rawko.Store, over: bool) -> None:
    recorder = TelemetryRecorder(store)
    recorder.record(signals(spans(plain(2), plain(3), *([AROUND] if over else [])), JSON, "traces"))
    (task,) = recorder.record(signals(EVENTS, JSON, "logs"))
    recorder.record(signals(EVENTS, JSON, "logs"))
    said_later = (
        [note.content for note in store.notes(task)] if over else [turn.content for turn in turns(store, task)][2:]
    )
    assert said_later == ["Fix it", "Fixed"]
    assert store.summary(task).status == ("completed" if over else "running")


def test_the_event_of_the_newer_conventions_holds_the_messages_of_its_span(store: rawko.Store) -> None:
    details = message_event("gen_ai.client.inference.operation.details", 2, {})
    details["attributes"] = attributes({"gen_ai.input.messages": said("user", "text", "Hello"), "gen_ai.output.messages": said("assistant", "text", "Hi")})  # fmt: skip
    recorder = TelemetryRecorder(store)
    recorder.record(signals(events(details), JSON, "logs"))
    (task,) = recorder.record(signals(spans(plain(2)), JSON, "traces"))
    assert (store.summary(task).request, told(store, task)) == ("Hello", [("Hi", [])])


def test_the_outermost_span_ends_the_run_also_if_it_is_no_agents(store: rawko.Store) -> None:
    failed = {**AROUND, "status": {"code": 2, "message": "boom"}}
    recorder = TelemetryRecorder(store)
    (task,) = recorder.record(signals(spans(plain(2, conversation__id="c9")), JSON, "traces"))
    assert store.summary(task).status == "running"
    assert recorder.record(signals(spans(failed), JSON, "traces")) == {task}
    assert (store.summary(task).status, store.runs(task)[0].error) == ("failed", "boom")


def test_another_question_in_a_running_conversation_is_told_once(store: rawko.Store) -> None:
    recorder = TelemetryRecorder(store)
    asked = [
        plain(number, input__messages=said("user", "text", text))
        for number, text in ((2, "One?"), (3, "One?"), (4, "Two?"), (5, "Two?"))
    ]
    (task,) = recorder.record(signals(spans(*asked), JSON, "traces"))
    assert [(turn.agent, turn.content) for turn in turns(store, task) if turn.agent == "user"] == [("user", "Two?")]


def test_a_program_without_a_name_is_an_agent() -> None:
    store = rawko.open(":memory:")
    sent = spans(plain(2)).replace(b'"shop"', b'"unknown_service:python"')
    (task,) = TelemetryRecorder(store).record(signals(sent, JSON, "traces"))
    assert store.summary(task).agents == ("agent",)
