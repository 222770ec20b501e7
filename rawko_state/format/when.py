"""Times as people type them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from rawko_state.format.values import read_time
from rawko_state.late import late

WHEN_HELP: Final = "Try 7d, '2 weeks ago', yesterday, monday or 2024-01-15."
_AGO = late(r"([0-9]+)(s|m|h|d|w)")
_WORDS_AGO = late(r"([0-9]+|an?) *(second|sec|minute|min|hour|day|week|month|year)s? ago")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_DAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_LONG: Final = {"month": 30, "year": 365}
_SHORT: Final = {"sec": "seconds", "min": "minutes"}


def parse_when(text: str, now: datetime | None = None) -> datetime | None:
    """``2024-01-15``, ``2024-01-15T10:30``, ``yesterday``, ``monday``, ``7d`` or ``2 weeks ago``. Without a time zone, local
    time. A day begins at midnight; the name of a weekday is the last one that has begun."""
    now = now or datetime.now().astimezone()
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    plain = " ".join(text.lower().split())
    if plain in ("today", "yesterday", "now"):
        return {"today": today, "yesterday": today - timedelta(days=1), "now": now}[plain]
    weekday = plain.removeprefix("last ")
    named = next((n for n, day in enumerate(_DAYS) if weekday in (day, day[:3])), None)
    if named is not None:
        days = (today.weekday() - named) % 7
        return today - timedelta(days=days or (7 if plain.startswith("last ") else 0))
    try:
        if match := _AGO.fullmatch(plain):
            return now - timedelta(**{_UNITS[match[2]]: int(match[1])})
        if match := _WORDS_AGO.fullmatch(plain):
            number, unit = 1 if match[1].startswith("a") else int(match[1]), match[2]
            if unit in _LONG:
                return now - timedelta(days=number * _LONG[unit])
            return now - timedelta(**{_SHORT.get(unit, f"{unit}s"): number})
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
