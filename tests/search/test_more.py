"""Search: what counts as a match, that folding changes nothing but the time, and that nothing can break it."""

from __future__ import annotations

import threading

import pytest

from rawko_state.backends.files.store import FileStore
from rawko_state.index import flushed
from rawko_state.search import engine
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
    real = engine._Settler.documents

    def counted(self: engine._Settler, task: engine._Task) -> list[engine.Found]:
        settled.append(task.id)
        return real(self, task)

    monkeypatch.setattr(engine._Settler, "documents", counted)
    assert len(ids(store, "getUser", limit=3)) == 3
    assert len(settled) == 3


def test_what_is_folded_is_no_part_of_what_is_derived(store: FileStore) -> None:
    said(store, "needle")
    before = store.sync.fresh().dump()
    store.flush()
    assert flushed.pending(store.sync.index()) == []
    assert store.sync.index().dump() == before
