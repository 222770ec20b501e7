"""Two roles and a stranger, each in a browser of their own; and a page of somebody else that tries to use this one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from rawko_state.backends.select import open_files, open_server_state
from rawko_state.model.entries import Question
from rawko_state.web.pages import routes
from tests.support.serving import Served, served

pytestmark = pytest.mark.every  # a step of its own in CI


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, dict[str, str], str]]:
    root = tmp_path_factory.mktemp("team")
    task = open_files(root).start("of a team", agent="developer", detached=True)
    task.ask("developer", Question("Shall I?", ("yes", "no")))
    task.close()
    state = open_server_state(root)
    tokens = {role: state.create_token(role, note=role) for role in ("read", "write")}
    state.close()
    with served(root, pages=routes) as running:
        yield running, tokens, task.id


def test_two_roles_and_a_stranger(watch: Callable[..., Any], team: tuple[Served, dict[str, str], str]) -> None:
    server, tokens, task = team
    stranger = watch(server.url)
    page = stranger.goto(f"/t/{task}")
    assert "/sign-in?next=" in page.url
    assert "of a team" not in page.content()
    for role in ("read", "write"):
        visit = watch(server.url)
        page = visit.goto(f"/t/{task}")
        page.get_by_label("Access token").fill(tokens[role])
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(f"**/t/{task}")
        assert page.evaluate("document.cookie") == "", "scripts don't see the session"
        assert page.locator(".ask form").count() == (1 if role == "write" else 0)
        if role == "read":
            assert "Choices: " in page.locator(".ask").inner_text(), "who may not answer sees what is asked"
        if role == "write":
            page.locator(".ask label").first.click()
            page.get_by_role("button", name="Send answer").click()
            page.wait_for_selector("#t2")
            page.get_by_role("button", name="Sign out").click()
            page.wait_for_url("**/sign-in")
            assert "/sign-in" in visit.goto("/").url


ATTACK = """<!doctype html><title>evil</title>
<form id=f method=post action="{url}/t/{task}/do/cancel"><input name=token value=x></form>
<iframe src="{url}/"></iframe><img src="{url}/static/icon.svg">
<script>
  window.got = [];
  const tries = [
    fetch("{url}/", {{credentials: "include"}}).then((r) => r.text()).then((t) => got.push(["page", t])),
    fetch("{url}/t/{task}/do/cancel", {{method: "POST", credentials: "include", mode: "no-cors", headers: {{"Content-Type": "application/x-www-form-urlencoded"}}, body: "token=x"}}),
    fetch("{url}/api/v1/tasks").then((r) => r.text()).then((t) => got.push(["api", t])),
    new Promise((done) => {{ const s = new EventSource("{url}/live", {{withCredentials: true}}); s.onmessage = (e) => got.push(["live", e.data]); s.addEventListener("now", (e) => got.push(["now", e.data])); setTimeout(done, 500); }}),
  ];
  Promise.allSettled(tries).then(() => {{ document.title = "tried"; }});
</script>"""


def test_a_page_of_somebody_else_gets_and_changes_nothing(
    watch: Callable[..., Any], server: Served, store: Any
) -> None:
    task = store.start("not to be touched", detached=True)
    task.close()

    class Evil(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = ATTACK.format(url=server.url, task=task.id).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            return

    evil = ThreadingHTTPServer(("127.0.0.1", 0), Evil)
    thread = threading.Thread(target=evil.serve_forever, daemon=True)
    thread.start()
    try:
        visit = watch()
        visit.ready("/")  # a session of its own, in the same browser
        page = visit.page
        visit.is_attack = True
        page.goto(f"http://localhost:{evil.server_port}/")
        page.wait_for_function("document.title === 'tried'")
        assert page.evaluate("got") == []
        assert "not to be touched" not in "".join(frame.content() for frame in page.frames)
        page.evaluate("document.getElementById('f').submit()")
        page.wait_for_load_state()
        assert store.status(task.id) == "running"
    finally:
        evil.shutdown()
        evil.server_close()
        thread.join()
