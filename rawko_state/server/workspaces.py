"""Where the server's tasks are: the project around it, or the workspaces of a database. And the tasks that it has open."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rawko_state.errors import ChainMoved, InvalidValue, RawkoError, StorageError
from rawko_state.index.server_state import FileServerState, PostgresRegistry, PostgresServerState, ServerState
from rawko_state.index.userdb import ProjectRegistry, Registry, UserState
from rawko_state.server.problems import Refused

if TYPE_CHECKING:
    from rawko_state.backends.files.store import FileStore
    from rawko_state.backends.postgres.store import PostgresStore
    from rawko_state.tasks.task import Task

_IDLE: Final = 20.0
_MOST: Final = 2_000
Told = Callable[[str, str], None]
"""Is told of a workspace and a task that something happened to."""


class _Open:
    __slots__ = ("lock", "task", "used")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.task: Task | None = None
        self.used = time.monotonic()


class Warm:
    """Tasks that are kept open between requests: opening one costs more than an append. Each is used by one thread at a time."""

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

    def using(
        self, task_id: str, work: Callable[[Task], Any], before: Callable[[str], None], expected: str | None = None
    ) -> Any:
        while True:
            with self._lock:
                held = self._open.setdefault(task_id, _Open())
                crowded = len(self._open) > self._most
            if crowded:
                self.tidy(idle=0.0, all_but=self._most)
            with held.lock:
                if self._open.get(task_id) is not held:
                    continue  # it was tidied away between the two locks
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
        before: Callable[[str], None],
        expected: str | None,
    ) -> Any:
        fresh = held.task is None
        task = held.task = held.task or self._attach(task_id)
        task.before_write, task.expected = before, expected
        try:
            return work(task)
        except (ChainMoved, StorageError) as error:
            self._close(held)
            # The file may have been packed, rewritten or taken away since it was opened; what it expects may not be what is.
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
        """Lets go of one: somebody is to have it alone."""
        with self._lock:
            held = self._open.get(task_id)
        if held is not None:
            with held.lock:
                self._close(held)

    def tidy(self, idle: float = _IDLE, all_but: int = 0) -> None:
        """Closes what nobody has used for a while, the longest unused first; ``all_but`` so many."""
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
    """Each is an open file or two, so they take at most a quarter of those that the system allows."""
    try:
        import resource

        return max(16, min(_MOST, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8))
    except (ImportError, ValueError, OSError):
        return 200


class Drafts(ABC):
    """What running turns say, for those who are far away."""

    @abstractmethod
    def begin(self, task_id: str, head: bytes) -> None: ...

    @abstractmethod
    def add(self, task_id: str, lines: bytes) -> bool:
        """False when there is none."""

    @abstractmethod
    def drop(self, task_id: str) -> None: ...


class FileDrafts(Drafts):
    def __init__(self, store: FileStore) -> None:
        self._layout = store.journal.layout

    def begin(self, task_id: str, head: bytes) -> None:
        from rawko_state.journal.drafts import FileSink

        self._layout.make()
        sink = FileSink(self._layout.draft(task_id))
        sink.write(head, durable=False)
        sink.leave()

    def add(self, task_id: str, lines: bytes) -> bool:
        try:
            descriptor = os.open(self._layout.draft(task_id), os.O_WRONLY | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0))
        except FileNotFoundError:
            return False
        with os.fdopen(descriptor, "ab") as stream:
            stream.write(lines)
        return True

    def drop(self, task_id: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._layout.draft(task_id))


class PostgresDrafts(Drafts):
    def __init__(self, store: PostgresStore) -> None:
        self._tasks, self._postgres = store.tasks, store.postgres

    def begin(self, task_id: str, head: bytes) -> None:
        with self._postgres.transaction(durable=False):
            self._tasks.begin_draft(task_id)
            self._tasks.add_to_draft(task_id, head)
        self._tasks.notify(task_id)

    def add(self, task_id: str, lines: bytes) -> bool:
        with self._postgres.transaction(durable=False):
            found = self._tasks.add_to_draft(task_id, lines)
        self._tasks.notify(task_id)
        return found

    def drop(self, task_id: str) -> None:
        self._tasks.drop_draft(task_id)


class Place:
    """One project, or one workspace."""

    def __init__(
        self,
        name: str,
        store: FileStore | PostgresStore,
        db: ServerState,
        registry: Registry,
        drafts: Drafts,
        told: Told,
    ) -> None:
        self.name, self.store, self.db, self.registry, self._told = name, store, db, registry, told
        self.drafts = drafts
        self.warm = Warm(store.attach)

    def changed(self, task_id: str) -> None:
        self._told(self.name, task_id)


class Workspaces(ABC):
    """All that one server serves."""

    kind: str
    root: Path
    """The project whose settings count; with files, where they are."""
    db: ServerState

    @abstractmethod
    def place(self, workspace: str | None) -> Place:
        """A workspace by its name; the only one, or the first one, without."""

    @abstractmethod
    def open_places(self) -> list[Place]: ...

    @abstractmethod
    def forget(self, place: Place) -> None:
        """What it stands on is not there any more: it is looked for anew."""

    def all_places(self) -> list[Place]:
        """Also those that nobody has asked for yet."""
        return self.open_places()

    @abstractmethod
    def check(self) -> None:
        """RawkoError if the tasks cannot be reached now."""

    def tidy(self) -> None:
        for place in self.open_places():
            place.warm.tidy()

    def close(self) -> None:
        for place in self.open_places():
            place.warm.tidy(idle=-1.0)
            place.store.close()
        self.db.close()


class ProjectWorkspace(Workspaces):
    """The project around the server."""

    kind = "local"

    def __init__(self, root: Path, told: Told, warn: Callable[[str], None]) -> None:
        from rawko_state.backends.files.store import FileStore

        self.root = root
        self.db = FileServerState(root)
        self._user = ProjectRegistry(UserState(), root)
        store = self._store = FileStore(root, warn=warn)
        self._place = Place("", store, self.db, self._user, FileDrafts(store), told)

    def place(self, workspace: str | None) -> Place:
        if workspace:
            raise Refused(
                400, "NoWorkspaces", "this server serves one project, and has no workspaces: leave --workspace out"
            )
        return self._place

    def open_places(self) -> list[Place]:
        return [self._place]

    def forget(self, place: Place) -> None:
        return  # the project stays where it is

    def check(self) -> None:
        store = self._place.store
        store.alive()
        store.sync.fresh()

    def tidy(self) -> None:
        super().tidy()
        self._store.lent.expire()


class PostgresWorkspaces(Workspaces):
    """The workspaces of a database."""

    kind = "postgres"
    db: PostgresServerState

    def __init__(self, url: str, root: Path, told: Told, warn: Callable[[str], None]) -> None:
        from rawko_state.backends.postgres.connection import Postgres
        from rawko_state.backends.postgres.names import DEFAULT

        self._postgres = Postgres(url)
        self.root, self._told, self._warn = root, told, warn
        self.db = PostgresServerState(self._postgres)
        self.db.create_workspace(DEFAULT)
        self._lock = threading.Lock()
        self._places: dict[str, Place] = {}

    @property
    def postgres(self) -> Any:
        return self._postgres

    def place(self, workspace: str | None) -> Place:
        from rawko_state.backends.postgres.names import DEFAULT, check_workspace, schema_of
        from rawko_state.backends.postgres.store import PostgresStore

        name = workspace or DEFAULT
        found = self._places.get(name)
        if found is not None:
            return found
        try:
            check_workspace(name)
        except InvalidValue as error:
            raise Refused(400, "NoWorkspace", str(error)) from None
        if not self.db.has_workspace(name):
            raise Refused(404, "NoWorkspace", f"there is no workspace {name!r}")
        with self._lock:
            if name not in self._places:
                store = PostgresStore(self._postgres, name, root=self.root, warn=self._warn)
                registry = PostgresRegistry(self._postgres, schema_of(name))
                self._places[name] = Place(name, store, self.db, registry, PostgresDrafts(store), self._told)
            return self._places[name]

    def forget(self, place: Place) -> None:
        with self._lock:
            self._places.pop(place.name, None)

    def open_places(self) -> list[Place]:
        return list(self._places.values())

    def all_places(self) -> list[Place]:
        return [self.place(row["name"]) for row in self.db.workspaces()]

    def check(self) -> None:
        from rawko_state.backends.postgres.connection import mapped

        with mapped(self._postgres.name):
            self._postgres.connection.execute("SELECT 1")

    def close(self) -> None:
        super().close()
        self._postgres.close_all()
