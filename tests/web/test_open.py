"""rawko open: a server for one person, found again by the next 'rawko open'; all projects of a machine, each by its own rules."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from rawko_state.backends.select import learn_of, open_files, open_projects
from rawko_state.config.secret import key_path
from rawko_state.server import run as running_
from rawko_state.server.run import Options, build
from rawko_state.web.pages import routes
from rawko_state.web.sessions import Links
from tests.support.machine import patience, wait_for
from tests.support.serving import served
from tests.web.visitor import Visitor

RAWKO = [sys.executable, "-c", "from rawko_state.__main__ import main; main()"]


@pytest.mark.every
def test_rawko_open_prints_a_link_that_works_once_and_a_second_one_uses_the_same_server(tmp_path: Path) -> None:
    task = open_files(tmp_path).start("look at me", detached=True)
    task.close()
    command = [*RAWKO, "-C", str(tmp_path), "open", "--no-browser"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = re.fullmatch(r"http://127\.0\.0\.1:([0-9]+)(/open\?once=\S+)\n", process.stdout.readline())
        assert address is not None
        visitor = Visitor(int(address[1]))
        assert visitor.get("/").status == 303
        assert "look at me" in visitor.follow(visitor.get(address[2])).text
        assert Visitor(int(address[1])).get(address[2]).status == 403
        second = subprocess.run(
            [*command, task.id[:4]], capture_output=True, text=True, timeout=patience(60), check=True
        )
        found = re.fullmatch(r"http://127\.0\.0\.1:([0-9]+)(/open\?once=\S+)\n", second.stdout)
        assert found is not None
        assert found[1] == address[1], "the one that runs is used"
        assert Visitor(int(found[1])).get(found[2]).to == f"/t/{task.id}"
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=patience(30))
    wrong = subprocess.run([*command, "zzzz"], capture_output=True, text=True, timeout=patience(60), check=False)
    assert wrong.returncode != 0
    assert "Traceback" not in wrong.stderr


@pytest.mark.every
def test_a_browser_that_runs_in_the_terminal_gets_the_page(tmp_path: Path) -> None:
    """Such a browser asks for the page before the call that opened it returns."""
    open_files(tmp_path).start("read me in a terminal", detached=True).close()
    seen = tmp_path / "seen.html"
    browser = tmp_path / "browser.py"
    browser.write_text(
        "import sys, urllib.request as request\n"
        "opener = request.build_opener(request.HTTPCookieProcessor())\n"
        f"open({str(seen)!r}, 'wb').write(opener.open(sys.argv[1], timeout=60).read())\n"
    )
    env = {**os.environ, "BROWSER": f"{sys.executable} {browser} %s"}
    command = [*RAWKO, "-C", str(tmp_path), "open"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    try:
        wait_for(lambda: seen.exists() and "read me in a terminal" in seen.read_text(), seconds=20)
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=patience(30))


def notes() -> list[Path]:
    return list((key_path().parent / "open").glob("*.json"))


@pytest.mark.every
@pytest.mark.parametrize("tokens", [False, True], ids=["open", "tokens"])
def test_rawko_open_uses_the_rawko_serve_that_runs_for_this_project(tmp_path: Path, tokens: bool) -> None:
    task = open_files(tmp_path).start("served already", detached=True)
    task.close()
    rawko = [*RAWKO, "-C", str(tmp_path)]
    if tokens:
        subprocess.run(
            [*rawko, "token", "create", "--role", "read"], capture_output=True, timeout=patience(60), check=True
        )
    process = subprocess.Popen([*rawko, "serve", "--port", "0", "--quiet"], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        served_at = re.search(r"http://127\.0\.0\.1:([0-9]+)", process.stderr.readline())
        assert served_at is not None
        wait_for(notes)
        command = [*rawko, "open", "--no-browser", task.id]
        done = subprocess.run(command, capture_output=True, text=True, timeout=patience(60), check=True)
        found = re.fullmatch(r"http://127\.0\.0\.1:([0-9]+)(/open\?once=\S+)\n", done.stdout)
        assert found is not None
        assert found[1] == served_at[1], "no second server"
        visitor = Visitor(int(found[1]))
        assert "served already" in visitor.follow(visitor.get(found[2])).text
        assert visitor.send(f"/t/{task.id}/do/pin", at=f"/t/{task.id}").status == 303, "whoever runs it may act"
        stranger = Visitor(int(found[1]))
        assert stranger.post("/open/link", Authorization="Bearer guessed").status == 403
        assert stranger.get(f"/t/{task.id}").status == (303 if tokens else 200)
        if tokens:
            assert 'name="token"' in stranger.get("/sign-in").text
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=patience(30))
    assert notes() == []


def two_projects(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("one/shop", "two/shop"):
        (tmp_path / name / ".rawko" / "state").mkdir(parents=True)
        store = open_files(tmp_path / name)
        old = datetime.now(timezone.utc) - timedelta(days=90)
        store.start(f"of {name}", created=old, detached=True).finish("success", completed=old)
        learn_of(tmp_path / name)
    return tmp_path / "one/shop", tmp_path / "two/shop"


def test_all_projects_are_served_with_a_switcher(tmp_path: Path) -> None:
    one, _ = two_projects(tmp_path)
    links = Links("mara")
    with served(
        one, host=open_projects(one, lambda _: None), private=True, pages=lambda server: routes(server, links)
    ) as server:
        visitor = Visitor(server.port)
        visitor.get(f"/open?once={links.make()}")
        assert "of one/shop" in visitor.get("/").text
        page = visitor.get("/projects")
        assert 'href="/w/shop/"' in page.text
        assert 'href="/w/shop-2/"' in page.text
        other = visitor.get("/w/shop-2/")
        assert "of two/shop" in other.text
        assert "of one/shop" not in other.text
        link = re.search(r'href="(/w/shop-2/t/[a-z0-9]+)"', other.text)
        assert link is not None, "links stay in their project"
        assert visitor.send(f"{link[1]}/do/pin", at=link[1]).to == link[1]
        assert visitor.get("/w/nowhere/").status == 404


def test_retention_of_one_project_does_not_touch_another(tmp_path: Path) -> None:
    one, two = two_projects(tmp_path)
    (one / ".rawko" / "config.yaml").write_text("state:\n  retention:\n    max_age: 30d\n")
    server = build(Options(one, port=0), lambda _: None, open_projects(one, lambda _: None))
    said: list[str] = []
    running_._clean(server.workspaces, said.append)
    server.workspaces.close()
    assert open_files(one).task_ids() == []
    assert len(open_files(two).task_ids()) == 1, said
