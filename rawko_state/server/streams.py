"""Event streams from a cursor on: server-sent events and WebSockets. Clients that read too slowly are disconnected."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from rawko_state.errors import RawkoError, StorageError
from rawko_state.server import problems
from rawko_state.server.feeds import GOING_AWAY, NOT_ADMITTED, SLOW, TOO_SLOW, Hub, follow, hello
from rawko_state.server.operations import READ
from rawko_state.server.problems import Refused
from rawko_state.server.reading import CURSOR, ID
from rawko_state.server.responses import now, peer_of, problem_answer, query_of
from rawko_state.server.threads import Threads
from rawko_state.server.workspaces import Workspace
from rawko_state.tasks.events import Cursor

if TYPE_CHECKING:
    from rawko_state.server.app import Server

_THREADS: Final = 4


class Streams:
    """The streaming endpoints of a server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._threads = Threads(_THREADS, "stream")

    async def run(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Uses separate threads, so that many followers do not delay requests."""
        return await self._threads.run(work, *arguments)

    def close(self) -> None:
        self._threads.close()

    def _opened(
        self, scope: Scope, headers: Headers, task_id: str
    ) -> tuple[Workspace, str, dict[str, Any], Callable[[], object]]:
        peer = peer_of(scope)
        who = self._server.admitted(headers, peer, READ)
        query = dict(query_of(scope))
        workspace = self._server.workspace(who, headers, query.get("workspace"))
        whole = workspace.store.find(ID.read([task_id])).id
        after = query.get("after") or headers.get("last-event-id")
        if after:
            CURSOR.read([after])
            Cursor.parse(after)
        may = functools.partial(self._server.admitted, headers, peer, READ)
        return workspace, whole, {**hello(workspace, whole), "after": after}, may

    async def stream(self, request: Request) -> Any:
        """Server-sent events, from ``Last-Event-ID`` or ``after`` on."""
        try:
            self._server.guard.check_origin(request.headers, secure=request.url.scheme == "https")
            opened = await self._server.run(self._opened, request.scope, request.headers, request.path_params["id"])
        except RawkoError as error:
            return problem_answer(error)
        until_over = request.query_params.get("until_over") == "true"
        return _Events(self._server.hub, self.run, *opened, until_over=until_over)

    async def socket(self, socket: WebSocket) -> None:
        try:
            self._server.guard.check_origin(socket.headers, secure=socket.url.scheme == "wss")
            workspace, task_id, greeting, may = await self._server.run(
                self._opened, socket.scope, socket.headers, socket.path_params["id"]
            )
        except RawkoError as error:
            await socket.send_denial_response(problem_answer(error))
            return
        asked = socket.headers.get("sec-websocket-protocol", "")
        await socket.accept(subprotocol="rawko" if "rawko" in [each.strip() for each in asked.split(",")] else None)
        receiving = asyncio.create_task(_drained(socket))
        sending = asyncio.create_task(self._sent(socket, workspace, task_id, greeting, may))
        done, rest = await asyncio.wait({receiving, sending}, return_when=asyncio.FIRST_COMPLETED)
        for task in rest:
            task.cancel()
        for task in (*done, *rest):
            with contextlib.suppress(asyncio.CancelledError, WebSocketDisconnect, RuntimeError):
                await task

    async def _sent(
        self, socket: WebSocket, workspace: Workspace, task_id: str, greeting: dict[str, Any], may: Callable[[], object]
    ) -> None:
        cursor = greeting["after"] or ""
        until_over = dict(query_of(socket.scope)).get("until_over") == "true"
        try:
            await asyncio.wait_for(socket.send_text(json.dumps(greeting)), SLOW)
            events = follow(
                self._server.hub, workspace, task_id, cursor or None, self.run, until_over=until_over, may=may
            )
            async with contextlib.aclosing(events):
                async for each in events:
                    text = each[1] if each is not None else json.dumps({"type": "heartbeat", "at": now()})
                    await asyncio.wait_for(socket.send_text(text), SLOW)
                    cursor = each[0] if each is not None else cursor
        except asyncio.TimeoutError:
            await socket.close(TOO_SLOW, f"too slow; come back after {cursor}"[:120])
            return
        except Refused as error:
            await socket.close(NOT_ADMITTED, str(error)[:120])
            return
        except StorageError:
            # The tasks cannot be reached now: come back, perhaps to another server.
            await socket.close(GOING_AWAY, f"come back after {cursor}"[:120])
            return
        except RawkoError as error:
            await socket.close(1011, str(error)[:120])
            return
        code = GOING_AWAY if self._server.hub.closing.is_set() else 1000
        await socket.close(code, f"come back after {cursor}"[:120])


class _Events:
    """An ASGI response that streams server-sent events. Disconnects clients that read too slowly."""

    def __init__(
        self,
        hub: Hub,
        run: Callable[..., Any],
        workspace: Workspace,
        task_id: str,
        greeting: dict[str, Any],
        may: Callable[[], object],
        *,
        until_over: bool,
    ) -> None:
        self._may = may
        self._hub, self._run, self._workspace, self._task = hub, run, workspace, task_id
        self._greeting, self._until_over = greeting, until_over

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [
            (b"content-type", b"text/event-stream"),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),
            (b"x-content-type-options", b"nosniff"),
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
            events = follow(
                self._hub, self._workspace, self._task, cursor, self._run, until_over=self._until_over, may=self._may
            )
            async with contextlib.aclosing(events):
                async for each in events:
                    if each is None:
                        await put(": heartbeat\n\n")
                        continue
                    cursor = each[0]
                    await put(f"id: {cursor}\ndata: {each[1]}\n\n")
            code = GOING_AWAY if self._hub.closing.is_set() else 1000
            bye = json.dumps({"code": code, "cursor": cursor})
            await put(f"event: bye\ndata: {bye}\n\n", more=False)
        except asyncio.TimeoutError:
            return  # the connection is closed; the client reconnects with Last-Event-ID
        except StorageError:
            bye = json.dumps({"code": GOING_AWAY, "cursor": cursor})
            await put(f"event: bye\ndata: {bye}\n\n", more=False)
        except RawkoError as error:
            await put(f"event: problem\ndata: {json.dumps(problems.problem(error), default=str)}\n\n", more=False)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _drained(socket: WebSocket) -> None:
    """Ignore incoming messages; only watch for the disconnect."""
    while (await socket.receive())["type"] != "websocket.disconnect":
        pass
