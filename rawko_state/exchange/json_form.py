"""Tasks as JSON values: decoded for programs, and lossless for re-import.

``task_object`` is for reading: one object of decoded values. ``records_object`` has every block as marker, fields and sections;
``records_bytes`` rebuilds the same file from it, byte for byte. Both include the version of this format.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from typing import Any

from rawko_state.errors import InvalidValue
from rawko_state.format.blocks import Block, parse_fields, parse_section
from rawko_state.format.json_form import VERSION, plain
from rawko_state.format.records import emit_as_read, scan_bytes
from rawko_state.format.scan import Record
from rawko_state.format.text import decode
from rawko_state.model.entries import Entry, Field, Request, Result, Section, TaskHeader, Turn
from rawko_state.model.state import TaskState


def task_object(task_id: str, status: str, entries: Iterable[Entry]) -> dict[str, Any]:
    """One task as one object of decoded values."""
    state = TaskState(id=task_id)
    task: dict[str, Any] = {"version": VERSION, "id": task_id, "status": status}
    requests: list[Any] = []
    turns: list[Any] = []
    results: list[Any] = []
    others: list[Any] = []
    for entry in entries:
        state = state.apply(entry)
        if isinstance(entry, TaskHeader):
            task["header"] = plain(entry)
        elif isinstance(entry, Request):
            requests.append(plain(entry) or {"text": ""})
        elif isinstance(entry, Turn):
            turns.append(plain(entry))
        elif isinstance(entry, Result):
            results.append(plain(entry))
        else:
            others.append({"kind": type(entry).__name__.lower(), **plain(entry)})
    task |= {"title": state.title, "labels": plain(state.labels), "pinned": state.pinned}
    task |= {"duration_ms": state.duration_ms, "requests": requests, "turns": turns, "results": results}
    return {**task, "other": others}


def records_object(
    task_id: str, filename: str, records: Iterable[Record], read: Any, blobs: Mapping[str, bytes]
) -> dict[str, Any]:
    """A whole task file and its blobs, from which the same bytes can be rebuilt. ``read(offset, length)`` reads the file."""
    found = []
    for record in records:
        data = read(record.offset, record.length)
        blocks = [_plain_block(_block(block, read)) for block in record.blocks]
        shape: dict[str, Any] = {"kind": record.kind, "blocks": blocks}
        if record.seal is not None:
            shape["seal"] = record.seal
        # Torn, damaged or hand-written records, or a pair of lone surrogates, which JSON would join.
        if not _makes(json.loads(json.dumps(blocks)), record.seal, data):
            shape["bytes"] = base64.b64encode(data).decode()
        found.append(shape)
    kept = {name: base64.b64encode(content).decode() for name, content in blobs.items()}
    return {"version": VERSION, "id": task_id, "file": filename, "records": found, "blobs": kept}


def _makes(blocks: Any, seal: str | None, data: bytes) -> bool:
    try:
        return emit_as_read(map(_from_plain, blocks), seal) == data
    except InvalidValue:
        return False


def records_bytes(task: Mapping[str, Any]) -> bytes:
    """The file that records_object() was given. Rejects data whose seals no longer match."""
    if task.get("version") != VERSION:
        raise InvalidValue(
            f"This export has version {task.get('version')!r}; this rawko reads version {VERSION}. Update rawko."
        )
    pieces: list[bytes] = []
    try:
        for record in task["records"]:
            if "bytes" in record:
                pieces.append(base64.b64decode(record["bytes"], validate=True))
            else:
                pieces.append(emit_as_read(map(_from_plain, record["blocks"]), record.get("seal")))
        data = b"".join(pieces)
        expected = [(record["kind"], record.get("seal")) for record in task["records"]]
    except InvalidValue as error:
        raise InvalidValue(f"Not a rawko export: {error}.") from None
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise InvalidValue(f"Not a rawko export: {error}.") from None
    if [(record.kind, record.seal) for record in scan_bytes(data)[0]] != expected:
        raise InvalidValue("Not a faithful rawko export: its seals don't match.")
    return data


def blobs_bytes(task: Mapping[str, Any]) -> list[bytes]:
    """The blobs of an exported task."""
    try:
        return [base64.b64decode(content, validate=True) for content in task.get("blobs", {}).values()]
    except (TypeError, ValueError, AttributeError) as error:
        raise InvalidValue(f"Not a rawko export: {error}.") from None


def _block(raw: Any, read: Any) -> Block:
    marker = decode(raw.marker)
    regions = [(region.title, region.data or read(region.offset, region.length)) for region in raw.regions]
    fields, stray, _ = parse_fields(regions[0][1], marker)
    sections = [stray] if stray is not None else []
    sections += [parse_section(title, data) for title, data in regions[1:]]
    return Block(marker, tuple(fields), tuple(sections))


def _plain_block(block: Block) -> dict[str, Any]:
    return {
        "marker": block.marker,
        "fields": [[field.name, field.value, list(field.items)] for field in block.fields],
        "sections": [[section.heading, section.text] for section in block.sections],
    }


def _from_plain(block: Mapping[str, Any]) -> Block:
    return Block(
        _text(block["marker"]),
        tuple(Field(_text(name), _text(value), tuple(map(_text, items))) for name, value, items in block["fields"]),
        tuple(Section(_text(heading), _text(text)) for heading, text in block["sections"]),
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidValue(f"Expected text, got {value!r}.")
    return value
