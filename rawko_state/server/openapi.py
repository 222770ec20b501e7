"""The OpenAPI document, generated from the table of operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rawko_state import __version__
from rawko_state.server.operations import Operation
from rawko_state.server.schemas import COUNT, STRING, Schema, of_type
from rawko_state.store import TaskSummary

_PROBLEM: Final[Schema] = {
    "type": "object",
    "properties": {"type": STRING, "title": STRING, "status": COUNT, "detail": STRING, "data": {"type": "object"}},
    "required": ["type", "title", "status", "detail"],
}
_REFUSALS: Final = {
    "400": "Malformed request",
    "401": "Missing or unknown token",
    "403": "Not allowed",
    "404": "Not found",
    "409": "Conflict: the task's status does not allow this",
    "412": "Precondition failed: the task has changed",
    "413": "Request too large",
    "421": "Host name not allowed",
    "422": "Invalid values",
    "423": "Another process is running the task",
    "429": "Too many requests",
    "503": "Temporarily unavailable",
}


def document(operations: Sequence[Operation], prefix: str, *, workspaces: bool) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for each in operations:
        paths.setdefault(prefix + each.path, {})[each.method.lower()] = _operation(each, workspaces)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "rawko",
            "version": __version__,
            "description": f"Tasks of coding agents. Live events: …/tasks/{id}/events/stream (SSE) and …/events/socket "
            "(WebSocket).",
        },
        "paths": paths,
        "security": [{"token": []}, {}],
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Task": _task(), "Problem": _PROBLEM},
        },
    }


def _task() -> Schema:
    made = of_type(TaskSummary)
    properties = {name: value for name, value in made["properties"].items() if name not in ("tokens_in", "tokens_out")}
    count = {"type": ["integer", "null"]}
    properties["tokens"] = {"type": "object", "properties": {"in": count, "out": count}}
    properties["touched"] = {"type": "array", "items": {"type": "object"}}
    return {"type": "object", "properties": properties, "required": sorted(properties)}


def _operation(each: Operation, workspaces: bool) -> dict[str, Any]:
    parameters: list[dict[str, Any]] = [
        {
            "name": param.name,
            "in": "path" if f"{{{param.name}}}" in each.path else "query",
            "required": param.required,
            "description": param.about,
            "schema": {"type": "array", "items": param.schema} if param.many else param.schema,
        }
        for param in each.params
    ]
    if each.changes:
        key = {"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[!-~]+$"}
        parameters.append({"name": "Idempotency-Key", "in": "header", "schema": key})
    if workspaces and not each.alone:
        parameters.append({"name": "Rawko-Workspace", "in": "header", "schema": STRING})
    found: dict[str, Any] = {
        "operationId": each.name,
        "summary": each.about,
        "description": (each.do.__doc__ or "").strip(),
        "parameters": parameters,
        "responses": {str(each.status): _answer(each)},
    }
    for status, about in _REFUSALS.items():
        found["responses"][status] = {
            "description": about,
            "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
    if each.answer == "text/plain":
        found["responses"]["206"] = {"description": "a part", "content": {"text/plain": {}}}
        found["responses"]["416"] = {"description": "Range not satisfiable"}
    if isinstance(each.body, dict):
        found["requestBody"] = {
            "required": bool(each.body.get("required")),
            "content": {"application/json": {"schema": each.body}},
        }
    elif each.body is not None:
        found["requestBody"] = {
            "required": True,
            "content": {each.body: {"schema": {"type": "string", "format": "binary"}}},
        }
    return found


def _answer(each: Operation) -> dict[str, Any]:
    if each.status == 204:
        return {"description": "done"}
    if not isinstance(each.answer, dict):
        kinds = (each.answer,) if isinstance(each.answer, str) else each.answer
        return {"description": "The content", "content": {kind: {} for kind in kinds}}
    return {"description": "The response", "content": {"application/json": {"schema": each.answer}}}
