"""The life of a task: its statuses, live turns, events, questions, pause and cancel, resume, follow-up, fork, snapshots."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rawko_state.backends.files.store import FileStore
from rawko_state.errors import InvalidValue
from rawko_state.model.entries import Question, ToolCall
from rawko_state.tasks.events import Cursor
from tests.tasks.lives import DRIVER, a_turn, kinds


class TestEvents:
    def test_all_that_happens_in_order(self, store: FileStore) -> None:
        task = store.start("do it")
        task.decide(selected="dev", reason="because")
        with task.turn("dev") as turn:
            turn.say("words")
            turn.progress("half way")
            turn.progress("careful", kind="warning")
            turn.tool("shell.exec", "ls", "ok")
        task.ask("dev", Question("which?", ("a", "b")))
        task.answer("b", by="me")
        task.note("by the way")
        task.set_status("paused", by="me", reason="lunch")
        task.reopen(by="me")
        task.finish("failure", "no", error="it broke")
        events = list(store.events(task.id))
        assert kinds(events) == [
            "status", "request", "status", "turn", "tool", "progress", "warning", "turn", "turn", "status", "turn",
            "status", "note", "status", "status", "final",
        ]  # fmt: skip
        assert [event.text for event in events if event.kind in ("status", "final")] == [
            "pending", "running", "waiting", "running", "paused", "running", "failed",
        ]  # fmt: skip
        assert events[9].data["question"] == "which?"
        assert events[13].data == {"by": "me", "reason": "lunch"}
        assert events[-1].data["error"] == "it broke"
        assert [event.turn for event in events if event.kind == "turn"] == [1, 2, 3, 4]
        assert len({event.cursor for event in events}) == len(events)

    def test_from_every_cursor_the_rest(self, store: FileStore) -> None:
        task = store.start("do it")
        for number in range(3):
            task.add_turn(a_turn(f"n{number}", tools=(ToolCall("x", "y"), ToolCall("z", "")), question=None))
        task.ask("dev", Question("?"))
        task.answer("yes")
        task.finish("success")
        everything = list(store.events(task.id))
        for _ in range(2):
            for number, event in enumerate(everything):
                assert list(store.events(task.id, event.cursor)) == everything[number + 1 :]
            store.reindex()
            store.close()
            for path in store.journal.layout.state.glob("index.db*"):
                path.unlink()

    def test_a_cursor_into_a_file_that_was_changed(self, store: FileStore) -> None:
        with store.start("do it") as task:
            task.add_turn(a_turn("needle"))
        everything = list(store.events(task.id))
        path = store.journal.layout.path(store.find(task.id))
        path.write_bytes(path.read_bytes().replace(b"do it", b"do it again"))
        store.summary(task.id)
        after = list(store.events(task.id, everything[-2].cursor))
        assert after[0].kind == "gap"
        assert "turn" in kinds(after[1:])
        for wrong in ("", "x", "12", "5-zz", "9" * 40 + "-00000000", "7-00000000~;,3"):
            if wrong:
                with pytest.raises(InvalidValue):
                    list(store.events(task.id, wrong))
        assert kinds(list(store.events(task.id, "99999999-00000000")))[0] == "gap"

    def test_a_task_that_goes_away(self, store: FileStore) -> None:
        task = store.start("do it", detached=True)
        task.close()
        reader = store.event_reader(task.id)
        assert kinds(list(reader.poll())) == ["status", "request", "status"]
        store.journal.layout.path(store.find(task.id)).unlink()
        assert kinds(list(reader.poll())) == ["gap"]
        assert list(reader.poll()) == []

    def test_damaged_torn_and_unsealed(self, store: FileStore, fixtures: Path) -> None:
        store.journal.layout.make()
        for name, task_id, wanted in (
            ("damaged-body", "dam001", "error"), ("torn-span", "t0rn01", "warning"), ("rfc-example", "abc123", "final"),
            ("later-version", "n3w3r1", "unknown"), ("by-hand", "hand01", "turn"),
        ):  # fmt: skip
            data = (fixtures / "format" / f"{name}.task").read_bytes()
            (store.journal.layout.tasks / f"2024-01-15T10-30-00-{task_id}.task").write_bytes(data)
            everything = list(store.events(task_id))
            assert wanted in kinds(everything)
            for number, event in enumerate(everything):
                assert list(store.events(task_id, event.cursor)) == everything[number + 1 :], name

    def test_live_events_then_the_turn_that_replaces_them(self, store: FileStore) -> None:
        task = store.start("do it")
        other = FileStore(store.root)
        reader = other.event_reader(task.id, other.now(task.id))
        turn = task.turn("dev")
        turn.say("one ")
        turn.tool("shell.exec", "ls", "ok")
        first = list(reader.poll())
        assert [(event.kind, event.live) for event in first] == [("text", True), ("tool", True)]
        turn.progress("half")
        later = list(reader.poll())
        assert kinds(later) == ["progress"]
        task.note("beside it")
        turn.end()
        assert [(event.kind, event.replaces) for event in reader.poll()] == [("note", False), ("turn", True)]
        assert list(reader.poll()) == []
        # From a cursor inside the draft, when it has become a turn: the turn, and nothing twice.
        again = list(other.events(task.id, first[0].cursor))
        assert [(event.kind, event.replaces) for event in again] == [
            ("note", False), ("tool", False), ("progress", False), ("turn", True),
        ]  # fmt: skip
        again = list(other.events(task.id, first[1].cursor))
        assert [(event.kind, event.replaces) for event in again] == [
            ("note", False),
            ("progress", False),
            ("turn", True),
        ]
        # Who has seen nothing of it gets all of it.
        assert kinds(list(other.events(task.id)))[-4:] == ["note", "tool", "progress", "turn"]
        task.close()
        other.close()

    def test_two_live_turns_one_after_the_other(self, store: FileStore) -> None:
        task = store.start("do it")
        reader = store.event_reader(task.id, store.now(task.id))
        turn = task.turn("dev")
        turn.say("one")
        assert kinds(list(reader.poll())) == ["text"]
        turn.say("two")
        turn.end()
        turn = task.turn("dev")
        turn.say("three")
        found = list(reader.poll())
        assert [(event.kind, event.text) for event in found] == [("turn", "onetwo"), ("text", "three")]
        turn.end()
        task.finish("success")
        assert kinds(list(reader.poll())) == ["turn", "final"]

    def test_a_cursor_survives_the_death_of_the_writer(self, tmp_path: Path) -> None:
        store = FileStore(tmp_path, warn=lambda message: None)
        code = (
            "import os, sys; from rawko_state.backends.files.store import FileStore\n"
            "task = FileStore(sys.argv[1]).start('x'); turn = task.turn('dev'); turn.say('said '); turn.progress('half')\n"
            "print(task.id, flush=True); sys.stdin.read(1); turn.say('more'); os.kill(os.getpid(), 9)"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        assert process.stdin is not None
        task_id = process.stdout.readline().decode().strip()
        seen = list(store.events(task_id))
        assert kinds(seen)[-2:] == ["text", "progress"]
        process.stdin.write(b"x")
        process.stdin.close()
        process.wait()
        process.stdout.close()
        assert store.reconcile() == [task_id]
        after = list(store.events(task_id, seen[-2].cursor))
        assert [(event.kind, event.replaces, event.text) for event in after] == [
            ("progress", False, "half"), ("turn", True, "said more"),
        ]  # fmt: skip
        store.close()

    def test_following_across_processes(self, tmp_path: Path) -> None:
        store = FileStore(tmp_path, warn=lambda message: None)
        process = subprocess.Popen(
            [sys.executable, DRIVER, "stream", str(tmp_path), "tok"], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        task_id = process.stdout.readline().split()[1]
        seen = [event for event in store.follow(task_id) if event is not None]
        process.communicate()
        assert seen[-1].kind == "final"
        turns = [event for event in seen if event.kind == "turn" and event.agent == "dev"]
        assert [event.text for event in turns] == [f"tok-t{n}p0 tok-t{n}p1 tok-t{n}p2 " for n in range(4)]
        progress = [event.text for event in seen if event.kind == "progress"]
        assert progress == sorted(set(progress))
        calls = [event for event in seen if event.kind == "tool" and event.text]
        assert len(calls) == 4
        store.close()

    def test_a_thousand_turns_one_at_a_time(self, store: FileStore) -> None:
        task = store.start("x", detached=True)
        reader = store.event_reader(task.id)
        list(reader.poll())
        for number in range(200):
            task.add_turn(a_turn(f"n{number}"))
            assert [event.text for event in reader.poll()] == [f"n{number}"]
        task.close()

    def test_cursors_as_text(self) -> None:
        for cursor in (
            Cursor(),
            Cursor(12, "0123abcd"),
            Cursor(12, "0123abcd", 3),
            Cursor(1, "00000000", 2, "2024-01-15T10:30:00Z", 77, 3, 4),
        ):
            assert Cursor.parse(str(cursor)) == cursor
