"""Running a server: where it listens, who may connect, its periodic jobs, and how it stops."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final

import uvicorn
from starlette.routing import BaseRoute

from rawko_state.backends.select import open_host
from rawko_state.config.settings import load
from rawko_state.errors import InvalidValue, RawkoError
from rawko_state.lifecycle.cleanup import carry_out, described, planned
from rawko_state.lifecycle.retention import policy_of
from rawko_state.model.frozen import Frozen, field
from rawko_state.server.app import Server, log_to_stderr, log_warning
from rawko_state.server.feeds import Hub
from rawko_state.server.guard import Guard, is_loopback
from rawko_state.server.limits import Limits, protocol_with
from rawko_state.server.outage import Outage
from rawko_state.server.workers import reserved, supervise
from rawko_state.server.workspaces import Workspaces
from rawko_state.store.hosting import Host

_TIDY_EVERY: Final = 5.0
_SOON: Final = 0.2
_RECONCILE_EVERY: Final = 15.0
_DAY: Final = 86_400.0
_GRACE: Final = 10
_COLLECT_AFTER: Final = 20_000
"""New objects, less those that are gone, after which the collector looks for cycles."""


class Options(Frozen):
    root: Path
    host: str = "127.0.0.1"
    port: int = 8737
    database: str | None = None
    listen: str | None = None
    """A direct address of the database for notifications, if ``database`` is a pooler."""
    hosts: tuple[str, ...] = ()
    rate: float = 0.0
    quiet: bool = False
    limits: Limits = field(default_factory=Limits)
    workers: int = 1
    pages: Callable[[Server], Sequence[BaseRoute]] | None = None
    """Further routes, such as those of the page in the browser."""
    private: bool = False
    """Without tokens, not even other users of this machine are let in."""
    started: Callable[[str], None] | None = None
    """Called with the address once the server listens."""


def build(options: Options, warn: Callable[[str], None], host: Host | None = None) -> Server:
    """The server, not yet listening, for the files or the database in the options, or for any ``host``. Without tokens, it may
    not be reachable from other machines."""
    local = is_loopback(options.host)
    host = host or open_host(options.root, options.database, warn, listen=options.listen)
    hub = Hub(notified=host.is_notified)
    workspaces = Workspaces(host, hub.changed)
    if not local and not workspaces.state.has_tokens(valid=True):
        workspaces.close()
        raise InvalidValue(
            f"{options.host} is reachable from other machines, and there is no token yet.\n    "
            "rawko token create --role write"
        )
    names = frozenset(host.lower() for host in options.hosts)
    if options.host not in ("0.0.0.0", "::"):
        names |= {options.host.strip("[]").lower()}
    guard = Guard(workspaces.state, names, rate=options.rate, open_to_all=local and not options.private)
    return Server(
        workspaces, guard, hub, jobs=lambda server: _jobs(server, options, warn), pages=options.pages, warn=warn
    )


def run(options: Options, warn: Callable[[str], None], host: Host | None = None) -> None:
    """Serves until SIGTERM or SIGINT. Streams then end with a code that tells clients to reconnect."""
    if options.workers > 1:
        _run_workers(options, warn)
        return
    tell = _log_of(options, warn)
    server = build(options, tell, host)
    _collect_seldom()
    uvicorn_server = Uvicorn(listening(server, options), server, warn, options.started)
    try:
        uvicorn_server.run()
    except SystemExit as stop:
        raise RawkoError(f"Can't listen on {options.host}:{options.port}. Is another server running there?") from stop


def _log_of(options: Options, warn: Callable[[str], None]) -> Callable[[str], None]:
    """Begins the log. Returns what to call with a warning: in the log of a team's server, that is a line of JSON too."""
    log_to_stderr(quiet=options.quiet)
    return warn if options.private else log_warning


def _collect_seldom() -> None:
    """Requests leave almost no cycles behind, so looking for them after every 700 objects, some in each request, is a tenth of
    the server's work."""
    gc.freeze()  # what is loaded now stays: the collector need not look at it again
    gc.set_threshold(_COLLECT_AFTER)


def _run_workers(options: Options, warn: Callable[[str], None]) -> None:
    if options.database is None:
        raise InvalidValue("Several workers need a database: --database. Leases on files belong to one process.")
    tell = _log_of(options, warn)
    build(options, tell).workspaces.close()  # migrates, and says now what is wrong
    held = reserved(options.host, options.port)
    port = held.getsockname()[1]
    shown = f"[{options.host}]" if ":" in options.host else options.host
    warn(f"serving postgres tasks on http://{shown}:{port}")

    def work() -> None:
        mine = reserved(options.host, port)
        server = build(options, tell)
        _collect_seldom()
        Uvicorn(listening(server, options), server, lambda message: None).run([mine])

    supervise(options.workers, work, tell)
    held.close()


def listening(server: Server, options: Options, *, grace: int = _GRACE) -> uvicorn.Config:
    """How uvicorn listens and what it accepts before a request reaches the server."""
    return uvicorn.Config(
        server.app,
        host=options.host,
        port=options.port,
        http=protocol_with(options.limits),
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=grace,
        ws_max_size=1 << 20,
    )


class Uvicorn(uvicorn.Server):
    def __init__(
        self,
        config: uvicorn.Config,
        server: Server,
        warn: Callable[[str], None],
        started: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(config)
        self._rawko, self._warn, self._started = server, warn, started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.should_exit:
            return
        for each in self.servers:
            for bound in each.sockets:
                host, port = bound.getsockname()[:2]
                shown = f"[{host}]" if ":" in host else host
                self._warn(f"serving {self._rawko.workspaces.host.kind} tasks on http://{shown}:{port}")
                if self._started is not None:
                    self._started(f"http://{shown}:{port}")
                return

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._rawko.hub.stop()
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Cuts off who has not taken everything by the end of the grace, such as a follower that does not read."""
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()
        await asyncio.sleep(0)  # one round of the loop, in which they are closed


async def _jobs(server: Server, options: Options, warn: Callable[[str], None]) -> None:
    """Periodic jobs, while the server runs."""
    stop = threading.Event()
    host = server.workspaces.host
    if host.is_notified:
        threading.Thread(target=host.listen, args=(stop, server.hub.changed), daemon=True, name="listen").start()
    reconciled, cleaned = time.monotonic(), 0.0
    try:
        while True:
            now = time.monotonic()
            await _check(server)
            await _quietly(server, server.workspaces.tidy)
            if now - reconciled >= _RECONCILE_EVERY:
                reconciled = now
                await _quietly(server, _reconcile, server.workspaces)
            if now - cleaned >= _DAY or not cleaned:
                cleaned = now
                await _quietly(server, _tidy_state, server.workspaces, options.root)
                await _quietly(server, _clean, server.workspaces, warn)
            await _until_trouble(server.outage)
    finally:
        stop.set()


async def _until_trouble(outage: Outage) -> None:
    """Waits for the next check, which comes at once if a request finds that the tasks cannot be reached."""
    await asyncio.sleep(_TIDY_EVERY if outage.is_on else _SOON)
    if not outage.is_on:
        await outage.trouble(_TIDY_EVERY)
    outage.forget()


async def _check(server: Server) -> None:
    try:
        await server.run(server.workspaces.check)
    except RawkoError as error:
        server.outage.began(error)
    else:
        server.outage.ended()


async def _quietly(server: Server, work: Callable[..., Any], *arguments: Any) -> None:
    with contextlib.suppress(Exception):  # database unreachable or disk full: try again next time
        await server.run(work, *arguments)


def _reconcile(workspaces: Workspaces) -> None:
    for workspace in workspaces.all():
        for task_id in workspace.store.reconcile():
            workspace.changed(task_id)


def _tidy_state(workspaces: Workspaces, root: Path) -> None:
    settings = load(root)
    key = "server.audit.max_age"
    # A setting that can't be read must not delete anything.
    workspaces.state.tidy(None if settings.problems else settings[key])


def _clean(workspaces: Workspaces, warn: Callable[[str], None]) -> None:
    """Applies retention to each project by its own settings; the workspaces of a database have those of the server's project."""
    for workspace in workspaces.all():
        of = f" of {workspace.name}" if workspace.name else ""
        try:
            policy = policy_of(load(workspace.store.root))
        except InvalidValue as error:
            warn(f"no cleanup{of} today: {error}")
            continue
        if not policy.is_set:
            continue
        done = carry_out(workspace.store, policy, planned(workspace.store, policy), by="retention")
        if done:
            warn(f"cleanup{of}: {described(done)}")
