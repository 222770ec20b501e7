"""Values as text: what can't be written as it is, is refused, and the error says where it is."""

from __future__ import annotations

from enum import Enum
from typing import Any

import pytest

import rawko_state as rawko
from rawko_state.errors import InvalidValue
from rawko_state.format import fair_json
from rawko_state.format.values import write_json


class Agent(str, Enum):
    DEVELOPER = "developer"


def circle() -> Any:
    found: list[Any] = []
    found.append([found])
    return {"a": found}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (float("nan"), "the value is nan"),
        ({"a": [1, float("-inf")]}, "['a'][1] is -inf"),
        ({"x": {"y": b"q"}}, "['x']['y'] is of type bytes"),
        ([{"a": {1: 2}}], "the name 1 in [0]['a'] is not text"),
        ({"a": (1,)}, "['a'] is a tuple, which would come back as a list"),
        (circle(), "['a'][0][0] contains itself"),
    ],
)
def test_a_value_that_would_not_come_back_equal_is_refused_and_the_error_says_where(value: Any, said: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        write_json(value)
    assert str(caught.value) == f"Not a JSON value: {said}."


def nested(levels: int) -> Any:
    value: Any = "]}" * 3
    for level in range(levels):
        value = {"a\\": value, "]]": 1} if level % 2 else ['"}', value]
    return value


@pytest.mark.parametrize("levels", [201, 900, 100_000])
def test_a_value_that_is_nested_too_deeply_is_refused(levels: int) -> None:
    """Always at the same depth, long before the stack ends: what the garbage collector calls there would fail too."""
    with pytest.raises(InvalidValue, match="Not a JSON value: it is nested more than 200 levels deep"):
        write_json(nested(levels))


@pytest.mark.parametrize("text", ["[" * 201 + "]" * 201, "[" * 100_000, '{"a":' * 900, '["]", ' * 300, "[[]," * 201])
def test_a_text_that_is_nested_too_deeply_is_refused(text: str) -> None:
    for each in (text, text.encode()):
        with pytest.raises(ValueError, match="it is nested more than 200 levels deep"):
            fair_json.loads(each)


def test_what_is_nested_as_deeply_as_it_may_be_comes_back() -> None:
    value = [nested(199), "[" * 300, ["\\" * 3, {}] * 300]
    assert fair_json.loads(write_json(value)) == value


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_depth_is_the_same_wherever_a_large_text_is_cut(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """It is read in pieces, so that other threads are not kept waiting."""
    monkeypatch.setattr(fair_json, "_PIECE", size)
    deep = '["\\\\\\"[[[", {"]": "\\\\"}, ' * 100 + "[[]]"
    assert "".join(fair_json._pieces(deep)) == deep
    assert max(map(len, fair_json._pieces(deep))) <= size + 3
    assert fair_json._depth(deep) == 102
    assert fair_json._depth("[" * 200 + "]" * 200 + "[" * 150) == 200


def test_a_member_of_an_enumeration_is_its_text_everywhere() -> None:
    store = rawko.open(":memory:")
    with store.start("x", exact=True) as task:
        task.add_turn(rawko.Turn(agent=Agent.DEVELOPER, content=Agent.DEVELOPER, payload=Agent.DEVELOPER))
    (turn,) = store.turns(task.id)
    assert (turn.agent, turn.content, turn.payload) == ("developer",) * 3


def test_an_agent_that_is_no_text_is_refused() -> None:
    with rawko.open(":memory:").start("x") as task, pytest.raises(InvalidValue, match="agent must be text"):
        task.add_turn(rawko.Turn(agent=None))  # type: ignore[arg-type]
