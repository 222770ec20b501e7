"""The public names: exported, typed, and light to import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import rawko_state
from rawko_state.model.entries import Turn

_SNIPPET = """
import rawko_state as rawko
from rawko_state import FileStore, LiveTurn, MemoryStore, RemoteStore, Store, Task, Turn, aio


def ways_in(store: Store) -> None:
    store.nonexistent()  # wrong
    rawko.open(".").nonexistent()  # wrong
    store.start("x").nonexistent()  # wrong
    store.open_task("k:1", "x").nonexistent()  # wrong
    store.resume("abc").nonexistent()  # wrong
    store.attach("abc").nonexistent()  # wrong
    store.fork("abc", 1).nonexistent()  # wrong
    FileStore(".").start("x").nonexistent()  # wrong
    MemoryStore().open_task("k:1", "x").nonexistent()  # wrong
    RemoteStore("http://localhost").resume("abc").nonexistent()  # wrong
    with store.start("x") as task, task.turn("dev") as turn:
        task.nonexistent()  # wrong
        turn.nonexistent()  # wrong
        task.add_turn(Turn(agent="dev", contents="x"))  # wrong
        task.add_turn(Turn(agent="dev", content="x")).nonexistent()  # wrong
    rawko.nonexistent  # wrong
    store.turn("abc", 1).nonexistent  # wrong
    store.history(rawko.TaskFilter())[0].nonexistent  # wrong


async def waiting(store: aio.Store) -> None:
    aio.open(".").nonexistent()  # wrong
    (await store.start("x")).nonexistent()  # wrong
    async with store.start("x") as task, task.turn("dev") as turn:
        await task.nonexistent()  # wrong
        await turn.nonexistent()  # wrong
        turn.say(1)  # wrong
        await turn.say("right")
    async for record in store.records("abc"):
        record.nonexistent  # wrong


def right(task: Task, turn: LiveTurn) -> str:
    row: list[rawko.TurnRow] = []
    said: rawko.Appended = task.add_turn(Turn(agent="dev", sections=(rawko.Section("Plan", "x"),)))
    return said.seal + turn.agent + str(row)
"""


def test_what_is_exported_is_there_and_shown() -> None:
    assert set(rawko_state.__all__) <= set(dir(rawko_state))
    for name in rawko_state.__all__:
        assert getattr(rawko_state, name).__name__ in (name, f"rawko_state.{name}", "Any")
    homes = {name for names in rawko_state._HOMES.values() for name in names.split()}
    assert homes | {"aio", "open"} == set(rawko_state.__all__)
    with pytest.raises(AttributeError):
        _ = rawko_state.nonexistent  # type: ignore[attr-defined]


def test_one_name_loads_only_its_module() -> None:
    program = "import rawko_state, sys; rawko_state.TaskBusy; print(*(n for n in sys.modules if n.startswith('rawko')))"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert set(said.split()) == {"rawko_state", "rawko_state.version", "rawko_state.errors"}


def test_a_turn_needs_no_number() -> None:
    with rawko_state.open(":memory:") as store, store.start("x") as task:
        assert task.add_turn(Turn(agent="dev", content="one")).state.turns == 1
        assert task.add_turn(Turn(agent="dev", content="two", number=7)).state.turns == 2


@pytest.mark.every
def test_a_type_checker_finds_misspelt_names_through_every_way_in(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(_SNIPPET)
    words = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "agent.py"]
    said = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False).stdout
    wrong = {number for number, line in enumerate(_SNIPPET.splitlines(), 1) if "# wrong" in line}
    assert {int(line.split(":")[1]) for line in said.splitlines() if ": error:" in line} == wrong
