"""Pydantic AI, recorded through RawkoSpanExporter and through OTLP by a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from opentelemetry._logs import LogRecord
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from pydantic_ai import Agent
from pydantic_ai.models.instrumented import InstrumentationSettings
from pydantic_ai.models.test import TestModel

import rawko_state as rawko
from rawko_state.integrations.opentelemetry import RawkoLogExporter, RawkoSpanExporter
from tests.exchange.test_telemetry import turns
from tests.support.serving import served


def ran(exporter: Any, root: Path, *, fails: bool = False) -> list[str]:
    """Runs an agent with a tool. Returns the statuses that its task had while the tool ran."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    agent: Any = Agent(TestModel(), name="weather")
    agent.instrument = InstrumentationSettings(tracer_provider=provider)
    seen: list[str] = []

    @agent.tool_plain
    def get_weather(city: str) -> str:
        seen.extend(task.status for task in rawko.open(root, remote="local").history(rawko.TaskFilter()))
        if fails:
            raise ValueError("no weather today")
        return f"Sunny in {city}"

    try:
        agent.run_sync("What is the weather?")
    except ValueError:
        assert fails
    provider.shutdown()
    return seen


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / ".rawko").mkdir()
    return tmp_path


def check(root: Path, seen: list[str]) -> None:
    assert seen == ["running"]  # it was there before the run was over
    store = rawko.open(root, remote="local")
    (task,) = store.history(rawko.TaskFilter())
    assert (task.request, task.status, task.agents, task.model) == (
        "What is the weather?",
        "completed",
        ("weather",),
        "test",
    )
    asked, tool, answer = turns(store, task.id)
    assert isinstance(tool.tools[0], rawko.ToolCall)
    assert (tool.tools[0].tool, tool.tools[0].output) == ("get_weather", "Sunny in a")
    assert answer.content == '{"get_weather":"Sunny in a"}'
    assert asked.tokens["in"] > 0
    assert not next(iter(store.verify(task.id))).faults


def test_an_instrumented_agent_is_recorded(root: Path) -> None:
    check(root, ran(RawkoSpanExporter(rawko.open(root)), root))


def test_a_failed_run_is_recorded_as_failed(root: Path) -> None:
    ran(RawkoSpanExporter(rawko.open(root)), root, fails=True)
    (task,) = rawko.open(root).history(rawko.TaskFilter())
    assert task.status == "failed"


def test_a_store_that_fails_does_not_fail_the_agent(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = rawko.open(root)
    store.open_task = lambda *_, **__: (_ for _ in ()).throw(rawko.StorageError("full", "x"))  # type: ignore[method-assign]
    ran(RawkoSpanExporter(store), root)
    assert "Can't record" in caplog.text


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip])
def test_a_server_takes_otlp(root: Path, compression: Compression) -> None:
    with served(root) as server:
        check(root, ran(OTLPSpanExporter(endpoint=f"{server.url}/v1/traces", compression=compression), root))


def test_events_beside_the_spans_are_joined_with_them(root: Path) -> None:
    store = rawko.open(root)
    spans = RawkoSpanExporter(store)
    tracers, loggers = TracerProvider(), LoggerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    loggers.add_log_record_processor(SimpleLogRecordProcessor(RawkoLogExporter(spans)))
    logger = loggers.get_logger("x")
    with tracers.get_tracer("x").start_as_current_span("chat m", attributes={"gen_ai.operation.name": "chat"}):
        logger.emit(LogRecord(event_name="gen_ai.user.message", body={"content": "Fix the login"}))
        logger.emit(LogRecord(event_name="gen_ai.choice", body={"message": {"role": "assistant", "content": "Done."}}))
    tracers.shutdown()
    loggers.shutdown()
    (task,) = store.history(rawko.TaskFilter())
    assert (task.request, task.status) == ("Fix the login", "completed")
    assert [turn.content for turn in turns(store, task.id)] == ["Done."]
