"""Reads a git repository's metadata from its files. git need not be installed, and no code from the repository runs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rawko_state.late import late
from rawko_state.model.frozen import Frozen

_LARGEST: Final = 4 << 20
_REMOTE = late(r'\[remote "((?:[^"\\]|\\.)*)"\]\s*')
_URL = late(r"url\s*=\s*(.*)", re.IGNORECASE)
_WITH_USER = late(r"([A-Za-z][A-Za-z0-9+.-]*://)([^/@]*)@")
_COMMIT = late(r"[0-9a-f]{40}|[0-9a-f]{64}")


class Repository(Frozen):
    top: Path
    """The work tree."""
    own: Path
    """The git folder of this work tree."""
    common: Path
    """The git folder shared by all work trees of the repository."""

    @classmethod
    def around(cls, folder: Path) -> Repository | None:
        """The repository that contains a folder."""
        for top in (folder, *folder.parents):
            mark = top / ".git"
            if mark.is_dir():
                own = mark
            else:
                # A linked work tree or a submodule: a file that names the git folder.
                named = _read(mark).strip()
                if not named.startswith("gitdir: "):
                    continue
                own = (top / named.removeprefix("gitdir: ")).resolve()
            shared = _read(own / "commondir").strip()
            return cls(top, own, (own / shared).resolve() if shared else own)
        return None

    @property
    def branch(self) -> str | None:
        """The branch that is checked out; None if HEAD is detached."""
        head = _read(self.own / "HEAD").strip()
        name = head.removeprefix("ref: refs/heads/")
        return name if name != head and name != ".invalid" else None

    @property
    def commit(self) -> str | None:
        head = _read(self.own / "HEAD").strip()
        found = self._resolved(head.removeprefix("ref: ")) if head.startswith("ref: ") else head
        return found if found and _COMMIT.fullmatch(found) else None

    @property
    def default_branch(self) -> str | None:
        """The remote's default branch; without a remote, the first that exists of the usual names."""
        for remote in ("origin", *self._names()):
            head = _read(self.common / "refs" / "remotes" / remote / "HEAD").strip()
            name = head.removeprefix(f"ref: refs/remotes/{remote}/")
            if name != head:
                return name
        return next((name for name in ("main", "master", "trunk") if self._resolved(f"refs/heads/{name}")), None)

    @property
    def remotes(self) -> list[str]:
        """The remote URLs, without passwords, origin first."""
        found = sorted(self._urls(), key=lambda each: each[0] != "origin")
        return list(dict.fromkeys(without_credentials(url) for _, url in found))

    @property
    def worktrees(self) -> list[Path]:
        """The folders in which the repository is checked out."""
        found = [self.common.parent] if self.common.name == ".git" else [self.top]
        try:
            names = sorted(os.listdir(self.common / "worktrees"))
        except OSError:
            names = []
        for name in names:
            mark = _read(self.common / "worktrees" / name / "gitdir").strip()
            folder = (self.common / "worktrees" / name / mark).parent.resolve()  # the mark may be relative
            if mark and folder not in found:
                found.append(folder)
        return found

    def _names(self) -> list[str]:
        return list(dict.fromkeys(name for name, _ in self._urls()))

    def _urls(self) -> Iterator[tuple[str, str]]:
        name: str | None = None
        for raw in _read(self.common / "config").splitlines():
            line = raw.strip()
            if line.startswith("["):
                section = _REMOTE.fullmatch(line)
                name = re.sub(r"\\(.)", r"\1", section[1]) if section else None
            elif name is not None and (url := _URL.fullmatch(line)):
                yield name, url[1].strip().strip('"')

    def _resolved(self, reference: str) -> str | None:
        for folder in (self.own, self.common):
            found = _read(folder / reference).strip()
            if found:
                return found
        for line in _read(self.common / "packed-refs").splitlines():
            commit, _, name = line.partition(" ")
            if name == reference:
                return commit
        return None


def without_credentials(url: str) -> str:
    """A URL that is safe to record. An ssh user name is kept: it is not secret, and is part of the address."""
    found = _WITH_USER.match(url)
    if found is None:
        return url
    user = found[2].partition(":")[0]
    kept = f"{user}@" if "ssh" in found[1] and user else ""
    return found[1] + kept + url[found.end() :]


def _read(path: Path) -> str:
    """The contents of a small text file; empty if it does not exist."""
    try:
        if not path.is_file() or path.stat().st_size > _LARGEST:
            return ""
        return path.read_text("utf-8", "replace")
    except (OSError, ValueError):
        return ""
