"""What a task comes to, for the head of whatever shows it: agent, models, tokens, cost, files changed, prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import NamedTuple

from rawko_state.exchange.telling import is_overwritten
from rawko_state.format.figures import changes_text, counted, in_short, money
from rawko_state.model.entries import Entry, Money, Request, Result, TaskHeader, Turn

Estimate = Callable[[str | None, Mapping[str, int | None]], Decimal | None]
"""What tokens of a model cost by list price; None if that is not known."""


class Changed(NamedTuple):
    """What happened to a file. Lines are None where no diff was recorded."""

    added: int | None = None
    removed: int | None = None

    @property
    def text(self) -> str:
        return "" if self.added is None else changes_text(self.added, self.removed)


@dataclass(slots=True)
class Facts:
    header: TaskHeader | None = None
    models: dict[str, None] = field(default_factory=dict)
    agents: dict[str, None] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    stated: Decimal | None = None
    guessed: Decimal | None = None
    """By list prices, where no cost is stated."""
    lacks_prices: bool = False
    """Some tokens have neither a stated cost nor a known price: the cost is too low."""
    guessed_before: tuple[Decimal | None, bool] = (None, False)
    """``guessed`` and ``lacks_prices`` when the present run began. A result that states what its run cost takes the place of
    guesses at its turns."""
    files: dict[str, Changed] = field(default_factory=dict)
    turns: int = 0
    tools: int = 0
    prompts: list[tuple[str, str]] = field(default_factory=list)
    """What the user said: where it is (``r1`` for a request, ``t4`` for a turn), and its first line."""
    first: datetime | None = None
    last: datetime | None = None

    def take(self, entry: Entry, estimate: Estimate | None = None) -> None:
        if isinstance(entry, TaskHeader):
            self.header = self.header or entry
            self._models(entry.model)
            self._time(entry.created)
        elif isinstance(entry, Request):
            number = sum(place[0] == "r" for place, _ in self.prompts) + 1
            self.prompts.append((f"r{number}", entry.text))
            self._time(entry.at)
            self.guessed_before = self.guessed, self.lacks_prices
        elif isinstance(entry, Turn):
            self._turn(entry, estimate)
        elif isinstance(entry, Result):
            if dollars(entry.cost) is not None:
                self.guessed, self.lacks_prices = self.guessed_before
            self._used(entry.tokens, dollars(entry.cost), self._model, estimate)
            for path in entry.files_modified:
                self.files.setdefault(path, Changed())
            self._time(entry.completed)

    @property
    def _model(self) -> str | None:
        return next(reversed(self.models), None)

    def _models(self, model: str | None) -> None:
        if model:
            self.models.setdefault(model)

    def _time(self, at: datetime | None) -> None:
        if at is not None:
            self.first = self.first or at
            self.last = max(self.last, at) if self.last else at

    def _turn(self, turn: Turn, estimate: Estimate | None) -> None:
        self.turns += 1
        self._models(turn.model)
        self._time(turn.started)
        if turn.agent == "user":
            self.prompts.append((f"t{turn.number}", turn.content or ""))
            return
        if not turn.is_arbiter:
            self.agents.setdefault(turn.agent)
        self.tools += len(turn.tools)
        self._used(turn.tokens, dollars(turn.cost), turn.model or self._model, estimate)
        for diff in turn.diffs:
            before = self.files.get(diff.path or "", Changed())
            removed = None if is_overwritten(diff) and before.removed is None else diff.removed
            self.files[diff.path or ""] = Changed(
                (before.added or 0) + diff.added,
                removed if before.removed is None else before.removed + (removed or 0),
            )

    def _used(
        self, tokens: Mapping[str, int], cost: Decimal | None, model: str | None, estimate: Estimate | None
    ) -> None:
        for kind, count in tokens.items():
            self.tokens[kind] = self.tokens.get(kind, 0) + count
        if cost is not None:
            self.stated = cost + (self.stated or 0)
        elif estimate is not None and (tokens.get("in") or tokens.get("out")):
            guess = estimate(model, tokens)
            if guess is None:
                self.lacks_prices = True
            else:
                self.guessed = guess + (self.guessed or 0)

    @property
    def cost(self) -> Decimal | None:
        known = [each for each in (self.stated, self.guessed) if each is not None]
        return sum(known, Decimal(0)) if known else None

    @property
    def is_estimate(self) -> bool:
        """Some of the cost was estimated from list prices."""
        return self.guessed is not None

    @property
    def main_agent(self) -> str | None:
        named = self.header.agent if self.header is not None else None
        return named or next(iter(self.agents), None)

    @property
    def tokens_text(self) -> str:
        """``20k tokens in (8k cached), 900 out``; empty if unknown."""
        into, out = self.tokens.get("in"), self.tokens.get("out")
        if into is None and out is None:
            return ""
        cached = self.tokens.get("cache_read", 0)
        written = self.tokens.get("cache_write", 0)
        shown = f"{in_short((into or 0) + written + cached)} tokens in"
        return f"{shown}{f' ({in_short(cached)} cached)' if cached else ''}, {in_short(out)} out"

    @property
    def cost_text(self) -> str:
        """``$0.21``; ``~$0.21`` is an estimate, ``$0.21+`` leaves something out. Empty if unknown."""
        if self.cost is None or (not self.cost and self.lacks_prices):
            return ""
        text = money(self.cost)
        about = "~" if self.is_estimate and not text.startswith("<") else ""
        return f"{about}{text}{'+' if self.lacks_prices else ''}"

    @property
    def files_text(self) -> str:
        return f"{counted(len(self.files), 'file')} changed" if self.files else ""

    @property
    def lines_text(self) -> str:
        """Lines added and removed in all files, as far as diffs say."""
        known = [change for change in self.files.values() if change.added is not None]
        if not known:
            return ""
        return changes_text(sum(each.added or 0 for each in known), sum(each.removed or 0 for each in known))


def dollars(cost: Money | None) -> Decimal | None:
    """None also for other currencies: they can't be added up."""
    return cost.amount if cost is not None and cost.currency == "USD" else None


def facts_of(entries: Iterable[Entry], estimate: Estimate | None = None) -> Facts:
    facts = Facts()
    for entry in entries:
        facts.take(entry, estimate)
    return facts


def repeats(summary: str, answer: str | None) -> bool:
    """Whether a summary says nothing that the last answer has not said in the same words."""
    flat, said = " ".join(summary.split()), " ".join((answer or "").split())
    return bool(flat) and said.startswith(flat.rstrip("…"))
