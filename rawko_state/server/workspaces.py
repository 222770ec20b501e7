"""A server's workspaces, and the tasks that it keeps open between requests."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from rawko_state.errors import ChainMoved, InvalidValue, RawkoError, StorageError
from rawko_state.server.problems import Refused
from rawko_state.store.contract import HostedStore
from rawko_state.store.hosting import Host, Registry, ServerState

if TYPE_CHECKING:
    from rawko_state.model.appended import BeforeWrite
    from rawko_state.tasks.task import Task

_IDLE: Final = 20.0
_MOST: Final = 2_000


class _Open:
    __slots__ = ("lock", "task", "used")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.task: Task | None = None
        self.used = time.monotonic()


class Warm:
    """Tasks kept open between requests, since opening one costs more than an append. One thread uses each at a time."""

    def __init__(self, attach: Callable[[str], Task]) -> None:
        self._attach = attach
        self._most = _most_open()
        self._lock = threading.Lock()
        self._open: dict[str, _Open] = {}

    def __contains__(self, task_id: str) -> bool:
        held = self._open.get(task_id)
        return held is not None and held.task is not None

    def __len__(self) -> int:
        return len(self._open)

    def using(self, task_id: str, work: Callable[[Task], Any], before: BeforeWrite, expected: str | None = None) -> Any:
        while True:
            with self._lock:
                held = self._open.setdefault(task_id, _Open())
                crowded = len(self._open) > self._most
            if crowded:
                self.tidy(idle=0.0, all_but=self._most)
            with held.lock:
                if self._open.get(task_id) is not held:
                    continue  # tidy() closed it between the two locks
                held.used = time.monotonic()
                try:
                    return self._tried(held, task_id, work, before, expected)
                finally:
                    held.used = time.monotonic()

    def _tried(
        self,
        held: _Open,
        task_id: str,
        work: Callable[[Task], Any],
        before: BeforeWrite,
        expected: str | None,
    ) -> Any:
        fresh = held.task is None
        task = held.task = held.task or self._attach(task_id)
        task.before_write, task.expected = before, expected
        try:
            return work(task)
        except (ChainMoved, StorageError) as error:
            self._close(held)
            # Try again only if the file was packed, rewritten or removed since it was opened, not if the client expected a
            # different seal.
            if fresh or not isinstance(error, ChainMoved) or error.last is not None:
                raise
        task = held.task = self._attach(task_id)
        task.before_write, task.expected = before, expected
        return work(task)

    @staticmethod
    def _close(held: _Open) -> None:
        if held.task is not None:
            with contextlib.suppress(RawkoError):
                held.task.close()
            held.task = None

    def close(self, task_id: str) -> None:
        """Closes one task, so that the caller can have it exclusively."""
        with self._lock:
            held = self._open.get(task_id)
        if held is not None:
            with held.lock:
                self._close(held)

    def tidy(self, idle: float = _IDLE, all_but: int = 0) -> None:
        """Closes tasks unused for ``idle`` seconds, least recently used first, until ``all_but`` are left."""
        now = time.monotonic()
        for task_id, held in sorted(self._open.items(), key=lambda each: each[1].used):
            if now - held.used < idle or len(self._open) <= all_but:
                return
            if held.lock.acquire(blocking=False):
                try:
                    with self._lock:
                        self._open.pop(task_id, None)
                    self._close(held)
                finally:
                    held.lock.release()


def _most_open() -> int:
    """A limit that uses at most a quarter of the open files that the system allows, at one or two files per task."""
    try:
        import resource

        return max(16, min(_MOST, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8))
    except (ImportError, ValueError, OSError):
        return 200


class Workspace:
    """One workspace, or the one project: its store, and the tasks kept open."""

    def __init__(
        self, name: str, store: HostedStore, registry: Registry, host: Host, changed: Callable[[str, str], None]
    ) -> None:
        self.name, self.store, self.registry, self.host, self._changed = name, store, registry, host, changed
        self.warm = Warm(store.attach)
        self._known: set[tuple[str, str]] = set()
        self._ids: set[str] = set()

    @property
    def state(self) -> ServerState:
        return self.host.state

    def learn(self, repo: str | None, agent: str | None, runtime: str | None) -> None:
        """Adds the repository, agent and runtime of a new task to the registry. Existing entries stay as they are."""
        new = {(kind, value) for kind, value in (("repo", repo), ("agent", agent), ("runtime", runtime)) if value}
        for kind, value in new - self._known:
            with contextlib.suppress(RawkoError):  # must not fail the request
                self._see(kind, value)
                self._known.add((kind, value))

    def _see(self, kind: str, value: str) -> None:
        registry = self.registry
        clean = self.store.redactor.text(value)
        if kind == "repo" and clean not in {row["remote_url"] for row in registry.repos()}:
            registry.saw_repo("git", clean, None)
        elif kind == "agent" and clean not in {row["name"] for row in registry.agent_rows()}:
            registry.saw_agent(clean, "")
        elif kind == "runtime" and clean not in {row["type"] for row in registry.runtimes()}:
            registry.saw_runtime(clean, None)

    def id_of(self, prefix: str) -> str:
        """The full id of a task. A full id that was found once is not looked up again: whatever uses it notices if it is gone."""
        if prefix in self._ids:
            return prefix
        found = self.store.find(prefix).id
        if found == prefix:
            if len(self._ids) >= _MOST:
                self._ids.clear()
            self._ids.add(found)
        return found

    def forget_id(self, task_id: str) -> None:
        self._ids.discard(task_id)

    def changed(self, task_id: str) -> None:
        """Wakes the followers of a task after a change."""
        self._changed(self.name, task_id)


class Workspaces:
    """All workspaces of one server."""

    def __init__(self, host: Host, changed: Callable[[str, str], None]) -> None:
        self.host, self._changed = host, changed
        self._lock = threading.Lock()
        self._open: dict[str, Workspace] = {}

    @property
    def state(self) -> ServerState:
        return self.host.state

    def get(self, name: str | None) -> Workspace:
        """A workspace by name; without a name, the default or only one."""
        wanted = name or self.host.default
        found = self._open.get(wanted)
        if found is not None:
            return found
        if not self.host.default:
            if name:
                raise Refused(
                    400, "NoWorkspaces", "This server serves one project and has no workspaces; leave out --workspace."
                )
        else:
            try:
                known = self.host.has(wanted)
            except InvalidValue as error:
                raise Refused(400, "NoWorkspace", str(error)) from None
            if not known:
                raise Refused(404, "NoWorkspace", f"there is no workspace {wanted!r}")
        with self._lock:
            if wanted not in self._open:
                store, registry = self.host.open(wanted)
                self._open[wanted] = Workspace(wanted, store, registry, self.host, self._changed)
            return self._open[wanted]

    def opened(self) -> list[Workspace]:
        return list(self._open.values())

    def all(self) -> list[Workspace]:
        """All workspaces, including those not opened yet."""
        return [self.get(name) for name in self.host.names()]

    def check(self) -> None:
        """Raises RawkoError if the server's own tables or a workspace that is in use cannot be reached now."""
        self.host.check()
        known = set(self.host.names())
        for each in self.opened():
            if each.name in known:
                each.store.check()

    def forget(self, workspace: Workspace) -> None:
        """Drops a workspace whose storage is gone, so that it is looked up again."""
        if self.host.default:
            with self._lock:
                self._open.pop(workspace.name, None)

    def tidy(self) -> None:
        for each in self.opened():
            each.warm.tidy()
            each.store.expire_leases()

    def close(self) -> None:
        for each in self.opened():
            each.warm.tidy(idle=-1.0)
            each.store.close()
        self.host.close()
