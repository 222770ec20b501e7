"""What turns have used and cost, added up. What has no price is counted beside the sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from rawko_state.lifecycle.prices import estimated
from rawko_state.model.frozen import replace
from rawko_state.store import TaskSummary, Usage
from rawko_state.web import wording
from rawko_state.web.wording import Said


@dataclass(slots=True)
class Sum:
    """What a group of turns has used, and what of it has no price."""

    turns: int = 0
    duration_ms: int = 0
    tokens_in: int | None = None
    tokens_out: int | None = None
    cached: int | None = None
    cost: Decimal | None = None
    is_estimate: bool = False
    unpriced: int = 0
    """Turns of agents whose cost is not known."""
    days: dict[str, Decimal] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)

    def add(self, row: Usage) -> None:
        self.turns += row.turns
        self.duration_ms += row.duration_ms
        self.tokens_in = _plus(self.tokens_in, row.tokens_in, row.cache_write)
        self.tokens_out = _plus(self.tokens_out, row.tokens_out)
        self.cached = _plus(self.cached, row.cache_read)
        cost = Decimal(row.cost) if row.cost is not None else None
        if cost is None and not row.stated:
            kinds = {
                "in": row.tokens_in,
                "out": row.tokens_out,
                "cache_read": row.cache_read,
                "cache_write": row.cache_write,
            }
            cost = estimated(row.model, kinds)
            self.is_estimate |= cost is not None
        if cost is None and not row.stated:
            self.unpriced += row.turns if row.agent != "user" else 0
        elif cost is not None:
            self.cost = cost if self.cost is None else self.cost + cost
            if row.day:
                self.days[row.day] = self.days.get(row.day, Decimal(0)) + cost
        used = _plus(row.tokens_in, row.tokens_out, row.cache_write)
        if row.day and used:
            self.tokens[row.day] = self.tokens.get(row.day, 0) + used

    @property
    def money(self) -> Said:
        if self.cost is None and not self.unpriced:
            return Said("")
        if self.cost is None:
            return wording.unknown("No cost is stated, and no price is known", "no price")
        text = (wording.about if self.is_estimate else wording.dollars)(self.cost)
        return Said(text, f"and {wording.counted(self.unpriced, 'turn')} without a price" if self.unpriced else "")


def cost_of(task: TaskSummary, usage: Sequence[Usage] | None) -> Said:
    """What a task cost: as stated, else from what its turns used. None: that was not looked up."""
    if task.cost is not None:
        return wording.cost(task.cost, None, {})
    if usage is None:
        return wording.unknown("The agent stated no cost, and the task is long. Its page estimates it from list prices")
    total = Sum()
    for row in usage:
        total.add(row if row.model else replace(row, model=task.model))
    if total.cost is None:
        return total.money if total.unpriced else wording.unknown("Neither cost nor tokens are recorded", "no price")
    why = "An estimate from list prices; the agent did not state the cost"
    return Said(total.money.text, ", ".join(filter(None, (why, total.money.why))))


def _plus(*numbers: int | None) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None
