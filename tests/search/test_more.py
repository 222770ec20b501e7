"""Search: what counts as a match, that folding changes nothing but the time, and that nothing can break it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from rawko_state.backends.files.store import FileStore
from rawko_state.index import flushed
from rawko_state.model.entries import Turn
from rawko_state.search import engine, scoring
from rawko_state.search.pages import Page, TurnRef
from rawko_state.search.turn_text import Documents
from tests.search.searching import (
    ids,
    said,
)


def test_threads_may_search_at_once(store: FileStore) -> None:
    for number in range(5):
        said(store, f"needle n{number}")
    store.flush()
    found: list[int] = []

    def ask() -> None:
        own = FileStore(store.root)
        found.append(len(own.search("needle").hits))
        own.close()

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [5] * 4


def test_only_what_is_shown_is_settled(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty of many are wanted, so not all files are opened."""
    for number in range(40):
        said(store, f"getUser n{number}")
    store.flush()
    settled = []
    real = engine._Settler._candidates

    def counted(self: engine._Settler, task: engine._Task) -> object:
        settled.append(task.id)
        return real(self, task)

    monkeypatch.setattr(engine._Settler, "_candidates", counted)
    assert len(ids(store, "getUser", limit=3)) == 3
    assert len(settled) == 3


def test_tasks_that_stand_far_back_are_not_looked_at(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A common word is in most tasks; the best few of a page are enough."""
    for number in range(40):
        said(store, "getUser " * (number + 1) + "and something else " * (40 - number))
    store.flush()
    looked_at = []
    real = engine._Line._look_at

    def counted(self: engine._Line, task_id: str, *rest: Any) -> bool:
        looked_at.append(task_id)
        return real(self, task_id, *rest)

    everything = ids(store, "getUser")
    monkeypatch.setattr(engine._Line, "_look_at", counted)
    assert ids(store, "getUser", limit=3) == everything[:3]
    assert len(everything) == 40
    assert len(looked_at) < 10


@pytest.mark.parametrize(
    "query", ["getUser nowhere", "nowher* getUser", '"getUser nowhere"', "getUser (nowhere OR never)"]
)
def test_no_task_is_looked_at_for_a_word_that_nobody_said(
    store: FileStore, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    """As somebody types, most queries are such."""
    task = said(store, "getUser")
    store.flush()
    looked_at = []
    real = engine._Line._look_at

    def counted(self: engine._Line, task_id: str, *rest: Any) -> bool:
        looked_at.append(task_id)
        return real(self, task_id, *rest)

    monkeypatch.setattr(engine._Line, "_look_at", counted)
    assert ids(store, query) == []
    assert looked_at == []
    assert ids(store, "getUser NOT nowhere") == [task]
    assert ids(store, "getUser OR nowhere") == [task]


def test_pages_that_stand_far_back_are_not_scored(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a common word costs the same in a long history."""
    for times in (40, 1, 1, 2, 2):
        for _ in range(3):
            said(store, "skew " * times + "and something else " * 40)
        store.flush()
    scored = []
    real = scoring._Word.holders

    def counted(self: scoring._Word, page: Page) -> object:
        scored.append(page)
        return real(self, page)

    everything = ids(store, "skew")
    monkeypatch.setattr(scoring._Word, "holders", counted)
    assert ids(store, "skew", limit=2) == everything[:2]
    assert len(scored) == 1


def test_of_a_task_without_the_phrase_few_turns_are_read(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most turns hold the words of a phrase of common words. Only those that could stand further ahead are read."""
    for number in range(10):
        short, long = "clock users skew", "users clock skew " + "and something else " * (40 + number)
        said(store, "clock skew users", short, *[long] * 9)
    store.flush()
    read = []
    real = Documents.data

    def counted(self: Documents, path: str, places: Sequence[TurnRef]) -> object:
        read.extend(places)
        return real(self, path, places)

    everything = ids(store, '"clock skew users"')
    monkeypatch.setattr(Documents, "data", counted)
    assert ids(store, '"clock skew users"', limit=3) == everything[:3]
    assert len(everything) == 10
    assert len(read) <= 20  # both of the short turns of each task, of 110


def test_a_task_in_several_pages_stands_where_its_best_turn_does(store: FileStore) -> None:
    """Its other page is reached later, and adds nothing twice."""
    with store.start("do it") as task:
        task.add_turn(_turn("needle " + "and something else " * 40))
        other = said(store, "needle needle " + "and something else " * 20)
        store.flush()
        assert ids(store, "needle") == [other, task.id]
        task.add_turn(_turn("needle needle needle"))
        store.flush()
        assert ids(store, "needle") == [task.id, other]
        hits = store.search("needle", turns=True).hits
    assert sorted((hit.task.id == other, hit.turn) for hit in hits) == [(False, 1), (False, 2), (True, 1)]


def _turn(content: str) -> Turn:
    return Turn(number=1, agent="developer", status="complete", content=content)


def test_what_is_folded_is_no_part_of_what_is_derived(store: FileStore) -> None:
    said(store, "needle")
    before = store.sync.fresh().dump()
    store.flush()
    assert flushed.pending(store.sync.index()) == []
    assert store.sync.index().dump() == before
