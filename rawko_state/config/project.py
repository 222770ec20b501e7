"""Finding the project: the folder whose ``.rawko/`` holds the state."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from rawko_state.errors import NoProject

# One of these in a folder makes it the root of a repository.
VCS_MARKS: Final = {".git": "git", ".hg": "hg", ".jj": "jj", ".svn": "svn", ".pijul": "pijul", "_FOSSIL_": "fossil"}
_FOSSIL_TOO: Final = ".fslckout"


def find_project(start: Path | None = None, *, override: str | None = None) -> Path:
    """The project around ``start``: the nearest folder upwards with ``.rawko``, else the root of the repository.

    ``override`` (``-C``, or RAWKO_DIR) is a folder to look from instead; without a project around it, it becomes one.
    """
    override = override or os.environ.get("RAWKO_DIR")
    if override:
        named = Path(override).expanduser()
        if not named.is_dir():
            raise NoProject(f"{override} is not a folder")
        named = named.resolve()
        if named == Path(named.anchor):
            raise NoProject(f"{named} is no project: name a folder in it with -C DIR")
        found = next((folder for folder in (named, *named.parents) if (folder / ".rawko").is_dir()), None)
        return found or next((folder for folder in (named, *named.parents) if vcs_of(folder)), named)
    here = (start or Path.cwd()).resolve()
    around = [here, *here.parents]
    for folder in around:
        if (folder / ".rawko").is_dir():
            return folder
    for folder in around:
        if vcs_of(folder):
            return folder
    raise NoProject(
        f"no project around {here}: no .rawko folder and no repository; "
        "run 'rawko init' to start one here, or name one with -C DIR"
    )


def worktrees(root: Path) -> list[str]:
    """The folders in which this repository is checked out, the project's own among them."""
    found = [
        line.removeprefix("worktree ")
        for line in _git(root, "worktree", "list", "--porcelain")
        if line.startswith("worktree ")
    ]
    # A project may be a folder inside its repository.
    top = next(iter(_git(root, "rev-parse", "--show-toplevel")), "")
    inside = os.path.relpath(root, top) if top else "."
    return [os.path.normpath(os.path.join(folder, inside)) for folder in found]


def remotes(root: Path) -> list[str]:
    """Where the repository comes from and goes to; what is called origin first."""
    lines = sorted(_git(root, "remote", "-v"), key=lambda line: not line.startswith("origin\t"))
    return list(dict.fromkeys(line.split("\t")[1].rpartition(" ")[0] for line in lines if "\t" in line))


def branch(root: Path) -> str | None:
    return next(iter(_git(root, "branch", "--show-current")), None)


def _git(root: Path, *words: str) -> list[str]:
    import subprocess

    if not (root / ".git").exists() and vcs_of(root) is not None:
        return []
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, timeout=10, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []


def vcs_of(folder: Path) -> str | None:
    """The version control system whose root this folder is."""
    for mark, kind in VCS_MARKS.items():
        if (folder / mark).exists():
            return kind
    return "fossil" if (folder / _FOSSIL_TOO).exists() else None
