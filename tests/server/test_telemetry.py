"""OTLP over HTTP: what is received, from whom, and what is refused."""

from __future__ import annotations

import gzip
import urllib.error
import urllib.request
from pathlib import Path

import rawko_state as rawko
from tests.exchange.test_telemetry import CHAT, ROOT, logs, spans
from tests.support.serving import Served, served


def posted(server: Served, body: bytes, path: str = "/v1/traces", **headers: str) -> tuple[int, bytes]:
    sent = {"Content-Type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    try:
        with urllib.request.urlopen(urllib.request.Request(server.url + path, body, sent)) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_spans_and_events_become_tasks(server: Served, project: Path) -> None:
    assert posted(server, spans(CHAT)) == (200, b"{}")
    store = rawko.open(project, remote="local")
    assert [task.status for task in store.history(rawko.TaskFilter())] == ["running"]
    assert posted(server, gzip.compress(spans(CHAT, ROOT)), Content_Encoding="gzip")[0] == 200
    assert [task.status for task in store.history(rawko.TaskFilter())] == ["completed"]
    prompt = logs({"session.id": "s", "event.name": "claude_code.user_prompt", "prompt": "Fix it"})
    for _ in range(2):  # what is sent again is known
        assert posted(server, prompt, "/v1/logs") == (200, b"{}")
    assert sorted(task.request or "" for task in store.history(rawko.TaskFilter())) == ["Fix it", "Fix the login"]


def test_what_is_wrong_is_refused(server: Served, project: Path) -> None:
    assert posted(server, b"{")[0] == 422
    assert posted(server, b"x", Content_Type="text/plain")[0] == 422
    assert posted(server, b"x", Content_Encoding="gzip")[0] == 422
    assert posted(server, spans(CHAT), Origin="http://evil.example")[0] == 403
    assert rawko.open(project, remote="local").history(rawko.TaskFilter()) == []


def test_who_may_only_read_may_not_send(project: Path) -> None:
    with served(project) as server:
        state = server.server.workspaces.state
        tokens = {role: state.create_token(role) for role in ("read", "write")}
        for role, code in (("read", 403), ("write", 200)):
            assert posted(server, spans(CHAT), Authorization=f"Bearer {tokens[role]}")[0] == code
        assert posted(server, spans(CHAT), Authorization="Bearer wrong")[0] == 401
