"""Where files are in a project, and how task files are named."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rawko_state.config.settings import load
from rawko_state.errors import AmbiguousTask, StorageError, TaskNotFound
from rawko_state.journal import disk
from rawko_state.late import late
from rawko_state.model.names import TaskName as TaskName
from rawko_state.model.names import name_for as name_for
from rawko_state.model.names import parse_name as parse_name

ID_LENGTH: Final = 6
_ID_LETTERS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_ID = late(r"[0-9A-Za-z]{1,64}")


_IGNORE_ALL: Final = "# Made by rawko. To share tasks through git: rawko config set --project state.share git\n*\n"
_IGNORE_DERIVED: Final = """\
# Made by rawko: what can be rebuilt from the task files, and what belongs to this machine.
/index.db*
/live/
/search/
/trash/
"""
_ATTRIBUTES: Final = """\
# Made by rawko: seals cover every byte, so line ends must stay as they are.
*.task -text
*.task.gz binary
/blobs/* binary
"""


def new_id() -> str:
    import secrets  # loads OpenSSL, which a query does not need

    return "".join(secrets.choice(_ID_LETTERS) for _ in range(ID_LENGTH))


class Layout:
    """The folders of one project's state."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state = root / ".rawko" / "state"
        self.tasks = self.state / "tasks"
        self.live = self.state / "live"
        self.blobs = self.state / "blobs"
        self.trash = self.state / "trash"

    def make(self) -> None:
        """Creates missing folders, and rejects links in their place. A new state folder is ignored by git, so that what agents
        said is not committed by accident."""
        disk.make_folder(self.root / ".rawko")
        new = not self.state.exists()
        for folder in (self.state, self.tasks, self.live, self.blobs):
            disk.make_folder(folder)
        if new:
            self.write_git_files(shared=load(self.root)["state.share"] == "git")

    def write_git_files(self, *, shared: bool) -> None:
        """Sets what git tracks in the state folder: nothing, or everything that is not derived."""
        files = {
            ".gitignore": _IGNORE_DERIVED if shared else _IGNORE_ALL,
            **({".gitattributes": _ATTRIBUTES} if shared else {}),
        }
        for name, text in files.items():
            with disk.naming("write", self.state / name):
                descriptor = os.open(self.state / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
                    stream.write(text)

    def check(self) -> None:
        """Rejects links in place of the folders."""
        for folder in (self.root / ".rawko", self.state, self.tasks, self.live, self.blobs, self.trash):
            if os.path.lexists(folder):
                disk.check_folder(folder)

    def stamp(self) -> str:
        """Changes whenever a file in the tasks folder is added, removed or replaced."""
        try:
            found = os.stat(self.tasks)
        except OSError:
            return "0"
        return f"{found.st_mtime_ns} {found.st_ctime_ns} {found.st_ino}"

    def path(self, name: TaskName) -> Path:
        return self.tasks / name.filename

    def lease(self, task_id: str) -> Path:
        return self.live / f"{task_id}.lease"

    def leases(self) -> list[Path]:
        """The lease files, of tasks that may be running."""
        try:
            return [self.live / name for name in os.listdir(self.live) if name.endswith(".lease")]
        except OSError:
            return []

    def draft(self, task_id: str) -> Path:
        return self.live / f"{task_id}.draft"

    def names(self) -> Iterator[TaskName]:
        """All task files, unordered. Skips other files in the folder; see strangers()."""
        for filename in self._listed():
            name = parse_name(filename)
            if name is not None:
                yield name

    def strangers(self) -> Iterator[str]:
        """Files in the tasks folder that are not task files."""
        return (filename for filename in self._listed() if parse_name(filename) is None)

    def _listed(self) -> list[str]:
        self.check()
        try:
            with disk.naming("list", self.tasks):
                return os.listdir(self.tasks)
        except StorageError:
            if not self.tasks.exists():
                return []
            raise

    def find(self, prefix: str) -> TaskName:
        """The task whose id is, or uniquely starts with, ``prefix``."""
        if not _ID.fullmatch(prefix):
            raise TaskNotFound(prefix)
        names = sorted(self.names())
        exact = [name for name in names if name.id == prefix]
        if exact:
            return exact[0]
        matching = {name.id: name for name in reversed(names) if name.id.startswith(prefix)}
        if len(matching) > 1:
            raise AmbiguousTask(prefix, sorted(matching))
        if not matching:
            import difflib

            raise TaskNotFound(prefix, difflib.get_close_matches(prefix, [name.id for name in names], n=3, cutoff=0.5))
        return next(iter(matching.values()))
