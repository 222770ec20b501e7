"""Converts field values with model types (parents, costs, questions) to text and back."""

from __future__ import annotations

from decimal import Decimal

from rawko_state.format.values import read_json, read_time, write_json, write_time
from rawko_state.late import late
from rawko_state.model.entries import Json, Money, Parent, Question

_PARENT = late(r"([0-9A-Za-z]{1,64})(?:@(0|[1-9][0-9]{0,17}))?")
_MONEY = late(r"([0-9]{1,30}(?:\.[0-9]{1,30})?) ([A-Z]{3})")


def write_parent(value: Parent) -> str:
    return value.task if value.turn is None else f"{value.task}@{value.turn}"


def read_parent(text: str) -> Parent | None:
    match = _PARENT.fullmatch(text)
    return Parent(match[1], int(match[2]) if match[2] else None) if match else None


def write_money(value: Money) -> str:
    return f"{value.amount:f} {value.currency}"


def read_money(text: str) -> Money | None:
    match = _MONEY.fullmatch(text)
    return Money(Decimal(match[1]), match[2]) if match else None


def write_question(value: Question) -> str:
    data: dict[str, Json] = {"text": value.text}
    if value.choices:
        data["choices"] = list(value.choices)
    if value.default is not None:
        data["default"] = value.default
    if value.deadline is not None:
        data["deadline"] = write_time(value.deadline)
    if value.kind != "question":
        data["kind"] = value.kind
    return write_json({**data, **value.more})


def read_question(text: str) -> Question | None:
    data = read_json(text)
    if not isinstance(data, dict):
        return None
    words, choices, default = data.pop("text", None), data.pop("choices", []), data.pop("default", None)
    kind, until = data.pop("kind", "question"), data.pop("deadline", None)
    deadline = read_time(until) if isinstance(until, str) else None
    if until is not None and deadline is None:
        return None
    if not isinstance(words, str) or not isinstance(kind, str) or not isinstance(choices, list):
        return None
    if not all(isinstance(choice, str) for choice in choices) or not (default is None or isinstance(default, str)):
        return None
    return Question(words, tuple(choices), default, deadline, kind, data)
