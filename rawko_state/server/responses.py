"""Converts requests to values, and values to responses."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from rawko_state.errors import InvalidValue, RawkoError
from rawko_state.format import fair_json
from rawko_state.server import problems
from rawko_state.server.operations import Operation, Streamed
from rawko_state.server.problems import Refused

NO_SNIFF: Final = {"X-Content-Type-Options": "nosniff"}


def params_of(operation: Operation, request: Request) -> dict[str, Any]:
    query = request.query_params
    known = {param.name: param for param in operation.params}
    for name in query:
        if name not in known and name != "workspace":
            raise InvalidValue(f"Unknown parameter: {name!r:.80}. Known: {', '.join(known) or 'none'}.")
    found = {}
    for name, param in known.items():
        given = [request.path_params[name]] if name in request.path_params else query.getlist(name)
        found[name] = param.read(given)
    return found


def query_of(scope: Scope) -> list[tuple[str, str]]:
    return parse_qsl(scope.get("query_string", b"").decode("latin-1"))


Run = Callable[..., Awaitable[Any]]
"""Runs a blocking call in one of the server's threads."""


def answered(operation: Operation, outcome: tuple[Any, bool], run: Run, says: dict[str, str]) -> Response:
    answer, again = outcome
    if isinstance(answer, Streamed):
        pieces = piece_by_piece(answer.pieces, run)
        return Pieces(pieces, answer.status, {**NO_SNIFF, **answer.headers}, answer.media)
    headers = {**says, **({"Idempotent-Replay": "true"} if again else {})}
    if answer is None:
        return Response(status_code=204, headers=headers)
    return json_answer(answer, operation.status, headers)


async def piece_by_piece(pieces: Iterator[bytes], run: Run, first: bytes = b"") -> AsyncGenerator[bytes, None]:
    """``first``: a piece that is there already."""
    source = _Source(pieces)
    try:
        if first:
            yield first
        while (piece := await run(source.next)) is not None:
            yield piece
    finally:
        source.close()


class _Source:
    """Pieces that are closed at the end: at once, or by the thread that is in them then, when it comes out. To close a generator
    while it runs can crash CPython 3.11."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._inside, self._is_over = pieces, threading.Lock(), False

    def next(self) -> bytes | None:
        try:
            with self._inside:
                return next(self._pieces, None)
        finally:
            if self._is_over:
                self.close()

    def close(self) -> None:
        self._is_over = True
        if isinstance(self._pieces, Generator) and self._inside.acquire(blocking=False):
            try:
                self._pieces.close()
            finally:
                self._inside.release()


class Pieces(StreamingResponse):
    """A response in pieces. What they are read from is closed at its end, also if the client left before. Otherwise it would stay
    open until the collector looks for cycles, which a server does seldom."""

    def __init__(
        self, pieces: AsyncGenerator[Any, None], status: int, headers: Mapping[str, str], media_type: str | None
    ) -> None:
        super().__init__(pieces, status, headers, media_type)
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with contextlib.aclosing(self._pieces):
            await super().__call__(scope, receive, send)


def json_answer(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(
        fair_json.dumps(value, default=str).encode(),
        status,
        {"Cache-Control": "no-store", **NO_SNIFF, **(headers or {})},
        "application/json",
    )


def problem_answer(error: RawkoError, root: Path | None = None) -> Response:
    headers = error.headers if isinstance(error, Refused) else {}
    return Response(problems.body(error, root), problems.status_of(error), {**NO_SNIFF, **headers}, problems.MEDIA)


async def not_found(request: Request, error: Exception) -> Response:
    return problem_answer(Refused(404, "NoSuchPlace", "Not found. The API is described at /openapi.json."))


async def no_method(request: Request, error: Exception) -> Response:
    allowed = getattr(error, "headers", None) or {}
    return problem_answer(Refused(405, "NoSuchMethod", "Method not allowed.", dict(allowed)))


def peer_of(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else "local"


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
