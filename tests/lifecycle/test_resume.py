"""The life of a task: its statuses, live turns, events, questions, pause and cancel, resume, follow-up, fork, snapshots."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from rawko_state.backends.files.store import FileStore
from rawko_state.errors import TaskBusy, TaskNotFound
from rawko_state.lifecycle import context as contexts
from tests.support.machine import patience
from tests.support.processes import rawko
from tests.tasks.conftest import store  # noqa: F401 - fixtures
from tests.tasks.lives import a_turn, conversation


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
        assert "Line 4 of the command's output: Unknown type: 'rubbish'" in done.stderr
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
            assert "ommand" in rawko(store.root, "resume", task_id, "--with", command, code=1).stderr
        assert store.journal.layout.path(store.find(task_id)).read_bytes() == before

    def test_no_id_no_task(self, store: FileStore) -> None:
        with store.start("x"):
            pass
        assert "no task is interrupted" in rawko(store.root, "resume", code=1).stderr
        task_id = conversation(store)
        assert rawko(store.root, "resume", "--dry-run").stdout.startswith(f"# Task {task_id}: Login\n")
        assert store.status(task_id) == "interrupted"

    def test_a_running_one_is_refused(self, store: FileStore) -> None:
        task = store.start("x")
        assert f"rawko watch {task.id}" in rawko(store.root, "resume", task.id).stderr
        done = rawko(store.root, "resume", "--open", task.id, code=1)
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
        assert [said.text for said in store.said(task.id)] == ["first", "and now the tests"]
        assert [said.text for said in store.said(task.id, 1)] == ["first"]
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
        assert f"forked from {task_id} after turn 4" in shown
        assert f"1 fork: {grandchild.id} after turn 5" in shown
        shown = rawko(store.root, "history", "show", child, "--full").stdout
        assert f"└─ {child} after turn 4" in shown
        assert f"   └─ {grandchild.id} after turn 5" in shown

    def test_a_parent_that_is_gone(self, store: FileStore) -> None:
        task_id = conversation(store)
        child = store.fork(task_id, 2)
        child.close()
        store.journal.layout.path(store.find(task_id)).unlink()
        assert "(no longer here)" in rawko(store.root, "history", "show", child.id).stdout
        assert f"Forked from {task_id}, which no longer exists" in rawko(store.root, "resume", child.id).stdout

    def test_a_turn_that_is_not_there(self, store: FileStore) -> None:
        task_id = conversation(store)
        assert "no turn 99" in rawko(store.root, "resume", task_id, "--at-turn", "99", code=2).stderr
        assert store.children(task_id) == []
