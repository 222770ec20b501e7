"""JSON schemas: helpers to write small ones, a generator from the contract's types, and a validator."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Mapping
from dataclasses import is_dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, Union

from rawko_state.errors import InvalidValue

Schema = dict[str, Any]
STRING: Final[Schema] = {"type": "string"}
TEXT: Final[Schema] = {"type": ["string", "null"]}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": 10**15}
FLAG: Final[Schema] = {"type": "boolean"}
TIME: Final[Schema] = {"type": "string", "format": "date-time"}
ANY: Final[Schema] = {}
STRINGS: Final[Schema] = {"type": "array", "items": STRING, "maxItems": 10_000}
MAPPING: Final[Schema] = {"type": "object", "additionalProperties": STRING}
_KINDS: Final = {
    str: "string",
    int: "integer",
    bool: "boolean",
    float: "number",
    dict: "object",
    list: "array",
    type(None): "null",
}
"""What JSON is read into has exactly these types."""


def obj(required: Mapping[str, Schema] | None = None, /, **optional: Schema) -> Schema:
    """The schema of an object with these keys and no others."""
    return {
        "type": "object",
        "properties": {**(required or {}), **optional},
        "required": list(required or {}),
        "additionalProperties": False,
    }


def lists(items: Schema) -> Schema:
    return {"type": "array", "items": items, "maxItems": 10_000}


KEYWORDS: Final = frozenset(
    ("type", "enum", "pattern", "minLength", "maxLength", "minimum", "maximum", "items", "maxItems", "properties", "required",
     "additionalProperties")
)  # fmt: skip
"""The keywords that check() supports. Request schemas may use no others; ``format`` and ``description`` only inform."""


def check(value: Any, schema: Schema, where: str = "the body") -> None:
    """Raises InvalidValue, with the location, if a value does not match. See KEYWORDS."""
    kind, kinds = _KINDS[type(value)], schema.get("type")
    if kinds is not None and kind != kinds and not _is_one(kind, kinds):
        wanted = kinds if isinstance(kinds, str) else " or ".join(kinds)
        raise InvalidValue(f"{where}: must be {wanted}")
    if "enum" in schema and value not in schema["enum"]:
        raise InvalidValue(f"{where}: expected one of {', '.join(map(str, schema['enum']))}")
    if kind == "string":
        if "pattern" in schema and not re.search(schema["pattern"], value):
            raise InvalidValue(f"{where}: must match {schema['pattern']}")
        if len(value) < schema.get("minLength", 0):
            raise InvalidValue(f"{where}: must not be empty")
        if len(value) > schema.get("maxLength", len(value)):
            raise InvalidValue(f"{where}: longer than {schema['maxLength']}")
    elif kind in ("integer", "number"):
        if "minimum" in schema and value < schema["minimum"]:
            raise InvalidValue(f"{where}: must be at least {schema['minimum']}")
        if "maximum" in schema and value > schema["maximum"]:
            raise InvalidValue(f"{where}: must be at most {schema['maximum']}")
    elif kind == "array":
        if len(value) > schema.get("maxItems", len(value)):
            raise InvalidValue(f"{where}: must have at most {schema['maxItems']} items")
        for number, inner in enumerate(value):
            check(inner, schema.get("items", ANY), f"{where}[{number}]")
    elif kind == "object":
        _check_object(value, schema, where)


def _check_object(value: dict[str, Any], schema: Schema, where: str) -> None:
    known, more = schema.get("properties", {}), schema.get("additionalProperties", ANY)
    for name in schema.get("required", ()):
        if name not in value:
            raise InvalidValue(f"{where}: {name!r} is required")
    for name, inner in value.items():
        if name in known:
            check(inner, known[name], f"{where}.{name}")
        elif more is False:
            raise InvalidValue(f"{where}: unknown key {name!r:.80}; known: {', '.join(known) or 'none'}")
        elif isinstance(more, dict):
            check(inner, more, f"{where}.{name:.80}")


def _is_one(kind: str, kinds: str | list[str]) -> bool:
    wanted = (kinds,) if isinstance(kinds, str) else kinds
    return kind in wanted or (kind == "integer" and "number" in wanted)


def of_type(kind: Any) -> Schema:
    """The schema of what to_wire() returns for a value of that type."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    simple = {
        str: STRING,
        int: {"type": "integer"},
        bool: FLAG,
        float: {"type": "number"},
        datetime: TIME,
        Decimal: STRING,
    }
    if kind in simple:
        return dict(simple[kind])
    if origin in (Union, types.UnionType):
        inner = of_type(next(each for each in arguments if each is not type(None)))
        return {"anyOf": [inner, {"type": "null"}]}
    if origin in (tuple, list):
        if len(arguments) == 2 and arguments[1] is not ... and origin is tuple:
            return {"type": "array"}
        return {"type": "array", "items": of_type(arguments[0])} if arguments else {"type": "array"}
    if origin is not None and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": of_type(arguments[1])}
    if isinstance(kind, type) and (is_dataclass(kind) or issubclass(kind, tuple)):
        hints = typing.get_type_hints(kind)
        return {
            "type": "object",
            "properties": {name: of_type(hint) for name, hint in hints.items()},
            "required": list(hints),
        }
    return {}
