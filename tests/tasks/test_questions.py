"""The life of a task: its statuses, live turns, events, questions, pause and cancel, resume, follow-up, fork, snapshots."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from rawko_state.backends.files.store import FileStore
from rawko_state.cli import answer_cmd
from rawko_state.errors import NoAnswer
from rawko_state.lifecycle import context as contexts
from rawko_state.model.entries import Question
from rawko_state.store import TaskFilter
from tests.support.machine import patience, wait_for
from tests.support.processes import rawko
from tests.tasks.lives import DRIVER


class TestQuestions:
    def test_the_waiting_process_gets_the_answer(self, tmp_path: Path) -> None:
        process = subprocess.Popen([sys.executable, DRIVER, "ask", str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        task_id = process.stdout.readline().strip()
        store = FileStore(tmp_path)
        wait_for(lambda: store.status(task_id) == "waiting")
        shown = rawko(tmp_path, "answer", task_id, given="", code=2).stdout
        assert shown == "? Which database?\n    1  sqlite\n    2  postgres\n"
        assert "not one of the choices" in rawko(tmp_path, "answer", task_id, "oracle", code=2).stderr
        rawko(tmp_path, "answer", task_id, "2", "--by", "kim")
        assert process.communicate(timeout=patience(20))[0].strip() == "postgres"
        assert store.turn(task_id, 2).by == "kim"
        assert store.status(task_id) == "completed"
        assert "is not waiting for an answer" in rawko(tmp_path, "answer", task_id, "1", code=1).stderr
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

    def test_of_several_each_is_named_by_its_question(self, store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
        for request, question in (("Clean up", "Run rm -rf build?"), ("Publish", "Publish the draft?")):
            task = store.start(request)
            task.ask("dev", Question(question))
            task.close()
        refused = rawko(store.root, "answer", code=2).stderr
        assert [line.split("   ")[1] for line in refused.splitlines()[1:]] == [
            "Publish the draft?",
            "Run rm -rf build?",
        ]
        shown: list[str] = []
        monkeypatch.setattr(answer_cmd.click, "echo", lambda text="", **_: shown.append(answer_cmd.click.unstyle(text)))
        monkeypatch.setattr(answer_cmd.click, "prompt", lambda *_, **__: 2)
        assert answer_cmd._waiting(store, terminal=True) == store.history(TaskFilter())[1].id
        assert [line.strip() for line in shown[1::2]] == ["Publish the draft?", "Run rm -rf build?"]

    def test_a_deadline_with_a_safe_default(self, store: FileStore) -> None:
        task = store.start("x")
        soon = datetime.now(timezone.utc) + timedelta(seconds=0.3)
        assert task.turn("dev").ask("delete all?", ["yes", "no"], default="no", deadline=soon) == "no"
        assert store.turn(task.id, 2).by == "deadline"
        with pytest.raises(NoAnswer, match="no answer by"):
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
