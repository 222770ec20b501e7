"""Times and durations as people type and read them."""

from __future__ import annotations

from datetime import datetime

import click

from rawko_state.format.values import read_time
from rawko_state.format.when import WHEN_HELP, parse_when


class When(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.3 only
    """``2024-01-15``, ``2024-01-15T10:30``, ``yesterday``, ``7d`` (ago). Without a time zone, local time."""

    name = "when"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        found = parse_when(str(value))
        if found is None:
            self.fail(f"{value!r} is no time; {WHEN_HELP}", param, ctx)
        return found


def local(text: str | None) -> str:
    """A stored time as a short local time."""
    value = read_time(text) if text else None
    try:
        return value.astimezone().strftime("%Y-%m-%d %H:%M") if value else "-"
    except (OverflowError, ValueError, OSError):  # the last or first day of the calendar, in another time zone
        return (text or "-")[:16].replace("T", " ")


def took(milliseconds: int | None) -> str:
    """A duration in at most six characters."""
    if milliseconds is None:
        return "-"
    seconds = milliseconds / 1000
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes}m{int(seconds % 60):02d}s"
    hours = minutes // 60
    return f"{hours}h{minutes % 60:02d}m" if hours < 48 else f"{hours // 24}d{hours % 24:02d}h"
