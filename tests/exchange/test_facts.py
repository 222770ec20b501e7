"""What a task comes to."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

from rawko_state.exchange.facts import Facts
from rawko_state.model.entries import Money, Request, Result, Turn


def _seven(model: str | None, tokens: Mapping[str, int | None]) -> Decimal:
    return Decimal(7)


class TestCosts:
    def test_a_run_that_states_its_cost_is_not_estimated(self) -> None:
        facts = Facts()
        turn = Turn(number=1, agent="cline", status="complete", model="m", tokens={"in": 5})
        for entry in (Request(text="one"), turn, Result(status="success"), Request(text="two"), turn):
            facts.take(entry, _seven)
        assert (facts.cost, facts.is_estimate) == (Decimal(14), True)
        facts.take(Result(status="success", cost=Money(Decimal("0.5"))), _seven)
        assert (facts.stated, facts.guessed) == (Decimal("0.5"), Decimal(7))  # of the first run

    def test_other_currencies_are_not_added_to_dollars(self) -> None:
        facts = Facts()
        facts.take(Turn(number=1, agent="a", status="complete", cost=Money(Decimal(9), "EUR")))
        assert facts.cost is None
