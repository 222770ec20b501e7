"""The ASGI application: maps requests to operations and their results to responses; streams, metrics, logs."""

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
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import Receive, Scope, Send

from rawko_state.errors import InvalidValue, RawkoError, StorageError, StorageGone
from rawko_state.server import problems, reading, telemetry, writing
from rawko_state.server import upkeep as keeping
from rawko_state.server.audit import Auditor
from rawko_state.server.feeds import Hub
from rawko_state.server.guard import Guard
from rawko_state.server.idempotency import Idempotency
from rawko_state.server.openapi import document
from rawko_state.server.operations import READ, Call, Operation
from rawko_state.server.outage import Outage
from rawko_state.server.problems import Refused
from rawko_state.server.responses import (
    NO_SNIFF,
    answered,
    json_answer,
    no_method,
    not_found,
    now,
    params_of,
    peer_of,
    problem_answer,
)
from rawko_state.server.streams import Streams
from rawko_state.server.threads import Threads
from rawko_state.server.workspaces import Workspace, Workspaces
from rawko_state.store.hosting import AuditEntry, Token

OPERATIONS: Final = (*reading.OPERATIONS, *writing.OPERATIONS, *keeping.OPERATIONS)
PREFIX: Final = "/api/v1"
LARGEST: Final = 64 << 20
LARGEST_UPLOAD: Final = 16 << 30
_THREADS: Final = 8
"""More would not be faster: most of a request is Python code, which runs one thread at a time."""
_CHECK: Final = 5.0
"""Seconds that a readiness check may take."""
_log = logging.getLogger("rawko.server")


class Server:
    """One server: its workspaces, and what it needs to serve them."""

    def __init__(
        self,
        workspaces: Workspaces,
        guard: Guard,
        hub: Hub,
        *,
        largest: int = LARGEST,
        largest_upload: int = LARGEST_UPLOAD,
        jobs: Callable[[Server], Any] | None = None,
        pages: Callable[[Server], Sequence[BaseRoute]] | None = None,
        warn: Callable[[str], None] = lambda message: None,
    ) -> None:
        """``pages``: further routes, such as those of the page in the browser."""
        self.workspaces, self.guard, self.hub = workspaces, guard, hub
        self._pages = pages
        self._largest, self._largest_upload, self._jobs = largest, largest_upload, jobs
        self._once = Idempotency()
        self.auditor = Auditor(workspaces.state)
        self._threads = Threads(_THREADS, "request")
        self._checks = Threads(1, "check")
        self._streams = Streams(self)
        registry = CollectorRegistry()
        self._registry = registry
        self._requests = Counter("rawko_requests", "Requests", ["operation", "status"], registry=registry)
        self._seconds = Histogram("rawko_request_seconds", "Time of requests", ["operation"], registry=registry)
        self.outage = Outage(workspaces.host.kind, warn)
        self._counted: dict[tuple[str, int], tuple[Counter, Histogram]] = {}
        Gauge("rawko_followers", "Who follows tasks", registry=registry).set_function(lambda: hub.followers)
        Gauge("rawko_open_tasks", "Tasks that are kept open", registry=registry).set_function(
            lambda: sum(len(workspace.warm) for workspace in workspaces.opened())
        )
        self.app = self._application()

    def _application(self) -> _Entrance:
        by_path: dict[str, dict[str, Operation]] = {}
        for each in OPERATIONS:
            by_path.setdefault(PREFIX + each.path, {})[each.method] = each
        others: list[Any] = [
            *(
                Route(each.path, functools.partial(self._request, {each.method: each}), methods=[each.method])
                for each in telemetry.OPERATIONS
            ),
            Route("/healthz", self._healthy),
            Route("/readyz", self._ready),
            Route("/metrics", self._metrics),
            Route("/openapi.json", self._openapi),
            Route(f"{PREFIX}/openapi.json", self._openapi),
            Route(f"{PREFIX}/tasks/{{id}}/events/stream", self._streams.stream),
            WebSocketRoute(f"{PREFIX}/tasks/{{id}}/events/socket", self._streams.socket),
        ]
        routes = [
            Route(path, functools.partial(self._request, methods), methods=list(methods))
            for path, methods in by_path.items()
        ]
        app = Starlette(
            routes=[*routes, *others, *(self._pages(self) if self._pages else ())],
            lifespan=self._lifespan,
            exception_handlers={404: not_found, 405: no_method},
        )
        app.router.redirect_slashes = False  # it would redirect to whatever the Host header names
        return _Entrance(app, by_path, self._request)

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
            self._streams.close()
            self._threads.close()
            self._checks.close()
            self.workspaces.close()

    async def run(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return await self._threads.run(work, *arguments)

    # Requests

    async def _request(self, methods: dict[str, Operation], request: Request) -> Response:
        operation = methods["GET" if request.method == "HEAD" else request.method]
        started = time.perf_counter()
        upload: Path | None = None
        who = "-"
        try:
            self.guard.check_origin(request.headers, secure=request.scope["scheme"] == "https")
            peer = peer_of(request.scope)
            body, token = b"", None
            if operation.changes:
                token = await self._before_body(request, peer, operation)
            if operation.uploads:
                upload = await self._spooled(request)
            elif operation.changes:
                body = await self._body(request)
            done: tuple[Token, Response] = await self.run(self._do, operation, request, token, peer, body, upload)
            token, response = done
            who = token.id
        except ClientDisconnect:
            response = Response(status_code=400)
        except RawkoError as error:
            response = problem_answer(error, self.workspaces.host.root)
            if isinstance(error, StorageError):
                self.outage.met(error)
        except Exception as error:  # our own fault: logged without the request's content
            _log.error(
                json.dumps({"at": now(), "operation": operation.name, "fault": type(error).__name__}),
                exc_info=bool(os.environ.get("RAWKO_TRACEBACKS")),
            )
            response = problem_answer(Refused(500, "Fault", "Internal error. No recorded data is known to be lost."))
        finally:
            if upload is not None:
                upload.unlink(missing_ok=True)
        seconds = time.perf_counter() - started
        counted = self._counted.get((operation.name, response.status_code))
        if counted is None:
            counted = self._counted[operation.name, response.status_code] = (
                self._requests.labels(operation.name, response.status_code),
                self._seconds.labels(operation.name),
            )
        counted[0].inc()
        counted[1].observe(seconds)
        self._logged(operation, response.status_code, seconds, who)
        return response

    def _logged(self, operation: Operation, status: int, seconds: float, who: str) -> None:
        if _log.isEnabledFor(logging.INFO):
            line = {
                "at": now(),
                "operation": operation.name,
                "status": status,
                "ms": round(seconds * 1000, 1),
                "who": who,
            }
            _log.info(json.dumps(line))

    async def _before_body(self, request: Request, peer: str, operation: Operation) -> Token:
        """Rejects a client that may not send this, before it has sent the body. What is left of the body is not read either."""
        try:
            if self.guard.recalls(request.headers):
                return self.admitted(request.headers, peer, operation.role)
            token: Token = await self.run(self.admitted, request.headers, peer, operation.role)
            return token
        except Refused as error:
            error.headers = {**error.headers, "Connection": "close"}
            raise

    def admitted(self, headers: Headers, peer: str, role: str) -> Token:
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
                raise Refused(413, "TooLarge", f"The request is larger than {self._largest} bytes.")
            pieces.append(piece)
        return b"".join(pieces)

    async def _spooled(self, request: Request) -> Path:
        """Writes a body that may not fit into memory to a file."""
        self._check_length(request, self._largest_upload)
        descriptor, name = tempfile.mkstemp(prefix="rawko-upload-")
        path, size = Path(name), 0
        try:
            with os.fdopen(descriptor, "wb") as stream:
                async for piece in request.stream():
                    size += len(piece)
                    if size > self._largest_upload:
                        raise Refused(413, "TooLarge", f"The task is larger than {self._largest_upload} bytes.")
                    stream.write(piece)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return path

    @staticmethod
    def _check_length(request: Request, most: int) -> None:
        given = request.headers.get("content-length", "")
        if given.isdecimal() and int(given[:20]) > most:
            raise Refused(413, "TooLarge", f"The request is larger than {most} bytes.")

    def _do(
        self, operation: Operation, request: Request, token: Token | None, peer: str, body: bytes, upload: Path | None
    ) -> tuple[Token, Response]:
        """Runs in a worker thread: everything that may wait for a disk or a database."""
        who = token or self.admitted(request.headers, peer, operation.role)
        workspace = self.workspace(who, request.headers, request.query_params.get("workspace"))
        call = Call(workspace, who, peer, {}, body, upload, request.headers)
        answer, again = self.carry_out(operation, call, lambda: params_of(operation, request))
        return who, answered(operation, (answer, again), self.run, call.says)

    def carry_out(self, operation: Operation, call: Call, params: Callable[[], dict[str, Any]]) -> tuple[Any, bool]:
        """Carries out a request of a client that may make it: once, and with an entry in the audit log if it changes something.
        Returns the answer, and whether it is that of an earlier request with the same key. Runs in a worker thread."""
        if operation.changes and operation.name not in _UNAUDITED:
            name = call.workspace.name or None
            call.audit = AuditEntry(call.who.id, operation.name, name, None, operation.status, call.peer)
        try:
            call.params = params()
            operation.parse(call)
            answer, again = self._once.do(operation, call, lambda: operation.do(call))
        except RawkoError as error:
            if isinstance(error, StorageGone):
                self.workspaces.forget(call.workspace)
            self._rejected(call, problems.status_of(error))
            raise
        except (UnicodeError, OverflowError, RecursionError) as error:
            self._rejected(call, 422)
            raise InvalidValue(f"A value can't be stored: {error}.") from None
        except BaseException:
            self._rejected(call, 500)
            raise
        self._done(call, answer, again)
        return answer, again

    def _done(self, call: Call, answer: Any, again: bool) -> None:
        """Makes durable what belongs to a change, unless its record's transaction did: before this, it is not acknowledged."""
        if call.stored and not again:
            return
        key = None if again or call.key is None else call.key._replace(answer=json.dumps(answer))
        if call.audit is not None:
            self.auditor.add(call.audit._replace(task=call.task), key)
        elif key is not None:
            with contextlib.suppress(RawkoError):
                call.state.finished(key, [], durable=False)

    def _rejected(self, call: Call, status: int) -> None:
        if call.audit is not None:
            self.auditor.note(call.audit._replace(task=call.task, status=status))

    def workspace(self, who: Token, headers: Headers, query: str | None) -> Workspace:
        wanted = headers.get("rawko-workspace") or query
        return self.workspaces.get(self.guard.workspace(who, wanted or None))

    # Operations

    async def _healthy(self, request: Request) -> Response:
        return json_answer({"status": "ok"})

    async def _ready(self, request: Request) -> Response:
        if self.hub.closing.is_set():
            return json_answer({"status": "stopping"}, 503)
        try:
            await asyncio.wait_for(self._checked(), _CHECK)
        except (RawkoError, asyncio.TimeoutError) as error:
            # Anyone may ask, so the reason is for the log alone.
            _log.warning(json.dumps({"at": now(), "operation": "readyz", "fault": str(error) or type(error).__name__}))
            return json_answer({"status": "not ready"}, 503)
        return json_answer({"status": "ready"})

    async def _checked(self) -> None:
        """Uses a thread of its own: requests that wait for an unreachable database take all the others."""
        await self._checks.run(self.workspaces.check)

    async def _metrics(self, request: Request) -> Response:
        try:
            self.guard.check_origin(request.headers, secure=request.scope["scheme"] == "https")
            await self.run(self.admitted, request.headers, peer_of(request.scope), READ)
        except RawkoError as error:
            return problem_answer(error)
        return Response(generate_latest(self._registry), 200, NO_SNIFF, CONTENT_TYPE_LATEST)

    async def _openapi(self, request: Request) -> Response:
        try:
            self.guard.check_origin(request.headers, secure=request.scope["scheme"] == "https")
        except RawkoError as error:
            return problem_answer(error)
        return json_answer(document(OPERATIONS, PREFIX, workspaces=bool(self.workspaces.host.default)))


_ANY, _HERE = object(), object()


class _Entrance:
    """The application. A request for an operation goes straight to it: Starlette would try one route after another, and wrap the
    call three times against exceptions, which _request() does not raise. Everything else is Starlette's."""

    def __init__(
        self,
        others: Starlette,
        by_path: dict[str, dict[str, Operation]],
        request: Callable[[dict[str, Operation], Request], Awaitable[Response]],
    ) -> None:
        self._others, self._request = others, request
        self._tree: dict[object, Any] = {}
        for path, methods in by_path.items():
            place = self._tree
            names = []
            for part in path.split("/"):
                is_value = part.startswith("{")
                if is_value:
                    names.append(part[1:-1])
                place = place.setdefault(_ANY if is_value else part, {})
            place[_HERE] = (names, methods)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self._found(scope["path"], scope["method"]) if scope["type"] == "http" else None
        if found is None:
            await self._others(scope, receive, send)
            return
        scope["path_params"], methods = found
        response = await self._request(methods, Request(scope, receive, send))
        await response(scope, receive, send)

    def _found(self, path: str, method: str) -> tuple[dict[str, str], dict[str, Operation]] | None:
        """The values in the path, and the operations on it; None if Starlette should say what is wrong."""
        place = self._tree
        values = []
        for part in path.split("/"):
            there = place.get(part)
            if there is None and part:
                there = place.get(_ANY)
                values.append(part)
            if there is None:
                return None
            place = there
        names, methods = place.get(_HERE, ((), ()))
        if method not in methods and not (method == "HEAD" and "GET" in methods):
            return None
        return dict(zip(names, values, strict=True)), methods


_UNAUDITED: Final = frozenset({"take_lease", "begin_draft", "add_to_draft", "drop_draft", "list_freed"})
"""Operations that are called many times a second and leave nothing behind."""


class _JsonLines(logging.Formatter):
    """Our own lines are JSON already. What a library logs becomes JSON too, without a traceback, which may hold content."""

    def format(self, record: logging.LogRecord) -> str:
        if record.name == _log.name:
            return record.getMessage() if not record.exc_info else super().format(record)
        line = {"at": now(), "logger": record.name, "level": record.levelname.lower(), "message": record.getMessage()}
        if record.exc_info and record.exc_info[0] is not None:
            line["fault"] = record.exc_info[0].__name__
        return json.dumps(line)


def log_to_stderr(*, quiet: bool) -> None:
    """One JSON object a line, whoever logs it."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.captureWarnings(True)
    _log.setLevel(logging.WARNING if quiet else logging.INFO)


def log_warning(message: str) -> None:
    """Logs a warning that concerns no request."""
    _log.warning(json.dumps({"at": now(), "level": "warning", "message": message}))
