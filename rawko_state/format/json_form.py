"""Converts entries to plain JSON values."""

from __future__ import annotations

from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from datetime import datetime
from decimal import Decimal
from functools import cache
from typing import Any, Final

from rawko_state.format.values import write_time
from rawko_state.model.entries import Request, Turn, said_by

VERSION: Final = 1
"""The version of all JSON formats built from these."""


@cache
def _names(kind: type) -> tuple[str, ...] | None:
    """The fields of a dataclass; None for other types. One answer holds many values of few types."""
    return tuple(item.name for item in dataclass_fields(kind)) if is_dataclass(kind) else None


def plain(value: Any) -> Any:
    """A value as JSON data, without absent fields."""
    names = _names(value.__class__)
    if names is not None:
        found = {}
        for name in names:
            inner = getattr(value, name)
            if inner is not None and inner != () and inner != {}:
                found[name] = plain(inner)
        if isinstance(value, (Request, Turn)) and (by := said_by(value)) is not None:
            found["by"] = by
        return found
    if isinstance(value, datetime):
        return write_time(value)
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, tuple):
        return [plain(inner) for inner in value]
    return value  # mappings and lists are already JSON, at any depth
