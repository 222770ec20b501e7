"""Values behave as frozen dataclasses with slots do, and are cheap to define."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from rawko_state.model.entries import Parent, ToolCall, Turn
from rawko_state.model.frozen import Frozen, field, replace


class Base(Frozen, kw_only=True):
    extra: tuple[str, ...] = ()


class Point(Base):
    x: int
    y: int = 2
    names: Mapping[str, int] = field(default_factory=dict)

    @property
    def sum(self) -> int:
        return self.x + self.y


class Checked(Frozen):
    x: int

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError("negative")


class Other(Frozen):
    x: int
    y: int = 2


@dataclasses.dataclass(frozen=True)
class Twin:
    extra: tuple[str, ...] = dataclasses.field(default=(), kw_only=True)
    x: int
    y: int = 2
    names: Mapping[str, int] = dataclasses.field(default_factory=dict)


def test_construction_takes_what_a_dataclass_takes() -> None:
    assert Point(1).sum == 3
    assert Point(x=1, y=5, extra=("a",)).extra == ("a",)
    wrong: list[Any] = [((), {}), ((1, 2, {}, ()), {}), ((1,), {"z": 1}), ((1,), {"x": 1})]
    for given, named in wrong:
        with pytest.raises(TypeError):
            Point(*given, **named)
        with pytest.raises(TypeError):
            Twin(*given, **named)


def test_signature_is_that_of_a_dataclass() -> None:
    def shape(kind: Any) -> list[tuple[str, Any]]:
        return [(each.name, each.kind) for each in inspect.signature(kind).parameters.values()]

    assert shape(Point) == shape(Twin)


def test_default_made_anew_for_each() -> None:
    assert Point(1).names is not Point(1).names


def test_equality_and_hash() -> None:
    assert Point(1) == Point(1) != Point(2)
    assert Other(1) != Checked(1)
    assert Other(1) != (1, 2)
    assert len({Parent("a", 1), Parent("a", 1), Parent("b")}) == 2
    with pytest.raises(TypeError, match="unhashable"):
        hash(Point(1))


def test_repr_is_that_of_a_dataclass() -> None:
    assert repr(Point(1)) == repr(Twin(1)).replace("Twin", "Point")


def test_frozen() -> None:
    point: Any = Point(1)
    for change in (lambda: setattr(point, "x", 2), lambda: setattr(point, "new", 2), lambda: delattr(point, "x")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            change()
    assert not hasattr(point, "__dict__")


def test_check_after_construction() -> None:
    with pytest.raises(ValueError, match="negative"):
        Checked(-1)
    with pytest.raises(ValueError, match="negative"):
        replace(Checked(1), x=-1)


@pytest.mark.parametrize("change", [replace, dataclasses.replace])
def test_replace(change: Any) -> None:
    assert change(Point(1, extra=("a",)), y=7) == Point(1, 7, extra=("a",))
    with pytest.raises(TypeError):
        change(Point(1), z=7)


def test_functions_of_dataclasses() -> None:
    assert dataclasses.is_dataclass(Point)
    assert dataclasses.asdict(Point(1)) == dataclasses.asdict(Twin(1))
    shape = [(each.name, each.default, each.kw_only) for each in dataclasses.fields(Point)]
    assert shape == [(each.name, each.default, each.kw_only) for each in dataclasses.fields(Twin)]
    assert [each.name for each in dataclasses.fields(Base)] == ["extra"]


def test_copies_and_pickles() -> None:
    turn = Turn(number=3, agent="dev", tools=(ToolCall("x", more={"a": 1}),))
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(turn, protocol)) == turn
    assert copy.copy(turn) == copy.deepcopy(turn) == turn
    assert copy.deepcopy(turn).tools[0].more is not turn.tools[0].more  # type: ignore[union-attr]


def test_match() -> None:
    match Point(1):
        case Point(x, y):
            assert (x, y) == (1, 2)


def test_a_class_of_ones_own() -> None:
    class Mine(Turn, kw_only=True):
        mood: str = "good"

    mine = Mine(number=1, agent="dev")
    assert (mine.mood, mine.content, isinstance(mine, Turn)) == ("good", None, True)
    assert mine != Turn(number=1, agent="dev")


def test_defining_values_compiles_nothing() -> None:
    code = (
        "import sys, builtins; found = []; real = builtins.exec; "
        "builtins.exec = lambda *a, **k: (found.append(a[0]) if isinstance(a[0], str) else None, real(*a, **k))[1]; "
        "import rawko_state.model.entries, rawko_state.store.values; "
        "sys.exit(str(found) if any('__init__' in each for each in found) or 'dataclasses' in sys.modules else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
