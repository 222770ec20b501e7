"""Converts entries to plain JSON values."""

from __future__ import annotations

from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

from rawko_state.format.values import write_time
from rawko_state.model.entries import Request, Turn, said_by

VERSION: Final = 1
"""The version of all JSON formats built from these."""


def plain(value: Any) -> Any:
    """A value as JSON data, without absent fields."""
    if is_dataclass(value) and not isinstance(value, type):
        found = {}
        for item in dataclass_fields(value):
            inner = getattr(value, item.name)
            if inner is not None and inner != () and inner != {}:
                found[item.name] = plain(inner)
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
