"""Times, durations, money and counts as the page says them. What is not known is a word with a reason, never a zero."""

from __future__ import annotations

from datetime import datetime, timezone
from decimal import Decimal, InvalidOperation
from typing import Final, NamedTuple
from zlib import crc32

from rawko_state.format.values import read_time
from rawko_state.lifecycle.prices import estimated

_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


class Said(NamedTuple):
    """A value as text; if it is not known, why."""

    text: str
    why: str = ""
    is_unknown: bool = False


def unknown(why: str, text: str = "unknown") -> Said:
    return Said(text, why, True)


def when(text: str | None) -> datetime | None:
    """A stored time in the time zone of the server."""
    value = read_time(text) if text else None
    try:
        return value.astimezone() if value is not None else None
    except (OverflowError, ValueError, OSError):
        return value


def took(milliseconds: int | None) -> str:
    if milliseconds is None:
        return ""
    seconds = milliseconds / 1000
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    if whole < 48 * 3600:
        return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
    return f"{whole // 86_400}d {whole % 86_400 // 3600:02d}h"


def duration(milliseconds: int | None, status: str, since: datetime | None = None) -> Said:
    if milliseconds is not None:
        return Said(took(milliseconds))
    if status in ("running", "waiting") and since is not None:
        passed = max(0, int((datetime.now(timezone.utc) - since).total_seconds()))
        return Said(f"{passed} s" if passed < 60 else took(passed * 1000), "Since it began; it has not ended")
    if status in ("running", "waiting", "paused", "pending"):
        return unknown("It has not ended", "open")
    return unknown("No end is recorded")


def age(value: datetime | None, now: datetime | None = None) -> Said:
    if value is None:
        return unknown("No time is recorded")
    seconds = ((now or datetime.now(timezone.utc)) - value).total_seconds()
    if seconds < -5:
        return Said(day(value))
    if seconds < 60:
        return Said("now" if seconds < 5 else f"{int(seconds)} s")
    for unit, size, most in (("m", 60, 60), ("h", 3600, 24), ("d", 86_400, 7)):
        if seconds < size * most:
            return Said(f"{int(seconds // size)} {unit}")
    return Said(
        f"{value.day} {_MONTHS[value.month - 1]}"
        if seconds < 300 * 86_400
        else f"{_MONTHS[value.month - 1]} {value.year}"
    )


def day(value: datetime) -> str:
    return f"{value.day} {_MONTHS[value.month - 1]} {value.year}"


def day_heading(value: datetime | None, now: datetime | None = None) -> str:
    if value is None:
        return "Time unknown"
    today = (now or datetime.now(timezone.utc)).astimezone().date()
    text = f"{_DAYS[value.weekday()]} {value.day} {_MONTHS[value.month - 1]}"
    days = (today - value.date()).days
    if days in (0, 1):
        return f"{('Today', 'Yesterday')[days]}, {text}"
    return text if today.year == value.year else f"{text} {value.year}"


def moment(value: datetime | None) -> str:
    """A time in full, for titles."""
    return value.strftime("%Y-%m-%d %H:%M:%S %Z").strip() if value is not None else ""


def clock(value: datetime | None) -> str:
    return value.strftime("%H:%M:%S") if value is not None else ""


def count(number: int | None) -> str:
    """``940``, ``35.0k``, ``1.2M``."""
    if number is None:
        return ""
    size = float(number)
    for unit in ("", "k", "M", "G"):
        if size < 999.5 or unit == "G":
            return f"{number}" if not unit else f"{size:.1f}{unit}"
        size /= 1000
    return f"{number}"


def counted(number: int, word: str, plural: str | None = None) -> str:
    return f"{number:,} {word if number == 1 else plural or word + 's'}"


def size(number: float) -> str:
    for unit in ("B", "kB", "MB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" or number >= 100 else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} GB"


def dollars(amount: Decimal) -> str:
    return f"${amount:,.2f}" if amount >= Decimal("0.01") or not amount else "<$0.01"


def about(amount: Decimal) -> str:
    """An estimate."""
    text = dollars(amount)
    return text if text.startswith("<") else f"~{text}"


def cost(stated: str | None, model: str | None, tokens: dict[str, int | None]) -> Said:
    """What it cost as stated, else by list price, else that no price is known."""
    if stated is not None:
        try:
            return Said(dollars(Decimal(stated.split(" ")[0])))
        except InvalidOperation:
            return unknown(f"The stated cost is not a number: {stated[:40]}")
    guess = estimated(model, tokens)
    if guess is not None:
        return Said(about(guess), "An estimate from list prices; the agent did not state the cost")
    if not any(value for value in tokens.values()):
        return unknown("Neither cost nor tokens are recorded", "no price")
    return unknown(f"No price is known for the model {model}" if model else "The model is not recorded", "no price")


def hue(name: str | None) -> str:
    """One of six hues, always the same for a name."""
    return f"h{crc32((name or '').encode('utf-8', 'replace')) % 6 + 1}"


def first_line(text: str | None, most: int = 200) -> str:
    line = " ".join((text or "")[: most * 4].split())
    return line if len(line) <= most else line[:most].rstrip() + "…"
