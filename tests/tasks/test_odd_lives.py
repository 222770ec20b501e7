"""The life of a task: its statuses, live turns, events, questions, pause and cancel, resume, follow-up, fork, snapshots."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rawko_state.backends.files.store import FileStore
from rawko_state.errors import IllegalMove, InvalidValue, NoAnswer, Stopped
from rawko_state.lifecycle import context as contexts
from rawko_state.lifecycle.resuming import newest_to_resume, snapshot_at
from rawko_state.model.entries import Question
from tests.support.machine import patience, wait_for
from tests.support.processes import MARK, marked, rawko
from tests.tasks.lives import a_turn, conversation, git, kinds


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
        with pytest.raises(InvalidValue, match="of the choices"):
            task.ask("dev", Question("q", ("a", "b"), default="c"))
        task.close()
        assert "not one of the choices" in rawko(store.root, "resume", task.id, "-m", "maybe", code=2).stderr

    def test_resuming_leaves_a_question_open(self, store: FileStore) -> None:
        task = store.start("x")
        task.ask("dev", Question("which?"))
        task.close()
        shown = rawko(store.root, "resume", task.id)
        assert "which?" in shown.stdout
        assert store.status(task.id) == "waiting"
        assert newest_to_resume(store) == task.id
        rawko(store.root, "answer", task.id, "this")
        assert store.status(task.id) == "interrupted"  # nobody has gone on with it yet
        rawko(store.root, "resume", "--open", task.id)
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
        assert contexts.prompt(store, found).count("\nhalf\n") == 1

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
        "output", [b'{"type": []}', b"[" * 100_000, b"\xff\x00\xfe\n" * 10, b"", b"x" * 1_000_000, b"no end of line"]
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
        for number in range(1_000):
            turn.say(f"{number} " + "z" * 1_000)
        events = [event for event in store.events(task.id) if event.live]
        assert kinds(events) == ["tool"] + ["text"] * 1_000
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
        assert "No task starts with" in done.stderr
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
