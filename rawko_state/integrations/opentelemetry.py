"""A span exporter for any instrumented agent (``[opentelemetry]``): conversations become tasks while they run.

    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from rawko_state.integrations.opentelemetry import RawkoSpanExporter

    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(RawkoSpanExporter(rawko_state.open("."))))

Which spans are recorded, and as what, is in ``exchange/telemetry.py``. A problem with the store is logged and never raised into
the agent.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from rawko_state.errors import RawkoError
from rawko_state.exchange.telemetry import Signal, TelemetryRecorder

if TYPE_CHECKING:
    from rawko_state.store.contract import Store

_log: Final = logging.getLogger("rawko")


class RawkoSpanExporter(SpanExporter):
    """Writes the spans of agents into a store."""

    def __init__(self, store: Store) -> None:
        self._recorder = TelemetryRecorder(store)

    def export(self, spans: Sequence[Any]) -> Any:
        try:
            self._recorder.record([_signal(span) for span in spans])
        except (RawkoError, OSError) as error:
            _log.warning("Can't record %d spans: %s", len(spans), error)
            return SpanExportResult.FAILURE
        return SpanExportResult.SUCCESS

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing is kept back: what was exported is on disk."""
        return True

    def shutdown(self) -> None:
        return


def _signal(span: Any) -> Signal:
    failed = span.status is not None and span.status.status_code.name == "ERROR"
    ended = span.start_time is not None and span.end_time is not None
    return Signal(
        key=format(span.context.span_id, "016x"),
        name=span.name,
        trace=format(span.context.trace_id, "032x"),
        at=datetime.fromtimestamp(span.start_time / 1e9, timezone.utc) if span.start_time else None,
        attributes=dict(span.attributes or {}),
        resource=dict(span.resource.attributes) if span.resource is not None else {},
        duration_ms=max(0, (span.end_time - span.start_time) // 1_000_000) if ended else None,
        error=(span.status.description or "failed") if failed else None,
        outermost=span.parent is None,
    )
