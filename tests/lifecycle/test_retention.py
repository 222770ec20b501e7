"""What is kept and what goes: the plan, the trash, packed files, rewriting; and all of them with the process killed in between."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rawko_state.backends.files.store import FileStore
from rawko_state.lifecycle.cleanup import planned
from rawko_state.lifecycle.retention import AGE, COUNT, Policy, plan
from rawko_state.model import status as words
from rawko_state.model.entries import Parent
from rawko_state.store import RetentionRow
from tests.lifecycle.retention import (
    DAY,
    NOW,
    ago,
    filled,
    ids,
    kept,
)


class TestPlan:
    def test_without_limits_nothing_goes(self) -> None:
        assert plan([kept("a", 9999), kept("b", 5000, "failed")], Policy(), NOW).removals == ()

    def test_by_age_then_by_count_oldest_first(self) -> None:
        tasks = [kept("e", 40), kept("d", 31), kept("c", 3), kept("b", 2), kept("a", 1)]
        chosen = plan(tasks, Policy(max_age=30 * DAY, max_count=2), NOW)
        assert [(task.id, rule) for task, rule in chosen.removals] == [("e", AGE), ("d", AGE), ("c", COUNT)]

    def test_protected_tasks_count_and_stay(self) -> None:
        tasks = [kept("p", 90, pinned=True), kept("r", 90, "running"), kept("w", 90, "waiting"), kept("s", 90, "paused"),
                 kept("f", 90, "failed"), kept("i", 90, "interrupted"), kept("x", 90, exempt=True), kept("o", 90), kept("n", 1)]  # fmt: skip
        assert ids(plan(tasks, Policy(max_age=30 * DAY, max_count=3), NOW)) == {"o": AGE, "n": COUNT}
        assert ids(plan(tasks, Policy(max_age=30 * DAY, keep_failed=False), NOW)) == {"f": AGE, "i": AGE, "o": AGE}
        assert ids(plan(tasks, Policy(max_count=0, min_keep=1), NOW)) == {"o": COUNT}

    def test_what_a_kept_task_was_forked_from_stays(self) -> None:
        tasks = [kept("old", 90), kept("mid", 60, parent="old"), kept("new", 1, parent="mid"), kept("other", 70)]
        chosen = plan(tasks, Policy(max_age=30 * DAY), NOW)
        assert ids(chosen) == {"other": AGE}
        assert chosen.protected["old"] == "parent of mid"

    def test_a_cycle_of_parents_ends(self) -> None:
        tasks = [kept("a", 90, parent="b"), kept("b", 90, parent="a"), kept("c", 1, parent="a")]
        assert ids(plan(tasks, Policy(max_age=DAY), NOW)) == {}

    def test_a_task_without_a_time_is_never_old(self) -> None:
        assert plan([kept("a", None)], Policy(max_age=1), NOW).removals == ()

    tasks = st.lists(
        st.builds(
            kept,
            st.text(alphabet="abcdef", min_size=1, max_size=3),
            st.one_of(st.none(), st.floats(0, 100)),
            st.sampled_from([*sorted(words.STATUSES), "later-word"]),
            pinned=st.booleans(),
            exempt=st.booleans(),
            parent=st.one_of(st.none(), st.text(alphabet="abcdef", min_size=1, max_size=3)),
        ),
        unique_by=lambda task: task.id,
        max_size=30,
    )
    policies = st.builds(
        Policy,
        max_age=st.one_of(st.none(), st.integers(0, 120 * DAY)),
        max_count=st.one_of(st.none(), st.integers(0, 30)),
        keep_failed=st.booleans(),
        min_keep=st.integers(0, 12),
        compress_after=st.one_of(st.none(), st.integers(0, 120 * DAY)),
    )

    @given(tasks, policies, st.randoms(use_true_random=False))
    def test_no_rule_takes_what_is_protected_and_the_plan_is_the_same_for_the_same_input(
        self, tasks: list[RetentionRow], policy: Policy, chance: object
    ) -> None:
        chosen = plan(tasks, policy, NOW)
        shuffled = list(tasks)
        chance.shuffle(shuffled)  # type: ignore[attr-defined]
        assert plan(shuffled, policy, NOW) == chosen
        taken = ids(chosen)
        newest = sorted(tasks, key=lambda task: (task.last or "9999", task.id), reverse=True)[: policy.min_keep]
        parents = {task.parent for task in tasks if task.id not in taken}
        for task, rule in chosen.removals:
            assert not task.pinned
            assert not task.exempt
            assert task.status in ("completed", "failed", "cancelled", "interrupted", "unknown")
            assert not (policy.keep_failed and task.status in ("failed", "interrupted"))
            assert task not in newest
            assert task.id not in parents
            if rule == AGE:
                assert policy.max_age is not None
                assert task.last is not None
                assert task.last < ago(policy.max_age / DAY)
            else:
                assert policy.max_count is not None
        if policy.max_count is not None:
            assert len(tasks) - len(taken) >= min(
                policy.max_count, len(tasks) - sum(rule == AGE for rule in taken.values())
            )
        if policy.max_age is None and policy.max_count is None:
            assert not taken
        for task in chosen.packings:
            assert task.status in words.FINISHED
            assert task.id not in taken


class TestParents:
    def test_cleanup_keeps_what_a_fork_refers_to(self, store: FileStore) -> None:
        made = filled(store, 2)
        fork = store.start("fork", parent=Parent(made[0], 1), detached=True)
        fork.finish("success")
        chosen = planned(store, Policy(max_count=1), NOW)
        assert ids(chosen) == {made[1]: COUNT}
