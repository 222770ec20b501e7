"""The hosts of a server on files: one project, or every project of this machine."""

from __future__ import annotations

import re
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
        raise InvalidValue("This server serves one project and has no workspaces.")

    def drop_workspace(self, name: str) -> None:
        raise InvalidValue("This server serves one project and has no workspaces.")

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


class ProjectsHost:
    """Several projects, each as a workspace with the name of its folder. One's own comes first."""

    kind = "local"
    is_notified = False

    def __init__(self, root: Path, warn: Callable[[str], None]) -> None:
        self.root, self._warn = root, warn
        self.state = FileServerState(root)
        self._user = UserState()
        self._lock = threading.Lock()
        self._stores: dict[str, FileStore] = {}
        self._roots: dict[str, Path] = {}
        self.default = self._name(root)
        self._roots[self.default] = root
        self._look()

    def _look(self) -> None:
        """Finds projects that were used since. A name that was given stays."""
        with self._lock:
            known = set(self._roots.values())
            for each in self._user.projects():
                root = Path(each.root)
                if root not in known and (root / ".rawko" / "state").is_dir():
                    self._roots[self._name(root)] = root

    def _name(self, root: Path) -> str:
        base = re.sub(r"[^A-Za-z0-9._-]+", "-", root.name).strip("-.") or "project"
        name, number = base, 1
        while name in self._roots:
            number += 1
            name = f"{base}-{number}"
        return name

    def names(self) -> list[str]:
        self._look()
        return [name for name, root in self._roots.items() if (root / ".rawko" / "state").is_dir() or root == self.root]

    def workspaces(self) -> list[dict[str, Any]]:
        return [{"name": name, "root": str(self._roots[name])} for name in self.names()]

    def create_workspace(self, name: str, external_id: str | None = None) -> bool:
        raise InvalidValue("This server serves the projects of one machine. Make one there: rawko init")

    def drop_workspace(self, name: str) -> None:
        raise InvalidValue("This server serves the projects of one machine and can't remove them.")

    def has(self, name: str) -> bool:
        return name in self._roots

    def open(self, name: str) -> tuple[FileStore, ProjectRegistry]:
        with self._lock:
            if name not in self._stores:
                self._stores[name] = FileStore(self._roots[name], warn=self._warn)
            return self._stores[name], ProjectRegistry(self._user, self._roots[name])

    def check(self) -> None:
        self.open(self.default)[0].check()

    def listen(self, stop: threading.Event, changed: Callable[[str, str], None]) -> None:
        return

    def close(self) -> None:
        for store in self._stores.values():
            store.close()
        self._user.close()
        self.state.close()
