"""Continuing a task with the command that is configured for its next agent: ``rawko resume``, started from the page.

Only the person whose server this is may do that, and so only somebody who came by a one-time link of ``rawko open``. The command
is from this user's own settings, never from the project's, and the page shows all of it before it runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from typing import Final

from rawko_state.config.settings import load
from rawko_state.errors import InvalidValue, RawkoError
from rawko_state.lifecycle.context import build
from rawko_state.model.frozen import Frozen
from rawko_state.model.status import FINISHED, RUNNING, WAITING
from rawko_state.server.problems import Refused
from rawko_state.store import TaskSummary
from rawko_state.store.hosting import AuditEntry
from rawko_state.web.visits import Reply, View, Visit

_FEW: Final = 1_000
"""A budget in tokens: enough context to find the next agent."""
_PATIENCE: Final = 15.0
"""Seconds to wait until the command runs, or has failed."""
_LONGEST: Final = 100_000
"""Bytes of a message; it is an argument of a command."""
# The folder of the project is not on the path: what lies there is not this program's.
_CODE: Final = "import sys; sys.path = [each for each in sys.path if each]; from rawko_state.cli import main; main()"


class Runner(Frozen):
    """The command that continues a task."""

    agent: str
    command: str


def runner_of(visit: Visit, task: TaskSummary) -> Runner | None:
    """None if there is none, it isn't this visitor's, or the task runs or waits."""
    if not visit.visitor.came_by_link or not visit.store.is_local or task.status in (RUNNING, WAITING):
        return None
    runners = load(visit.store.root)["runners"]
    if not runners or task.id in visit.store.alive():
        return None
    agent = build(visit.store, task.id, None, _FEW).next_agent
    return Runner(agent, runners[agent]) if agent in runners else None


def ask(visit: Visit) -> Reply:
    """Shows the command before it runs."""
    task, runner = _runnable(visit)
    values = {"place": "tasks", "task": task, "runner": runner, "needs_message": task.status in FINISHED}
    return Reply("continue.html", values)


def go_on(visit: Visit) -> Reply:
    task, runner = _runnable(visit)
    message = visit.form.get("message", "").strip()
    if task.status in FINISHED and not message:
        raise Refused(422, "InvalidValue", f"Task {task.id} is {task.status}. Say what to do next.")
    if visit.form.get("command") != runner.command:
        raise Refused(409, "Changed", "The command in your settings has changed. Look at it again.")
    if "\x00" in message or len(message.encode()) > _LONGEST:
        raise InvalidValue("The message can't be used: it is too long or holds a NUL character.")
    by, root = visit.visitor.name or "unknown_user", str(visit.store.root)
    words = [sys.executable, "-c", _CODE, "-C", root, "resume", f"--by={by}", task.id]
    if message:
        words.append(f"--message={message}")
    before = visit.store.now(task.id)
    with tempfile.TemporaryFile() as told:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=told, start_new_session=True, cwd=visit.store.root,
            env={**os.environ, "RAWKO_DIR": ""},
        )  # fmt: skip
        until = time.monotonic() + _PATIENCE
        while process.poll() is None and task.id not in visit.store.alive() and time.monotonic() < until:
            time.sleep(0.02)
        if process.poll() is None:
            threading.Thread(target=process.wait, daemon=True, name="runner").start()
        elif process.returncode and visit.store.now(task.id) == before:
            told.seek(0)
            raise Refused(
                409, "NotContinued", told.read(4_000).decode("utf-8", "replace").strip() or "It did not start."
            )
    visit.workspace.changed(task.id)
    who = visit.visitor.who
    visit.server.auditor.add(AuditEntry(who.id, "continue", visit.workspace.name, task.id, 200, visit.peer))
    return Reply(to=visit.at("t", task.id) + "#end")


def _runnable(visit: Visit) -> tuple[TaskSummary, Runner]:
    task = visit.store.summary(visit.store.find(visit.params["id"]).id)
    runner = runner_of(visit, task)
    if runner is None:
        text = (
            f"There is nothing to run for task {task.id}: it runs already, or no runner of yours is for its next agent."
        )
        raise Refused(409, "NoRunner", text)
    return task, runner


def offered(visit: Visit, task: TaskSummary) -> bool:
    """Whether the page of a task offers it."""
    try:
        return runner_of(visit, task) is not None
    except RawkoError:
        return False


VIEWS: Final = (View("/t/{id}/continue", ask), View("/t/{id}/continue", go_on, method="POST"))
