"""What a server takes from a client that it does not know yet."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import uvicorn
from uvicorn.server import ServerState

from rawko_state.exchange.otlp import signals
from rawko_state.format import fair_json
from rawko_state.server import writing
from rawko_state.server.limits import Limits, protocol_with
from tests.server.clients import Client
from tests.support.machine import patience, wait_for
from tests.support.serving import Served, served


def _raw(port: int, data: bytes = b"", *, more: Iterator[bytes] | None = None) -> tuple[int, int]:
    """Sends bytes; returns the status of the answer (0: closed without one), and how many bytes were taken."""
    sent = 0
    with socket.create_connection(("127.0.0.1", port), timeout=patience(30)) as connection:
        with contextlib.suppress(OSError):
            connection.sendall(data)
            sent += len(data)
            for piece in more or ():
                connection.sendall(piece)
                sent += len(piece)
        with contextlib.suppress(OSError):
            head = connection.recv(1 << 16)
            return (int(head.split()[1]) if head else 0), sent
    return 0, sent


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with little patience."""
    limits = Limits(head_seconds=0.5, body_grace=0.5, connections=40)
    with served(tmp_path_factory.mktemp("quick"), limits=limits) as running:
        yield running


class TestHeaders:
    def test_large_headers_are_refused_before_they_are_all_sent(self, server: Served) -> None:
        pieces = (b"x" * (1 << 16) for _ in range(16 * 60))
        status, sent = _raw(server.port, b"GET /api/v1/tasks HTTP/1.1\r\nHost: localhost\r\nX: ", more=pieces)
        assert status in (0, 431)
        assert sent < 30 << 20, "most of 60 MB were taken"

    @pytest.mark.parametrize(
        "head",
        [
            b"GET /api/v1/tasks HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * (17 << 10) + b"\r\n\r\n",
            b"GET /" + b"x" * (17 << 10) + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 101 + b"\r\n",
            b"GET / HTTP/1.1\r\nHost: localhost\r\n"
            + b"".join(b"X%d: %s\r\n" % (n, b"y" * 8000) for n in range(9))
            + b"\r\n",
        ],
        ids=["a long header", "a long address", "many headers", "large together"],
    )
    def test_each_limit(self, server: Served, head: bytes) -> None:
        assert _raw(server.port, head)[0] == 431

    @pytest.mark.parametrize("after", [b"0\r\nX: ", b"1;x="], ids=["a trailer", "a chunk's extension"])
    def test_what_comes_with_a_body_in_chunks_is_limited_too(self, server: Served, after: bytes) -> None:
        head = b"POST /api/v1/tasks HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        status, sent = _raw(server.port, head + after, more=(b"x" * (1 << 16) for _ in range(16 * 60)))
        assert status in (0, 431)
        assert sent < 30 << 20, "most of 60 MB were taken"

    def test_a_large_body_is_not_counted_as_headers(self, client: Client) -> None:
        assert client("POST", "tasks", {"request": "x " * (1 << 20)})[0] == 201

    def test_requests_that_do_not_wait_for_their_answers(self, server: Served) -> None:
        """Some are served in their order; a flood of them ends the connection."""
        one = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with socket.create_connection(("127.0.0.1", server.port), timeout=patience(30)) as connection:
            connection.sendall(one * 40)
            found = b""
            while found.count(b'{"status": "ok"}') < 40:
                found += connection.recv(1 << 16)
        status, sent = _raw(server.port, more=(one * 1000 for _ in range(600)))
        assert status in (0, 200, 429)
        assert sent < 20 << 20, "most of 27 MB were taken"

    @pytest.mark.parametrize("begun", [False, True])
    def test_who_is_rejected_gets_one_answer(self, begun: bool) -> None:
        """While a first request is answered, so many others come that the connection ends: nothing is put into the answer to the
        first, and nothing is written behind the end."""
        written: list[bytes] = []

        async def talk() -> None:
            answer = asyncio.Event()

            async def app(scope: Any, receive: Any, send: Any) -> None:
                if begun:
                    await send({"type": "http.response.start", "status": 200, "headers": []})
                await answer.wait()
                if not begun:
                    await send({"type": "http.response.start", "status": 200, "headers": []})
                await send({"type": "http.response.body", "body": b"x"})

            config = uvicorn.Config(app, log_config=None, lifespan="off")
            config.load()
            protocol = protocol_with(Limits(pipelined=1))(config, ServerState(), {}, asyncio.get_running_loop())
            closed: list[bool] = []
            transport = Mock(is_closing=lambda: bool(closed), close=lambda: closed.append(True), write=written.append)
            transport.get_extra_info.return_value = None
            protocol.connection_made(transport)
            one = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
            protocol.data_received(one)
            await asyncio.sleep(0)
            protocol.data_received(one * 2)
            answer.set()
            await asyncio.gather(*protocol.tasks)
            protocol.connection_lost(None)
            assert closed

        asyncio.run(talk())
        assert [int(each.split()[1]) for each in written] == [200 if begun else 429]

    def test_ordinary_headers_pass(self, client: Client) -> None:
        assert client("GET", "tasks", X="x" * 8_000)[0] == 200


class TestTime:
    def test_headers_that_never_end(self, quick: Served) -> None:
        assert _raw(quick.port, b"GET / HTTP/1.1\r\nHost: localhost\r\n")[0] == 408

    def test_a_connection_that_says_nothing(self, quick: Served) -> None:
        assert _raw(quick.port)[0] == 408

    def test_a_body_that_never_ends(self, quick: Served) -> None:
        head = b"POST /api/v1/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{"
        assert _raw(quick.port, head)[0] in (0, 408)

    def test_a_body_in_time(self, quick: Served) -> None:
        assert Client(quick.port)("POST", "tasks", {"request": "x"})[0] == 201


class TestConnections:
    def test_one_address_has_so_many(self, quick: Served) -> None:
        held = []
        try:
            for _ in range(60):
                held.append(socket.create_connection(("127.0.0.1", quick.port), timeout=patience(10)))
                held[-1].sendall(b"GET / HT")
            wait_for(lambda: any(_is_refused(each) for each in held))
        finally:
            for each in held:
                each.close()
        wait_for(lambda: Client(quick.port)("GET", "/healthz")[0] == 200, "room again")


def _is_refused(connection: socket.socket) -> bool:
    connection.setblocking(False)
    with contextlib.suppress(OSError):
        return b" 429 " in connection.recv(100)
    return False


_UPGRADE = (
    "GET /api/v1/tasks/{}/events/socket HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


class TestSockets:
    @pytest.mark.parametrize(
        "more",
        [
            "Sec-WebSocket-Protocol: " + "a," * 8000,
            "Cookie: " + "a" * 9000,
            "Content-Length: 100",
            "Transfer-Encoding: chunked",
        ],
        ids=["protocols", "a cookie", "a body", "chunks"],
    )
    def test_a_request_that_becomes_no_socket_is_refused(self, server: Served, more: str) -> None:
        """The parser of WebSockets would wait for the rest of it for ever."""
        assert _raw(server.port, f"{_UPGRADE.format('abc123')}{more}\r\n\r\n".encode())[0] == 400

    @pytest.mark.parametrize(
        "frame", [b"\x89\x81\0\0\0\0x", b"\x80\x80\0\0\0\0", b"\x81\x81\0\0\0\0x"], ids=["pings", "fragments", "texts"]
    )
    def test_who_sends_many_frames_is_disconnected_before_they_are_read(
        self, server: Served, client: Client, frame: bytes
    ) -> None:
        """A million of them took seconds, in which nobody else was answered."""
        task = client.start()
        begun = b"\x02\x80\0\0\0\0" if frame[0] == 0x80 else b""
        with socket.create_connection(("127.0.0.1", server.port), timeout=patience(30)) as connection:
            connection.sendall(f"{_UPGRADE.format(task)}\r\n".encode())
            found = connection.recv(1 << 16)
            assert b" 101 " in found[:30]
            connection.sendall(frame)  # a few may be sent
            with contextlib.suppress(OSError):
                connection.sendall(begun + frame * 20_000)
            with contextlib.suppress(ConnectionResetError):
                while piece := connection.recv(1 << 16):
                    found += piece
        wait_for(lambda: server.server.hub.followers == 0, "the connection's end")
        assert found.count(b"\x8a") < 2_000, "thousands of pings were answered"

    def test_a_socket_that_ended_makes_room(self, quick: Served) -> None:
        ask = Client(quick.port)
        task = ask.start()
        for _ in range(60):
            assert _raw(quick.port, f"{_UPGRADE.format(task)}\r\n".encode())[0] in (101, 429)
        wait_for(lambda: ask("GET", "/healthz")[0] == 200, "room again")


class TestTokenFirst:
    @pytest.mark.parametrize("path", ["/api/v1/tasks", "/api/v1/files/2024-01-15T10-30-00-abc123.task"])
    def test_without_a_token_no_body_is_awaited(self, any_server: Served, path: str) -> None:
        any_server.server.workspaces.state.create_token("write")
        method = "PUT" if "files" in path else "POST"
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n"
        assert _raw(any_server.port, head.encode())[0] == 401


class TestHealth:
    def test_it_answers_while_heavy_work_runs(self, server: Served, client: Client) -> None:
        """The server works on a large body of small values. How long that takes does not matter, but others are answered meanwhile."""
        task = client.start()
        heavy = json.dumps({"agent": "a", "state": [[n] for n in range(200_000)]}).encode()
        done: list[int] = []
        work = threading.Thread(target=lambda: done.append(client("POST", f"tasks/{task}/turns", raw=heavy)[0]))
        work.start()
        answered = 0
        while not done:
            assert client("GET", "/healthz")[0] == 200
            answered += not done
        work.join(patience(200))
        assert done == [201]
        assert answered >= 5

    @pytest.mark.parametrize("work", ["read", "write", "compare", "draft", "telemetry"])
    def test_large_json_lets_other_threads_run(self, work: str) -> None:
        """One call into C would keep them waiting until it ends."""
        value = [{"n": n, "x": [None, True, 1.5, "é"], "y": {}} for n in range(60_000)]
        text = json.dumps(value)
        assert len(text) > fair_json.LARGE
        assert fair_json.has_many(value)
        clean: Any = SimpleNamespace(store=SimpleNamespace(redactor=SimpleNamespace(value=lambda value: value)))
        ticks, stop = [0], threading.Event()

        def tick() -> None:
            while not stop.is_set():
                ticks[0] += 1
                time.sleep(0)

        do: dict[str, Callable[[], object]] = {
            "read": lambda: fair_json.loads(text.encode()) == value,
            "write": lambda: fair_json.dumps(value) == text,
            "compare": lambda: fair_json.same(json.loads(text), value),
            "draft": lambda: writing._clean(clean, b'{"a": ' + text.encode() + b"}"),
            "telemetry": lambda: signals(b'{"a": ' + text.encode() + b"}", "application/json", "traces") == [],
        }
        thread = threading.Thread(target=tick)
        thread.start()
        wait_for(lambda: ticks[0] > 0)
        before = ticks[0]
        done = do[work]()
        meanwhile = ticks[0] - before
        stop.set()
        thread.join()
        assert done
        assert meanwhile >= 3

    def test_a_large_state_comes_back(self, client: Client) -> None:
        task = client.start()
        state = {"rows": [[n, str(n), None, 1.5] for n in range(60_000)], "é": {"b": []}}
        assert client("POST", f"tasks/{task}/turns", {"agent": "a", "state": state})[0] == 201
        assert client("GET", f"tasks/{task}/turns/1")[1]["state"] == state

    @pytest.mark.parametrize("other", [(1, 2), {1: 2}, [2], [1.5], {"a": 1}, float("nan")])
    def test_large_values_that_would_change(self, other: object) -> None:
        many = list(range(fair_json.MANY + 1))
        for value in ([many, other], {"many": many, "other": other}):
            read = json.loads(json.dumps(value))
            assert fair_json.same(read, value) == (read == value)
        assert fair_json.same(many, [*many])
        assert not fair_json.same(many, [*many[:-1], 0])
        assert not fair_json.same(many, tuple(many))

    @pytest.mark.parametrize("body", [b"NaN", b"[Infinity]", b"{", b"[1,]", b'{"a" 1}', b"\xff"])
    def test_what_is_no_json(self, body: bytes) -> None:
        for padded in (body, body + b" " * fair_json.LARGE):
            with pytest.raises(ValueError):  # noqa: PT011 - the parser's own
                fair_json.loads(padded)


class TestReadiness:
    def test_it_tells_nobody_why(self, database: str, project: Path) -> None:
        with served(project, database) as running:
            ask = Client(running.port)
            ask.start()
            store = running.server.workspaces.get(None).store
            assert ask("GET", "/readyz")[:2] == (200, {"status": "ready"})
            rename = "ALTER TABLE rawko_ws_default.{} RENAME TO {}"
            connection = store.postgres.connection  # type: ignore[attr-defined]
            connection.execute(rename.format("record_bytes", "elsewhere"))
            assert ask("GET", "/readyz")[:2] == (503, {"status": "not ready"})
            connection.execute(rename.format("elsewhere", "record_bytes"))
            assert ask("GET", "/readyz")[0] == 200


class TestHost:
    @pytest.mark.parametrize(
        "host", ["[::1]evil.com", "[::1]evil.com:80", "localhost evil", "[localhost]", "127.0.0.1:99999"]
    )
    def test_a_host_that_is_none(self, server: Served, host: str) -> None:
        assert _raw(server.port, f"GET /api/v1/tasks HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())[0] in (400, 421)

    def test_two_hosts(self, server: Served) -> None:
        head = b"GET /api/v1/tasks HTTP/1.1\r\nHost: localhost\r\nHost: evil.com\r\n\r\n"
        assert _raw(server.port, head)[0] == 400

    def test_ipv6(self, server: Served) -> None:
        head = f"GET /api/v1/tasks HTTP/1.1\r\nHost: [::1]:{server.port}\r\n\r\n"
        assert _raw(server.port, head.encode())[0] == 200
