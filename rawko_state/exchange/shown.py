"""What an export for people is given: a task, its entries to read as often as needed, and what is known about it as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Final

from rawko_state.exchange.facts import Facts
from rawko_state.format.figures import counted, took
from rawko_state.model.entries import Entry

_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


@dataclass(frozen=True, slots=True)
class Shown:
    id: str
    status: str
    title: str
    """The title, else the first line of the request."""
    duration_ms: int | None
    facts: Facts
    entries: Callable[[], Iterable[Entry]]
    within: str | None = None
    """The folder that paths are shown relative to."""

    @property
    def heading(self) -> str:
        line = next((line.strip() for line in self.title.split("\n") if line.strip()), "")
        return line if len(line) <= 200 else line[:199].rstrip() + "…"

    def known(self) -> list[str]:
        """The facts for its head, without the status."""
        facts = self.facts
        found = [day(facts.first) if facts.first else "", f"took {took(self.duration_ms)}" if self.duration_ms else ""]
        found += [counted(facts.turns, "turn"), facts.main_agent or "", *facts.models, facts.tokens_text]
        return [fact for fact in (*found, facts.cost_text) if fact]


def day(at: datetime) -> str:
    """A time as a person reads it: ``17 Nov 2026, 03:54 UTC``. Whoever is sent an export lives in any time zone."""
    at = at.astimezone(timezone.utc)
    return f"{at.day} {_MONTHS[at.month - 1]} {at.year}, {at:%H:%M} UTC"


def time_of_day(at: datetime, since: datetime | None) -> str:
    """The time, with its day if that is not the day on which the task began."""
    at = at.astimezone(timezone.utc)
    same = since is not None and since.astimezone(timezone.utc).date() == at.date()
    return f"{at:%H:%M}" if same else day(at)
