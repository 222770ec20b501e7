"""The life of a task: its statuses, live turns, events, questions, pause and cancel, resume, follow-up, fork, snapshots."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from rawko_state.backends.files.store import FileStore
from rawko_state.errors import IllegalMove, InvalidValue, NoAnswer, Stopped, TaskBusy, TaskNotFound
from rawko_state.lifecycle import context as contexts
from rawko_state.lifecycle.resuming import newest_to_resume, snapshot_at
from rawko_state.model import status as words
from rawko_state.model.entries import Question, Section, ToolCall, Turn
from rawko_state.model.events import Event
from rawko_state.store import TaskFilter
from rawko_state.tasks.events import Cursor
from tests.faults import needs_strace
from tests.support.machine import patience, wait_for
from tests.support.processes import MARK, marked

DRIVER = str(Path(__file__).parent / "life_driver.py")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FileStore]:
    opened = FileStore(tmp_path)
    yield opened
    opened.close()


def a_turn(content: str = "said", **more: object) -> Turn:
    return Turn(number=1, agent="dev", status="complete", content=content, **more)  # type: ignore[arg-type]


def kinds(events: Iterator[Event] | list[Event]) -> list[str]:
    return [event.kind for event in events]


def rawko(root: Path, *given: str, stdin: str | None = None, code: int | None = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-c", "from rawko_state.cli import main; main()", "-C", str(root), *given],
        capture_output=True,
        text=True,
        input=stdin,
        timeout=patience(60),
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert code is None or done.returncode == code, done.stderr
    return done


class Worker:
    """Another process that does what it is told."""

    def __init__(self, root: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, DRIVER, "worker", str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __call__(self, *call: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(call) + "\n")
        self.process.stdin.flush()
        return str(json.loads(self.process.stdout.readline()))

    def end(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(patience(20))
        self.process.stdout.close()


class StatusTable(RuleBasedStateMachine):
    """Two processes walk the table of moves; a third looks. Whoever asks, the answer is the table's."""

    tasks = Bundle("tasks")

    @initialize()
    def begin(self) -> None:
        import tempfile

        self.folder = tempfile.TemporaryDirectory(prefix="rawko-life-")
        self.root = Path(self.folder.name)
        self.workers = [Worker(self.root), Worker(self.root)]
        self.looker = FileStore(self.root, warn=lambda message: None)
        self.expected: dict[str, str] = {}
        self.question: set[str] = set()
        self.holder: dict[str, int] = {}

    def teardown(self) -> None:
        if hasattr(self, "workers"):
            for worker in self.workers:
                worker.end()
            self.looker.close()
            self.folder.cleanup()

    @rule(target=tasks, who=st.integers(0, 1))
    def start(self, who: int) -> str:
        task_id = self.workers[who]("start")
        self.expected[task_id], self.holder[task_id] = "running", who
        return task_id

    @rule(task=tasks, who=st.integers(0, 1))
    def turn(self, task: str, who: int) -> None:
        answer = self.workers[who]("turn", task, "words")
        now = self.expected[task]
        if now in words.FINISHED:
            mine = self.holder.get(task) == who and now == "cancelled"
            assert answer == ("stopped cancelled" if mine else "error IllegalMove")
        elif now == "paused" and self.holder.get(task) == who:
            assert answer == "stopped paused"
        else:
            assert answer == "ok"

    @rule(task=tasks, who=st.integers(0, 1))
    def live(self, task: str, who: int) -> None:
        answer = self.workers[who]("live", task, "words")
        now = self.expected[task]
        if self.holder.get(task) != who:
            assert answer == "error RawkoError"
        elif now in ("paused", "cancelled"):
            assert answer == f"stopped {now}"
        else:
            assert answer == ("error IllegalMove" if now in words.FINISHED else "ok")

    @rule(task=tasks, who=st.integers(0, 1))
    def ask(self, task: str, who: int) -> None:
        answer = self.workers[who]("ask", task)
        now = self.expected[task]
        if now in ("running", "waiting"):
            assert answer == "ok"
            self.expected[task] = "waiting"
            self.question.add(task)
        else:
            assert answer.startswith(("error IllegalMove", "stopped"))

    @rule(task=tasks, who=st.integers(0, 1))
    def answer(self, task: str, who: int) -> None:
        answer = self.workers[who]("answer", task)
        now = self.expected[task]
        if task not in self.question:
            assert answer == "error NoAnswer"
        elif now in words.FINISHED:
            assert answer in ("error IllegalMove", "error NoAnswer")
        else:
            assert answer == "ok"
            self.question.discard(task)
            if now == "waiting":
                self.expected[task] = "running"

    @rule(task=tasks, who=st.integers(0, 1), wanted=st.sampled_from(["paused", "cancelled", "running"]))
    def set_status(self, task: str, who: int, wanted: str) -> None:
        answer = self.workers[who](wanted, task)
        now = self.expected[task]
        if now == wanted or words.is_legal(now, wanted):
            assert answer == "ok"
            self.expected[task] = wanted
            if wanted == "cancelled":
                self.question.discard(task)
        else:
            assert answer == "error IllegalMove"

    @rule(task=tasks, who=st.integers(0, 1), outcome=st.sampled_from(["success", "failure"]))
    def finish(self, task: str, who: int, outcome: str) -> None:
        answer = self.workers[who](outcome, task)
        if self.expected[task] in words.FINISHED:
            assert answer == "error IllegalMove"
        else:
            assert answer == "ok"
            self.expected[task] = words.RESULT_STATUS[outcome]
            self.question.discard(task)
            if self.holder.get(task) == who:
                del self.holder[task]

    @rule(task=tasks, who=st.integers(0, 1), message=st.sampled_from(["", "more"]))
    def resume(self, task: str, who: int, message: str) -> None:
        message = message and "a"  # one of the choices, should it be an answer
        answer = self.workers[who]("resume", task, message)
        if task in self.holder:
            assert answer == "error TaskBusy"
        else:
            assert answer == "ok"
            if self.expected[task] in words.FINISHED or message:
                self.question.discard(task)
            self.expected[task], self.holder[task] = "waiting" if task in self.question else "running", who

    @rule(task=tasks)
    def let_go(self, task: str) -> None:
        if task in self.holder:
            assert self.workers[self.holder.pop(task)]("close", task) == "ok"

    @invariant()
    def everybody_sees_the_same(self) -> None:
        shown = (
            {summary.id: summary.status for summary in self.looker.history(TaskFilter())}
            if hasattr(self, "looker")
            else {}
        )
        for task, expected in getattr(self, "expected", {}).items():
            if expected == "running" and task not in self.holder:
                expected = "interrupted"
            assert shown[task] == self.looker.status(task) == expected


TestStatusTable = StatusTable.TestCase
TestStatusTable.settings = settings(
    max_examples=6, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)


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


class TestWatch:
    def test_one_task_as_json(self, tmp_path: Path) -> None:
        store = FileStore(tmp_path)
        with store.start("do it") as task:
            task.add_turn(a_turn("evil \x1b[31m"))
        lines = [json.loads(line) for line in rawko(tmp_path, "watch", task.id, "--json").stdout.splitlines()]
        assert [line["kind"] for line in lines] == ["status", "request", "status", "turn", "final"]
        rest = rawko(tmp_path, "watch", task.id, "--json", "--after", lines[2]["cursor"]).stdout.splitlines()
        assert [json.loads(line) for line in rest] == lines[3:]
        shown = rawko(tmp_path, "watch", task.id).stdout
        assert "\x1b" not in shown
        assert "turn 1 dev  complete" in shown
        assert rawko(tmp_path, "history", "show", task.id, "--follow").stdout.count("evil") == 1
        assert "not a cursor" in rawko(tmp_path, "watch", task.id, "--after", "rubbish", code=1).stderr
        store.close()

    def test_live_in_another_process(self, tmp_path: Path) -> None:
        store = FileStore(tmp_path)
        task = store.start("do it")
        watching = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "from rawko_state.cli import main; main()",
                "-C",
                str(tmp_path),
                "watch",
                task.id,
                "--json",
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert watching.stdout is not None
        for _ in range(3):
            watching.stdout.readline()
        with task.turn("dev") as turn:
            for number in range(20):
                turn.progress(f"step {number}")
                event = json.loads(watching.stdout.readline())
                assert (event["kind"], event["text"], event["live"]) == ("progress", f"step {number}", True)
        task.finish("success")
        rest = [json.loads(line)["kind"] for line in watching.stdout]
        assert rest == ["turn", "final"]
        assert watching.wait(patience(20)) == 0
        watching.stdout.close()
        store.close()

    def test_all_that_run(self, tmp_path: Path) -> None:
        store = FileStore(tmp_path)
        before = store.start("old")
        before.add_turn(a_turn("long ago"))
        watching = subprocess.Popen(
            [sys.executable, "-c", "from rawko_state.cli import main; main()", "-C", str(tmp_path), "watch", "--json"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert watching.stdout is not None
        lines: queue.Queue[str] = queue.Queue()
        reading = threading.Thread(target=lambda: [lines.put(line) for line in watching.stdout or ()], daemon=True)
        reading.start()

        def event() -> dict[str, object]:
            return dict(json.loads(lines.get(timeout=patience(30))))

        number = 0
        while lines.empty():  # until it is there, and looks
            number += 1
            before.add_turn(a_turn(f"now {number}"))
            time.sleep(0.1)
        first = event()
        assert first["task"] == before.id
        assert str(first["text"]).startswith("now")
        new = store.start("new")
        found = event()
        while found["task"] == before.id:
            found = event()
        assert (found["task"], found["kind"]) == (new.id, "status")
        watching.terminate()
        watching.wait()
        reading.join()
        watching.stdout.close()
        before.close()
        new.close()
        store.close()


class TestQuestions:
    def test_the_waiting_process_gets_the_answer(self, tmp_path: Path) -> None:
        process = subprocess.Popen([sys.executable, DRIVER, "ask", str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        task_id = process.stdout.readline().strip()
        store = FileStore(tmp_path)
        wait_for(lambda: store.status(task_id) == "waiting")
        shown = rawko(tmp_path, "answer", task_id, stdin="", code=2).stdout
        assert shown == "Which database?\n  1. sqlite\n  2. postgres\n"
        assert "none of the choices" in rawko(tmp_path, "answer", task_id, "oracle", code=1).stderr
        rawko(tmp_path, "answer", task_id, "2", "--by", "kim")
        assert process.communicate(timeout=patience(20))[0].strip() == "postgres"
        assert store.turn(task_id, 2).by == "kim"
        assert store.status(task_id) == "completed"
        assert "asks nothing" in rawko(tmp_path, "answer", task_id, "1", code=1).stderr
        store.close()

    def test_the_question_survives_the_process(self, tmp_path: Path) -> None:
        process = subprocess.Popen([sys.executable, DRIVER, "ask", str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        task_id = process.stdout.readline().strip()
        store = FileStore(tmp_path, warn=lambda message: None)
        wait_for(lambda: store.status(task_id) == "waiting")
        process.kill()
        process.communicate()
        assert store.status(task_id) == "waiting"
        rawko(tmp_path, "answer", task_id, "pos")
        found = contexts.build(store, task_id)
        assert found.question is None
        assert "postgres" in contexts.prompt(store, found)
        store.close()

    def test_a_deadline_with_a_safe_default(self, store: FileStore) -> None:
        task = store.start("x")
        soon = datetime.now(timezone.utc) + timedelta(seconds=0.3)
        assert task.turn("dev").ask("delete all?", ["yes", "no"], default="no", deadline=soon) == "no"
        assert store.turn(task.id, 2).by == "deadline"
        with pytest.raises(NoAnswer, match="nobody has answered by"):
            task.turn("dev").ask("which?", deadline=soon)
        assert task.state.status == "waiting"
        task.answer("this")
        with pytest.raises(NoAnswer, match=r"in 0\.1 s"):
            task.turn("dev").ask("which?", timeout=0.1)
        task.close()

    def test_approvals(self, store: FileStore) -> None:
        task = store.start("x")
        other = FileStore(store.root)

        def answer(text: str) -> None:
            with other.attach(task.id) as attached:
                while attached.question() is None:
                    time.sleep(0.02)
                attached.answer(text)

        for text, wanted in (("yes", True), ("N", False)):
            thread = threading.Thread(target=answer, args=(text,))
            thread.start()
            assert task.turn("dev").approve("shell.exec", "rm -rf build", timeout=patience(20)) is wanted
            thread.join()
        assert store.turn(task.id, 1).question == Question(
            "shell.exec rm -rf build", ("yes", "no"), "no", kind="approval"
        )
        task.close()
        other.close()

    def test_of_two_answers_one_counts(self, store: FileStore) -> None:
        task = store.start("x")
        task.ask("dev", Question("?"))
        one, two = store.attach(task.id), store.attach(task.id)
        one.answer("first")
        with pytest.raises(NoAnswer):
            two.answer("second")
        for each in (task, one, two):
            each.close()


class TestStopping:
    def test_pause_and_cancel_reach_the_process(self, store: FileStore) -> None:
        for wanted in ("paused", "cancelled"):
            with pytest.raises(Stopped) as caught, store.start("x") as task:  # noqa: PT012
                with task.turn("dev") as turn:
                    turn.say("before ")
                    rawko(
                        store.root,
                        {"paused": "pause", "cancelled": "cancel"}[wanted],
                        task.id,
                        "--reason",
                        "lunch",
                        "--by",
                        "kim",
                    )
                    turn.say("and after")
                raise AssertionError("not reached")
            assert (caught.value.status, caught.value.by, caught.value.reason) == (wanted, "kim", "lunch")
            assert store.status(task.id) == wanted
            last = store.turn(task.id, 1)
            assert (last.status, last.content) == ("interrupted", "before and after")
            assert task.id not in store.alive()
            assert store.history(TaskFilter(ids=(task.id,)))[0].status == wanted

    def test_a_turn_that_has_happened_is_kept(self, store: FileStore) -> None:
        task = store.start("x")
        with store.attach(task.id) as other:
            other.set_status("cancelled")
        with pytest.raises(Stopped):
            task.add_turn(a_turn("it was done"))
        assert store.turn(task.id, 1).content == "it was done"
        assert store.turn(task.id, 1).status == "interrupted"
        with pytest.raises(Stopped):
            task.turn("dev")
        task.close()

    def test_a_paused_process_goes_on(self, store: FileStore) -> None:
        task = store.start("x")
        rawko(store.root, "pause", task.id)
        with pytest.raises(Stopped):
            task.check()
        assert "goes on in its process" in rawko(store.root, "resume", task.id).stderr
        task.check()
        task.finish("success")

    def test_through_the_pipe(self, tmp_path: Path) -> None:
        process = subprocess.Popen(
            [sys.executable, "-c", "from rawko_state.cli import main; main()", "-C", str(tmp_path), "record"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None

        def send(**line: object) -> dict[str, object]:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(line) + "\n")
            process.stdin.flush()
            return dict(json.loads(process.stdout.readline()))

        task_id = str(send(type="start", request="x")["task"])
        send(type="turn", agent="dev", open=True)
        rawko(tmp_path, "cancel", task_id, "--by", "kim")
        answer = send(type="text", text="words")
        assert (answer["stopped"], answer["by"]) == ("cancelled", "kim")
        process.communicate(timeout=patience(20))
        store = FileStore(tmp_path)
        assert store.turn(task_id, 1).content == "words"
        store.close()

    def test_a_question_through_the_pipe(self, tmp_path: Path) -> None:
        process = subprocess.Popen(
            [sys.executable, "-c", "from rawko_state.cli import main; main()", "-C", str(tmp_path), "record"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        lines = [
            {"type": "start", "request": "x"},
            {"type": "ask", "agent": "dev", "text": "which?", "choices": ["a", "b"]},
        ]
        process.stdin.write("".join(json.dumps(line) + "\n" for line in [*lines, {"type": "wait", "timeout": 60}]))
        process.stdin.flush()
        task_id = json.loads(process.stdout.readline())["task"]
        process.stdout.readline()
        rawko(tmp_path, "answer", task_id, "b")
        assert json.loads(process.stdout.readline())["answer"] == "b"
        process.communicate()

    def test_used_wrongly(self, store: FileStore) -> None:
        with store.start("x") as task:
            pass
        assert "cannot become paused" in rawko(store.root, "pause", task.id, code=1).stderr
        assert "no task starts with" in rawko(store.root, "cancel", "zzz", code=1).stderr
        assert "Missing argument 'ID...'" in rawko(store.root, "cancel", code=2).stderr


def conversation(store: FileStore, turns: int = 3) -> str:
    """A task in which the arbiter has selected the developer, who was then interrupted."""
    task = store.start("Fix the login", title="Login")
    task.decide(selected="planner", reason="a plan first")
    task.add_turn(replace(a_turn("The plan: one, two."), agent="planner"))
    for number in range(turns):
        task.decide(selected="dev", reason=f"go {number}", guidance=f"mind {number}")
        if number < turns - 1:
            task.add_turn(a_turn(f"did {number}", tools=(ToolCall("shell.exec", "ls", "ok", output="a\nb"),)))
    turn = task.turn("dev")
    turn.say("half of it")
    turn.end("interrupted")
    task.close()
    return task.id


class TestContext:
    def test_who_is_next(self, store: FileStore) -> None:
        task_id = conversation(store)
        found = contexts.build(store, task_id)
        assert (found.next_agent, found.guidance) == ("dev", "mind 2")
        with store.resume(task_id) as task:
            task.add_turn(a_turn("done now"))
            assert contexts.build(store, task_id).next_agent == "arbiter"
            task.decide(selected="reviewer", reason="look")
            assert contexts.build(store, task_id).next_agent == "reviewer"
        fresh = store.start("nothing yet")
        assert contexts.build(store, fresh.id).next_agent == "arbiter"
        fresh.close()

    def test_what_was_interrupted(self, tmp_path: Path) -> None:
        store = FileStore(tmp_path, warn=lambda message: None)
        code = (
            "import os, sys; from rawko_state.backends.files.store import FileStore\n"
            "task = FileStore(sys.argv[1]).start('x'); task.decide(selected='dev', reason='r'); turn = task.turn('dev')\n"
            "turn.say('half'); turn.begin_tool('shell.exec', 'make'); print(task.id, flush=True); os.kill(os.getpid(), 9)"
        )
        done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
        task_id = done.stdout.strip()
        shown = rawko(tmp_path, "resume")
        assert "turn 2 of dev was interrupted" in shown.stderr
        assert "next: dev" in shown.stderr
        assert "half" in shown.stdout
        assert "shell.exec make -> may have run" in shown.stdout
        assert store.status(task_id) == "running"
        assert b"=== RESUMED " in store.journal.layout.path(store.find(task_id)).read_bytes()
        store.close()

    def test_messages_pair_calls_and_results(self, store: FileStore) -> None:
        task_id = conversation(store)
        found = contexts.messages(store, contexts.build(store, task_id))
        assert found[0] == {"role": "user", "content": "Fix the login"}
        called = [call["id"] for message in found for call in message.get("tool_calls", [])]
        answered = [message["tool_call_id"] for message in found if message["role"] == "tool"]
        assert called == answered != []
        with store.start("x", model="claude-opus") as task:
            task.add_turn(a_turn("y", tools=(ToolCall("Read", "a", "ok", more={"input": {"file": "a"}}),)))
        found = contexts.messages(store, contexts.build(store, task.id))
        assert found[1]["content"][1] == {"type": "tool_use", "id": "turn1-1", "name": "Read", "input": {"file": "a"}}
        assert found[2]["content"][0]["tool_use_id"] == "turn1-1"

    def test_a_payload_is_exact(self, store: FileStore) -> None:
        lines = [{"role": "assistant", "content": [{"type": "thinking", "x": 1.5}]}, {"role": "user", "content": "é"}]
        with store.start("x") as task:
            task.add_turn(a_turn("shown", payload="\n".join(json.dumps(line) for line in lines)))
        assert contexts.messages(store, contexts.build(store, task.id))[1:] == lines

    @pytest.mark.parametrize("form", ["prompt", "messages", "json"])
    def test_never_over_budget(self, store: FileStore, form: str) -> None:
        chance = random.Random(form)
        task = store.start("the request " * 20, title="T")
        task.add_turn(replace(a_turn("the plan " * 30), agent="planner"))
        for number in range(40):
            task.decide(selected="dev", reason=f"reason {number} " * chance.randint(1, 20))
            task.add_turn(a_turn(f"n{number} 数据 " * chance.randint(1, 200)))
        task.close()
        for budget in (100, 150, 300, 1_000, 3_000, 10_000, 100_000):
            found = contexts.build(store, task.id, budget=budget)
            if form == "prompt":
                text = contexts.prompt(store, found, budget)
            else:
                make = contexts.messages if form == "messages" else contexts.as_json
                text = json.dumps(make(store, found, budget))
                assert contexts.tokens(text) <= budget, (budget, contexts.tokens(text))
            if budget >= 3_000 and form == "prompt":
                assert "the plan" in text
                assert "n39" in text
                assert ("Shortened to fit" in text) == (budget < 100_000)

    def test_of_a_large_task_only_what_is_kept_is_read(self, store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
        task = store.start("x")
        for number in range(300):
            task.add_turn(a_turn(f"n{number} " * 50))
        task.close()
        read: list[int] = []
        turn = store.turn
        monkeypatch.setattr(store, "turn", lambda prefix, number: (read.append(number), turn(prefix, number))[1])
        contexts.prompt(store, contexts.build(store, task.id, budget=2_000), 2_000)
        assert len(read) < 40


class TestResume:
    def test_with_plain_output(self, store: FileStore) -> None:
        task_id = conversation(store)
        code = "import os, sys; c = sys.stdin.read(); assert c == open(os.environ['RAWKO_CONTEXT']).read(); print('I am', os.environ['RAWKO_NEXT_AGENT'], os.environ['RAWKO_TASK']); print('Fix the login' in c); sys.exit(7)"
        done = rawko(store.root, "resume", task_id, "--with", f'{sys.executable} -c "{code}"', code=7)
        assert done.stdout == f"I am dev {task_id}\nTrue\n"
        last = store.turn(task_id, store.summary(task_id).turns)
        assert (last.agent, last.content) == ("dev", done.stdout)
        assert store.status(task_id) == "failed"

    def test_with_the_protocol(self, store: FileStore) -> None:
        task_id = conversation(store)
        lines = [
            {"type": "turn", "agent": "dev", "open": True},
            {"type": "text", "text": "live"},
            {"type": "end"},
            {"type": "rubbish"},
            {"type": "result", "status": "success", "summary": "all done"},
        ]
        script = store.root / "runner.py"
        script.write_text("\n".join(f"print({json.dumps(line)!r})" for line in lines))
        done = rawko(store.root, "resume", task_id, "--with", f"{sys.executable} {script}", code=1)
        assert done.stdout == ""
        assert "line 4 of the command's output: unknown type 'rubbish'" in done.stderr
        summary = store.summary(task_id)
        assert (summary.status, summary.summary) == ("completed", "all done")
        assert store.turn(task_id, summary.turns).content == "live"

    def test_a_runner_that_is_cancelled(self, store: FileStore) -> None:
        task_id = conversation(store)
        running = subprocess.Popen(
            [sys.executable, "-c", "from rawko_state.cli import main; main()", "-C", str(store.root), "resume", task_id, "--with",
             f'{sys.executable} -uc "import time\nfor n in range(600): print(n); time.sleep(.1)"'],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert running.stdout is not None
        running.stdout.readline()
        rawko(store.root, "cancel", task_id)
        _, err = running.communicate(timeout=patience(30))
        assert running.returncode == 1
        assert "was cancelled" in err
        assert store.status(task_id) == "cancelled"

    def test_what_cannot_be_run(self, store: FileStore) -> None:
        task_id = conversation(store)
        before = store.journal.layout.path(store.find(task_id)).read_bytes()
        for command in ("/nonexistent/x", "foo 'bar", "", "nosuchcommand-x"):
            assert "command" in rawko(store.root, "resume", task_id, "--with", command, code=1).stderr
        assert store.journal.layout.path(store.find(task_id)).read_bytes() == before

    def test_no_id_no_task(self, store: FileStore) -> None:
        with store.start("x"):
            pass
        assert "no task here is interrupted" in rawko(store.root, "resume", code=1).stderr
        task_id = conversation(store)
        assert rawko(store.root, "resume", "--dry-run").stdout.startswith(f"# Task {task_id}: Login\n")
        assert store.status(task_id) == "interrupted"

    def test_a_running_one_is_refused(self, store: FileStore) -> None:
        task = store.start("x")
        done = rawko(store.root, "resume", task.id, code=1)
        assert f"process {os.getpid()}" in done.stderr
        assert len(done.stderr.splitlines()) <= 3
        with pytest.raises(TaskBusy):
            store.resume(task.id)
        task.close()

    def test_an_unknown_id_names_the_nearest(self, store: FileStore) -> None:
        task = store.start("x")
        task.close()
        wrong = task.id[:-1] + ("0" if task.id[-1] != "0" else "1")
        done = rawko(store.root, "resume", wrong, code=1)
        assert task.id in done.stderr
        assert len(done.stderr.splitlines()) <= 3
        with pytest.raises(TaskNotFound):
            store.resume(wrong)

    def test_a_second_run_in_the_same_file(self, store: FileStore) -> None:
        with store.start("first") as task:
            task.add_turn(a_turn("one"))
        rawko(store.root, "resume", task.id, "-m", "and now the tests")
        summary = store.summary(task.id)
        assert (summary.status, summary.runs, summary.turns) == ("running", 2, 1)
        assert store.requests(task.id) == ["first", "and now the tests"]
        assert store.requests(task.id, 1) == ["first"]
        with store.resume(task.id) as again:
            again.add_turn(a_turn("two"))
        assert store.turn(task.id, 2).content == "two"
        (verdict,) = store.verify(task.id)
        assert verdict.faults == []

    def test_a_message_in_a_task_that_is_not_finished(self, store: FileStore) -> None:
        task_id = conversation(store)
        before = store.summary(task_id).turns
        rawko(store.root, "resume", task_id, "-m", "be quick", "--by", "kim")
        said = store.turn(task_id, before + 1)
        assert (said.agent, said.by, said.content) == ("user", "kim", "be quick")
        assert store.summary(task_id).runs == 1


class TestForks:
    def test_a_fork_goes_on_after_its_turn(self, store: FileStore) -> None:
        task_id = conversation(store)
        path = store.journal.layout.path(store.find(task_id))
        before = path.read_bytes()
        done = rawko(store.root, "resume", task_id, "--at-turn", "4", "-m", "another way")
        assert path.read_bytes() == before
        (child,) = [each for each, _, _ in store.children(task_id)]
        assert store.summary(child).parent == f"{task_id}@4"
        assert "did 0" in done.stdout
        assert "did 1" not in done.stdout
        with store.resume(child) as task:
            task.add_turn(a_turn("mine"))
            assert task.state.turns == 5
        found = contexts.build(store, child)
        assert [place.row.turn for place in found.turns + found.after] == [1, 2, 3, 4, 5]
        assert found.requests == ["Fix the login", "another way"]
        store.reindex()
        assert store.turn(child, 5).content == "mine"
        grandchild = store.fork(child, 5)
        assert grandchild.state.turns == 5
        grandchild.close()
        shown = rawko(store.root, "history", "show", child).stdout
        assert f"└─ {child} after turn 4" in shown
        assert f"   └─ {grandchild.id} after turn 5" in shown

    def test_a_parent_that_is_gone(self, store: FileStore) -> None:
        task_id = conversation(store)
        child = store.fork(task_id, 2)
        child.close()
        store.journal.layout.path(store.find(task_id)).unlink()
        assert "which is gone" in rawko(store.root, "history", "show", child.id).stdout
        assert (
            f"the task {task_id} that this one was forked from is gone" in rawko(store.root, "resume", child.id).stdout
        )

    def test_a_turn_that_is_not_there(self, store: FileStore) -> None:
        task_id = conversation(store)
        assert "no turn 99" in rawko(store.root, "resume", task_id, "--at-turn", "99", code=1).stderr
        assert store.children(task_id) == []


def git(root: Path, *given: str) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    me = {"GIT_AUTHOR_NAME": "t", "GIT_AUTHOR_EMAIL": "t@t", "GIT_COMMITTER_NAME": "t", "GIT_COMMITTER_EMAIL": "t@t"}
    done = subprocess.run(["git", *given], cwd=root, env={**clean, **me}, capture_output=True, text=True, check=True)
    return done.stdout


class TestSnapshots:
    def test_git(self, store: FileStore, tmp_path_factory: pytest.TempPathFactory) -> None:
        root = store.root
        git(root, "init", "-q", "-b", "main")
        (root / ".gitignore").write_text("ignored\n")
        (root / "a.txt").write_text("one")
        git(root, "add", ".")
        git(root, "commit", "-qm", "first")
        (root / "a.txt").write_text("two")
        (root / "staged.txt").write_text("staged")
        git(root, "add", "staged.txt")
        (root / "ünew file.txt").write_text("untracked")
        (root / "ignored").write_text("no")
        task = store.start("x")
        before = (
            git(root, "status", "--porcelain=v2", "--untracked-files=no"),
            git(root, "rev-parse", "HEAD"),
            git(root, "ls-files", "-s"),
        )
        with task.turn("dev") as turn:
            turn.say("done")
            turn.end(snapshot="git")
        after = (
            git(root, "status", "--porcelain=v2", "--untracked-files=no"),
            git(root, "rev-parse", "HEAD"),
            git(root, "ls-files", "-s"),
        )
        assert before == after
        (root / "a.txt").write_text("three")
        task.add_turn(a_turn("later"))
        task.finish("success")
        found = snapshot_at(store, task.id, 2)
        assert found is not None
        assert (found["provider"], found["turn"]) == ("git", 1)
        assert git(root, "for-each-ref", "refs/rawko/").count(found["ref"]) == 1
        target = tmp_path_factory.mktemp("restored") / "here"
        rawko(root, "resume", task.id, "--at-turn", "2", "--restore", str(target))
        assert sorted(path.name for path in target.iterdir()) == [".gitignore", "a.txt", "staged.txt", "ünew file.txt"]
        assert (target / "a.txt").read_text() == "two"
        assert "not an empty folder" in rawko(root, "resume", task.id, "--restore", str(target), code=1).stderr
        store.reindex()
        assert snapshot_at(store, task.id, 2) == found

    def test_an_empty_repository(self, store: FileStore) -> None:
        git(store.root, "init", "-q")
        (store.root / "a").write_text("x")
        with store.start("x") as task:
            task.add_turn(a_turn(), snapshot="git")
        found = snapshot_at(store, task.id, 1)
        assert found is not None
        assert found["parent"] is None

    def test_what_others_made_is_recorded(self, store: FileStore) -> None:
        with store.start("x") as task:
            task.add_turn(a_turn(), snapshot={"provider": "zfs", "ref": "pool/home@rawko-1", "metadata": {"size": 3}})
        found = snapshot_at(store, task.id, 1)
        assert found is not None
        assert (found["provider"], found["ref"]) == ("zfs", "pool/home@rawko-1")
        assert (
            "by its provider alone"
            in rawko(store.root, "resume", task.id, "--restore", str(store.root / "t"), code=1).stderr
        )

    def test_used_wrongly(self, store: FileStore) -> None:
        task = store.start("x")
        for wrong in ("svn", {}, {"provider": "x"}, {"provider": "x", "ref": "y", "other": 1}, ["git"]):
            with pytest.raises(InvalidValue):
                task.add_turn(a_turn(), snapshot=wrong)
        assert task.state.turns == 0
        task.add_turn(a_turn(), snapshot="git")  # the turn has happened all the same
        assert "not a git repository" in store.turn(task.id, 1).sections[0].text
        task.close()
        assert (
            "has no snapshot" in rawko(store.root, "resume", task.id, "--restore", str(store.root / "t"), code=1).stderr
        )

    def test_an_option_posing_as_a_commit(self, store: FileStore) -> None:
        git(store.root, "init", "-q")
        with store.start("x") as task:
            turn = a_turn(sections=(Section("Snapshot", json.dumps({"provider": "git", "ref": "--output=evil"})),))
            task.add_turn(turn)
        assert "not a commit" in rawko(store.root, "resume", task.id, "--restore", str(store.root / "t"), code=1).stderr


class TestReconciliation:
    def test_any_command_sees_to_a_dead_writer(self, tmp_path: Path) -> None:
        code = (
            "import os, sys; from rawko_state.backends.files.store import FileStore\n"
            "task = FileStore(sys.argv[1]).start('x'); turn = task.turn('dev'); turn.say('all that was said')\n"
            "print(task.id, flush=True); os.kill(os.getpid(), 9)"
        )
        done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
        task_id = done.stdout.strip()
        first = rawko(tmp_path, "history")
        assert f"the process that ran task {task_id} has died" in first.stderr
        assert "interrupted" in first.stdout
        assert rawko(tmp_path, "history").stderr == ""
        store = FileStore(tmp_path)
        assert store.turn(task_id, 1).content == "all that was said"
        assert not list(store.journal.layout.live.glob("*.draft"))
        (verdict,) = store.verify(task_id)
        assert verdict.faults == []
        store.close()

    def test_a_living_writer_is_left_alone(self, store: FileStore) -> None:
        task = store.start("x")
        turn = task.turn("dev")
        turn.say("words")
        assert store.reconcile() == []
        assert FileStore(store.root).reconcile() == []
        turn.end()
        task.finish("success")

    @needs_strace
    def test_killed_again_and_again_and_resumed_to_the_end(self, tmp_path: Path, every: bool) -> None:
        """Killed at a system call of a streaming task, resumed, killed at the next one …: nothing acknowledged is lost."""
        chance = random.Random(5)
        project = tmp_path / "p"
        project.mkdir()
        acknowledged: list[str] = []
        task_id = ""
        # The numbers of calls at which the stream, and not only imports, may be hit.
        calls = {"pwrite64": (1, 230), "fdatasync": (1, 20), "unlink": (1, 10), "flock": (1, 20), "openat": (200, 260),
                 "close": (160, 215), "ftruncate": (1, 7)}  # fmt: skip
        rounds = 100 if every else 12
        killed = 0
        for number in range(rounds):
            call = chance.choice(sorted(calls))
            point = chance.randint(*calls[call])
            what = (
                ["stream", str(project), f"r{number}"]
                if not task_id
                else ["go-on", str(project), task_id, f"r{number}"]
            )
            done = subprocess.run(
                ["strace", "-f", "-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={point}",
                 sys.executable, DRIVER, *what],
                capture_output=True, text=True, timeout=patience(100),
            )  # fmt: skip
            assert "Traceback" not in done.stderr, done.stderr
            killed += done.returncode != 0
            for line in done.stdout.splitlines():
                kind, _, value = line.partition(" ")
                if kind == "task":
                    task_id = value
                else:
                    acknowledged.append(value)
            store = FileStore(project, warn=lambda message: None)
            names = list(store.journal.layout.names())
            if not task_id and names:
                task_id = names[0].id  # it was killed before it could say so
            store.reconcile()
            if task_id:
                assert store.status(task_id) in ("interrupted", "completed")
            store.close()
        done = subprocess.run(
            [sys.executable, DRIVER, "go-on", str(project), task_id, "last"], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        store = FileStore(project)
        text = store.journal.layout.path(store.find(task_id)).read_text()
        for token in acknowledged:
            assert text.count(token) == 1, token
        (verdict,) = store.verify(task_id, repair=True)
        (verdict,) = store.verify(task_id)
        assert verdict.faults == []
        assert killed > rounds // 6
        assert store.sync.fresh().dump()["task_agents"]
        store.close()


class TestOddLives:
    """Found by trying to break it."""

    def _set(self, store: FileStore, task_id: str, status: str) -> None:
        with store.attach(task_id) as other:
            other.set_status(status, by="kim")

    def test_a_turn_is_not_written_twice_when_it_is_stopped(self, store: FileStore) -> None:
        for status in ("cancelled", "paused"):
            with pytest.raises(Stopped), store.start("x") as task, task.turn("dev") as turn:  # noqa: PT012
                turn.say("hi")
                self._set(store, task.id, status)
                turn.end()
            assert len(store.turn_rows(task.id)[0]) == 1
            assert store.status(task.id) == status

    def test_asking_while_it_is_paused(self, store: FileStore) -> None:
        with pytest.raises(Stopped), store.start("x") as task:  # noqa: PT012
            turn = task.turn("dev")
            self._set(store, task.id, "paused")
            turn.ask("which?")
        assert store.status(task.id) == "paused"

    def test_a_block_that_ends_after_it_was_stopped(self, store: FileStore) -> None:
        for status in ("cancelled", "paused"):
            with store.start("x") as task:
                self._set(store, task.id, status)
            assert store.status(task.id) == status
            with pytest.raises(ValueError, match="mine"), store.start("x") as task:  # noqa: PT012
                self._set(store, task.id, status)
                raise ValueError("mine")
            assert store.status(task.id) == status

    def test_a_task_that_another_process_has_finished(self, store: FileStore) -> None:
        task = store.start("x")
        turn = task.turn("dev")
        turn.say("said before")
        with store.attach(task.id) as other:
            other.finish("success")
        with pytest.raises(IllegalMove):
            turn.end()
        for _ in range(2):
            with pytest.raises(IllegalMove):
                task.turn("dev")
        task.close()
        with store.resume(task.id) as again:
            assert store.turn(again.id, 1).content == "said before"

    def test_whole_turns_hear_of_a_pause(self, store: FileStore) -> None:
        task = store.start("x")
        self._set(store, task.id, "paused")
        with pytest.raises(Stopped):
            task.add_turn(a_turn("kept"))
        assert store.turn(task.id, 1).content == "kept"
        task.close()

    def test_an_answer_that_comes_at_once(self, store: FileStore) -> None:
        other = FileStore(store.root)
        task = store.start("x")
        stop = threading.Event()

        def answer() -> None:
            with other.attach(task.id) as attached:
                while not stop.is_set():
                    with contextlib.suppress(NoAnswer):
                        attached.answer("yes")

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            for _ in range(20):
                assert task.turn("dev").ask("ok?", timeout=patience(30)) == "yes"
        finally:
            stop.set()
            thread.join()
        task.close()
        other.close()

    def test_choices_that_are_numerals(self, store: FileStore) -> None:
        task = store.start("x")
        for given, wanted in (("1", "1"), ("3", "3"), ("2", "2")):
            task.ask("dev", Question("how many", ("3", "1", "2")))
            task.answer(given)
            assert store.turn(task.id, task.state.turns).content == wanted
        for wrong in ("7", "0", "x"):
            task.ask("dev", Question("how many", ("3", "1", "2")))
            with pytest.raises(InvalidValue):
                task.answer(wrong)
        with pytest.raises(InvalidValue, match="none of the choices"):
            task.ask("dev", Question("q", ("a", "b"), default="c"))
        task.close()
        assert "none of the choices" in rawko(store.root, "resume", task.id, "-m", "maybe", code=1).stderr

    def test_resuming_leaves_a_question_open(self, store: FileStore) -> None:
        task = store.start("x")
        task.ask("dev", Question("which?"))
        task.close()
        shown = rawko(store.root, "resume", task.id)
        assert "which?" in shown.stdout
        assert store.status(task.id) == "waiting"
        assert newest_to_resume(store) == task.id
        rawko(store.root, "answer", task.id, "this")
        assert store.status(task.id) == "running"

    def test_a_question_of_an_earlier_run_is_not_open(self, store: FileStore) -> None:
        task = store.start("x")
        task.ask("dev", Question("which?"))
        task.finish("failure")
        assert "Open question" not in rawko(store.root, "resume", task.id, "-m", "again").stdout

    def test_without_an_arbiter_the_last_one_goes_on(self, store: FileStore) -> None:
        task = store.start("x")
        task.add_turn(a_turn("one"))
        turn = task.turn("dev")
        turn.say("half")
        turn.end("interrupted")
        task.close()
        found = contexts.build(store, task.id)
        assert found.next_agent == "dev"
        assert [place.row.turn for place in found.interrupted] == [2]
        assert contexts.prompt(store, found).count("half") == 1

    @pytest.mark.parametrize("runner", ["pause", "ask", "sleep"])
    def test_a_runner_that_stops_short_is_no_success(self, store: FileStore, runner: str) -> None:
        task_id = conversation(store)
        ask = '{"type": "ask", "agent": "a", "text": "deploy?"}'
        commands = {
            "pause": f'{sys.executable} -uc "import time\nfor n in range(100): print(n); time.sleep(.1)"',
            "ask": f"echo '{ask}'",
            "sleep": "sleep 3600",
        }
        running = subprocess.Popen(
            [sys.executable, "-c", "from rawko_state.cli import main; main()", "-C", str(store.root), "resume", task_id, "--with", commands[runner]],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        if runner != "ask":
            wait_for(lambda: store.status(task_id) == "running")
            rawko(store.root, "pause", task_id)
        running.wait(patience(30))
        assert store.status(task_id) == ("waiting" if runner == "ask" else "paused")

    def test_what_a_runner_has_started_ends_with_it(self, store: FileStore) -> None:
        task_id = conversation(store)
        script = store.root / "loop.sh"
        script.write_text("(while true; do date > beat; sleep 0.1; done)\n")
        running = subprocess.Popen(
            [sys.executable, "-c", "from rawko_state.cli import main; main()", "-C", str(store.root), "resume", task_id, "--with", f"sh {script}"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=store.root,
        )  # fmt: skip
        beat = store.root / "beat"
        wait_for(lambda: beat.exists())
        rawko(store.root, "cancel", task_id)
        running.wait(patience(30))
        wait_for(lambda: not [command for _, command in marked(os.environ[MARK]) if str(script) in command])

    @pytest.mark.parametrize(
        "output", [b'{"type": []}', b"[" * 100_000, b"\xff\x00\xfe\n" * 10, b"", b"x" * 3_000_000, b"no end of line"]
    )
    def test_odd_output_of_a_runner(self, store: FileStore, output: bytes) -> None:
        task_id = conversation(store)
        (store.root / "out").write_bytes(output)
        rawko_bytes = subprocess.run(
            [
                sys.executable,
                "-c",
                "from rawko_state.cli import main; main()",
                "-C",
                str(store.root),
                "resume",
                task_id,
                "--with",
                f"cat {store.root / 'out'}",
            ],
            capture_output=True,
            timeout=patience(60),
        )
        assert b"Traceback" not in rawko_bytes.stderr
        assert rawko_bytes.returncode == 0
        assert rawko_bytes.stdout == output
        assert store.status(task_id) == "completed"

    def test_a_message_to_a_paused_process(self, store: FileStore) -> None:
        task = store.start("x")
        rawko(store.root, "pause", task.id)
        assert "without --with" in rawko(store.root, "resume", task.id, "--with", "true", code=1).stderr
        rawko(store.root, "resume", task.id, "-m", "IMPORTANT")
        task.check()
        assert store.turn(task.id, 1).content == "IMPORTANT"
        task.finish("success")

    def test_healthy_processes_are_not_said_to_be_dead(self, store: FileStore) -> None:
        code = "import sys; from rawko_state.backends.files.store import FileStore\ns = FileStore(sys.argv[1], warn=lambda m: None)\nfor n in range(60):\n    t = s.start('x'); t.turn('d').end(); t.finish('success'); s.resume(t.id).close()"
        process = subprocess.Popen([sys.executable, "-c", code, str(store.root)], stderr=subprocess.PIPE)
        seen: list[str] = []
        while process.poll() is None:
            seen += store.reconcile()
        _, err = process.communicate()
        assert process.returncode == 0, err.decode()
        assert seen == []

    def test_a_followed_file_that_is_rewritten_in_place(self, store: FileStore) -> None:
        task = store.start("do it", detached=True)
        task.add_turn(a_turn("one"))
        task.close()
        reader = store.event_reader(task.id)
        assert "turn" in kinds(list(reader.poll()))
        path = store.journal.layout.path(store.find(task.id))
        data = path.read_bytes().replace(b"do it", b"do it well")
        with open(path, "r+b") as stream:
            stream.write(data)
        assert kinds(list(reader.poll()))[0] == "gap"

    def test_following_a_task_that_is_deleted_ends(self, store: FileStore) -> None:
        task = store.start("do it", detached=True)
        task.close()
        path = store.journal.layout.path(store.find(task.id))
        seen = []
        for event in store.follow(task.id):
            if event is None and path.exists():
                path.unlink()
            elif event is not None:
                seen.append(event.kind)
        assert seen[-1] == "gap"

    def test_a_long_line_and_a_long_draft(self, store: FileStore) -> None:
        task = store.start("x")
        turn = task.turn("dev")
        turn.tool("shell.exec", "x", "ok", output="y" * 1_500_000)
        for number in range(3_000):
            turn.say(f"{number} " + "z" * 1_000)
        events = [event for event in store.events(task.id) if event.live]
        assert kinds(events) == ["tool"] + ["text"] * 3_000
        turn.end()
        task.close()

    def test_a_draft_that_was_left_behind_by_a_kill(self, store: FileStore) -> None:
        task = store.start("x")
        turn = task.turn("dev")
        turn.say("words")
        draft = store.journal.layout.draft(task.id)
        kept = draft.read_bytes()
        turn.end()
        cursor = list(store.events(task.id))[-1].cursor
        draft.write_bytes(kept)
        assert list(store.events(task.id, cursor)) == []
        task.close()

    def test_now_in_an_unsealed_file(self, store: FileStore, fixtures: Path) -> None:
        store.journal.layout.make()
        data = (fixtures / "format" / "rfc-example.task").read_bytes()
        (store.journal.layout.tasks / "2024-01-15T10-30-00-abc123.task").write_bytes(data)
        assert list(store.events("abc123", store.now("abc123"))) == []

    def test_escapes_stay_escaped(self, store: FileStore, tmp_path: Path) -> None:
        task = store.start("x")
        task.ask("dev", Question("q\x1b]0;OWNED\x07", default="d\x1b]0;OWNED\x07"))
        task.close()
        import pty

        master, slave = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-c", "from rawko_state.cli import main; main()", "-C", str(store.root), "answer", task.id],
            stdin=slave, stdout=slave, stderr=slave,
        )  # fmt: skip
        os.close(slave)
        os.write(master, b"yes\n")
        process.wait(patience(20))
        shown = b""
        try:
            while piece := os.read(master, 4096):
                shown += piece
        except OSError:
            pass
        os.close(master)
        assert b"\x1b]0;" not in shown
        assert store.turn(task.id, 2).content == "yes"

    def test_a_kind_of_progress_that_cannot_be_written(self, store: FileStore) -> None:
        with store.start("x") as task, task.turn("dev") as turn:
            with pytest.raises(InvalidValue):
                turn.progress("x", kind="a b")
            turn.say("goes on")
        assert store.status(task.id) == "completed"

    def test_several_are_cancelled_though_one_cannot_be(self, store: FileStore) -> None:
        one, two = store.start("x"), store.start("y")
        done = rawko(store.root, "cancel", one.id, "zzzzzz", two.id, code=1)
        assert "no task starts with" in done.stderr
        assert store.status(two.id) == "cancelled"
        before = store.journal.layout.path(store.find(one.id)).read_bytes()
        rawko(store.root, "cancel", one.id)
        assert store.journal.layout.path(store.find(one.id)).read_bytes() == before
        one.close()
        two.close()

    def test_snapshots_run_no_hooks(self, store: FileStore) -> None:
        git(store.root, "init", "-q")
        for name in ("post-index-change", "reference-transaction"):
            hook = store.root / ".git" / "hooks" / name
            hook.parent.mkdir(exist_ok=True)
            hook.write_text(f"#!/bin/sh\ntouch {store.root}/ran\nexit 1\n")
            hook.chmod(0o755)
        (store.root / "nested").mkdir()
        git(store.root / "nested", "init", "-q")
        (store.root / "a").write_text("x\r\ny\n")
        git(store.root, "config", "core.safecrlf", "true")
        git(store.root, "config", "core.autocrlf", "true")
        with store.start("x") as task:
            task.add_turn(a_turn(), snapshot="git")
        assert not (store.root / "ran").exists()
        found = snapshot_at(store, task.id, 1)
        assert found is not None
        assert found["ref"]
        assert "a" in git(store.root, "ls-tree", "--name-only", found["ref"]).split()

    def test_parents_in_a_circle(self, store: FileStore) -> None:
        for one, other in (("aaaaaa", "bbbbbb"), ("bbbbbb", "aaaaaa")):
            store.journal.layout.make()
            text = f"=== TASK {one} ===\nParent: {other}@1\n\n=== REQUEST ===\nUser: x\n\n--- Turn 1: dev ---\nStatus: complete\n\n"
            (store.journal.layout.tasks / f"2024-01-15T10-30-00-{one}.task").write_text(text)
        assert snapshot_at(store, "aaaaaa", 1) is None
        assert rawko(store.root, "resume", "aaaaaa", "--dry-run").stdout
        assert "aaaaaa" in rawko(store.root, "history", "show", "aaaaaa").stdout


def test_an_illegal_move_names_both(store: FileStore) -> None:
    with store.start("x") as task:
        pass
    with store.attach(task.id) as again, pytest.raises(IllegalMove, match="is completed; it cannot become paused"):
        again.set_status("paused")
