"""Times and durations as people type and read them."""

from __future__ import annotations

from datetime import datetime, timezone

import click

from rawko_state.format.figures import took as took
from rawko_state.format.values import read_time, write_time

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class When(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.3 only
    """``2024-01-15``, ``2024-01-15T10:30``, ``yesterday``, ``monday``, ``7d`` (ago). Without a time zone, local time."""

    name = "when"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        from rawko_state.format.when import WHEN_HELP, parse_when

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


def day_and_time(at: datetime, *, utc: bool = False, iso: bool = False, now: datetime | None = None) -> str:
    """A time in full: ``today 04:54``, ``yesterday 17:20``, ``Nov 3 09:15``, ``2025-11-03 09:15``."""
    if iso:
        return write_time(at)
    try:
        zone = timezone.utc if utc else None
        day, today = at.astimezone(zone), (now or datetime.now(timezone.utc)).astimezone(zone)
    except (OverflowError, ValueError, OSError):  # the last or first day of the calendar, in another time zone
        return write_time(at)
    time = day.strftime("%H:%M")
    days = (today.date() - day.date()).days
    if days in (0, 1):
        return f"{('today', 'yesterday')[days]} {time}"
    return (
        f"{_MONTHS[day.month - 1]} {day.day} {time}"
        if day.year == today.year and days > 0
        else f"{day:%Y-%m-%d} {time}"
    )


def ago(text: str | None, now: datetime | None = None) -> str:
    """A stored time as seen from now: ``40s ago``, ``3h ago``, ``Nov 3``; ``Nov 2025`` if that is most of a year ago. A time to
    come is shown in full."""
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
    # A day of the last ten months can be meant only once, also when a new year has begun.
    return f"{_MONTHS[day.month - 1]} {day.day if (today - day).days < 300 else day.year}"
