"""Findings of attacks from outside, each with its test."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import http.server
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from websockets.exceptions import ConnectionClosedError

from rawko_state.backends.files.store import FileStore
from rawko_state.backends.postgres.store import PostgresStore
from rawko_state.backends.remote import client as remote_client
from rawko_state.backends.remote.proxies import proxy_for
from rawko_state.backends.remote.store import RemoteStore
from rawko_state.cli import cli
from rawko_state.errors import ServerAway, ServerRefused
from rawko_state.model.entries import Turn
from rawko_state.model.names import parse_name
from rawko_state.server import feeds
from rawko_state.server.limits import Limits
from rawko_state.server.problems import Refused
from rawko_state.store import TaskFilter
from rawko_state.store.hosting import KeyedRequest
from tests.server.clients import Client, _follow
from tests.support.machine import patience, wait_for
from tests.support.serving import Served, served


class TestValues:
    @pytest.mark.parametrize(
        "path", ["stats?agent=%00", "stats?file=%00", "tasks?model=%00", "search?q=%00", "kv/a/%00"]
    )
    def test_nul_in_a_query(self, any_server: Served, path: str) -> None:
        assert Client(any_server.port)("GET", path)[0] == 422

    @pytest.mark.parametrize(
        ("method", "path", "data"),
        [
            ("GET", "tasks?since=9999-12-31T23:59:59-23:59", None),
            ("GET", "search?q=a&until=0001-01-01T00:00:00%2B23:59", None),
            ("GET", "stats?since=0001-01-01T00:00:00%2B23:59", None),
            ("POST", "repos", {"vcs": "git", "remote_url": "\ud800"}),
            ("POST", "agents", {"name": "\ud800"}),
            ("POST", "runtimes", {"type": "\ud800"}),
        ],
    )
    def test_a_value_that_nothing_can_hold(self, any_server: Served, method: str, path: str, data: Any) -> None:
        """It is the client's fault, not the storage's, and no path of the server is named."""
        status, found, _ = Client(any_server.port)(method, path, data)
        assert (status, found["title"], "/" in found["detail"]) == (422, "InvalidValue", False)

    def test_exports_are_not_sniffed(self, client: Client) -> None:
        task = client.start()
        for form in ("html", "md", "json", "task"):
            status, _, headers = client("GET", f"tasks/{task}/export?format={form}")
            assert (status, headers["x-content-type-options"]) == (200, "nosniff")
        assert client("GET", "nothing")[2]["x-content-type-options"] == "nosniff"

    @pytest.mark.parametrize(
        ("request_line", "status"),
        [
            ("GET /api/v1/tasks/ HTTP/1.1", 404),
            ("GET /static/..%2f HTTP/1.1", 404),
            ("GET /healthz/ HTTP/1.1", 404),
            ("\x01", 400),
            ("GET /" + "x" * (17 << 10) + " HTTP/1.1", 431),
        ],
        ids=["an address with a slash", "a quoted slash", "health", "no HTTP", "too long"],
    )
    def test_whatever_is_refused_is_not_sniffed_and_leads_nowhere(
        self, server: Served, request_line: str, status: int
    ) -> None:
        with socket.create_connection(("127.0.0.1", server.port), timeout=patience(30)) as connection:
            connection.sendall(f"{request_line}\r\nHost: evil.com\r\n\r\n".encode())
            head = connection.recv(1 << 16).lower().partition(b"\r\n\r\n")[0]
        assert head.startswith(b"http/1.1 %d" % status)
        assert b"x-content-type-options: nosniff" in head
        assert b"evil.com" not in head

    def test_a_get_repairs_nothing(self, server: Served, client: Client, project: Path) -> None:
        task = client.start()
        (path,) = (project / ".rawko/state/tasks").iterdir()
        with open(path, "ab") as stream:
            stream.write(b"--- Turn 1: a ---\ntorn")
        size = path.stat().st_size
        assert client("GET", f"tasks/{task}/verify?repair=true")[0] == 422
        assert client("GET", f"tasks/{task}/verify")[1]["faults"]
        assert path.stat().st_size == size
        assert client("POST", f"tasks/{task}/verify")[1]["repaired"]
        assert client("GET", f"tasks/{task}/verify")[1]["faults"] == []


class TestStreams:
    def test_a_revoked_token_ends_its_stream(self, server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is checked by its own clock, not by the heartbeats."""
        assert feeds._ADMITTED < 15
        monkeypatch.setattr(feeds, "_ADMITTED", 0.1)
        state = server.server.workspaces.state
        token = state.create_token("write")
        task = Client(server.port, token).start()
        connection = socket.create_connection(("127.0.0.1", server.port), timeout=patience(30))
        head = f"GET /api/v1/tasks/{task}/events/stream HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"
        connection.sendall(head.encode())
        assert b"200" in connection.recv(100)
        state.revoke_token(token.split("_")[1])
        found = b""
        while piece := connection.recv(1 << 16):
            found += piece
            if b"event: problem" in found:
                break
        connection.close()
        assert b"event: problem" in found

    def test_whoever_reads_slowly_reads_no_longer_than_the_token_is_valid(
        self, server: Served, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Hundreds of events are read at once. The token is checked between two of them, too."""
        task = client.start()
        for number in range(40):
            client("POST", f"tasks/{task}/notes", {"text": f"note {number}"})
        monkeypatch.setattr(feeds, "_ADMITTED", 0.01)
        assert feeds._ADMITTED + feeds.SLOW <= 15
        workspace = server.server.workspaces.get(None)
        read = 0

        def may() -> None:
            if read >= 5:
                raise Refused(401, "Unauthorized", "Unknown or revoked token.")

        async def slowly() -> None:
            nonlocal read
            hub = feeds.Hub(notified=True)
            hub.start()
            try:
                events = feeds.follow(hub, workspace, task, None, asyncio.to_thread, until_over=False, may=may)
                async for each in events:
                    read += each is not None
                    await asyncio.sleep(0.02)
            finally:
                hub.stop()

        with pytest.raises(Refused):
            asyncio.run(asyncio.wait_for(slowly(), patience(30)))
        assert read <= 6


class TestLog:
    def test_every_line_is_json(self, project: Path) -> None:
        words = [sys.executable, "-m", "rawko_state", "-C", str(project), "serve", "--port", "0"]
        process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        port = int(process.stderr.readline().rsplit(":", 1)[1])
        with socket.create_connection(("127.0.0.1", port), timeout=patience(30)) as connection:
            connection.sendall(b"NONSENSE\r\n\r\n")
            connection.recv(1000)
        Client(port)("GET", "tasks")
        process.terminate()
        lines = process.stderr.read().splitlines()
        process.wait(patience(30))
        process.stderr.close()
        found = [json.loads(line) for line in lines]
        assert [line for line in found if line.get("logger", "").startswith("uvicorn")]
        assert [line for line in found if line.get("operation") == "list_tasks"]


class TestEscapes:
    TEXT = "x\x1b[31mred\x1b]0;title\x07\rover\u2028next\x9b31m"

    @pytest.mark.parametrize(
        "words",
        [
            ("resume", "{}", "--dry-run"),
            ("resume", "{}"),
            ("watch", "{}"),
            ("history", "export", "{}", "--format", "md"),
            ("history", "export", "{}", "--format", "html"),
            ("history", "show", "{}"),
        ],
    )
    def test_no_command_sends_them_through_a_pipe(self, project: Path, words: tuple[str, ...]) -> None:
        store = FileStore(project)
        with store.start(f"do {self.TEXT}", detached=True) as task:
            task.add_turn(Turn(number=1, agent="dev", content=self.TEXT))
            task.finish("success", self.TEXT)
        store.close()
        done = CliRunner().invoke(cli, ["-C", str(project), *(word.format(task.id) for word in words)])
        assert done.exit_code == 0, done.output
        assert "red" in done.output
        assert [letter for letter in done.output if letter in "\x1b\x07\r\u2028\x9b"] == []


class TestSnapshots:
    def test_git_runs_no_program_that_the_repository_names(self, project: Path) -> None:
        ran = project.parent / "ran"
        program = project / "evil"
        program.write_text(f"#!/bin/sh\necho ran >> {ran}\n")
        program.chmod(0o755)

        def git(*words: str) -> None:
            subprocess.run(["git", *words], cwd=project, check=True, capture_output=True)

        git("init", "-q")
        (project / "a").write_text("a")
        git("add", "a")
        for name in ("core.fsmonitor", "diff.external", "core.pager"):
            git("config", name, str(program))
        hooks = project / ".git" / "hooks"
        hooks.mkdir(exist_ok=True)
        for name in ("post-index-change", "reference-transaction", "pre-commit"):
            (hooks / name).write_text(program.read_text())
            (hooks / name).chmod(0o755)
        ran.unlink(missing_ok=True)
        store = FileStore(project)
        with store.start("x", detached=True) as task:
            task.add_turn(Turn(number=1, agent="a"), snapshot="git")
        assert store.snapshots(task.id)[0]["ref"]
        assert not ran.exists()
        store.close()


class TestDrafts:
    HEAD: dict[str, Any] = {"agent": "dev", "started": "2026-01-01T00:00:00.5Z", "fields": {}}  # noqa: RUF012

    def _begun(self, ask: Client) -> tuple[str, str]:
        task = ask.start()
        token = ask("POST", f"tasks/{task}/lease", {"seconds": 60})[1]["token"]
        about = ask("GET", f"tasks/{task}")[1]
        head = json.dumps({**self.HEAD, "since": about["end"], "seal": about["seal"]}).encode() + b"\n"
        path = f"tasks/{task}/draft?token={token}"
        assert ask("PUT", path, raw=head, Idempotency_Key=uuid.uuid4().hex)[0] == 204
        return task, path

    def test_a_line_that_is_sent_again_is_there_once(self, any_server: Served) -> None:
        ask = Client(any_server.port)
        task, path = self._begun(ask)
        line = b'{"kind": "text", "text": "once"}\n'
        key = uuid.uuid4().hex
        first = ask("POST", path, raw=line, Idempotency_Key=key)
        again = ask("POST", path, raw=line, Idempotency_Key=key)
        assert (first[0], again[0], again[2].get("idempotent-replay")) == (204, 204, "true")
        assert first[2]["etag"].strip('"') == ask("GET", f"tasks/{task}")[1]["seal"]
        assert len(ask("GET", f"tasks/{task}/draft")[1]["lines"]) == 2

    def test_a_line_without_a_draft_leaves_no_key(self, any_server: Served) -> None:
        ask = Client(any_server.port)
        _, path = self._begun(ask)
        ask("DELETE", path)
        key = uuid.uuid4().hex
        assert ask("POST", path, raw=b'{"kind": "text", "text": "x"}\n', Idempotency_Key=key)[0] == 409
        state = any_server.server.workspaces.state
        assert state.request(f"{any_server.server.workspaces.get(None).name}/local", key) is None

    def test_a_server_of_files_that_died_before_the_line_writes_it(self, server: Served, client: Client) -> None:
        task, path = self._begun(client)
        line = b'{"kind": "text", "text": "at last"}\n'
        key = uuid.uuid4().hex
        assert client("POST", path, raw=line, Idempotency_Key=key)[0] == 204
        state = server.server.workspaces.state
        kept = state.request("/local", key)
        assert kept is not None
        state.forget_request("/local", key)
        # As if it had died between the two: the key is there, and the line is not.
        state.with_record(task, "draft 9999", KeyedRequest("/local", key, kept.body, 204, "null"), None)
        assert client("POST", path, raw=line, Idempotency_Key=key)[0] == 204
        assert len(client("GET", f"tasks/{task}/draft")[1]["lines"]) == 3


@pytest.fixture
def pg(postgres: str, tmp_path: Path) -> Iterator[PostgresStore]:
    store = PostgresStore(postgres, f"w{uuid.uuid4().hex[:12]}", root=tmp_path)
    yield store
    store.close()


class TestTrash:
    def test_what_left_the_trash_meanwhile_is_not_restored_empty(
        self, pg: PostgresStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Somebody else restored it, and deleted it again."""
        task = pg.start("kept", detached=True)
        pg.delete(task.id)
        listed = pg.tasks.thrown()
        pg.restore(task.id)
        pg.delete(task.id)
        with monkeypatch.context() as patched:
            patched.setattr(pg.tasks, "thrown", lambda: listed)
            assert pg.restore() == []
            assert [found.changed for found in pg.redact_rest()] == [0]
        assert pg.tasks.ids() == []
        assert pg.restore() == [task.id]
        assert pg.said(task.id)[0].text == "kept"


class TestUnread:
    LONG = "word " * 200_000

    def _asked(self, port: int, path: str) -> socket.socket:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", port))
        connection.sendall(f"GET /api/v1/{path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        connection.settimeout(patience(30))
        assert connection.recv(12) == b"HTTP/1.1 200"
        return connection

    @pytest.mark.skipif(sys.platform != "linux", reason="NOT TESTED HERE: needs /proc")
    @pytest.mark.parametrize("what", ["file", "events/stream"])
    def test_who_takes_nothing_is_disconnected_and_leaves_nothing_open(self, project: Path, what: str) -> None:
        def held() -> list[str]:
            found = []
            for name in os.listdir("/proc/self/fd"):
                with contextlib.suppress(OSError):
                    found.append(os.readlink(f"/proc/self/fd/{name}"))
            return [each for each in found if each.startswith(str(project)) and each.endswith(".task")]

        with served(project, limits=Limits(unread_seconds=0.5)) as running:
            ask = Client(running.port)
            task = ask.start()
            for _ in range(8):
                assert ask("POST", f"tasks/{task}/turns", {"agent": "a", "content": self.LONG})[0] == 201
            running.server.workspaces.get(None).warm.close(task)
            gc.disable()
            try:
                connection = self._asked(running.port, f"tasks/{task}/{what}")
                server = running.uvicorn.server_state
                wait_for(lambda: not server.connections, "the connection's end")
                wait_for(lambda: not held(), "the task's file is closed")
            finally:
                gc.enable()
            connection.close()

    def test_events_are_read_by_their_size(self, server: Served, client: Client) -> None:
        """A batch of them, for each of many followers, and what a feed remembers, are not whole tasks."""
        task = client.start()
        for _ in range(8):
            client("POST", f"tasks/{task}/turns", {"agent": "a", "content": self.LONG})
        workspace = server.server.workspaces.get(None)
        cursor, seen = None, 0
        while found := feeds.batch(workspace, task, cursor):
            assert sum(len(text) for _, text in found) < feeds._MUCH + 2 * len(self.LONG)
            seen += sum('"kind": "turn"' in text for _, text in found)
            cursor = found[-1][0]
        assert seen == 8

        async def remembered() -> feeds.Feed:
            feed = feeds.Feed(workspace, task)
            feed.push([(str(number), self.LONG) for number in range(8)])
            return feed

        feed = asyncio.run(remembered())
        assert feed.after("0") is None
        assert [cursor for cursor, _ in feed.after("6") or ()] == ["7"]


class TestSearch:
    def test_tasks_that_are_deleted_meanwhile(self, pg: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
        """The task is found, and gone before its row is read."""
        tasks = [pg.start(f"common word {number}", detached=True) for number in range(3)]
        holding = pg.tasks.holding

        def deleting(query: str) -> Any:
            yield from list(holding(query))
            pg.delete(tasks[0].id)

        finder = pg._finder()
        monkeypatch.setattr(finder._tables, "holding", deleting)
        found = finder.search("common", TaskFilter(sort="relevance", limit=10))
        assert {hit.task.id for hit in found.hits} == {task.id for task in tasks[1:]}

    @pytest.mark.every
    def test_a_common_word_is_looked_for_in_all_documents(self, pg: PostgresStore) -> None:
        old = parse_name("2020-01-01T00-00-00-old111.task")
        new = parse_name("2024-01-01T00-00-00-new111.task")
        assert old is not None
        assert new is not None
        pg.add_file(old.filename, b"=== TASK old111 ===\nStatus: completed\n\n=== REQUEST ===\nUser: common rare\n")
        turns = "".join(
            f"\n--- Turn {number}: a ---\nStatus: complete\n\n[Content]\ncommon\n" for number in range(1, 5_200)
        )
        text = f"=== TASK new111 ===\nStatus: completed\n\n=== REQUEST ===\nUser: common\n\n=== EXECUTION ===\n{turns}"
        pg.add_file(new.filename, text.encode())
        found = pg.search("common", TaskFilter(sort="relevance", limit=10))
        assert {hit.task.id for hit in found.hits} == {"old111", "new111"}


class _Proxy(http.server.BaseHTTPRequestHandler):
    """Answers for every server, and remembers what it was asked."""

    asked: list[tuple[str, str, str | None]]
    answers: list[int]

    def _any(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        self.rfile.read(length)
        self.asked.append((self.command, self.path, self.headers.get("Proxy-Authorization")))
        status = self.answers.pop(0) if self.answers else 200
        problem = {"title": "StorageError", "detail": "away"}
        body = json.dumps({"version": 1} if status == 200 else problem).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_CONNECT = _any  # noqa: N815

    def log_message(self, format: str, *arguments: Any) -> None: ...


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, type[_Proxy]]]:
    handler = type("Handler", (_Proxy,), {"asked": [], "answers": []})
    listening = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    monkeypatch.setattr(remote_client, "_FIRST", 0.001)
    yield listening.server_address[1], handler
    listening.shutdown()
    thread.join()
    listening.server_close()


class TestClient:
    def test_it_uses_the_proxy(self, proxy: tuple[int, type[_Proxy]], monkeypatch: pytest.MonkeyPatch) -> None:
        port, handler = proxy
        monkeypatch.setenv("HTTP_PROXY", f"http://me:secret@127.0.0.1:{port}")
        store = RemoteStore("http://tasks.example.com:8737/base")
        store.hello()
        store.close()
        assert handler.asked == [("GET", "http://tasks.example.com:8737/base/api/v1/hello", "Basic bWU6c2VjcmV0")]

    def test_https_goes_through_a_tunnel(
        self, proxy: tuple[int, type[_Proxy]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        port, handler = proxy
        monkeypatch.setenv("https_proxy", f"127.0.0.1:{port}")
        handler.answers += [502] * 9
        store = RemoteStore("https://tasks.example.com")
        with pytest.raises(ServerAway, match="proxy"):
            store.hello()
        store.close()
        assert handler.asked[0][:2] == ("CONNECT", "tasks.example.com:443")

    @pytest.mark.parametrize(
        ("exempt", "used"),
        [
            ("", True),
            ("*", False),
            ("example.com", False),
            (".example.com", False),
            ("other.org", True),
            ("example.com:1", True),
        ],
    )
    def test_exceptions(self, monkeypatch: pytest.MonkeyPatch, exempt: str, used: bool) -> None:
        from urllib.parse import urlsplit

        monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
        monkeypatch.setenv("NO_PROXY", exempt)
        assert (proxy_for(urlsplit("http://tasks.example.com")) is not None) is used

    def test_it_tries_again_later_each_time(
        self, proxy: tuple[int, type[_Proxy]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        port, handler = proxy
        handler.answers += [503, 429, 503]
        pauses: list[float] = []
        monkeypatch.setattr(remote_client.time, "sleep", pauses.append)
        monkeypatch.setattr(remote_client, "_FIRST", 0.1)
        store = RemoteStore(f"http://127.0.0.1:{port}")
        store.hello()
        assert len(handler.asked) == 4
        assert len(pauses) == 3
        assert pauses[2] >= pauses[0]
        handler.answers += [503] * 20
        with pytest.raises(Exception, match="away"):
            store.hello()
        assert len(handler.asked) == 4 + remote_client._TRIES
        store.close()

    def test_a_certificate_of_ones_own(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
        made += ["-addext", "subjectAltName=DNS:localhost", "-keyout", "key.pem", "-out", "cert.pem"]
        try:
            subprocess.run(made, cwd=tmp_path, check=True, capture_output=True)
        except OSError:
            pytest.skip("NOT TESTED HERE: needs openssl")
        handler = type("Handler", (_Proxy,), {"asked": [], "answers": []})
        listening = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
        listening.socket = context.wrap_socket(listening.socket, server_side=True)
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            url = f"https://localhost:{listening.server_address[1]}"
            with pytest.raises(ServerAway, match="certificate"):
                RemoteStore(url).hello()
            trusting = RemoteStore(url, ca=str(tmp_path / "cert.pem"))
            assert trusting.hello() == {"version": 1}
            trusting.close()
            monkeypatch.setenv("RAWKO_REMOTE_CA", str(tmp_path / "cert.pem"))
            by_variable = RemoteStore(url)
            assert by_variable.hello() == {"version": 1}
            by_variable.close()
        finally:
            listening.shutdown()
            thread.join()
            listening.server_close()


class TestDoctor:
    def test_doctor_and_reindex_over_a_server(self, any_server: Served, project: Path) -> None:
        ask = Client(any_server.port)
        task = ask.start("find me")
        at = ["-C", str(project), "--remote", any_server.url]
        done = CliRunner().invoke(cli, [*at, "doctor"])
        assert done.exit_code == 0, done.output
        assert "Task files    1 task" in done.output
        assert "No problems found" in done.output
        done = CliRunner().invoke(cli, [*at, "reindex"])
        assert (done.exit_code, "Indexed 1 task." in done.output) == (0, True), done.output
        store = RemoteStore(any_server.url, root=project)
        assert [hit.task.id for hit in store.search("find").hits] == [task]
        store.close()

    def test_they_need_the_role_admin(self, any_server: Served, project: Path) -> None:
        token = any_server.server.workspaces.state.create_token("write")
        store = RemoteStore(any_server.url, token=token, root=project)
        for work in (store.health, store.reindex):
            with pytest.raises(ServerRefused, match="admin"):
                work()
        store.close()


def test_following_goes_on_after_the_database_was_away(database: str, project: Path) -> None:
    """A follower is told to come back, with its cursor, not that something is wrong with the task."""
    with served(project, database) as running:
        ask = Client(running.port)
        task = ask.start()
        store = running.server.workspaces.get(None).store
        messages = _follow(running.port, task)
        assert next(messages)["type"] == "hello"
        store.postgres.connection.execute(  # type: ignore[attr-defined]
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        key = uuid.uuid4().hex
        turn = {"agent": "a", "content": "after"}
        wait_for(lambda: ask("POST", f"tasks/{task}/turns", turn, Idempotency_Key=key)[0] == 201)
        kinds = []
        while "turn" not in kinds:
            try:
                kinds.append(next(messages).get("kind"))
            except ConnectionClosedError as error:
                if error.rcvd is None or error.rcvd.code != feeds.GOING_AWAY:
                    raise
                messages = _follow(running.port, task, error.rcvd.reason.removeprefix("come back after").strip())
        assert "gap" not in kinds
