"""Converts the contract's values to JSON and back, for servers and clients and for the tasks that `--json` prints.

Values are plain dataclasses and named tuples, so their type hints are all that is needed.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from decimal import Decimal
from functools import cache
from typing import Any, TypeVar, Union

from rawko_state.errors import InvalidValue
from rawko_state.store.values import TaskSummary

T = TypeVar("T")


def to_wire(value: Any) -> Any:
    """A value as JSON data. Every field is present, even if it is None."""
    names = _names(value.__class__)
    if names is not None:
        return {name: to_wire(getattr(value, name)) for name in names}
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, Mapping):
        return {str(key): to_wire(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_wire(inner) for inner in value]
    return value


@cache
def _names(kind: type) -> tuple[str, ...] | None:
    """The fields of a named tuple or a dataclass; None for other types."""
    if issubclass(kind, tuple):
        return getattr(kind, "_fields", None)
    return tuple(each.name for each in fields(kind)) if is_dataclass(kind) else None


def from_wire(kind: type[T], data: Any) -> T:
    """The inverse of to_wire(). Raises InvalidValue if the data is not of that type."""
    try:
        found: T = _read(kind, data)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise InvalidValue(f"Not a valid {kind.__name__}: {error}.") from None
    return found


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _read(kind: Any, data: Any) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any or kind is object:
        return data
    if origin in (Union, types.UnionType):
        if data is None:
            return None
        return _read(next(each for each in arguments if each is not type(None)), data)
    if origin is tuple:
        if len(arguments) == 2 and arguments[1] is ...:
            return tuple(_read(arguments[0], inner) for inner in data)
        return tuple(_read(each, inner) for each, inner in zip(arguments, data, strict=True))
    if origin is list:
        return [_read(arguments[0], inner) for inner in data]
    if origin is not None and issubclass(origin, Mapping):
        return {key: _read(arguments[1], inner) for key, inner in data.items()}
    if kind is datetime:
        return datetime.fromisoformat(data)
    if kind is Decimal:
        return Decimal(data)
    if isinstance(kind, type) and (is_dataclass(kind) or issubclass(kind, tuple)):
        hints = _hints(kind)
        # Ignore fields added by newer versions.
        return kind(**{name: _read(hints[name], data[name]) for name in hints if name in data})
    if kind is float and isinstance(data, int):
        return float(data)
    if isinstance(kind, type) and not isinstance(data, kind):
        raise TypeError(f"{data!r:.60} is not a {kind.__name__}.")
    return data


def summary_json(summary: TaskSummary) -> dict[str, Any]:
    """A task in the documented format (docs/reference/json.md): every key is always present."""
    return {
        "id": summary.id,
        "status": summary.status,
        "created": summary.created,
        "updated": summary.updated,
        "completed": summary.completed,
        "duration_ms": summary.duration_ms,
        "title": summary.title,
        "request": summary.request,
        "summary": summary.summary,
        "agents": list(summary.agents),
        "labels": dict(summary.labels),
        "pinned": summary.pinned,
        "turns": summary.turns,
        "runs": summary.runs,
        "parent": summary.parent,
        "model": summary.model,
        "branch": summary.branch,
        "tokens": {"in": summary.tokens_in, "out": summary.tokens_out},
        "cost": summary.cost,
        "file": summary.file,
        "damaged": summary.damaged,
        "touched": [{"operation": operation, "path": path} for operation, path in summary.touched],
    }


def summary_of(data: Mapping[str, Any]) -> TaskSummary:
    """The inverse of summary_json()."""
    try:
        flat = {name: value for name, value in data.items() if name not in ("tokens", "touched", "hit", "version")}
        flat |= {"tokens_in": data["tokens"]["in"], "tokens_out": data["tokens"]["out"]}
        flat["touched"] = [(each["operation"], each["path"]) for each in data["touched"]]
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidValue(f"Not a valid task: {error}.") from None
    return from_wire(TaskSummary, flat)
