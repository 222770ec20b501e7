"""Snapshots: the state of the work tree after a turn, created with git, or created elsewhere and referred to.

A git snapshot is a commit of all tracked and untracked files that are not ignored. A ref under ``refs/rawko/`` keeps it alive.
It uses its own index, so the user's index, branch, work tree and hooks are untouched.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from rawko_state.errors import InvalidValue, RawkoError

_KEYS: Final = ("provider", "ref", "path", "parent", "metadata")
_NOBODY: Final = {
    "GIT_AUTHOR_NAME": "rawko",
    "GIT_AUTHOR_EMAIL": "rawko@localhost",
    "GIT_COMMITTER_NAME": "rawko",
    "GIT_COMMITTER_EMAIL": "rawko@localhost",
}


def snapshot(root: Path, task_id: str, wanted: Any) -> str:
    """The text of a [Snapshot] section: "git" commits one now; an object with at least a provider and a ref or path describes
    one that the agent made itself (zfs, btrfs, overlay, copy …)."""
    if wanted == "git":
        return json.dumps(_commit(root, task_id))
    if not isinstance(wanted, dict) or not isinstance(wanted.get("provider"), str):
        raise InvalidValue("A snapshot is \"git\", or an object with 'provider' and 'ref' or 'path'.")
    if not (wanted.get("ref") or wanted.get("path")) or not set(wanted) <= set(_KEYS):
        raise InvalidValue(f"A snapshot needs 'ref' or 'path'; allowed keys: {', '.join(_KEYS)}.")
    try:
        return json.dumps(wanted, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidValue(f"A snapshot must be valid JSON: {error}.") from None


def failed(error: str) -> str:
    """Recorded when a snapshot could not be made."""
    return json.dumps({"provider": "git", "metadata": {"error": error}})


def _commit(root: Path, task_id: str) -> dict[str, Any]:
    top = Path(_git(root, "rev-parse", "--show-toplevel"))
    parent = _head(top)
    with _own_index(top) as env:
        # Exclude the state folder: it changes with every turn, including with this turn's record.
        _git(
            top, "add", "--all", "--ignore-errors", "--", ".", ":(exclude,glob)**/.rawko/state/**", env=env, partly=True
        )
        tree = _git(top, "write-tree", env=env)
        parents = ("-p", parent) if parent else ()
        commit = _git(top, "commit-tree", tree, *parents, "-m", f"rawko: task {task_id}", env={**env, **_NOBODY})
    name = f"refs/rawko/{task_id}/{commit[:16]}"
    _git(top, "update-ref", name, commit)
    made: dict[str, Any] = {"provider": "git", "ref": commit, "path": str(top), "metadata": {"name": name}}
    return {**made, "parent": parent} if parent else made


def restore(root: Path, snapshot: dict[str, Any], target: Path) -> None:
    """Checks a snapshot out into a new or empty folder."""
    if snapshot.get("provider") != "git":
        where = snapshot.get("ref") or snapshot.get("path")
        raise RawkoError(f"Only {snapshot.get('provider')!r} can restore this snapshot: {where}.")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise RawkoError(f"{target} is not an empty folder.")
    commit = str(snapshot.get("ref"))
    if not all(digit in "0123456789abcdef" for digit in commit) or len(commit) < 40:
        raise RawkoError(f"Not a commit: {commit!r}")
    top = Path(_git(root, "rev-parse", "--show-toplevel"))
    target.mkdir(parents=True, exist_ok=True)
    with _own_index(top, copy=False) as env:
        _git(top, "read-tree", commit, env=env)
        _git(top, "checkout-index", "--all", f"--prefix={target.resolve()}{os.sep}", env=env)


def _head(top: Path) -> str | None:
    try:
        return _git(top, "rev-parse", "--verify", "--quiet", "HEAD")
    except RawkoError:
        return None  # a repository without a commit


@contextlib.contextmanager
def _own_index(top: Path, *, copy: bool = True) -> Iterator[dict[str, str]]:
    """A separate index; a copy of the user's, so that unchanged files need not be read again."""
    with tempfile.TemporaryDirectory(prefix="rawko-") as folder:
        path = Path(folder) / "index"
        users = Path(_git(top, "rev-parse", "--git-path", "index"))
        users = users if users.is_absolute() else top / users
        if copy and users.exists():
            path.write_bytes(users.read_bytes())
        yield {"GIT_INDEX_FILE": str(path)}


# A repository's settings can name programs, and a folder that was unpacked from somewhere brings its own: none of them is run.
_QUIETLY: Final = (
    "-c", f"core.hooksPath={os.devnull}", "-c", "core.fsmonitor=false", "-c", "diff.external=", "-c", "core.pager=cat",
    "-c", "core.safecrlf=false", "-c", "advice.addEmbeddedRepo=false",
)  # fmt: skip


def _git(folder: Path, *words: str, env: dict[str, str] | None = None, partly: bool = False) -> str:
    """With ``partly``, tolerates partial failure."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", *_QUIETLY, *words],
            cwd=folder,
            env={**inherited, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C", **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )
    except OSError as error:
        raise RawkoError(f"Can't run git: {error.strerror}.") from None
    if done.returncode and not (partly and done.returncode == 1):
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise RawkoError(f"git {words[0]}: {said[0] if said else f'exit {done.returncode}'}")
    return done.stdout.decode("utf-8", "surrogateescape").strip()
