"""A store on anything that keeps values under keys: the base class for a backend of your own (docs/howto/write-a-backend.md).

It holds all tasks in memory, with their rows, and brings them up to date with the place before each call. So it is for a place
with up to some thousands of tasks; for more, write the queries of a ``BaseStore`` yourself.
"""

from __future__ import annotations

import json
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Final, TypeVar

from rawko_state.backends.leases import LEASE
from rawko_state.backends.memory.store import Held, MemoryFiles, MemoryStore, MemorySync, Thrown
from rawko_state.errors import RawkoError
from rawko_state.index.database import Index
from rawko_state.model.names import TaskName, parse_name

T = TypeVar("T")
TASKS: Final = "tasks/"
TRASH: Final = "trash/"
EXEMPT: Final = "exempt/"


class KeyedStore(MemoryStore):
    """Implement the five abstract methods, and call ``super().__init__`` last.

    Keys are text with slashes, values are bytes. A value that was saved is durable.
    """

    clock = staticmethod(time.time)  # machines share it, more or less

    @abstractmethod
    def keys(self, prefix: str) -> Mapping[str, Hashable]:
        """The keys that start with a prefix, each with a stamp: something that changes whenever its value does."""

    @abstractmethod
    def load(self, key: str) -> bytes | None:
        """The value of a key; None if there is none."""

    @abstractmethod
    def save(self, key: str, data: bytes) -> None:
        """Sets the value of a key. It is durable when this returns; if this raises, the old value is still there."""

    @abstractmethod
    def remove(self, key: str) -> None:
        """Removes a key, if it is there."""

    @abstractmethod
    def locked(self) -> AbstractContextManager[object]:
        """Keeps out everybody else who writes to the place, in this process and others. A thread enters it once at a time."""

    def __init__(self, *, root: Path | str | None = None, warn: Callable[[str], None] = lambda message: None) -> None:
        self._shared = _SharedLock(self)
        super().__init__(root=root, warn=warn)
        self.lock = self._shared
        self._rows = Index(None)
        self.sync = _KeyedSync(self, self._rows, self.journal)
        self.drafts = _Kept(self, "drafts/", bytes, bytes)
        self.blobs = _Kept(self, "blobs/", bytes, bytes)
        self.leases = _Kept(self, "leases/", _lease_bytes, _lease_of)
        self._stamps: dict[str, Hashable] = {}
        self._mine: dict[str, str] = {}
        self._renewing: threading.Thread | None = None

    @property
    def where(self) -> str:
        return type(self).__name__

    # Keeping memory and place the same

    @property
    def held(self) -> dict[str, Held]:
        """The tasks, as the place has them now."""
        self._current()
        return self._memory

    @held.setter
    def held(self, tasks: dict[str, Held]) -> None:
        self._memory = tasks

    @property
    def _thrown(self) -> list[Thrown]:
        self._current()
        return self._memory_of_trash

    @_thrown.setter
    def _thrown(self, thrown: list[Thrown]) -> None:
        self._memory_of_trash = thrown

    def _current(self) -> None:
        if not self._shared.is_current:
            self.pull()

    def pull(self) -> None:
        """Takes in what others have changed."""
        with self._shared.pulling():
            found = self.keys(TASKS)
            names = {key: parse_name(key[len(TASKS) :]) for key in found}
            for key, name in names.items():
                if name is not None and self._stamps.get(key) != found[key]:
                    data = self.load(key)
                    if data is not None:
                        self._take(name, data)
                        self._stamps[key] = found[key]
            there = {name.id for name in names.values() if name is not None}
            for task_id in [task_id for task_id in self.held if task_id not in there]:
                self._stamps.pop(TASKS + self.held.pop(task_id).name.filename, None)
                with self._rows.transaction():
                    self._rows.forget(task_id)
            self._exempt = {key[len(EXEMPT) :] for key in self.keys(EXEMPT)}
            self._thrown = sorted(filter(None, map(self._thrown_at, self.keys(TRASH))), key=lambda each: each.at)

    def kept(self, held: Held) -> None:
        """Saves a task that was changed in memory. If that fails, memory takes back what the place has."""
        key = TASKS + held.name.filename
        self._stamps.pop(key, None)
        self.save(key, held.data)
        self._stamps[key] = self.keys(key).get(key)

    def gone(self, name: TaskName) -> None:
        self._stamps.pop(TASKS + name.filename, None)
        self.remove(TASKS + name.filename)

    # The trash

    def _throw(self, thrown: Thrown) -> None:
        about = {"at": thrown.at.isoformat(), "rule": thrown.rule, "by": thrown.by}
        self.save(_trash_key(thrown), json.dumps(about).encode() + b"\n" + thrown.held.data)
        super()._throw(thrown)

    def _unthrow(self, thrown: Thrown) -> None:
        self.remove(_trash_key(thrown))
        super()._unthrow(thrown)

    def _thrown_at(self, key: str) -> Thrown | None:
        name, data = parse_name(key.rpartition("/")[2]), self.load(key)
        if name is None or data is None:
            return None
        about, _, content = data.partition(b"\n")
        said = json.loads(about)
        return Thrown(Held(name, content), datetime.fromisoformat(said["at"]), said["rule"], said["by"])

    def _except(self, task_id: str) -> None:
        self.save(EXEMPT + task_id, b"")
        super()._except(task_id)

    # Leases

    def _own_lease(self, task_id: str) -> str:
        """A lease that is renewed as long as this process lives."""
        token = self.take_lease(task_id, seconds=LEASE)
        self._mine[task_id] = token
        if self._renewing is None or not self._renewing.is_alive():
            self._renewing = threading.Thread(target=self._renew, daemon=True, name="leases of a store")
            self._renewing.start()
        return token

    def release_lease(self, prefix: str, token: str) -> None:
        self._mine.pop(prefix, None)
        super().release_lease(prefix, token)

    def _renew(self) -> None:
        while self._mine:
            time.sleep(LEASE / 3)
            for task_id, token in list(self._mine.items()):
                with suppress(
                    RawkoError, OSError
                ):  # it is tried again; if the lease runs out, others may take the task
                    self.take_lease(task_id, token, LEASE)


class _KeyedSync(MemorySync):
    """The rows, brought up to date before each use."""

    def __init__(self, store: KeyedStore, rows: Index, files: MemoryFiles) -> None:
        super().__init__(rows, files)
        self._rows, self._store = rows, store

    def index(self) -> Index:
        self._store._current()
        return self._rows

    def fresh(self, only: str | None = None) -> Index:
        return self.index()

    def guarded(self, ask: Callable[[Index], object]) -> object:
        return ask(self.index())


class _SharedLock:
    """One lock for the threads of this process and for other processes. May be entered again by the thread that holds it."""

    def __init__(self, store: KeyedStore) -> None:
        self._store, self._own = store, threading.RLock()
        self._depth, self._owner = 0, 0
        self._held: AbstractContextManager[object] | None = None

    @property
    def is_current(self) -> bool:
        """Whether this thread has memory as the place is, or is making it so."""
        return self._owner == threading.get_ident()

    @contextmanager
    def pulling(self) -> Iterator[None]:
        """Held while memory is brought up to date. No thread of this process writes meanwhile."""
        with self._own:
            before, self._owner = self._owner, threading.get_ident()
            try:
                yield
            finally:
                self._owner = before

    def __enter__(self) -> None:
        self._own.acquire()
        if self._depth:
            self._depth += 1
            return
        try:
            held = self._store.locked()
            held.__enter__()
            try:
                self._store.pull()
            except BaseException:
                held.__exit__(None, None, None)
                raise
        except BaseException:
            self._own.release()
            raise
        self._held, self._depth, self._owner = held, 1, threading.get_ident()

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        try:
            if self._depth == 0 and self._held is not None:
                self._owner = 0
                held, self._held = self._held, None
                held.__exit__(None, None, None)
        finally:
            self._own.release()


class _Kept(MutableMapping[str, T]):
    """The values under one prefix."""

    def __init__(self, store: KeyedStore, prefix: str, write: Callable[[T], bytes], read: Callable[[bytes], T]) -> None:
        self._store, self._prefix, self._write, self._read = store, prefix, write, read

    def __getitem__(self, key: str) -> T:
        data = self._store.load(self._prefix + key)
        if data is None:
            raise KeyError(key)
        return self._read(data)

    def __setitem__(self, key: str, value: T) -> None:
        self._store.save(self._prefix + key, self._write(value))

    def __delitem__(self, key: str) -> None:
        self._store.remove(self._prefix + key)

    def __iter__(self) -> Iterator[str]:
        return iter([key[len(self._prefix) :] for key in self._store.keys(self._prefix)])

    def __len__(self) -> int:
        return len(self._store.keys(self._prefix))


def _trash_key(thrown: Thrown) -> str:
    return f"{TRASH}{thrown.at:%Y%m%dT%H%M%S%f}/{thrown.held.name.filename}"


def _lease_bytes(lease: tuple[str, float]) -> bytes:
    return json.dumps(lease).encode()


def _lease_of(data: bytes) -> tuple[str, float]:
    token, until = json.loads(data)
    return token, until
