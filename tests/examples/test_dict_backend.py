"""The backend in examples/ passes the whole suite, and keeps its promises when its place fails."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from examples.dict_backend import DictStore, Shelf
from rawko_state import TaskFilter, Turn
from rawko_state.testing import HostedConformance, StoreConformance


@pytest.mark.every
class TestDictionary(StoreConformance, HostedConformance):
    @pytest.fixture
    def shelf(self) -> Shelf:
        return Shelf()

    @pytest.fixture
    def store(self, shelf: Shelf, tmp_path: Path) -> DictStore:
        return DictStore(shelf, root=tmp_path)

    @pytest.fixture
    def another(self, shelf: Shelf, tmp_path: Path) -> DictStore:
        return DictStore(shelf, root=tmp_path)


def test_the_one_on_the_page_works(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "howto" / "write-a-backend.md").read_text(encoding="utf-8")
    found: dict[str, Any] = {}
    exec(page.split("```python\n")[1].split("```")[0], found)
    values: dict[str, bytes] = {}
    with found["DictStore"](values, threading.Lock(), root=tmp_path).start("Say hello") as task:
        task.add_turn(Turn(agent="greeter", content="Hello."))
    (data,) = (data for key, data in values.items() if key.startswith("tasks/"))
    assert b"Hello." in data


class Failing(DictStore):
    fails = False

    def save(self, key: str, data: bytes) -> None:
        if self.fails:
            raise OSError("the place is full")
        super().save(key, data)


class TestFailures:
    def test_an_append_that_was_not_saved_is_not_seen(self, tmp_path: Path) -> None:
        store = Failing(Shelf(), root=tmp_path)
        with store.open_task("k:1", "x") as task:
            task.add_turn(Turn(agent="dev", content="one"))
            store.fails = True
            with pytest.raises(OSError, match="full"):
                task.add_turn(Turn(agent="dev", content="lost"))
            store.fails = False
            task.add_turn(Turn(agent="dev", content="two"))
        assert [turn.content for turn in store.turns(task.id)] == ["one", "two"]
        (verdict,) = store.verify(task.id)
        assert verdict.faults == []

    def test_a_task_that_was_not_saved_is_not_there(self, tmp_path: Path) -> None:
        store = Failing(Shelf(), root=tmp_path)
        store.fails = True
        with pytest.raises(OSError, match="full"):
            store.start("x", detached=True)
        store.fails = False
        assert store.history(TaskFilter()) == []

    def test_stores_that_append_at_once_lose_nothing(self, tmp_path: Path) -> None:
        shelf = Shelf()
        stores = [DictStore(shelf, root=tmp_path) for _ in range(4)]

        def work(store: DictStore) -> None:
            with store.open_task("k:1", "x") as task:
                for number in range(10):
                    task.note(kind="n", data=number)

        threads = [threading.Thread(target=work, args=(store,)) for store in stores]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (task,) = stores[0].history(TaskFilter())
        assert sorted(note.data for note in stores[1].notes(task.id, "n")) == sorted([*range(10)] * 4)
