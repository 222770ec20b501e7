"""Entries as plain values for JSON."""

from __future__ import annotations

from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

from rawko_state.format.values import write_time
from rawko_state.model.entries import Request, Turn, said_by

VERSION: Final = 1
"""Of all shapes that are made of these."""


def plain(value: Any) -> Any:
    """A value as JSON knows it; what is absent is left out."""
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
    return value  # mappings and lists are JSON already, however deep
