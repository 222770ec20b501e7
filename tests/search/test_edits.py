"""Search: what counts as a match, that folding changes nothing but the time, and that nothing can break it."""

from __future__ import annotations

import pytest

from rawko_state.backends.files import flush
from rawko_state.backends.files.store import FileStore
from rawko_state.model.entries import Turn
from rawko_state.search import whoosh_index
from rawko_state.store import TIME, TaskFilter
from tests.search.searching import (
    ids,
    said,
)


class TestEdits:
    def test_a_file_edited_by_hand(self, store: FileStore) -> None:
        task_id = said(store, "needle one", "needle two")
        store.flush()
        path = store.journal.layout.path(store.find(task_id))
        path.write_bytes(path.read_bytes().replace(b"needle two", b"thimble 22"))
        store.summary(task_id)  # looks at the file
        for _ in range(2):
            assert [hit.turn for hit in store.search("needle", turns=True).hits] == [1]
            assert [hit.turn for hit in store.search("thimble").hits] == [2]
            store.flush()

    def test_an_edit_while_it_is_being_folded(self, store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
        task_id = said(store, "needle")
        path = store.journal.layout.path(store.find(task_id))
        write = whoosh_index.write

        def edited(*arguments: object) -> None:
            write(*arguments)  # type: ignore[arg-type]
            path.write_bytes(path.read_bytes().replace(b"needle", b"thimbl"))
            other = FileStore(store.root)
            other.summary(task_id)
            other.close()

        with monkeypatch.context() as patched:
            patched.setattr(whoosh_index, "write", edited)
            store.flush()
        for _ in range(2):
            assert ids(store, "needle") == []
            assert ids(store, "thimbl") == [task_id]
            store.flush()

    def test_a_task_that_is_gone(self, store: FileStore) -> None:
        gone, stays = said(store, "needle"), said(store, "needle")
        store.flush()
        store.journal.layout.path(store.find(gone)).unlink()
        assert ids(store, "needle") == [stays]

    def test_a_task_that_grows(self, store: FileStore) -> None:
        with store.start("x", detached=True) as task:
            for number in range(30):
                task.add_turn(Turn(number=1, agent="d", status="complete", content=f"needle n{number}"))
                store.flush()
        assert [hit.turn for hit in store.search("needle", TaskFilter(sort=TIME), turns=True).hits] == list(
            range(1, 31)
        )

    def test_many_small_segments_become_one(self, store: FileStore) -> None:
        for number in range(20):
            said(store, f"needle n{number}")
            store.flush()
        index = store.sync.fresh()
        where = flush.place(index, store.root)
        assert where is not None
        assert where.name is not None
        opened = whoosh_index.WhooshIndex.open(where.folder, where.name)
        assert len(opened.segments) < 10
        opened.close()
        assert len(ids(store, "needle")) == 20

    def test_a_damaged_record_and_a_torn_one(self, store: FileStore) -> None:
        task_id = said(store, "needle one", "needle two", "needle three")
        path = store.journal.layout.path(store.find(task_id))
        path.write_bytes(
            path.read_bytes().replace(b"needle two", b"needle 222") + b"--- Turn 9: x ---\n\n[Content]\nneedle torn"
        )
        store.summary(task_id)
        for _ in range(2):
            assert [hit.turn for hit in store.search("needle", TaskFilter(sort=TIME), turns=True).hits] == [1, 2, 3]
            assert ids(store, "torn") == []
            store.flush()

    def test_a_very_large_turn(self, store: FileStore) -> None:
        large = "filler text " * 300_000 + " needle at the end"
        task_id = said(store, large, "thimble")
        for _ in range(2):
            (hit,) = store.search("needle").hits
            assert (hit.task.id, hit.turn) == (task_id, 1)
            assert [hit.excerpt[a:b] for a, b in hit.highlights] == ["needle"]
            store.flush()
