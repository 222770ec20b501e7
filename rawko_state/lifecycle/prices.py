"""Estimates what tokens cost, from list prices. An estimate is made when it is shown, and never stored."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from rawko_state.late import late

_FILE: Final = Path(__file__).with_name("prices.json")
_VERSION = late(r"(-20[0-9]{6}|-20[0-9]{2}-[0-9]{2}-[0-9]{2}|-latest|\[[^\]]*\]|@.*)$")


class Price(NamedTuple):
    date: str
    """When these prices were published."""
    rates: Mapping[str, Decimal]
    """USD per million tokens of each kind."""


@cache
def _table() -> dict[str, Price]:
    found = {}
    for vendor in json.loads(_FILE.read_text("utf-8"), parse_float=Decimal, parse_int=Decimal)["vendors"]:
        for model, rates in vendor["models"].items():
            found[model] = Price(vendor["date"], rates)
    return found


def price_of(model: str | None) -> Price | None:
    """The price of a model, whatever version of it is named. None if it is not known: no estimate is better than a wrong one."""
    if not model:
        return None
    name = model.rpartition("/")[2].lower()
    return _table().get(name) or _table().get(_VERSION.sub("", name))


def estimated(model: str | None, tokens: Mapping[str, int | None]) -> Decimal | None:
    """What these tokens cost by list price, in USD. ``in`` leaves out what came from a cache. None if that is not known."""
    price = price_of(model)
    if price is None or not any(tokens.get(kind) for kind in ("in", "out")):
        return None
    total = Decimal(0)
    for kind in ("in", "out", "cache_read", "cache_write"):
        count = tokens.get(kind) or 0
        if count and kind not in price.rates:
            kind = "in"
        total += price.rates.get(kind, Decimal(0)) * count / 1_000_000
    return total
