"""The life of a task: its statuses, live turns, events, questions, pause and cancel, resume, follow-up, fork, snapshots."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

from rawko_state.backends.files.store import FileStore
from tests.support.faults import needs_strace
from tests.support.machine import patience
from tests.support.processes import rawko
from tests.tasks.lives import DRIVER


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
        assert f"Task {task_id} was interrupted" in first.stderr
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
