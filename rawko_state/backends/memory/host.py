"""The host of an in-memory server: one store, and tokens that are lost when the process ends."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rawko_state.backends.memory.store import MemoryStore
from rawko_state.errors import InvalidValue
from rawko_state.index import database
from rawko_state.index.group_commit import GroupCommit, Statement
from rawko_state.index.orm import Sqlite
from rawko_state.index.server_state import StateTables, server_tables
from rawko_state.index.userdb import RegistryTables, registry_tables


class MemoryServerState(StateTables):
    scope = "memory"

    def __init__(self) -> None:
        self.db = Sqlite(None, {})
        self._tokens, self._requests, self._audit, _ = server_tables(self.db)
        self.db.create_tables([self._tokens, self._requests, self._audit], safe=True)
        self._group = GroupCommit(self._connection, self.mapped)

    def mapped(self) -> contextlib.AbstractContextManager[None]:
        return database.mapped("the server's state")

    def _connection(self) -> Any:
        return self.db.connection()  # type: ignore[no-untyped-call]

    def _write(self, statements: Sequence[Statement], *, durable: bool) -> None:
        self._group.write(statements, durable=durable)

    def close(self) -> None:
        """Does nothing: all threads share one connection, which lives as long as this object."""


class MemoryRegistry(RegistryTables):
    def __init__(self) -> None:
        self.db = Sqlite(None, {})
        tables = registry_tables(self.db)
        self._kv, self._repos, self._agents, self._runtimes = tables
        self.db.create_tables(list(tables), safe=True)

    def mapped(self) -> contextlib.AbstractContextManager[None]:
        return database.mapped("the registry")


class MemoryHost:
    kind = "memory"
    default = ""
    is_notified = False

    def __init__(self, root: Path, warn: Callable[[str], None]) -> None:
        self.root = root
        self.state = MemoryServerState()
        self._registry = MemoryRegistry()
        self.store = MemoryStore(root=root, warn=warn)

    def names(self) -> list[str]:
        return [self.default]

    def workspaces(self) -> list[dict[str, Any]]:
        return []

    def create_workspace(self, name: str, external_id: str | None = None) -> bool:
        raise InvalidValue("This server has no workspaces.")

    def drop_workspace(self, name: str) -> None:
        raise InvalidValue("This server has no workspaces.")

    def has(self, name: str) -> bool:
        return name == self.default

    def open(self, name: str) -> tuple[MemoryStore, MemoryRegistry]:
        return self.store, self._registry

    def check(self) -> None:
        self.store.check()

    def listen(self, stop: threading.Event, changed: Callable[[str, str], None]) -> None:
        return

    def close(self) -> None:
        self.store.close()
