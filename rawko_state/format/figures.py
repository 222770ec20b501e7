"""Figures as people read them: counts, sizes, durations, money."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from decimal import Decimal


def counted(number: int, word: str, plural: str | None = None) -> str:
    """``1 turn``, ``2 turns``, ``35,043 turns``, ``no turns``."""
    words = word if number == 1 else plural or f"{word}s"
    return f"{number:,} {words}" if number else f"no {words}"


def size_text(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    return ""


def in_short(number: int | None) -> str:
    """A number for a table: ``940``, ``35k``, ``1.2M``; ``-`` if unknown."""
    if number is None:
        return "-"
    for unit in ("", "k", "M", "G"):
        if number < 1000 or unit == "G":
            break
        number /= 1000  # type: ignore[assignment]
    return f"{number}" if not unit else f"{number:.1f}{unit}" if number < 10 else f"{number:.0f}{unit}"


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


def money(amount: Decimal) -> str:
    """US dollars: ``$0.21``; less than a cent is ``<$0.01``."""
    return "<$0.01" if 0 < amount * 100 < 1 else f"${amount:,.2f}"


def changes_text(added: int, removed: int | None) -> str:
    """Lines added and removed, ``+12 −3``. None: how many were removed is not known, or there was no file."""
    return f"+{added:,}" if removed is None else f"+{added:,} \u2212{removed:,}"
