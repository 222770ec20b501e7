"""How much work requests cause in the database: counted, not timed."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from rawko_state.backends.postgres import host
from rawko_state.backends.remote.store import RemoteStore
from rawko_state.server.feeds import Hub
from tests.server.clients import Client
from tests.support.machine import wait_for
from tests.support.serving import Served, served


class Counted:
    """What PostgreSQL logs of one database while a block runs."""

    def __init__(self, running: Served, statements: list[str]) -> None:
        self.running, self.statements = running, statements

    @contextlib.contextmanager
    def counting(self) -> Iterator[list[str]]:
        self.statements.clear()
        found: list[str] = []
        yield found
        found += [each for each in self.statements if not _is_background(each)]


def _is_background(statement: str) -> bool:
    """Notifications are sent together, after the request; jobs run by the clock; a new token is announced to every server, which
    then looks once more at those that it knows."""
    jobs = r"pg_notify|LISTEN|SELECT 1 FROM|expires < clock|FROM rawko.workspaces|\"workspaces\"|FROM rawko.tokens"
    return bool(re.search(jobs, statement))


@pytest.fixture
def counted(database: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Counted]:
    from psycopg._cursor_base import BaseCursor

    statements: list[str] = []
    maybe = BaseCursor._maybe_prepare_gen

    def recorded(cursor, pgq, **more):  # type: ignore[no-untyped-def]
        statements.append(pgq.query.decode())
        return maybe(cursor, pgq, **more)

    monkeypatch.setattr(host, "_REMEMBERED", 3600.0)  # the machine may be slow
    with served(project, database) as running:
        token = running.server.workspaces.state.create_token("write")
        monkeypatch.setenv("RAWKO_REMOTE_TOKEN", token)
        monkeypatch.setattr(BaseCursor, "_maybe_prepare_gen", recorded)
        yield Counted(running, statements)


def test_statements_of_an_append(counted: Counted) -> None:
    """One, and so one round trip: key, audit entry and record are together."""
    ask = Client(counted.running.port, os.environ["RAWKO_REMOTE_TOKEN"])
    task = ask.start()
    for _ in range(2):
        ask("POST", f"tasks/{task}/turns", {"agent": "a", "content": "warm"}, Idempotency_Key=os.urandom(8).hex())
    with counted.counting() as found:
        for number in range(5):
            ask("POST", f"tasks/{task}/turns", {"agent": "a", "content": f"n {number}"}, Idempotency_Key=f"k{number}")
    assert len(found) == 5, "\n".join(found)
    with counted.counting() as found:
        assert ask("GET", f"tasks/{task}/turns/1")[0] == 200
    assert len(found) == 1, "\n".join(found)


def test_an_append_after_somebody_else_takes_two_round_trips(counted: Counted) -> None:
    """The quick statement fails, and the row is locked: one trip for the row, one for the rest."""
    ask = Client(counted.running.port, os.environ["RAWKO_REMOTE_TOKEN"])
    task = ask.start()
    ask("POST", f"tasks/{task}/turns", {"agent": "a"})
    store = counted.running.server.workspaces.get(None).store
    with store.attach(task) as other:
        other.say("meanwhile")
    assert ask("POST", f"tasks/{task}/turns", {"agent": "a"})[0] == 201
    assert store.summary(task).turns == 3


def test_what_a_live_turn_says_is_one_request_and_four_statements(counted: Counted, tmp_path: Path) -> None:
    store = RemoteStore(counted.running.url, root=tmp_path)
    task = store.start("x")
    requests: list[str] = []
    sent = store.http._sent

    def recorded(method: str, path: str, *more: object) -> object:
        requests.append(f"{method} {path}")
        return sent(method, path, *more)  # type: ignore[arg-type]

    with task.turn("dev") as turn:
        turn.say("warm up. ")
        store.http._sent = recorded  # type: ignore[method-assign, assignment]
        with counted.counting() as found:
            turn.say("One sentence. ")
        store.http._sent = sent  # type: ignore[method-assign]
    assert len(requests) == 1, requests
    assert len(found) <= 4, "\n".join(found)
    task.finish("success")
    assert store.turn(task.id, 1).content == "warm up. One sentence. "
    store.close()


def test_a_token_is_looked_up_once(counted: Counted) -> None:
    ask = Client(counted.running.port, os.environ["RAWKO_REMOTE_TOKEN"])
    ask("GET", "hello")
    with counted.counting():
        for _ in range(20):
            ask("GET", "hello")
    assert (
        len([each for each in counted.statements if "rawko.tokens" in each]) <= 1
    )  # after the new token's announcement


def test_a_revoked_token_is_refused_by_every_server(database: str, project: Path) -> None:
    with served(project, database) as one, served(project, database) as two:
        state = one.server.workspaces.state
        token = state.create_token("read")
        for running in (one, two):
            assert Client(running.port, token)("GET", "tasks")[0] == 200
        assert state.revoke_token(token.split("_")[1])
        assert Client(one.port, token)("GET", "tasks")[0] == 401
        wait_for(lambda: Client(two.port, token)("GET", "tasks")[0] == 401, seconds=10)


def test_the_bytes_of_psycopg_are_counted() -> None:
    """The count above rests on a name inside psycopg."""
    from psycopg._cursor_base import BaseCursor

    assert hasattr(BaseCursor, "_maybe_prepare_gen"), psycopg.__version__


def test_a_change_wakes_the_feeds_only_if_someone_follows() -> None:
    hub, workspace = Hub(notified=True), SimpleNamespace(name="team")
    queue: Any = hub._woken
    hub.changed("team", "abc123")
    assert queue.empty()
    with hub.following(workspace, "abc123"):  # type: ignore[arg-type]
        hub.changed("team", "def456")
        assert queue.empty()
        hub.changed("team", "abc123")
        hub.changed("*", "*")
        assert queue.qsize() == 2
