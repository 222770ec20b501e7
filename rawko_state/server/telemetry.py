"""Receives telemetry of agents over OTLP/HTTP at ``/v1/traces`` and ``/v1/logs``, and records it as tasks."""

from __future__ import annotations

import threading
import weakref
from typing import Any, Final

from rawko_state.exchange.otlp import JSON, PROTOBUF, signals, unpacked
from rawko_state.exchange.telemetry import TelemetryRecorder
from rawko_state.server.operations import BYTES, WRITE, Call, Operation, Streamed

_recorders: weakref.WeakKeyDictionary[Any, TelemetryRecorder] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def receive_traces(call: Call) -> Any:
    return _received(call, "traces")


def receive_logs(call: Call) -> Any:
    return _received(call, "logs")


def _received(call: Call, kind: str) -> Any:
    media = call.headers.get("content-type", "").partition(";")[0].strip().lower()
    body = unpacked(call.body, call.headers.get("content-encoding", "").strip().lower())
    found = signals(body, media, kind)
    with _lock:
        recorder = _recorders.setdefault(call.workspace, TelemetryRecorder(call.store))
    for task_id in recorder.record(found):
        call.changed(task_id)
    # The answer is of the type of the request, and empty: everything was taken.
    return Streamed(iter((b"",)), PROTOBUF) if media == PROTOBUF else Streamed(iter((b"{}",)), JSON)


OPERATIONS: Final = (
    Operation(
        "POST", "/v1/traces", "Receive agents' spans (OTLP)", WRITE, receive_traces, body=BYTES, answer=(JSON, PROTOBUF)
    ),
    Operation(
        "POST", "/v1/logs", "Receive agents' events (OTLP)", WRITE, receive_logs, body=BYTES, answer=(JSON, PROTOBUF)
    ),
)
"""Outside the API, where programs send it that know nothing of rawko."""
