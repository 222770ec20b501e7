"""The host of a server for one project's files."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rawko_state.backends.files.store import FileStore
from rawko_state.errors import InvalidValue
from rawko_state.index.server_state import FileServerState
from rawko_state.index.userdb import ProjectRegistry, UserState


class FileHost:
    kind = "local"
    default = ""
    is_notified = False

    def __init__(self, root: Path, warn: Callable[[str], None]) -> None:
        self.root = root
        self.state = FileServerState(root)
        self._user = UserState()
        self._store = FileStore(root, warn=warn)

    def names(self) -> list[str]:
        return [self.default]

    def workspaces(self) -> list[dict[str, Any]]:
        return []

    def create_workspace(self, name: str, external_id: str | None = None) -> bool:
        raise InvalidValue("this server serves one project, and has no workspaces")

    def drop_workspace(self, name: str) -> None:
        raise InvalidValue("this server serves one project, and has no workspaces")

    def has(self, name: str) -> bool:
        return name == self.default

    def open(self, name: str) -> tuple[FileStore, ProjectRegistry]:
        return self._store, ProjectRegistry(self._user, self.root)

    def check(self) -> None:
        self._store.check()

    def listen(self, stop: threading.Event, changed: Callable[[str, str], None]) -> None:
        return

    def close(self) -> None:
        self._store.close()
        self._user.close()
        self.state.close()
