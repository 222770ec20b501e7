"""Finds the project: the folder whose ``.rawko/`` holds the state."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rawko_state.errors import NoProject
from rawko_state.lazy import lazy

if TYPE_CHECKING:
    from rawko_state.config import repository
else:
    repository = lazy("rawko_state.config.repository")

# A folder that contains one of these is the root of a repository.
VCS_MARKS: Final = {".git": "git", ".hg": "hg", ".jj": "jj", ".svn": "svn", ".pijul": "pijul", "_FOSSIL_": "fossil"}
_FOSSIL_TOO: Final = ".fslckout"


def find_project(start: Path | None = None, *, override: str | None = None) -> Path:
    """The project that contains ``start``: the nearest folder upwards with ``.rawko``, else the root of the repository.

    ``override`` (``-C`` or RAWKO_DIR) is a folder to start from instead. If it is not inside a project, it becomes one.
    """
    override = override or os.environ.get("RAWKO_DIR")
    if override:
        named = Path(override).expanduser()
        if not named.is_dir():
            raise NoProject(f"{override} is not a folder.")
        named = named.resolve()
        if named == Path(named.anchor):
            raise NoProject(f"{named} is not a project. Name a folder in it: -C DIR")
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
        f"Not in a project: {here} has no .rawko folder and is not in a repository.\n"
        "  Start one here: rawko init · Use another: rawko -C DIR …"
    )


def worktrees(root: Path) -> list[str]:
    """The folders in which this project is checked out, including its own."""
    found = repository.Repository.around(root)
    # A project may be a subfolder of its repository.
    return [os.path.normpath(folder / root.relative_to(found.top)) for folder in found.worktrees] if found else []


def remotes(root: Path) -> list[str]:
    """The remote URLs of the project's repository, origin first."""
    found = repository.Repository.around(root)
    return found.remotes if found else []


def is_project(folder: Path) -> bool:
    """Whether the folder itself is a project's."""
    return (folder / ".rawko").is_dir() or vcs_of(folder) is not None


def vcs_of(folder: Path) -> str | None:
    """The version control system of which this folder is a root, if any."""
    for mark, kind in VCS_MARKS.items():
        if (folder / mark).exists():
            return kind
    return "fossil" if (folder / _FOSSIL_TOO).exists() else None


def as_recorded(root: Path, path: str) -> str:
    """A path as tasks record it: relative to the project if it is inside. One that is given relative to the current folder is
    understood if it says so (``./x``, ``../x``), or if it exists here and not in the project's folder."""
    project, here = str(root), os.getcwd()
    is_here = path.startswith(("./", "../")) or path in (".", "..")
    if not is_here and not os.path.isabs(path):
        is_here = not os.path.lexists(os.path.join(project, path)) and os.path.lexists(os.path.join(here, path))
    whole = os.path.normpath(os.path.join(here if is_here else project, path))
    inside = [each for each in (whole, os.path.realpath(whole)) if each.startswith(os.path.join(project, ""))]
    return os.path.relpath(inside[0], project) if inside else whole
