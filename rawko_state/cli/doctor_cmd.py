"""rawko doctor: what is where, what is out of date, what is wrong, and what to do."""

from __future__ import annotations

import contextlib
import os
import platform
import sqlite3
import stat
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rawko_state.cli import Page
from rawko_state.cli.printing import counted, size_text, visible
from rawko_state.cli.project import files_of, is_remote, stood_at, store_of
from rawko_state.config.project import find_project, worktrees
from rawko_state.config.repository import Repository
from rawko_state.config.secret import key_path, user_key
from rawko_state.config.settings import load
from rawko_state.errors import RawkoError
from rawko_state.integrations.hooks import trouble as hook_trouble
from rawko_state.model.status import RUNNING
from rawko_state.store import TaskFilter

if TYPE_CHECKING:
    from rawko_state.store.contract import ProjectStore, Store


@click.command(
    name="doctor",
    cls=Page,
    examples="""
    rawko doctor
    rawko -C ~/src/shop doctor
    """,
)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Look for problems in this project and say how to fix them. Exits with 1 if there are any.

    With --remote, look at the server's tasks (role admin).
    """
    far = store_of(ctx, only_look=True) if is_remote(ctx) else None
    if far is not None:
        ctx.exit(1 if _server(far) else 0)
    root = find_project(override=ctx.find_root().obj)
    open_to_all = list(_open_to_all(root / ".rawko" / "state"))
    if open_to_all:
        _report(open_to_all)
        ctx.exit(1)
    store = files_of(ctx)
    state = store.state_folder
    live = state / "live"
    click.echo(
        f"rawko {metadata.version('rawko-state')}, Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}"
    )
    click.echo(f"project   {store.root}")
    hooks = [(f"A hook had a problem: {line}", f"rm {log}") for line, log in hook_trouble(live)]
    if not state.exists():
        click.echo("No tasks here yet.")
        if hooks:  # this may be why
            _report(hooks)
        ctx.exit(1 if hooks else 0)
    wrong: list[tuple[str, str]] = []
    for name, size in store.disk().items():
        click.echo(f"{name:9} {size_text(size)}")
    try:
        count, where, faults = store.health()
        click.echo(f"indexed   {counted(count, 'task')} ({where})")
        wrong += [(f"The index is inconsistent: {fault}.", "rawko reindex") for fault in faults]
    except RawkoError as error:
        wrong.append((str(error), "rawko reindex"))
    wrong += _search(store)
    running = [task.id for task in store.history(TaskFilter(status=(RUNNING,)))]
    click.echo(f"running   {len(running)}" + (f" ({', '.join(sorted(running)[:_MOST])})" if running else ""))
    wrong += _tasks(store)
    wrong += _git(store.root, state)
    wrong += _place(store.root, state)
    wrong += _files(state / "tasks", store.strangers())
    wrong += _permissions(state)
    wrong += _of_the_user()
    wrong += [(str(problem), "rawko config edit") for problem in load(store.root).problems]
    wrong += hooks
    if (live / "reindex.due").exists():
        wrong.append(
            (
                "Removing secrets or a task was interrupted: the index may still hold their words.",
                "rawko reindex",
            )
        )
    wrong += [
        (f"A broken index was set aside as {path.name}; you can delete it.", f"rm {path}")
        for path in state.glob("index.db.broken-*")
    ]
    _report(wrong)
    click.echo("To check the seals of all files: rawko verify")
    ctx.exit(1 if wrong else 0)


def _server(store: Store) -> bool:
    """Whether something is wrong with the tasks of a server."""
    count, where, faults = store.health()
    click.echo(f"server    {visible(store.where)}")
    for name, size in store.disk().items():
        click.echo(f"{visible(name):9} {size:,} bytes")
    click.echo(f"tasks     {count} in the index ({visible(where)})")
    wrong = [(f"the index: {fault}", "rawko reindex") for fault in faults] + list(_tasks(store))
    _report(wrong)
    return bool(wrong)


def _report(wrong: list[tuple[str, str]]) -> None:
    for text, advice in wrong:
        click.echo(click.style("! ", fg="red") + visible(text))
        click.echo(f"  {visible(advice)}")
    click.echo("No problems found." if not wrong else f"{counted(len(wrong), 'problem')} found.")


def _search(store: ProjectStore) -> Iterator[tuple[str, str]]:
    """Checks that the search index can be used, and shows how far behind it is."""
    try:
        left = store.unflushed()
        problem = store.search_trouble()
    except RawkoError as error:
        yield f"The search index can't be used: {error}", "rawko reindex --search"
        return
    behind = f"{size_text(left)} not in the index yet; found all the same, slower" if left else "up to date"
    click.echo(f"search    {behind}")
    if problem is not None:
        yield f"The search index can't be used ({problem}); searches read the task files.", "rawko reindex"


_MOST = 10


def _tasks(store: Store) -> Iterator[tuple[str, str]]:
    """Task files with problems; only a few ids for each kind of problem."""
    try:
        found = store.concerns()
    except RawkoError as error:
        yield str(error), "rawko reindex"
        return
    by_what: dict[str, list[str]] = {}
    for task_id, what in found:
        by_what.setdefault(what, []).append(task_id)
    for what, ids in by_what.items():
        shown = ", ".join(ids[:_MOST]) + (f" and {len(ids) - _MOST} more" if len(ids) > _MOST else "")
        each = f"rawko verify {ids[0]}" if len(ids) == 1 else "rawko verify -q"
        yield f"{shown}: {what}", f"{each}, then: rawko verify --repair"


def _git(root: Path, state: Path) -> Iterator[tuple[str, str]]:
    """Checks that transcripts cannot be committed by accident, and that git cannot corrupt shared task files."""
    repository = Repository.around(root)
    if repository is None:
        return
    shared = load(root)["state.share"] == "git"
    if not shared and not (state / ".gitignore").exists() and not _is_ignored(root, state):
        yield (
            f"git does not ignore {state}: 'git add -A' would commit recorded tasks.",
            f"echo '*' > {state}/.gitignore",
        )
    if shared and _is_ignored(root, state):
        yield (
            "state.share is git, but the project's .gitignore excludes the task files.",
            "Remove .rawko/state/ from .gitignore.",
        )
    if shared and not (state / ".gitattributes").exists():
        yield (
            "Task files are shared through git, which may change their line endings.",
            "rawko config set --project state.share git",
        )
    if (
        shared
        and (state / ".gitignore").is_file()
        and "\n*\n" in "\n" + (state / ".gitignore").read_text("utf-8", "replace")
    ):
        yield "state.share is git, but git ignores the task files.", "rawko config set --project state.share git"


def _is_ignored(root: Path, state: Path) -> bool:
    """Looks only for the lines that `rawko init` suggests, not for other ways to make git ignore a folder."""
    lines: set[str] = set()
    for folder in (root, *root.parents):
        with contextlib.suppress(OSError):
            lines |= {line.strip() for line in (folder / ".gitignore").read_text("utf-8", "replace").splitlines()}
        if (folder / ".git").exists():
            break
    return bool(lines & {".rawko/", ".rawko", "/.rawko/", "/.rawko", ".rawko/state/", ".rawko/state", "/.rawko/state/"})


def _place(root: Path, state: Path) -> Iterator[tuple[str, str]]:
    """Where the project is: on a network file system, moved, or one of several worktrees."""
    kind = _file_system(state)
    if kind is not None:
        yield (
            f"{state} is on a network file system ({kind}): locks may not work between machines.",
            "Use one machine at a time, or rawko serve.",
        )
    before = [place for place in stood_at(root) if place != str(root)]
    if before:
        click.echo(f"moved     from {visible(before[-1])}")
    others = [folder for folder in worktrees(root) if folder != str(root)]
    used = [folder for folder in others if (Path(folder) / ".rawko" / "state").is_dir()]
    if used:
        click.echo(f"worktrees {len(others) + 1}; tasks are also recorded in {visible(', '.join(used[:5]))}")


_NETWORK = frozenset(
    {
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "9p",
        "afs",
        "ceph",
        "fuse.sshfs",
        "fuse.glusterfs",
        "lustre",
        "ncpfs",
        "virtiofs",
    }
)


def _file_system(path: Path) -> str | None:
    """The type of network file system that a path is on; None for other types, or if unknown."""
    best, kind = "", ""
    try:
        lines = Path("/proc/self/mounts").read_text("utf-8", "replace").splitlines()
    except OSError:
        return None
    here = str(path.resolve())
    for line in lines:
        parts = line.split(" ")
        if len(parts) > 2:
            mount = parts[1].replace("\\040", " ")
            if (here == mount or here.startswith(mount.rstrip("/") + "/")) and len(mount) >= len(best):
                best, kind = mount, parts[2]
    return kind if kind in _NETWORK else None


def _files(tasks: Path, strangers: list[str]) -> Iterator[tuple[str, str]]:
    for name in strangers[:10]:
        yield f"Not a task file: {name!r}.", f"Move it out of {tasks}."


def _folders(state: Path) -> list[Path]:
    return [state.parent, state, *(state / name for name in ("tasks", "live", "blobs", "search", "trash"))]


def _open_to_all(state: Path) -> Iterator[tuple[str, str]]:
    """World-writable folders. Nothing else works with these."""
    for path in _folders(state) if os.name != "nt" else ():
        if path.exists() and path.stat().st_mode & stat.S_IWOTH:
            yield f"Everyone on this machine can write to {path} and change what was recorded.", f"chmod o-w {path}"


def _of_the_user() -> Iterator[tuple[str, str]]:
    """What all projects share: state.db, and the key. Without the key, a secret gets a different tag in every command."""
    key = key_path()
    if user_key() is None:
        yield (
            f"{key} can't be used: it is not yours, others can read it, or it is not a key.",
            f"chmod 600 {key}, or rm {key}",
        )
    database = key.with_name("state.db")
    if os.name != "nt" and database.exists() and stat.S_IMODE(database.stat().st_mode) & 0o077:
        yield f"Others can read or change {database}.", f"chmod 600 {database}"


def _permissions(state: Path) -> Iterator[tuple[str, str]]:
    if os.name == "nt":
        return
    for path in _folders(state):
        if path.exists() and stat.S_IMODE(path.stat().st_mode) & 0o022:
            yield f"Others can write to {path}.", f"chmod go-w {path}"
    for path in (state / "tasks", state / "blobs", state / "index.db"):
        if path.exists() and stat.S_IMODE(path.stat().st_mode) & 0o044:
            yield f"Others can read {path}.", f"chmod go-rwx {path}"
