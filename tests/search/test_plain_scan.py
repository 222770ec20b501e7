"""Search: what counts as a match, that folding changes nothing but the time, and that nothing can break it."""

from __future__ import annotations

import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rawko_state.backends.files.store import FileStore
from rawko_state.model.entries import Turn
from tests.search.searching import (
    holds,
    plain_match,
    queries,
    tasks,
    words_in,
    written,
)


class TestAgainstAPlainScan:
    @settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
    @given(tasks, st.lists(queries, min_size=1, max_size=6), st.lists(st.integers(0, 2), min_size=5, max_size=5))
    def test_the_same_is_found_whatever_part_is_folded(
        self,
        tmp_path_factory: pytest.TempPathFactory,
        made: list[list[str]],
        asked: list[tuple[str, object]],
        folds: list[int],
    ) -> None:
        root = tmp_path_factory.mktemp("p")
        store = FileStore(root)
        texts: dict[str, list[str]] = {}
        half: list[tuple[str, list[str]]] = []
        for number, contents in enumerate(made):
            with store.start("please", detached=True) as task:
                texts[task.id] = ["please", "developer"]
                cut = len(contents) // 2 if folds[number] == 2 else len(contents)
                for content in contents[:cut]:
                    task.add_turn(Turn(number=1, agent="developer", status="complete", content=content))
                    texts[task.id].append(content)
                half.append((task.id, contents[cut:]))
            if folds[number]:
                store.flush()
        for task_id, rest in half:
            with store.attach(task_id) as task:
                for content in rest:
                    task.add_turn(Turn(number=1, agent="developer", status="complete", content=content))
                    texts[task_id].append(content)
        self._compare(store, texts, asked)
        shutil.rmtree(root / ".rawko/state/search", ignore_errors=True)
        before = [self._hits(store, query) for query in asked]
        store.close()
        store = FileStore(root, warn=lambda message: None)
        assert before == [self._hits(store, query) for query in asked]
        store.flush()
        assert store.unflushed() == 0
        self._compare(store, texts, asked)
        store.close()
        shutil.rmtree(root)

    def _hits(self, store: FileStore, query: tuple[str, object]) -> list[tuple[str, int | None]]:
        store._warn = lambda message: None
        return sorted((h.task.id, h.offset or 0) for h in store.search(written(query), turns=True).hits)

    def _compare(self, store: FileStore, texts: dict[str, list[str]], asked: list[tuple[str, object]]) -> None:
        for query in asked:
            answer = store.search(written(query), turns=True)
            assert answer.hint is None
            wanted = {task_id for task_id, said in texts.items() if holds(query, said)}
            assert {hit.task.id for hit in answer.hits} == wanted, written(query)
            turns = sorted((hit.task.id, hit.turn) for hit in answer.hits if hit.turn is not None)
            assert turns == sorted(
                (task_id, number)
                for task_id in wanted
                for number, content in enumerate(texts[task_id][2:], 1)
                if any(plain_match(word, content) for word in words_in(query))
            ), written(query)
            assert [hit.task.id for hit in store.search(written(query)).hits] == list(
                dict.fromkeys(hit.task.id for hit in answer.hits)
            )
