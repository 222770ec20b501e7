"""What the tests of this folder share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from rawko_state.backends.files.store import FileStore
from rawko_state.model.entries import ToolCall, Turn
from rawko_state.model.events import Event
from rawko_state.model.frozen import replace
from tests.support.machine import patience
from tests.support.processes import DRIVERS

DRIVER = str(DRIVERS / "life.py")


def a_turn(content: str = "said", **more: object) -> Turn:
    return Turn(number=1, agent="dev", status="complete", content=content, **more)  # type: ignore[arg-type]


def kinds(events: Iterator[Event] | list[Event]) -> list[str]:
    return [event.kind for event in events]


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


def git(root: Path, *given: str) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    me = {"GIT_AUTHOR_NAME": "t", "GIT_AUTHOR_EMAIL": "t@t", "GIT_COMMITTER_NAME": "t", "GIT_COMMITTER_EMAIL": "t@t"}
    done = subprocess.run(["git", *given], cwd=root, env={**clean, **me}, capture_output=True, text=True, check=True)
    return done.stdout
