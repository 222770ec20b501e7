"""Times and durations as people type and read them."""

from __future__ import annotations

from datetime import datetime, timezone

import click

from rawko_state.format.values import read_time
from rawko_state.format.when import WHEN_HELP, parse_when

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class When(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.3 only
    """``2024-01-15``, ``2024-01-15T10:30``, ``yesterday``, ``monday``, ``7d`` (ago). Without a time zone, local time."""

    name = "when"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        found = parse_when(str(value))
        if found is None:
            raise click.UsageError(f"Not a date or time: {value!r}. {WHEN_HELP}", ctx)
        return found


def local(text: str | None, *, utc: bool = False) -> str:
    """A stored time as a short local time."""
    value = read_time(text) if text else None
    try:
        return value.astimezone(timezone.utc if utc else None).strftime("%Y-%m-%d %H:%M") if value else "-"
    except (OverflowError, ValueError, OSError):  # the last or first day of the calendar, in another time zone
        return (text or "-")[:16].replace("T", " ")


def ago(text: str | None, now: datetime | None = None) -> str:
    """A stored time as seen from now: ``40s ago``, ``3h ago``, ``Nov 3``, ``Nov 2025``. A time to come is shown in full."""
    value = read_time(text) if text else None
    if value is None:
        return "-"
    now = now or datetime.now(timezone.utc)
    seconds = (now - value).total_seconds()
    if seconds < -5:
        return local(text)
    for unit, size, most in (("s", 1, 60), ("m", 60, 60), ("h", 3600, 24), ("d", 86_400, 7)):
        if seconds < size * most:
            return "now" if seconds < 5 else f"{int(seconds // size)}{unit} ago"
    try:
        day, today = value.astimezone(), now.astimezone()
    except (OverflowError, ValueError, OSError):
        return (text or "")[:10]
    return f"{_MONTHS[day.month - 1]} {day.day if day.year == today.year else day.year}"


def took(milliseconds: int | None) -> str:
    """A duration in at most six characters."""
    if milliseconds is None:
        return "-"
    seconds = milliseconds / 1000
    if seconds < 59.5:
        return f"{seconds:.1f}s" if seconds < 9.95 else f"{seconds:.0f}s"
    whole = round(seconds)
    minutes = whole // 60
    if minutes < 60:
        return f"{minutes}m{whole % 60:02d}s"
    hours = minutes // 60
    return f"{hours}h{minutes % 60:02d}m" if hours < 48 else f"{hours // 24}d{hours % 24:02d}h"
