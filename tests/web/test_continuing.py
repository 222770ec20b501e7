"""A task is continued from the page by the command in one's own settings: only by the person whose server it is."""

from __future__ import annotations

import shlex
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rawko_state.backends.select import open_files
from rawko_state.config import folders
from rawko_state.model.entries import Turn
from rawko_state.store.contract import ProjectStore
from rawko_state.web.pages import routes
from rawko_state.web.sessions import Links
from tests.support.machine import wait_for
from tests.support.serving import served
from tests.web.visitor import Visitor

AGENT = """import os, sys
context = sys.stdin.read()
print("I continue", os.environ["RAWKO_TASK"], "seen" if "half of it" in context else "lost", os.getcwd())
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    found = tmp_path / "shop"
    found.mkdir()
    return found


@pytest.fixture
def store(project: Path) -> Iterator[ProjectStore]:
    with open_files(project) as found:
        yield found


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    path = tmp_path / "agent.py"
    path.write_text(AGENT)
    return path


@pytest.fixture
def me(project: Path, store: ProjectStore) -> Iterator[Visitor]:
    """Somebody who came by 'rawko open'."""
    links = Links("mara")
    with served(project, private=True, pages=lambda server: routes(server, links)) as server:
        visitor = Visitor(server.port)
        visitor.get(f"/open?once={links.make()}")
        yield visitor


@pytest.fixture(autouse=True)
def settings() -> Iterator[Path]:
    """This user's own."""
    path = folders.user_config() / "config.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    yield path
    path.unlink(missing_ok=True)


def runner(settings: Path, command: str) -> None:
    settings.write_text(f"runners:\n  developer: {command!r}\n")


def begun(store: ProjectStore, *, over: bool = False) -> str:
    task = store.start("half of it", agent="developer", detached=True)
    task.add_turn(Turn(number=1, agent="developer", status="complete", content="the first half"))
    if over:
        task.finish("success")
    else:
        task.set_status("paused")
        task.close()
    return task.id


@pytest.mark.every
def test_the_configured_command_continues_the_task_and_what_it_does_is_recorded(
    me: Visitor, store: ProjectStore, project: Path, agent: Path, settings: Path
) -> None:
    command = shlex.join([sys.executable, str(agent)])
    task = begun(store)
    assert "/continue" not in me.get(f"/t/{task}").text, "there is no runner yet"
    assert me.get(f"/t/{task}/continue").status == 409
    runner(settings, command)
    (project / "json.py").write_text("raise SystemExit('a file of the project was loaded')")
    assert f'href="/t/{task}/continue"' in me.get(f"/t/{task}").text
    at = f"/t/{task}/continue"
    assert command in me.get(at).words, "all of the command is shown before it runs"
    form = {"command": command, "message": "-- and mind the tests"}
    assert me.send(at, {**form, "command": "rm -r x"}, at=at).status == 409
    assert me.send(at, form, at=at).to == f"/t/{task}#end"
    wait_for(lambda: store.status(task) == "completed")
    wait_for(lambda: not any(each.name == "runner" for each in threading.enumerate()))  # it has been waited for
    said = store.turn(task, store.summary(task).turns).content
    assert said is not None
    assert said.split() == ["I", "continue", task, "seen", str(project)]
    assert "mind the tests" in me.get(f"/t/{task}").text


def test_a_finished_task_needs_something_to_do_next(
    me: Visitor, store: ProjectStore, agent: Path, settings: Path
) -> None:
    command = shlex.join([sys.executable, str(agent)])
    runner(settings, command)
    task = begun(store, over=True)
    at = f"/t/{task}/continue"
    assert me.send(at, {"command": command}, at=at).status == 422
    assert me.send(at, {"command": command, "message": "a\x00b"}, at=at).status == 422
    assert store.status(task) == "completed"


@pytest.mark.every
def test_a_command_that_cannot_run_is_told_and_leaves_the_task_as_it_was(
    me: Visitor, store: ProjectStore, settings: Path
) -> None:
    runner(settings, "no-such-agent --go")
    task = begun(store)
    at = f"/t/{task}/continue"
    before = store.now(task)
    page = me.send(at, {"command": "no-such-agent --go"}, at=at)
    assert page.status == 409
    assert "Command not found: no-such-agent" in page.words
    assert store.now(task) == before
    assert store.status(task) == "paused"


def test_nobody_else_runs_commands_here(store: ProjectStore, project: Path, agent: Path, settings: Path) -> None:
    command = shlex.join([sys.executable, str(agent)])
    runner(settings, command)
    task = begun(store)
    links = Links("mara")
    with served(project, pages=lambda server: routes(server, links)) as server:
        anybody = Visitor(server.port)
        assert "/continue" not in anybody.get(f"/t/{task}").text
        assert refused(anybody, task, command)
        anybody.cookies[f"rawko_{server.port}"] = "link." + "A" * 43
        assert refused(anybody, task, command)
    assert store.status(task) == "paused"


def refused(visitor: Visitor, task: str, command: str) -> bool:
    at = f"/t/{task}"
    return visitor.get(f"{at}/continue").status == 409 and visitor.send(
        f"{at}/continue", {"command": command}, at=at
    ).status in (403, 409)


def test_a_runner_that_the_project_names_is_ignored(me: Visitor, store: ProjectStore, project: Path) -> None:
    task = begun(store)
    (project / ".rawko" / "config.yaml").write_text("runners:\n  developer: evil\n")
    assert me.get(f"/t/{task}/continue").status == 409
