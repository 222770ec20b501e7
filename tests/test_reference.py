"""The examples in the docstrings of public names are true, and every public name has one."""

from __future__ import annotations

import asyncio
import builtins
import doctest
import inspect
import re
import typing
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import rawko_state
import rawko_state.backend
from docs.tools.make_api import documented, fields_of, signature_of
from rawko_state import ToolCall, Turn

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL
NAMES = dict(documented())


def surroundings(name: str, folder: Path) -> dict[str, Any]:
    """What the examples stand in: a store with a finished task, a running task and its live turn."""
    store = rawko_state.open(":memory:")
    with store.start("Fix the login bug", agent="developer", source="tickets:17", id="fix0001") as done:
        done.decide(selected="developer", reason="small enough")
        call = ToolCall("filesystem.write", "auth/sso.rs", "2156 bytes", output="ok")
        said = "The token check ignores clock skew."
        done.add_turn(Turn(agent="developer", status="complete", content=said, tools=(call,), state={"step": 1}))
        done.note("seen by Ann", kind="review", data={"ok": True})
        done.finish("success", "Fixed the token check", files=["auth/sso.rs"])
    public = {each: getattr(rawko_state, each) for each in rawko_state.__all__ if each != "open"}
    found: dict[str, Any] = {
        **public,
        "rawko": rawko_state,
        "store": store,
        "folder": folder,
        "Decimal": Decimal,
        "asyncio": asyncio,
    }
    if not name.startswith(("Store", "Usage", "Stats")):
        found["task"] = store.start("Add a test")
    if name.startswith("LiveTurn."):
        found["turn"] = found["task"].turn("developer")
    return found


@pytest.mark.parametrize("name", NAMES)
def test_the_example_of(name: str, tmp_path: Path) -> None:
    text = inspect.getdoc(NAMES[name]) or ""
    assert ">>>" in text, f"{name} has no example"
    test = doctest.DocTestParser().get_doctest(text, surroundings(name, tmp_path), name, None, None)
    said: list[str] = []
    doctest.DocTestRunner(optionflags=FLAGS).run(test, out=said.append)
    assert said == []


def test_every_public_name_is_documented() -> None:
    assert set(rawko_state.__all__) - {"Json", "aio"} <= set(NAMES)


def _methods() -> Iterator[str]:
    for name in ("Store", "Task", "LiveTurn"):
        for each in dir(getattr(rawko_state.aio, name)):
            if not each.startswith("_") and callable(getattr(getattr(rawko_state, name), each, None)):
                yield f"{name}.{each}"


def test_so_is_every_method_that_there_is_with_await() -> None:
    assert set(_methods()) - set(NAMES) == set()


def test_every_type_in_a_public_signature_or_field_is_public() -> None:
    public = {*rawko_state.__all__, *rawko_state.aio.__all__, *rawko_state.backend.__all__}
    told = [signature_of(name, value) or "" for name, value in NAMES.items()]
    told += [member.kind.partition(" = ")[0] for value in NAMES.values() for member in fields_of(value)]
    named = {word for text in told for word in re.findall(r"\b[A-Z]\w+", text)}
    assert named - public - {*dir(builtins), *dir(typing), "Path", "AbstractContextManager", "Decimal"} == set()
