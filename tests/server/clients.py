"""What the tests of this folder share."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Callable, Iterator
from typing import Any

from websockets.sync.client import connect

from rawko_state.backends.remote.store import RemoteStore
from rawko_state.errors import ServerAway
from rawko_state.server.app import PREFIX
from tests.support.machine import patience

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


def _pieces(fetch: Callable[[int, int], bytes]) -> Callable[[], bytes]:
    at = 0

    def more() -> bytes:
        nonlocal at
        piece = fetch(at, 1 << 18)
        at += len(piece)
        return piece

    return more


def _follow(port: int, task: str, after: str | None = None, **query: str) -> Iterator[dict[str, Any]]:
    given = "&".join(f"{name}={value}" for name, value in {**query, **({"after": after} if after else {})}.items())
    with connect(f"ws://127.0.0.1:{port}{PREFIX}/tasks/{task}/events/socket?{given}", max_size=None) as socket_:
        for message in socket_:
            yield json.loads(message)


def _answers(store: RemoteStore) -> bool:
    with contextlib.suppress(ServerAway):
        return bool(store.hello())
    return False


def _all(store: Any, task_id: str) -> bytes:
    with store.reader(task_id) as reader:
        return bytes(reader.fetch(0, reader.size))
