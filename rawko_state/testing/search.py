"""Tests for search."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from rawko_state.model.entries import FileTouch, Money, Parent
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

    def test_what_a_run_used_is_counted_once_whoever_tells_it(self, store: Store, another: Store) -> None:
        with store.start("it tells at the end", agent="claude", model="m") as task:
            task.add_turn(said(agent="claude"))
            task.finish(tokens={"in": 100, "out": 10, "cache_read": 7}, cost=Decimal("0.5"))
        with store.start("it tells with each turn", agent="claude", model="m") as task:
            task.add_turn(said(agent="claude", model="m", tokens={"in": 3, "out": 1}, cost=Money(Decimal("0.25"))))
            task.add_turn(said(agent="claude", model="m", cost=Money(Decimal("9"), "EUR")))  # is not added to dollars
        stats = another.stats(TaskFilter())
        assert (stats.tokens_in, type(stats.tokens_in)) == (103, int)
        usage = stats.usage
        assert {row.agent for row in usage} == {"claude"}
        assert sum(row.turns for row in usage) == 3
        assert sum(row.tokens_in or 0 for row in usage) == 103
        assert sum(row.tokens_out or 0 for row in usage) == 11
        assert sum(Decimal(row.cost or 0) for row in usage) == Decimal("0.75")

    def test_what_a_whole_run_cost_leaves_nothing_of_it_to_estimate(self, store: Store, another: Store) -> None:
        tokens = {"in": 100, "out": 10}
        with store.start("its end states the cost", agent="cline", model="m") as task:
            task.add_turn(said(agent="cline", model="m", tokens=tokens))
            task.finish(tokens=tokens, cost=Decimal("0.5"))
        with store.start(
            "it helps", agent="helper", model="m", parent=Parent(task.id), fields={"Parent-Call": "c1"}
        ) as helper:
            helper.add_turn(said(agent="helper", model="m", tokens=tokens))
        with store.attach(task.id) as task:
            task.reopen(message="the next run does not state its cost")
            task.add_turn(said(agent="pi", model="m", tokens={"in": 3, "out": 1}))
        with store.start("a fork", agent="codex", model="m", parent=Parent(task.id)) as fork:
            fork.add_turn(said(agent="codex", model="m", tokens=tokens))
        usage = another.stats(TaskFilter()).usage
        stated = {(row.agent, row.stated) for row in usage}
        assert stated == {("cline", True), ("helper", True), ("pi", False), ("codex", False)}
        assert sum(Decimal(row.cost or 0) for row in usage) == Decimal("0.5")

    def test_a_task_without_turns_is_found_by_the_agent_that_it_is_for(self, store: Store, another: Store) -> None:
        with store.start("nobody answered", agent="codex") as task:
            task.finish("interrupted")
        with store.start("of another", agent="claude") as other:
            other.add_turn(said(agent="codex"))
        found = another.history(TaskFilter(agent="codex"))
        assert {each.id for each in found} == {task.id, other.id}
