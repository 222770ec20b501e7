"""What requests may hold: every keyword that a schema uses is checked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rawko_state.errors import InvalidValue
from rawko_state.server.app import OPERATIONS
from rawko_state.server.schemas import KEYWORDS, check

INFORM = {"format", "description", "title", "default", "examples"}


def keywords(schema: Any) -> Iterator[str]:
    if not isinstance(schema, dict):
        return
    yield from schema
    for inner in (*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")):
        yield from keywords(inner)


def test_no_request_uses_a_keyword_that_is_not_checked() -> None:
    schemas = [operation.body for operation in OPERATIONS]
    schemas += [param.schema for operation in OPERATIONS for param in operation.params]
    used = {word for schema in schemas for word in keywords(schema)}
    assert used - KEYWORDS - INFORM == set()


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        ("abcd", {"type": "string", "maxLength": 3}),
        ("", {"type": "string", "minLength": 1}),
        (5, {"type": "integer", "maximum": 4}),
        (1, {"type": "integer", "minimum": 2}),
        (True, {"type": "integer"}),
        ("x", {"enum": ["a"]}),
        ("x", {"type": "string", "pattern": "^[0-9]$"}),
        ([1, 2], {"type": "array", "maxItems": 1}),
        (["x"], {"type": "array", "items": {"type": "integer"}}),
        ({}, {"type": "object", "required": ["a"]}),
        ({"b": 1}, {"type": "object", "properties": {}, "additionalProperties": False}),
        ({"b": "x"}, {"type": "object", "additionalProperties": {"type": "integer"}}),
    ],
)
def test_each_keyword_refuses(value: object, schema: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue):
        check(value, schema)
