"""Times and durations as people type and read them."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

import click

from rawko_state.format.values import read_time

_AGO = re.compile(r"([0-9]+)(s|m|h|d|w)")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class When(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.3 only
    """``2024-01-15``, ``2024-01-15T10:30``, ``yesterday``, ``7d`` (ago). Without a time zone, local time."""

    name = "when"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        found = parse_when(str(value))
        if found is None:
            self.fail(
                f"{value!r} is no time; write 2024-01-15, 2024-01-15T10:30, yesterday, or 7d, 12h, 2w for 'ago'",
                param,
                ctx,
            )
        return found


def parse_when(text: str, now: datetime | None = None) -> datetime | None:
    now = now or datetime.now().astimezone()
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    if text in ("today", "yesterday", "now"):
        return {"today": today, "yesterday": today - timedelta(days=1), "now": now}[text]
    try:
        if match := _AGO.fullmatch(text):
            return now - timedelta(**{_UNITS[match[2]]: int(match[1])})
        exact = read_time(text)
        if exact is not None:
            return exact
        for form in ("%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S"):
            try:
                return datetime.strptime(text, form).astimezone()
            except ValueError:
                continue
    except OverflowError:
        pass
    return None


def local(text: str | None) -> str:
    """A stored time as a short local one."""
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
