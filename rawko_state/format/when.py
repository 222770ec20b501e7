"""Times as people type them."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Final

from rawko_state.format.values import read_time

WHEN_HELP: Final = "write 2024-01-15, 2024-01-15T10:30, yesterday, or 7d, 12h, 2w for 'ago'"
_AGO = re.compile(r"([0-9]+)(s|m|h|d|w)")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def parse_when(text: str, now: datetime | None = None) -> datetime | None:
    """``2024-01-15``, ``2024-01-15T10:30``, ``yesterday``, ``7d`` (ago). Without a time zone, local time."""
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
