"""The server, over real sockets: what it takes and refuses, from whom; requests that are done once; streams without gap or double."""

from __future__ import annotations

import socket
import uuid
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from rawko_state.backends.postgres.host import PostgresServerState
from rawko_state.index.server_state import FileServerState
from rawko_state.server.app import OPERATIONS, PREFIX
from tests.server.clients import Client
from tests.support.machine import patience
from tests.support.serving import Served, served


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

    def test_a_second_origin_is_looked_at_too(self, server: Served) -> None:
        own = f"http://localhost:{server.port}"
        for origins in ((own, "http://evil.com"), ("http://evil.com", own)):
            lines = "".join(f"Origin: {origin}\r\n" for origin in origins)
            with socket.create_connection(("127.0.0.1", server.port), timeout=patience(30)) as connection:
                connection.sendall(
                    f"GET {PREFIX}/tasks HTTP/1.1\r\nHost: localhost:{server.port}\r\n{lines}\r\n".encode()
                )
                assert connection.recv(1 << 16).split()[1] == b"403"

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
