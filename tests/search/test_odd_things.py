"""Search: what counts as a match, that folding changes nothing but the time, and that nothing can break it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rawko_state.backends.files import flush
from rawko_state.backends.files.store import FileStore
from rawko_state.model.entries import ToolCall, Turn
from rawko_state.search import whoosh_index
from rawko_state.store import TIME, TaskFilter
from tests.search.searching import (
    ids,
    said,
)


class TestOddThings:
    """Found by trying to break it."""

    @pytest.mark.parametrize(
        ("content", "query"),
        [
            ("test_" + "_".join(f"part{n}" for n in range(60)), "part7"),
            ("数据库连接失败" * 40, "连接"),
            (" ".join(f"w{n}" for n in range(80)), '"' + " ".join(f"w{n}" for n in range(45)) + '"'),
        ],
    )
    def test_a_match_longer_than_an_excerpt(self, store: FileStore, content: str, query: str) -> None:
        said(store, content)
        for _ in range(2):
            (hit,) = store.search(query).hits
            assert hit.highlights
            assert all(0 <= first < last <= len(hit.excerpt) for first, last in hit.highlights)
            store.flush()

    def test_phrases_take_no_exponential_time(self, store: FileStore) -> None:
        said(store, "foo_bar " * 60 + "end zzz")
        began = time.process_time()
        for _ in range(2):
            assert ids(store, '"' + "foo_bar " * 40 + 'zzz"') == []
            assert len(ids(store, '"' + "foo_bar " * 40 + '"')) == 1
            store.flush()
        assert time.process_time() - began < 20

    def test_the_terms_of_a_fold_are_not_freed_at_once(self, store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
        """Freeing millions of values in one go keeps other threads waiting."""
        pages, writers = [], []
        add, empty = whoosh_index.Terms.index, whoosh_index._empty
        monkeypatch.setattr(whoosh_index.Terms, "index", lambda *given: pages.append(given[1]) or add(*given))
        monkeypatch.setattr(whoosh_index, "_empty", lambda writer: writers.append(writer) or empty(writer))
        task_id = said(store, " ".join(f"w{n}" for n in range(300)))
        store.flush()
        assert not any(terms for page in pages for terms in page.terms.values())
        kept = [writer.fieldwriter._tindex.buckets for writer in writers]
        assert kept
        assert not any(bucket for buckets in kept for bucket in buckets)
        assert ids(store, "w299") == [task_id]

    def test_long_and_deep_queries(self, store: FileStore) -> None:
        task_id = said(store, "the quick fox " * 1_000)
        assert ids(store, '"' + "the quick fox " * 700 + '"') == [task_id]
        assert ids(store, "NOT " * 700 + "fox") == [task_id]
        assert ids(store, "NOT " * 701 + "fox") == []
        assert store.search("NOT " * 700 + "quicj").hits == ()
        assert ids(store, "(" * 40 + "fox" + ")" * 40) == [task_id]
        assert store.search("(" * 400 + "fox" + ")" * 400).hint is not None
        assert ids(store, " ".join(["fox"] * 3_000)) == [task_id]

    def test_text_that_the_file_holds_escaped(self, store: FileStore) -> None:
        task_id = said(store, "größe\x00 数据库 kaffee")
        with store.start("x") as task:
            task.finish("failure", error="\x1b[31mungültige größe\x1b[0m")
        for _ in range(2):
            assert set(ids(store, "größe")) == {task_id, task.id}
            assert ids(store, "数据库") == [task_id]
            assert ids(store, "ungültige") == [task.id]
            store.flush()

    def test_words_behind_colours(self, store: FileStore) -> None:
        output = (
            "\x1b[0m\x1b[1m\x1b[38;5;9merror[E0308]\x1b[0m: \x1b[1mmismatched types\x1b]8;;http://x\x07link\x1b]8;;\x07"
        )
        with store.start("x") as task:
            task.add_turn(
                Turn(
                    number=1,
                    agent="d",
                    tools=(ToolCall("shell.exec", "cargo\nbuild", "ok", "10:30:05", output=output),),
                )
            )
        for _ in range(2):
            for word in ("error", "mismatched", "error[E0308]", "types", "link"):
                assert ids(store, word) == [task.id], word
            store.flush()

    def test_signs_on_letters_are_letters(self, store: FileStore) -> None:
        task_id = said(store, "दान İstanbul SHA256sum")
        for _ in range(2):
            assert ids(store, "दिन") == []
            assert ids(store, "दान") == [task_id]
            assert ids(store, "İSTANBUL") == [task_id]
            assert ids(store, "sha256") == [task_id]
            store.flush()

    def test_many_unknown_words_read_the_tail_once(self, store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
        said(store, "needle")
        looks = []
        from rawko_state.search.turn_text import Documents

        real = Documents.vocabulary
        monkeypatch.setattr(Documents, "vocabulary", lambda *given: (looks.append(1), real(*given))[1])
        assert store.search(" ".join(f"unknown{n}" for n in range(50))).suggestion is None
        assert len(looks) <= 1

    def test_a_folded_file_that_is_edited_in_place(self, store: FileStore) -> None:
        task_id = said(store, "needle here")
        store.flush()
        path = store.journal.layout.path(store.find(task_id))
        with open(path, "r+b") as stream:
            data = stream.read().replace(b"needle", b"poodle")
            stream.seek(0)
            stream.write(data)
        assert ids(store, "needle") == []
        assert ids(store, "here") == [task_id]
        assert ids(store, "poodle") == [task_id]

    def test_a_file_that_cannot_be_read_is_not_taken_for_folded(
        self, store: FileStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from rawko_state.errors import StorageError

        found, lost = said(store, "needle"), said(store, "needle")
        real = flush.open_reader

        def refuses(path: Path) -> object:
            if lost in path.name:
                raise StorageError("no", str(path))
            return real(path)

        with monkeypatch.context() as patched:
            patched.setattr(flush, "open_reader", refuses)
            store.flush()
        assert store.unflushed() > 0
        assert sorted(ids(store, "needle")) == sorted([found, lost])
        store.flush()
        assert store.unflushed() == 0
        assert sorted(ids(store, "needle")) == sorted([found, lost])

    def test_an_unreadable_file_is_told_of(self, store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
        from rawko_state.errors import StorageError

        said(store, "needle")

        def refuses(path: str) -> object:
            raise StorageError("no", path)

        monkeypatch.setattr(store.journal, "reader_at", refuses)
        with pytest.warns(RuntimeWarning, match="could not be read and were not searched"):
            assert ids(store, "needle") == []

    def test_two_homes_leave_each_other_alone(
        self, store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found = said(store, "needle")
        store.flush()
        before = sorted(path.name for path in (store.root / ".rawko/state/search").iterdir())
        with monkeypatch.context() as patched:
            patched.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
            assert ids(store, "needle") == [found]
            assert store.flush() == 0
        assert store.unflushed() == 0
        assert ids(store, "needle") == [found]
        assert before == sorted(path.name for path in (store.root / ".rawko/state/search").iterdir())

    def test_a_search_folder_in_the_way_of_a_reindex(self, store: FileStore) -> None:
        found = said(store, "needle")
        (store.root / ".rawko/state/search").mkdir()
        (store.root / ".rawko/state/search/fold.lock").mkdir()
        with pytest.warns(RuntimeWarning, match="Searching the task files instead"):
            assert store.reindex() == []
        assert ids(store, "needle") == [found]

    @pytest.mark.parametrize(
        "query", ["label:=x", 'label:"a b=c"', "label:ä=b", "agent:\udcff", "file:a\x00b", "id:\x1b"]
    )
    def test_a_field_with_a_value_that_nothing_can_have(self, store: FileStore, query: str) -> None:
        said(store, "needle")
        answer = store.search(query)
        assert answer.hits == ()
        assert answer.hint is not None

    def test_the_oldest_of_many(self, store: FileStore) -> None:
        from datetime import datetime, timezone

        made = [said(store, "needle", created=datetime(2020 + n, 1, 1, tzinfo=timezone.utc)) for n in range(5)]
        answer = store.search("needle", TaskFilter(sort=TIME, reverse=True, limit=2))
        assert [hit.task.id for hit in answer.hits] == made[:2]

    def test_a_word_late_in_a_long_turn(self, store: FileStore) -> None:
        said(store, "lesson " + "filler " * 30_000 + "the sso callback")
        (hit,) = store.search("sso").hits
        assert [hit.excerpt[first:last] for first, last in hit.highlights] == ["sso"]

    def test_a_phrase_in_a_very_large_turn(self, store: FileStore) -> None:
        import tracemalloc

        said(store, "lazy dogs and a quick fox " * 200_000 + " lazy fox")
        store.flush()
        tracemalloc.start()
        assert len(ids(store, '"lazy fox"')) == 1
        assert ids(store, '"fox and"') == []
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 150e6
