"""Tests for get-or-create by the caller's key, and for ids that the caller brings."""

from __future__ import annotations

import json
import threading

import pytest

from rawko_state.errors import IllegalMove, InvalidValue, TaskExists
from rawko_state.model.entries import Turn
from rawko_state.store import TaskFilter
from rawko_state.store.contract import Store

SECRET = "ghp_" + "a1B2" * 9


class KeyConformance:
    """Part of StoreConformance."""

    def test_a_key_opens_one_task(self, store: Store, another: Store) -> None:
        with store.open_task("langgraph:t1", "first", title="Mine", labels={"a": "b"}) as task:
            assert task.is_new
            task.add_turn(Turn(agent="dev", content="one"))
        with another.open_task("langgraph:t1", "second", title="Other") as again:
            assert (again.id, again.is_new, again.state.turns, again.state.title) == (task.id, False, 1, "Mine")
            again.add_turn(Turn(agent="dev", content="two"))
        assert store.turn(task.id, 2).content == "two"
        assert store.summary(task.id).status == "running"  # closing it does not end it
        assert (store.source(task.id), another.find_source("langgraph:t1")) == ("langgraph:t1", task.id)

    def test_keys_match_exactly(self, store: Store, another: Store) -> None:
        ids = {}
        for key in ("k:t1", "k:t10", "k:T1", "k:t1*", "k:t%", "k:t1 é"):
            with store.open_task(key, "x") as task:
                ids[key] = task.id
        assert len(set(ids.values())) == len(ids)
        for key, task_id in ids.items():
            assert another.find_source(key) == task_id
            assert [each.id for each in another.history(TaskFilter(source=key))] == [task_id]
        assert another.find_source("k:t") is None
        assert another.history(TaskFilter(source="k:")) == []

    def test_a_key_finds_its_task_whoever_runs_it(self, store: Store, another: Store) -> None:
        running = store.start("x", source="k:1")
        with another.open_task("k:1", "y") as task:
            assert (task.id, task.is_new) == (running.id, False)
            task.note("seen", kind="mine")
        running.finish("success")
        with another.open_task("k:1", "y") as task:
            with pytest.raises(IllegalMove):
                task.add_turn(Turn(agent="dev", content="late"))
            task.reopen(detached=True)
            task.add_turn(Turn(agent="dev", content="in time"))
        assert store.turn(running.id, 1).content == "in time"

    def test_of_several_tasks_with_one_key_the_oldest_counts(self, store: Store, another: Store) -> None:
        first = store.start("x", source="k:1", detached=True)
        store.start("y", source="k:1", detached=True)
        found = another.find_source("k:1")
        with another.open_task("k:1", "z") as task:
            assert task.id == found
        assert found == min(each.id for each in another.history(TaskFilter(source="k:1"))) or found == first.id

    def test_threads_that_open_one_key_get_one_task(self, store: Store, another: Store) -> None:
        start, ids, new = threading.Barrier(6), set(), []

        def work(mine: Store) -> None:
            start.wait()
            with mine.open_task("k:race", "x") as task:
                ids.add(task.id)
                new.append(task.is_new)
            mine.close()

        threads = [threading.Thread(target=work, args=(each,)) for each in (store, another) * 3]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(ids), new.count(True)) == (1, 1)
        assert len(store.history(TaskFilter(source="k:race"))) == 1

    def test_a_key_that_holds_a_secret_finds_its_task_again(self, store: Store, another: Store) -> None:
        with store.open_task(f"k:{SECRET}", "x") as task, another.open_task(f"k:{SECRET}", "x") as again:
            assert again.id == task.id
        assert SECRET not in (store.source(task.id) or "")

    def test_what_is_no_key_is_refused(self, store: Store) -> None:
        for source in ("", " ", "a\nb", "a ", "x" * 501, "\ud800", "a\x00b"):
            with pytest.raises(InvalidValue, match="Not a source"):
                store.open_task(source, "x")

    def test_a_caller_brings_its_own_id(self, store: Store, another: Store) -> None:
        with store.start("x", id="thread0001", detached=True) as task:
            assert task.id == "thread0001"
        assert another.summary("thread0001").request == "x"
        with pytest.raises(TaskExists):
            another.start("y", id="thread0001", detached=True)
        with another.open_task("k:1", "x", id="thread0002") as made:
            assert made.id == "thread0002"
        with store.open_task("k:1", "x", id="thread0003") as found:
            assert found.id == "thread0002"
        with pytest.raises(TaskExists):
            store.open_task("k:2", "x", id="thread0001")

    def test_what_is_no_id_is_refused(self, store: Store) -> None:
        for task_id in ("", "abc", "ABCDEF", "a-b-c-d", "../../x", "é" * 8, "a" * 65):
            with pytest.raises(InvalidValue, match="Not an id"):
                store.start("x", id=task_id, detached=True)

    # Exact values

    def test_exact_values_come_back_equal(self, store: Store, another: Store) -> None:
        value = {
            "token": SECRET,
            "password": "hunter2hunter2",
            "list": [1, 2.5, None, True, {"": ""}],
            "é": "\ud800\x00",
        }
        with store.open_task("k:exact", f"use {SECRET}", exact=True) as task:
            task.add_turn(Turn(agent="dev", content=f"It is {SECRET}.", thinking=SECRET, state=value, payload=SECRET))
            task.note(f"said {SECRET}", kind="delta", data=value)
            task.note(kind="preferences", data={"token": SECRET})
        assert another.history(TaskFilter(exact=True))[0].id == task.id
        turn, note = another.turn(task.id, 1), another.last_note(task.id, "delta")
        assert (turn.state, turn.payload) == (value, SECRET)
        assert note is not None
        assert note.data == value
        # What people and agents say is redacted all the same.
        said = [turn.content, turn.thinking, note.content, another.summary(task.id).request, another.memory(task.id)]
        assert SECRET not in repr(said)
        with another.open_task("k:exact", "again", exact=True) as again:
            assert again.state.exact
            again.add_turn(Turn(agent="dev", state=value))
        assert store.turn(task.id, 2).state == value

    def test_without_asking_for_it_values_are_redacted(self, store: Store, another: Store) -> None:
        with store.open_task("k:plain", "x") as task:
            task.add_turn(Turn(agent="dev", state={"a": SECRET}, payload=SECRET))
        assert SECRET not in repr(another.turn(task.id, 1))
        assert another.history(TaskFilter(exact=True)) == []
        with pytest.raises(InvalidValue, match="without exact values"):
            another.open_task("k:plain", "x", exact=True)

    def test_what_would_come_back_changed_is_refused(self, store: Store) -> None:
        wrong: tuple[tuple[object, str], ...] = (
            ({"a": (1, 2)}, "'a'.*tuple"),
            ([{"b": [(1,)]}], "0.*'b'.*0.*tuple"),
            ({1: "x"}, "name 1 "),
            ({"a": {None: 1}}, "name None "),
            ({"a": float("nan")}, "JSON"),
            (float("inf"), "JSON"),
            ({"a": {1, 2}}, "set"),
            ({"a": b"x"}, "bytes"),
            ((), "tuple"),
        )
        for exact in (True, False):
            with store.open_task(f"k:{exact}", "x", exact=exact) as task:
                for value, why in wrong:
                    with pytest.raises(InvalidValue, match=why):
                        task.add_turn(Turn(agent="dev", state=value))
                    with pytest.raises(InvalidValue, match=why):
                        task.note(kind="mine", data=value)
                for name in ("content", "thinking", "payload"):
                    with pytest.raises(InvalidValue, match=f"(?i){name} must be text, not dict"):
                        task.add_turn(Turn(agent="dev", **{name: {"role": "user"}}))  # type: ignore[arg-type]
                assert task.refresh().turns == 0

    def test_values_with_nothing_in_them_are_values(self, store: Store, another: Store) -> None:
        empty: tuple[object, ...] = ({}, [], "", 0, False)
        for value in empty:
            with store.start("x", detached=True) as task:
                task.add_turn(Turn(agent="dev", state={"before": 1}))
                task.add_turn(Turn(agent="dev", state=value))
                task.note(kind="mine", data=value)
                task.finish("success", output=value)
            turn, note = another.turn(task.id, 2), another.last_note(task.id, "mine")
            assert note is not None
            output = json.loads(another.runs(task.id)[0].output or "null")
            found = (turn.state, note.data, another.latest_state(task.id), output)
            assert [(type(each), each) for each in found] == [(type(value), value)] * 4
