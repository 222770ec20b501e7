"""Blocking work beside an event loop, and the short way of a request to its operation."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Route

from rawko_state.server.responses import piece_by_piece
from rawko_state.server.threads import Threads
from tests.server.clients import Client
from tests.support.machine import wait_for
from tests.support.serving import Served


def test_results_that_are_ready_together_wake_the_loop_once() -> None:
    async def work() -> tuple[list[int], int]:
        loop, threads, go = asyncio.get_running_loop(), Threads(1, "t"), threading.Event()
        told = 0
        wake = loop.call_soon_threadsafe

        def counted(*arguments: Any) -> Any:
            nonlocal told
            told += 1
            return wake(*arguments)

        loop.call_soon_threadsafe = counted  # type: ignore[method-assign]
        calls = [asyncio.ensure_future(threads.run(lambda number=number: go.wait() and number)) for number in range(5)]
        await asyncio.sleep(0)
        go.set()
        while threads._waiting.qsize() or len(threads._done) < 5:
            pass  # the loop looks at none of them before all are there
        found = await asyncio.gather(*calls)
        threads.close()
        return found, told

    assert asyncio.run(work()) == ([0, 1, 2, 3, 4], 1)


def test_threads_start_as_they_are_needed_and_end() -> None:
    async def work() -> None:
        threads = Threads(3, "some")
        for _ in range(5):
            await threads.run(int)
        assert len(threads._threads) == 1
        gate = threading.Barrier(4)
        calls = [asyncio.ensure_future(threads.run(gate.wait)) for _ in range(3)]
        await asyncio.sleep(0)
        await asyncio.to_thread(gate.wait)
        await asyncio.gather(*calls)
        assert len(threads._threads) == 3
        await asyncio.to_thread(threads.close)
        assert not any(thread.is_alive() for thread in threads._threads)
        with pytest.raises(RuntimeError):
            await threads.run(int)

    asyncio.run(work())


def test_an_error_reaches_who_waits_and_nobody_else() -> None:
    async def work() -> None:
        threads, gate = Threads(1, "t"), threading.Event()
        left = asyncio.ensure_future(threads.run(gate.wait))
        wrong, ended = (asyncio.ensure_future(threads.run(next, iter(()), *more)) for more in ((), (None,)))
        refused = asyncio.ensure_future(threads.run(int, "x"))
        await asyncio.sleep(0)
        left.cancel()
        gate.set()
        with pytest.raises(RuntimeError, match="StopIteration"):
            await wrong
        assert await ended is None
        with pytest.raises(ValueError, match="invalid literal"):
            await refused
        with pytest.raises(asyncio.CancelledError):
            await left
        threads.close()

    asyncio.run(work())


class TestEntrance:
    def test_an_operation_is_found_without_trying_routes(
        self, server: Served, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tried: list[str] = []
        matches = Route.matches

        def recorded(route: Route, scope: Any) -> Any:
            tried.append(scope["path"])
            return matches(route, scope)

        monkeypatch.setattr(Route, "matches", recorded)
        task = client.start()
        assert client("POST", f"tasks/{task}/turns", {"agent": "a"})[0] == 201
        assert client("GET", f"tasks/{task}/turns/1")[0] == 200
        assert tried == []

    @pytest.mark.parametrize(
        ("method", "path", "status"),
        [
            ("HEAD", "tasks", 200),
            ("PUT", "tasks", 405),
            ("GET", "tasks//turns", 404),
            ("GET", "tasks/", 404),
            ("GET", "tasks/abc123/", 404),
            ("GET", "tasks/abc123/nothing", 404),
            ("GET", "tasks/{}", 422),
            ("GET", "%2f", 404),
            ("GET", "kv/a%2Fb/c/d", 404),
            ("GET", "/", 404),
            ("GET", "//api/v1/tasks", 404),
        ],
    )
    def test_the_rest_is_answered_as_before(self, client: Client, method: str, path: str, status: int) -> None:
        assert client(method, path)[0] == status

    def test_values_of_the_path_are_read_once(self, client: Client, project: Path) -> None:
        assert client("PUT", "kv/a%2520b/%7Bk%7D", {"value": "x"})[0] == 204
        assert client("GET", "kv/a%2520b/%7Bk%7D")[1]["value"] == "x"
        assert client("GET", "kv?scope=a%2520b")[0] == 200


class _Slow(Generator[bytes, None, None]):
    """Pieces that take a while, and notice when they are closed meanwhile."""

    def __init__(self) -> None:
        self.go_on, self.begun = threading.Event(), threading.Event()
        self.runs = False
        self.closed: list[str] = []

    def send(self, value: None) -> bytes:
        self.runs = True
        self.begun.set()
        self.go_on.wait(60)
        self.runs = False
        return b"piece"

    def throw(self, *error: Any) -> bytes:
        raise AssertionError(error)

    def close(self) -> None:
        self.closed.append("while it runs" if self.runs else "at rest")


class TestPieces:
    def test_they_are_not_closed_while_a_thread_is_in_them(self) -> None:
        async def main() -> None:
            slow = _Slow()
            pieces = piece_by_piece(slow, lambda *call: asyncio.to_thread(*call))
            asked = asyncio.ensure_future(anext(pieces))
            await asyncio.to_thread(slow.begun.wait, 60)
            asked.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asked
            await pieces.aclose()
            assert slow.closed == []
            slow.go_on.set()
            await asyncio.to_thread(wait_for, lambda: slow.closed == ["at rest"])

        asyncio.run(main())

    def test_they_are_closed_when_nobody_wants_more(self) -> None:
        async def main() -> None:
            slow = _Slow()
            slow.go_on.set()
            pieces = piece_by_piece(slow, lambda *call: asyncio.to_thread(*call))
            assert await anext(pieces) == b"piece"
            await pieces.aclose()
            assert slow.closed == ["at rest"]

        asyncio.run(main())
