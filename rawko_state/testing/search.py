"""Tests for search."""

from __future__ import annotations

from typing import Any

from rawko_state.model.entries import FileTouch
from rawko_state.store import TaskFilter
from rawko_state.store.contract import Store
from rawko_state.testing.common import said


class SearchConformance:
    """Level ``search``. Subclass it and supply ``store`` and ``another``."""

    def test_search_is_fresh_to_the_last_append(self, store: Store, another: Store) -> None:
        task = store.start("Fix the tokenValidation in auth/sso.rs", detached=True)
        other = store.start("Something else", detached=True)
        task.add_turn(said(content="The clock skew is ignored."))

        def found(query: str, **wanted: Any) -> list[str]:
            return [hit.task.id for hit in another.search(query, TaskFilter(sort="relevance", **wanted)).hits]

        assert found("skew") == [task.id]
        assert found('"clock skew"') == [task.id]
        assert found('"skew clock"') == []
        assert found("token validation sso") == [task.id]
        assert found("valid*") == [task.id]
        assert found("skew OR else") in ([task.id, other.id], [other.id, task.id])
        assert found("NOT skew") == [other.id]
        assert found("skew", status=("failed",)) == []
        (hit,) = another.search("skew").hits
        assert (hit.kind, hit.turn, hit.agent) == ("turn", 1, "dev")
        assert [hit.excerpt[first:last] for first, last in hit.highlights] == ["skew"]
        other.add_turn(said(content="another skew"))
        assert set(found("skew")) == {task.id, other.id}
        assert another.search("skevv").suggestion in ("skew", None)

    def test_what_is_counted(self, store: Store, another: Store) -> None:
        for number in range(3):
            with store.start("x", detached=number == 2) as task:
                task.add_turn(said(files=(FileTouch("write", f"src/{number}.py"),)))
        stats = another.stats(TaskFilter())
        assert (stats.tasks, stats.turns) == (3, 3)
        assert stats.by_status == {"completed": 2, "running": 1}
        assert stats.by_file["src/1.py"] == 1
