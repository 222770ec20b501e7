"""The life of a task: its statuses, live turns, events, questions, pause and cancel, resume, follow-up, fork, snapshots."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rawko_state.backends.files.store import FileStore
from rawko_state.errors import Stopped
from rawko_state.store import TaskFilter
from tests.support.machine import patience
from tests.support.processes import rawko
from tests.tasks.lives import a_turn


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
        rawko(store.root, "resume", task.id)
        with pytest.raises(Stopped):
            task.check()  # printing has changed nothing
        assert "in its process" in rawko(store.root, "resume", "--open", task.id).stderr
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
        assert "only a running task can be paused" in rawko(store.root, "pause", task.id, code=1).stderr
        assert "No task starts with" in rawko(store.root, "cancel", "zzz", code=1).stderr
        assert "Missing argument: ID." in rawko(store.root, "cancel", code=2).stderr
