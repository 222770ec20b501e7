"""The ASGI application: from requests to operations, and from their answers back; streams, metrics, logs."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from rawko_state.errors import InvalidValue, RawkoError
from rawko_state.index.serverdb import Token
from rawko_state.server import keeping, problems, reading, writing
from rawko_state.server.audit import Auditor
from rawko_state.server.guard import Guard
from rawko_state.server.live import GOING_AWAY, SLOW, TOO_SLOW, Hub, follow, hello
from rawko_state.server.once import Once
from rawko_state.server.openapi import document
from rawko_state.server.operations import READ, Call, Operation, Streamed
from rawko_state.server.places import Place, Places
from rawko_state.server.problems import Refused
from rawko_state.server.reading import CURSOR, ID

OPERATIONS: Final = (*reading.OPERATIONS, *writing.OPERATIONS, *keeping.OPERATIONS)
PREFIX: Final = "/api/v1"
LARGEST: Final = 64 << 20
LARGEST_UPLOAD: Final = 16 << 30
_THREADS: Final = 8
"""More would not be quicker: most of a request is Python, of which one thread runs at a time."""
_SMALL: Final = 1 << 20
_log = logging.getLogger("rawko.server")


class Server:
    """One server: its places, and what it needs to answer for them."""

    def __init__(
        self,
        places: Places,
        guard: Guard,
        hub: Hub,
        *,
        largest: int = LARGEST,
        largest_upload: int = LARGEST_UPLOAD,
        jobs: Callable[[Server], Any] | None = None,
    ) -> None:
        self.places, self.guard, self.hub = places, guard, hub
        self._largest, self._largest_upload, self._jobs = largest, largest_upload, jobs
        self._once = Once()
        self.auditor = Auditor(places.db)
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="request")
        self._streams = ThreadPoolExecutor(4, thread_name_prefix="stream")
        registry = CollectorRegistry()
        self._registry = registry
        self._requests = Counter("rawko_requests", "Requests", ["operation", "status"], registry=registry)
        self._seconds = Histogram("rawko_request_seconds", "Time of requests", ["operation"], registry=registry)
        Gauge("rawko_followers", "Who follows tasks", registry=registry).set_function(lambda: hub.followers)
        Gauge("rawko_open_tasks", "Tasks that are kept open", registry=registry).set_function(
            lambda: sum(len(place.warm) for place in places.open_places())
        )
        self.app = self._application()

    def _application(self) -> Starlette:
        by_path: dict[str, dict[str, Operation]] = {}
        for each in OPERATIONS:
            by_path.setdefault(PREFIX + each.path, {})[each.method] = each
        routes: list[Any] = [
            Route("/healthz", self._healthy),
            Route("/readyz", self._ready),
            Route("/metrics", self._metrics),
            Route("/openapi.json", self._openapi),
            Route(f"{PREFIX}/openapi.json", self._openapi),
            Route(f"{PREFIX}/tasks/{{id}}/events/stream", self._stream),
            WebSocketRoute(f"{PREFIX}/tasks/{{id}}/events/socket", self._socket),
        ]
        routes += [
            Route(path, functools.partial(self._request, methods), methods=list(methods))
            for path, methods in by_path.items()
        ]
        return Starlette(routes=routes, lifespan=self._lifespan, exception_handlers={404: _not_found, 405: _no_method})

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self.hub.start()
        jobs = asyncio.create_task(self._jobs(self)) if self._jobs is not None else None
        try:
            yield
        finally:
            self.hub.stop()
            if jobs is not None:
                jobs.cancel()
            await self.run(self.auditor.close)
            self._streams.shutdown(wait=True)
            self._pool.shutdown(wait=True)
            self.places.close()

    async def run(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, *arguments)

    async def _run_stream(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Followers have threads of their own, so that very many of them hold up no request."""
        return await asyncio.get_running_loop().run_in_executor(self._streams, work, *arguments)

    # Requests

    async def _request(self, methods: dict[str, Operation], request: Request) -> Response:
        operation = methods["GET" if request.method == "HEAD" else request.method]
        started = time.perf_counter()
        upload: Path | None = None
        who = "-"
        try:
            self.guard.check_origin(request.headers, secure=request.url.scheme == "https")
            peer = _peer(request.scope)
            body, token = b"", None
            if operation.uploads or int(request.headers.get("content-length", "0") or 0) > _SMALL:
                # Who may not send it is told so before he has.
                token = await self.run(self._admitted, request.headers, peer, operation.role)
            if operation.uploads:
                upload = await self._spooled(request)
            elif operation.changes:
                body = await self._body(request)
            token, answer = await self.run(self._do, operation, request, token, peer, body, upload)
            who = token.id
            response = _response(operation, answer)
        except ClientDisconnect:
            response = Response(status_code=400)
        except RawkoError as error:
            response = _problem(error, self.places.root)
        except Exception as error:  # a fault of ours: said without what was asked
            _log.error(
                json.dumps({"at": _now(), "operation": operation.name, "fault": type(error).__name__}),
                exc_info=bool(os.environ.get("RAWKO_TRACEBACKS")),
            )
            response = _problem(Refused(500, "Fault", "a fault of the server; nothing is known to be lost"))
        finally:
            if upload is not None:
                upload.unlink(missing_ok=True)
        seconds = time.perf_counter() - started
        self._requests.labels(operation.name, response.status_code).inc()
        self._seconds.labels(operation.name).observe(seconds)
        self._logged(operation, response.status_code, seconds, who)
        return response

    def _logged(self, operation: Operation, status: int, seconds: float, who: str) -> None:
        if _log.isEnabledFor(logging.INFO):
            line = {
                "at": _now(),
                "operation": operation.name,
                "status": status,
                "ms": round(seconds * 1000, 1),
                "who": who,
            }
            _log.info(json.dumps(line))

    def _admitted(self, headers: Headers, peer: str, role: str) -> Token:
        who = self.guard.who(headers, peer)
        self.guard.check_rate(who, peer)
        self.guard.check_role(who, role)
        return who

    async def _body(self, request: Request) -> bytes:
        self._check_length(request, self._largest)
        pieces, size = [], 0
        async for piece in request.stream():
            size += len(piece)
            if size > self._largest:
                raise Refused(413, "TooLarge", f"a request is at most {self._largest} bytes")
            pieces.append(piece)
        return b"".join(pieces)

    async def _spooled(self, request: Request) -> Path:
        """A body that may be too large to be held, in a file."""
        self._check_length(request, self._largest_upload)
        descriptor, name = tempfile.mkstemp(prefix="rawko-upload-")
        path, size = Path(name), 0
        try:
            with os.fdopen(descriptor, "wb") as stream:
                async for piece in request.stream():
                    size += len(piece)
                    if size > self._largest_upload:
                        raise Refused(413, "TooLarge", f"a task is at most {self._largest_upload} bytes here")
                    stream.write(piece)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return path

    @staticmethod
    def _check_length(request: Request, most: int) -> None:
        given = request.headers.get("content-length", "")
        if given.isdecimal() and int(given[:20]) > most:
            raise Refused(413, "TooLarge", f"a request is at most {most} bytes")

    def _do(
        self, operation: Operation, request: Request, token: Token | None, peer: str, body: bytes, upload: Path | None
    ) -> tuple[Token, tuple[Any, bool]]:
        """In a thread: all that may wait for a disk or a database."""
        who = token or self._admitted(request.headers, peer, operation.role)
        place = self._place(who, request.headers, request.query_params.get("workspace"))
        call = Call(place, who, peer, {}, body, upload, request.headers)
        status = operation.status
        try:
            call.params = _params(operation, request)
            operation.parse(call)
            return who, self._once.do(operation, call, lambda: operation.do(call))
        except RawkoError as error:
            status = problems.status_of(error)
            raise
        except (UnicodeError, OverflowError, RecursionError) as error:
            status = 422
            raise InvalidValue(f"a value that cannot be kept: {error}") from None
        finally:
            if operation.changes and operation.name not in _UNAUDITED:
                self.auditor.add(who.id, operation.name, place.name or None, call.task, status, peer)

    def _place(self, who: Token, headers: Headers, query: str | None) -> Place:
        wanted = headers.get("rawko-workspace") or query
        return self.places.place(self.guard.workspace(who, wanted or None))

    # Streams

    def _opened(self, scope: Scope, headers: Headers, task_id: str) -> tuple[Place, str, dict[str, Any]]:
        peer = _peer(scope)
        who = self._admitted(headers, peer, READ)
        query = dict(_query(scope))
        place = self._place(who, headers, query.get("workspace"))
        whole = place.store.find(ID.read([task_id])).id
        after = query.get("after") or headers.get("last-event-id")
        if after:
            from rawko_state.backends.events import Cursor

            CURSOR.read([after])
            Cursor.parse(after)
        return place, whole, {**hello(place, whole), "after": after}

    async def _stream(self, request: Request) -> Any:
        """Server-sent events, from ``Last-Event-ID`` or ``after`` on."""
        try:
            self.guard.check_origin(request.headers, secure=request.url.scheme == "https")
            opened = await self.run(self._opened, request.scope, request.headers, request.path_params["id"])
        except RawkoError as error:
            return _problem(error)
        until_over = request.query_params.get("until_over") == "true"
        return _Events(self, *opened, until_over=until_over)

    async def _socket(self, socket: WebSocket) -> None:
        try:
            self.guard.check_origin(socket.headers, secure=socket.url.scheme == "wss")
            place, task_id, greeting = await self.run(
                self._opened, socket.scope, socket.headers, socket.path_params["id"]
            )
        except RawkoError as error:
            await socket.send_denial_response(_problem(error))
            return
        asked = socket.headers.get("sec-websocket-protocol", "")
        await socket.accept(subprotocol="rawko" if "rawko" in [each.strip() for each in asked.split(",")] else None)
        receiving = asyncio.create_task(_drained(socket))
        sending = asyncio.create_task(self._sent(socket, place, task_id, greeting))
        done, rest = await asyncio.wait({receiving, sending}, return_when=asyncio.FIRST_COMPLETED)
        for task in rest:
            task.cancel()
        for task in (*done, *rest):
            with contextlib.suppress(asyncio.CancelledError, WebSocketDisconnect, RuntimeError):
                await task

    async def _sent(self, socket: WebSocket, place: Place, task_id: str, greeting: dict[str, Any]) -> None:
        cursor = greeting["after"] or ""
        until_over = dict(_query(socket.scope)).get("until_over") == "true"
        try:
            await asyncio.wait_for(socket.send_text(json.dumps(greeting)), SLOW)
            events = follow(self.hub, place, task_id, cursor or None, self._run_stream, until_over=until_over)
            async with contextlib.aclosing(events):
                async for each in events:
                    text = each[1] if each is not None else json.dumps({"type": "heartbeat", "at": _now()})
                    await asyncio.wait_for(socket.send_text(text), SLOW)
                    cursor = each[0] if each is not None else cursor
        except asyncio.TimeoutError:
            await socket.close(TOO_SLOW, f"too slow; come back after {cursor}"[:120])
            return
        except RawkoError as error:
            await socket.close(1011, str(error)[:120])
            return
        code = GOING_AWAY if self.hub.closing.is_set() else 1000
        await socket.close(code, f"come back after {cursor}"[:120])

    # Operations

    async def _healthy(self, request: Request) -> Response:
        return _json({"status": "ok"})

    async def _ready(self, request: Request) -> Response:
        if self.hub.closing.is_set():
            return _json({"status": "stopping"}, 503)
        try:
            await self.run(self.places.check)
        except RawkoError as error:
            return _json({"status": "not ready", "detail": str(error)}, 503)
        return _json({"status": "ready"})

    async def _metrics(self, request: Request) -> Response:
        try:
            self.guard.check_origin(request.headers, secure=request.url.scheme == "https")
            await self.run(self._admitted, request.headers, _peer(request.scope), READ)
        except RawkoError as error:
            return _problem(error)
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)

    async def _openapi(self, request: Request) -> Response:
        try:
            self.guard.check_origin(request.headers, secure=request.url.scheme == "https")
        except RawkoError as error:
            return _problem(error)
        return _json(document(OPERATIONS, PREFIX, workspaces=self.places.kind == "postgres"))


_UNAUDITED: Final = frozenset({"take_lease", "begin_draft", "add_to_draft", "drop_draft", "list_freed"})
"""What happens many times a second, and leaves nothing behind."""


class _Events:
    """A stream of server-sent events as an ASGI answer, which is cut off when its reader is too slow."""

    def __init__(
        self, server: Server, place: Place, task_id: str, greeting: dict[str, Any], *, until_over: bool
    ) -> None:
        self._server, self._place, self._task = server, place, task_id
        self._greeting, self._until_over = greeting, until_over

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [
            (b"content-type", b"text/event-stream"),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        gone = asyncio.create_task(_gone(receive))
        sending = asyncio.create_task(self._send(send))
        _, rest = await asyncio.wait({gone, sending}, return_when=asyncio.FIRST_COMPLETED)
        for task in rest:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError, OSError):
            await sending

    async def _send(self, send: Send) -> None:
        async def put(text: str, *, more: bool = True) -> None:
            message = {"type": "http.response.body", "body": text.encode(), "more_body": more}
            await asyncio.wait_for(send(message), SLOW)

        cursor = self._greeting["after"]
        try:
            await put(f"event: hello\ndata: {json.dumps(self._greeting)}\n\n")
            server = self._server
            events = follow(
                server.hub, self._place, self._task, cursor, server._run_stream, until_over=self._until_over
            )
            async with contextlib.aclosing(events):
                async for each in events:
                    if each is None:
                        await put(": heartbeat\n\n")
                        continue
                    cursor = each[0]
                    await put(f"id: {cursor}\ndata: {each[1]}\n\n")
            code = GOING_AWAY if server.hub.closing.is_set() else 1000
            bye = json.dumps({"code": code, "cursor": cursor})
            await put(f"event: bye\ndata: {bye}\n\n", more=False)
        except asyncio.TimeoutError:
            return  # the connection is closed; he comes back with Last-Event-ID
        except RawkoError as error:
            await put(f"event: problem\ndata: {json.dumps(problems.problem(error), default=str)}\n\n", more=False)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _drained(socket: WebSocket) -> None:
    """Nothing that a follower says matters; but that he is gone does."""
    while (await socket.receive())["type"] != "websocket.disconnect":
        pass


def _params(operation: Operation, request: Request) -> dict[str, Any]:
    query = request.query_params
    known = {param.name: param for param in operation.params}
    for name in query:
        if name not in known and name != "workspace":
            raise InvalidValue(f"unknown parameter {name!r:.80}; known: {', '.join(known) or 'none'}")
    found = {}
    for name, param in known.items():
        given = [request.path_params[name]] if name in request.path_params else query.getlist(name)
        found[name] = param.read(given)
    return found


def _query(scope: Scope) -> list[tuple[str, str]]:
    from urllib.parse import parse_qsl

    return parse_qsl(scope.get("query_string", b"").decode("latin-1"))


def _response(operation: Operation, outcome: tuple[Any, bool]) -> Response:
    answer, again = outcome
    if isinstance(answer, Streamed):
        return StreamingResponse(answer.pieces, answer.status, answer.headers, answer.media)
    headers = {"Idempotent-Replay": "true"} if again else {}
    if answer is None:
        return Response(status_code=204, headers=headers)
    return _json(answer, operation.status, headers)


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(
        json.dumps(value, default=str).encode(),
        status,
        {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", **(headers or {})},
        "application/json",
    )


def _problem(error: RawkoError, root: Path | None = None) -> Response:
    headers = error.headers if isinstance(error, Refused) else {}
    return Response(problems.body(error, root), problems.status_of(error), headers, problems.MEDIA)


async def _not_found(request: Request, error: Exception) -> Response:
    return _problem(Refused(404, "NoSuchPlace", "there is nothing at this address; see /openapi.json"))


async def _no_method(request: Request, error: Exception) -> Response:
    allowed = getattr(error, "headers", None) or {}
    return _problem(Refused(405, "NoSuchMethod", "this address does not take that method", dict(allowed)))


def _peer(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else "local"


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def log_to_stderr(*, quiet: bool) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    _log.handlers = [handler]
    _log.propagate = False
    _log.setLevel(logging.WARNING if quiet else logging.INFO)
