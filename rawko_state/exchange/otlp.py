"""Reads what OpenTelemetry sends over HTTP (OTLP): requests with spans or log records, as JSON or as protocol buffers."""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from typing import Any, Final

from rawko_state.errors import InvalidValue
from rawko_state.exchange.signals import Signal
from rawko_state.format import fair_json

JSON: Final = "application/json"
PROTOBUF: Final = "application/x-protobuf"
LARGEST: Final = 64 << 20
"""Bytes of a request after it was unpacked."""
_DEEPEST: Final = 32


def unpacked(body: bytes, encoding: str) -> bytes:
    """The body of a request, which may be compressed. Bounded, whatever it claims to hold."""
    if encoding in ("", "identity"):
        return body
    if encoding not in ("gzip", "deflate"):
        raise InvalidValue(f"Unknown encoding: {encoding!r}. Use gzip or none.")
    stream = zlib.decompressobj(wbits=47)  # either, by its header
    try:
        data = stream.decompress(body, LARGEST)
    except zlib.error as error:
        raise InvalidValue(f"The body is not {encoding}: {error}.") from None
    if stream.unconsumed_tail:
        raise InvalidValue(f"The body is larger than {LARGEST >> 20} MB.")
    if not stream.eof or stream.unused_data:
        raise InvalidValue(f"The body is not {encoding}: it was cut off, or something follows it.")
    return data


def signals(body: bytes, media: str, kind: str) -> list[Signal]:
    """The spans (``traces``) or events (``logs``) of a request."""
    if media == PROTOBUF:
        whole, in_hex = _from_protobuf(body, kind), False
    elif media == JSON:
        try:
            whole, in_hex = fair_json.loads(body), True
        except ValueError as error:
            raise InvalidValue(f"The body is not JSON: {error}.") from None
    else:
        raise InvalidValue(f"Unknown type of content: {media!r}. Use {JSON} or {PROTOBUF}.")
    try:
        return list(_spans(whole, in_hex) if kind == "traces" else _events(whole, in_hex))
    except (AttributeError, TypeError, ValueError, KeyError, OverflowError, RecursionError) as error:
        raise InvalidValue(f"The body is not an OTLP request: {error}.") from None


def _from_protobuf(body: bytes, kind: str) -> Any:
    try:
        from google.protobuf.json_format import MessageToDict
        from google.protobuf.message import DecodeError
        from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
    except ImportError:
        raise InvalidValue(
            "This server can't read protocol buffers: its extra 'opentelemetry' is not installed. Send JSON."
        ) from None
    try:
        message = (ExportTraceServiceRequest if kind == "traces" else ExportLogsServiceRequest).FromString(body)
    except DecodeError as error:
        raise InvalidValue(f"The body is not an OTLP request: {error}.") from None
    return MessageToDict(message)


def _spans(whole: Mapping[str, Any], in_hex: bool) -> Iterator[Signal]:
    for resource, scoped in _resources(whole, "resourceSpans", "scopeSpans"):
        for span in scoped.get("spans", ()):
            status = span.get("status", {})
            failed = status.get("code") in (2, "STATUS_CODE_ERROR")
            start, end = _time(span.get("startTimeUnixNano")), _time(span.get("endTimeUnixNano"))
            yield Signal(
                key=_id(span.get("spanId"), in_hex),
                name=str(span.get("name", "")),
                trace=_id(span.get("traceId"), in_hex),
                at=start,
                attributes=_attributes(span.get("attributes", ())),
                resource=resource,
                ended=end,
                error=(str(status.get("message") or "") or "failed") if failed else None,
                outermost=not span.get("parentSpanId"),
            )


def _events(whole: Mapping[str, Any], in_hex: bool) -> Iterator[Signal]:
    for resource, scoped in _resources(whole, "resourceLogs", "scopeLogs"):
        for record in scoped.get("logRecords", ()):
            given = _attributes(record.get("attributes", ()))
            body = _value(record.get("body", {}))
            name = str(given.get("event.name") or record.get("eventName") or (body if isinstance(body, str) else ""))
            told = body if isinstance(body, str) and body.endswith(f".{name}") else name
            raw = fair_json.dumps(record, sort_keys=True, default=str)
            yield Signal(
                key=hashlib.sha256(raw.encode("utf-8", "surrogatepass")).hexdigest()[:16],
                name=told,
                trace=_id(record.get("traceId"), in_hex) or "unknown",
                at=_time(record.get("timeUnixNano")) or _time(record.get("observedTimeUnixNano")),
                attributes=given,
                resource=resource,
                is_event=True,
                within=_id(record.get("spanId"), in_hex),
                body=body,
            )


def _resources(whole: Mapping[str, Any], outer: str, inner: str) -> Iterator[tuple[dict[str, Any], Mapping[str, Any]]]:
    for each in whole.get(outer, ()):
        resource = _attributes(each.get("resource", {}).get("attributes", ()))
        for scoped in each.get(inner, ()):
            yield resource, scoped


def _attributes(pairs: Any) -> dict[str, Any]:
    return {str(pair["key"]): _value(pair.get("value", {})) for pair in pairs}


def _value(value: Any, depth: int = 0) -> Any:
    """A value of an attribute, which says of which type it is."""
    if not isinstance(value, dict) or depth > _DEEPEST:
        return None
    for name, content in value.items():
        if name == "intValue":
            return int(content)
        if name == "arrayValue":
            return [_value(each, depth + 1) for each in content.get("values", ())]
        if name == "kvlistValue":
            return {str(pair["key"]): _value(pair.get("value", {}), depth + 1) for pair in content.get("values", ())}
        return content
    return None


def _time(nanoseconds: Any) -> datetime | None:
    count = int(nanoseconds or 0)
    return datetime.fromtimestamp(count // 1000 / 1e6, timezone.utc) if 0 < count < 1 << 63 else None


def _id(value: Any, in_hex: bool) -> str:
    text = str(value or "")
    return text.lower() if in_hex else base64.b64decode(text).hex()
