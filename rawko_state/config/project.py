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

    ``override`` (``-C``, or RAWKO_DIR) names it outright.
    """
    override = override or os.environ.get("RAWKO_DIR")
    if override:
        root = Path(override).expanduser()
        if not root.is_dir():
            raise NoProject(f"{override} is not a folder")
        return root.resolve()
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


def vcs_of(folder: Path) -> str | None:
    """The version control system whose root this folder is."""
    for mark, kind in VCS_MARKS.items():
        if (folder / mark).exists():
            return kind
    return "fossil" if (folder / _FOSSIL_TOO).exists() else None
