"""A server on a real socket of this machine, for the time of a test."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import uvicorn

from rawko_state.server.app import Server
from rawko_state.server.run import Options, Uvicorn, build, listening
from rawko_state.store.hosting import Host
from tests.support.machine import patience


class Served(NamedTuple):
    url: str
    port: int
    server: Server
    uvicorn: uvicorn.Server


@contextlib.contextmanager
def served(root: Path, database: str | None = None, host: Host | None = None, **options: Any) -> Iterator[Served]:
    """``options`` are those of the server's Options."""
    wanted = Options(root=root, database=database, port=0, **options)
    server = build(wanted, lambda message: None, host)
    running = Uvicorn(listening(server, wanted, grace=3), server, lambda message: None)
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    while not running.started:
        assert thread.is_alive(), "the server did not start"
        time.sleep(0.01)
    port = running.servers[0].sockets[0].getsockname()[1]
    try:
        yield Served(f"http://127.0.0.1:{port}", port, server, running)
    finally:
        server.hub.stop()
        running.should_exit = True
        thread.join(patience(10))
        assert not thread.is_alive(), "the server did not stop"
