"""Tests for what happens while it happens: leases, live turns, events."""

from __future__ import annotations

import threading

import pytest

from rawko_state.errors import (
    Stopped,
    TaskBusy,
    TaskNotFound,
)
from rawko_state.lifecycle.resuming import newest_to_resume
from rawko_state.store.contract import Store
from rawko_state.testing.common import said


class LiveConformance:
    """Level ``live``. Subclass it and supply ``store`` and ``another``."""

    def test_a_lease_keeps_others_out(self, store: Store, another: Store) -> None:
        task = store.start("x")
        with pytest.raises(TaskBusy):
            another.resume(task.id)
        assert task.id in another.alive()
        assert another.status(task.id) == "running"
        task.close()
        assert another.status(task.id) == "interrupted"
        assert newest_to_resume(another) == task.id
        resumed = another.resume(task.id)
        assert store.status(task.id) == "running"
        resumed.finish("success")
        assert store.status(task.id) == "completed"

    def test_borrowed_leases(self, store: Store) -> None:
        task = store.start("x", detached=True)
        token = store.take_lease(task.id)
        with pytest.raises(TaskBusy):
            store.take_lease(task.id)
        assert store.take_lease(task.id, token) == token
        store.release_lease(task.id, token)
        store.release_lease(task.id, store.take_lease(task.id))

    def test_a_live_turn_is_followed_and_ends_as_one_record(self, store: Store, another: Store) -> None:
        task = store.start("x")
        turn = task.turn("dev")
        turn.say("Hello ")
        key = turn.begin_tool("shell.exec", "ls")
        turn.progress("half of it")
        live = [event for event in another.events(task.id) if event.live]
        assert [(event.kind, event.text) for event in live] == [
            ("text", "Hello "),
            ("tool", "shell.exec"),
            ("progress", "half of it"),
        ]
        turn.end_tool(key, "exit 0")
        turn.say("world")
        turn.end()
        after = list(another.events(task.id, live[-1].cursor))
        assert [event.text for event in after if event.kind == "turn"] == ["Hello world"]
        assert [event.replaces for event in after if event.kind == "turn"] == [True]
        task.finish("success")
        assert another.turn(task.id, 1).content == "Hello world"
        assert [event.kind for event in another.events(task.id)][-1] == "final"

    def test_cursors_neither_miss_nor_double(self, store: Store, another: Store) -> None:
        task = store.start("x", detached=True)
        for number in range(4):
            task.add_turn(said(content=str(number)))
        task.finish("success")
        whole = list(another.events(task.id))
        for at in range(len(whole)):
            assert list(another.events(task.id, whole[at].cursor)) == whole[at + 1 :]
        assert list(another.events(task.id, another.now(task.id))) == []
        assert another.cursors()[task.id] == another.now(task.id)

    def test_follow_ends_with_the_task(self, store: Store, another: Store) -> None:
        task = store.start("x")
        seen: list[str] = []

        def follow() -> None:
            seen.extend(event.text or "" for event in another.follow(task.id) if event is not None)
            another.close()

        thread = threading.Thread(target=follow)
        thread.start()
        for number in range(5):
            task.add_turn(said(content=f"turn {number}"))
        task.finish("success", "done")
        thread.join(20)
        assert not thread.is_alive()
        assert [text for text in seen if text.startswith("turn")] == [f"turn {number}" for number in range(5)]
        assert seen[-1] == "completed"

    def test_what_a_writer_left_becomes_an_interrupted_turn(self, store: Store, another: Store) -> None:
        task = store.start("x")
        turn = task.turn("dev")
        turn.say("Not finis")
        turn.begin_tool("shell.exec", "rm -r build")
        task.close()  # leaves the draft
        with another.resume(task.id) as resumed:
            left = another.turn(task.id, 1)
            assert (left.status, left.content) == ("interrupted", "Not finis")
            (call,) = left.tools
            assert not isinstance(call, str)
            assert call.result == "may have run"
            resumed.add_turn(said(content="Finished."))
        assert store.summary(task.id).turns == 2

    def test_pause_and_cancel_reach_the_writer(self, store: Store, another: Store) -> None:
        task = store.start("x")
        turn = task.turn("dev")
        turn.say("one ")
        with another.attach(task.id) as other:
            other.set_status("cancelled", by="ann", reason="enough")
        with pytest.raises(Stopped) as stopped:
            turn.say("two")
        assert (stopped.value.status, stopped.value.by, stopped.value.reason) == ("cancelled", "ann", "enough")
        with pytest.raises(Stopped):
            turn.end()
        task.close()
        assert store.status(task.id) == "cancelled"
        assert store.turn(task.id, 1).content == "one two"

    def test_who_follows_many_tasks_at_once(self, store: Store, another: Store) -> None:
        task = store.start("x")
        reader = another.event_reader(task.id)
        assert [event.kind for event in reader.poll()][:2] == ["status", "request"]
        assert list(reader.poll()) == []
        assert task.id in another.active()
        task.add_turn(said(content="said"))
        assert [event.text for event in reader.poll() if event.kind == "turn"] == ["said"]
        again = another.event_reader(task.id, reader.cursor)
        assert list(again.poll()) == []
        another.pace().wait(True)
        task.finish("success")

    def test_the_cursor_of_now_is_that_of_the_last_record(self, store: Store, another: Store) -> None:
        with store.open_task("k:1", "x") as task:
            task.add_turn(said(content="one"))
        *_, last = another.records(task.id)
        assert another.now(task.id) == last.cursor

    def test_a_task_that_is_not_there_has_no_events(self, store: Store) -> None:
        with pytest.raises(TaskNotFound):
            list(store.events("zzzzzz9"))
