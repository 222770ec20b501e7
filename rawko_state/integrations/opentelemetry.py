"""A span exporter for any instrumented agent (``[opentelemetry]``): conversations become tasks while they run.

    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from rawko_state.integrations.opentelemetry import RawkoSpanExporter

    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(RawkoSpanExporter(rawko_state.open("."))))

Some instrumentations tell what was said in events beside their spans. ``RawkoLogExporter`` takes these:

    exporter = RawkoSpanExporter(rawko_state.open("."))
    logger_provider.add_log_record_processor(SimpleLogRecordProcessor(RawkoLogExporter(exporter)))

Which spans are recorded, and as what, is in ``exchange/telemetry.py``. A problem with the store is logged and never raised into
the agent.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.sdk._logs.export import LogRecordExporter, LogRecordExportResult
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from rawko_state.errors import RawkoError
from rawko_state.exchange.signals import Signal
from rawko_state.exchange.telemetry import TelemetryRecorder

if TYPE_CHECKING:
    from rawko_state.store.contract import Store

_log: Final = logging.getLogger("rawko")


class RawkoSpanExporter(SpanExporter):
    """Writes the spans of agents into a store."""

    def __init__(self, store: Store) -> None:
        self._recorder = TelemetryRecorder(store)

    def export(self, spans: Sequence[Any]) -> Any:
        return SpanExportResult.SUCCESS if self.record([_signal(span) for span in spans]) else SpanExportResult.FAILURE

    def record(self, signals: Sequence[Signal]) -> bool:
        """Records spans and events. False if the store could not take them."""
        try:
            self._recorder.record(signals)
        except (RawkoError, OSError) as error:
            _log.warning("Can't record %d spans or events: %s", len(signals), error)
            return False
        return True

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Only a request of which more may be told is kept back: all else that was exported is on disk."""
        try:
            self._recorder.flush()
        except (RawkoError, OSError) as error:
            _log.warning("Can't record a span: %s", error)
            return False
        return True

    def shutdown(self) -> None:
        self.force_flush()


class RawkoLogExporter(LogRecordExporter):
    """Hands the events of agents to a span exporter, which joins them with the spans that they belong to."""

    def __init__(self, spans: RawkoSpanExporter) -> None:
        self._spans = spans

    def export(self, batch: Sequence[Any]) -> Any:
        signals = [_event(each.log_record, each.resource) for each in batch]
        return LogRecordExportResult.SUCCESS if self._spans.record(signals) else LogRecordExportResult.FAILURE

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._spans.force_flush(timeout_millis)

    def shutdown(self) -> None:
        return


def _event(record: Any, resource: Any) -> Signal:
    given = dict(record.attributes or {})
    span = format(record.span_id or 0, "016x")
    return Signal(
        key=f"{span}/{record.timestamp or record.observed_timestamp}/{record.event_name}",
        name=record.event_name or str(given.get("event.name") or ""),
        trace=format(record.trace_id or 0, "032x"),
        at=_time(record.timestamp or record.observed_timestamp),
        attributes=given,
        resource=dict(resource.attributes) if resource is not None else {},
        is_event=True,
        within=span,
        body=record.body,
    )


def _signal(span: Any) -> Signal:
    failed = span.status is not None and span.status.status_code.name == "ERROR"
    return Signal(
        key=format(span.context.span_id, "016x"),
        name=span.name,
        trace=format(span.context.trace_id, "032x"),
        at=_time(span.start_time),
        attributes=dict(span.attributes or {}),
        resource=dict(span.resource.attributes) if span.resource is not None else {},
        ended=_time(span.end_time),
        error=(span.status.description or "failed") if failed else None,
        outermost=span.parent is None,
    )


def _time(nanoseconds: int | None) -> datetime | None:
    return datetime.fromtimestamp(nanoseconds // 1000 / 1e6, timezone.utc) if nanoseconds else None
