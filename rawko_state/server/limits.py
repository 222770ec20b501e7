"""Limits on connections, before anything is known about the client: the size of the headers, the time to send a request, and the
connections of one address. uvicorn has none of these for its faster parser.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from rawko_state.model.frozen import Frozen

_EVERY: Final = 0.5
"""Seconds between two looks at all connections. A timer for each request would take a tenth of a short one."""
_NOTHING, _HEAD, _BODY = range(3)
_TOO_MUCH: Final = b"\x88\x02\x03\xf0"
"""A WebSocket's close frame with code 1008."""


class Limits(Frozen):
    head: int = 64 << 10
    """Bytes of the request line and all headers."""
    line: int = 16 << 10
    """Bytes of the address, or of one header."""
    headers: int = 100
    head_seconds: float = 10.0
    body_grace: float = 20.0
    """Seconds after which a body must have arrived at ``body_rate`` bytes a second, on average."""
    body_rate: float = 16 << 10
    unread_seconds: float = 30.0
    """Seconds after which a client that takes nothing of what was sent is disconnected."""
    pipelined: int = 64
    """Requests that a connection may send before the answer to the first one."""
    connections: int = 2_000
    """Connections of one address; 0 for any number. Behind a proxy, all clients have its address."""
    socket_first: int = 4 << 10
    """Bytes that the client of a WebSocket may send at first, and then each second. It has nothing to say but pongs."""
    socket_rate: int = 256


class Crowd:
    """The open connections of each address."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: dict[str, set[asyncio.Transport]] = {}
        self._watched: dict[Any, Callable[[float], None]] = {}
        self._watching = False

    def enter(self, address: str, transport: asyncio.Transport) -> bool:
        """Whether there is room for one more."""
        mine = self._open.setdefault(address, set())
        if self._most and len(mine) >= self._most:
            return False
        mine.add(transport)
        return True

    def watch(self, loop: asyncio.AbstractEventLoop, protocol: object, look: Callable[[float], None]) -> None:
        """Calls ``look`` with the time, twice a second."""
        self._watched[protocol] = look
        if not self._watching:
            self._watching = True
            loop.call_later(_EVERY, self._look, loop)

    def unwatch(self, protocol: object) -> None:
        self._watched.pop(protocol, None)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for look in list(self._watched.values()):
            look(now)
        self._watching = bool(self._watched)
        if self._watching:
            loop.call_later(_EVERY, self._look, loop)

    def leave(self, address: str, transport: asyncio.Transport) -> None:
        mine = self._open.get(address, set())
        mine.discard(transport)
        if not mine:
            self._open.pop(address, None)


def protocol_with(limits: Limits) -> type[HttpToolsProtocol]:
    """uvicorn's protocol with these limits. It counts the connections of one server."""
    crowd = Crowd(limits.connections)

    class Protocol(HttpToolsProtocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._address = self.client[0] if self.client else "local"
            self._rejected = False
            self._answering: Any = None
            """The request that is being answered. ``cycle`` is the newest, which may have to wait."""
            self._begin_head()
            self._awaited, self._began = _HEAD, self.loop.time()
            self._unread = _Unread(transport, limits.unread_seconds, self._began)
            crowd.watch(self.loop, self, self._look)
            if not crowd.enter(self._address, transport):
                self._reject(429, "TooMany", "too many connections from this address")

        def connection_lost(self, exc: Exception | None) -> None:
            crowd.leave(self._address, self.transport)
            crowd.unwatch(self)
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self._rejected:
                return
            self._between += len(data)
            super().data_received(data)
            if self._between > limits.head:
                self._too_large()

        def _begin_head(self) -> None:
            self._sizes = 0
            self._between = 0
            """Bytes since the last piece of a body: of headers, of trailers, or around chunks."""

        def on_message_begin(self) -> None:
            super().on_message_begin()
            if self._awaited == _NOTHING:  # another request on a kept connection
                self._awaited, self._began = _HEAD, self.loop.time()

        def on_url(self, url: bytes) -> None:
            super().on_url(url)
            self._count(len(self.url))

        def on_header(self, name: bytes, value: bytes) -> None:
            super().on_header(name, value)
            self._sizes += len(name) + len(value) + 4
            self._count(len(name) + len(value))

        def _count(self, line: int) -> None:
            if line > limits.line or len(self.headers) > limits.headers or self._sizes > limits.head:
                self._too_large()

        def on_headers_complete(self) -> None:
            if len(self.pipeline) >= limits.pipelined:
                self._reject(429, "TooMany", f"a connection may have {limits.pipelined} unanswered requests")
            if self._rejected:
                return
            self._received, self._awaited, self._began = 0, _BODY, self.loop.time()
            waiting = len(self.pipeline)
            super().on_headers_complete()
            if len(self.pipeline) == waiting:
                self._answering = self.cycle

        def on_body(self, body: bytes) -> None:
            self._between = 0
            if not self._rejected:
                self._received += len(body)
                super().on_body(body)

        def on_message_complete(self) -> None:
            self._awaited = _NOTHING
            self._begin_head()
            if not self._rejected:
                super().on_message_complete()

        def on_response_complete(self) -> None:
            if self.pipeline:
                self._answering = self.pipeline[-1][0]
            super().on_response_complete()
            if self.pipeline:
                self.flow.pause_reading()  # no more of them, before those that wait are answered

        def handle_websocket_upgrade(self) -> None:
            crowd.unwatch(self)
            if self._rejected:
                return
            super().handle_websocket_upgrade()
            socket = self.transport.get_protocol()
            crowd.watch(self.loop, self, self._unread.look)
            self.transport.set_protocol(_Socket(socket, self.transport, self.loop, limits, self._left))
            if not getattr(socket, "handshake_initiated", True):
                # It waits for the rest of a request that it can't read: with a body, or a line that is too long for it.
                self._reject(400, "BadRequest", "this is not the request of a WebSocket")

        def _left(self) -> None:
            crowd.leave(self._address, self.transport)
            crowd.unwatch(self)

        def _look(self, now: float) -> None:
            """Checks that a request arrives fast enough, and that its answer is read. While the server itself does not read, the
            client is not at fault."""
            self._unread.look(now)
            if self._awaited == _HEAD and now - self._began > limits.head_seconds:
                self._reject(408, "TooSlow", f"a request's headers are sent within {limits.head_seconds:g} s")
            elif self._awaited == _BODY:
                if self.flow.read_paused:
                    self._began += _EVERY
                past = now - self._began - limits.body_grace
                if past > 0 and self._received < limits.body_rate * past:
                    self._reject(408, "TooSlow", "the request's body arrives too slowly")

        # Rejecting

        def _too_large(self) -> None:
            self._reject(431, "HeadersTooLarge", f"the headers of a request are at most {limits.head} bytes")

        def send_400_response(self, msg: str) -> None:
            self._reject(400, "BadRequest", "this is not an HTTP request")

        def _reject(self, status: int, title: str, detail: str) -> None:
            if self._rejected or self.transport.is_closing():
                return
            self._rejected = True
            self._awaited = _NOTHING
            now = self._answering
            if now is None or now.response_complete or not now.response_started:
                self.transport.write(_response(status, title, detail))
            if now is not None:
                now.disconnected = True  # the rest of its answer is not sent
            self.transport.close()

    return Protocol


class _Unread:
    """What was sent on a connection and is not taken."""

    def __init__(self, transport: asyncio.Transport, seconds: float, now: float) -> None:
        self._transport, self._seconds = transport, seconds
        self._left, self._since = 0, now

    def look(self, now: float) -> None:
        """Ends the connection if nothing was taken for too long."""
        left = self._transport.get_write_buffer_size()
        if not left or left != self._left:
            self._left, self._since = left, now
        elif now - self._since > self._seconds:
            self._transport.abort()


class _Socket(asyncio.Protocol):
    """A connection that became a WebSocket. Reading many small frames would keep others waiting, so a client that sends many is
    disconnected before they are read."""

    def __init__(
        self,
        inner: Any,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        limits: Limits,
        left: Callable[[], None],
    ) -> None:
        self._inner, self._transport, self._loop, self._limits, self._left = inner, transport, loop, limits, left
        self._began, self._received = loop.time(), 0
        self.pause_writing, self.resume_writing = inner.pause_writing, inner.resume_writing  # type: ignore[method-assign]

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        most = self._limits.socket_first + self._limits.socket_rate * (self._loop.time() - self._began)
        if self._received <= most:
            self._inner.data_received(data)
        elif not self._transport.is_closing():
            self._transport.write(_TOO_MUCH)
            self._transport.close()

    def eof_received(self) -> bool | None:
        found: bool | None = self._inner.eof_received()
        return found

    def connection_lost(self, exc: Exception | None) -> None:
        self._left()
        self._inner.connection_lost(exc)


def _response(status: int, title: str, detail: str) -> bytes:
    problem: dict[str, Any] = {"type": f"rawko:{title}", "title": title, "status": status, "detail": detail}
    body = json.dumps(problem).encode()
    head = (
        f"content-type: application/problem+json\r\nx-content-type-options: nosniff\r\ncontent-length: {len(body)}\r\n"
        "connection: close\r\n\r\n"
    )
    return STATUS_LINE[status] + head.encode() + body
