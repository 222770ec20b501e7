"""rawko doctor: what is where, what is out of date, what is wrong, and what to do."""

from __future__ import annotations

import contextlib
import os
import platform
import sqlite3
import stat
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rawko_state.cli import Page
from rawko_state.cli.printing import commands_shown, counted, is_terminal, say, screen, size_text, visible, wrapped
from rawko_state.cli.project import files_of, is_remote, project_name, stood_at, store_of, with_tilde
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

    ✓ is fine, ! is a note, ✗ is a problem.

    With --remote, look at the server's tasks (role admin).
    """
    far = store_of(ctx, only_look=True) if is_remote(ctx) else None
    if far is not None:
        ctx.exit(_server(far).show())
    root = find_project(override=ctx.find_root().obj)
    sheet = Sheet(f"{click.style(visible(project_name(root)), bold=True)}  {with_tilde(root)}")
    open_to_all = list(_open_to_all(root / ".rawko" / "state"))
    if open_to_all:
        sheet.check("Permissions", open_to_all)
        ctx.exit(sheet.show())
    store = files_of(ctx)
    state = store.state_folder
    live = state / "live"
    hooks = [(f"A hook had a problem: {line}", f"rm {log}") for line, log in hook_trouble(live)]
    if not state.exists():
        sheet.fine("Task files", "none yet")
        sheet.check("Hooks", hooks)  # this may be why
        ctx.exit(sheet.show())
    _index(store, sheet)
    sheet.check("Damage", _tasks(store))
    _search(store, sheet)
    running = sorted(task.id for task in store.history(TaskFilter(status=(RUNNING,))))
    if running:
        sheet.fine("Running", f"{counted(len(running), 'task')}: {_listed(running)}")
    _exact(store, sheet)
    sheet.check("Git", _git(store.root, state), "the task files are ignored" if _in_git(root) else "")
    _place(store.root, state, sheet)
    sheet.check("Other files", _files(state / "tasks", store.strangers()))
    sheet.check(
        "Permissions", [*_permissions(state), *_of_the_user()], "only you can read the files" if os.name != "nt" else ""
    )
    settings = load(store.root)
    sheet.check("Settings", ((str(problem), "rawko config edit") for problem in settings.problems), "no mistakes")
    sheet.check("Hooks", hooks)
    if (live / "reindex.due").exists():
        interrupted = "Removing secrets or a task was interrupted: the index may still hold their words."
        sheet.check("Index", [(interrupted, "rawko reindex")])
    for path in state.glob("index.db.broken-*"):
        sheet.note("Index", f"A broken index was set aside as {path.name}; you can delete it.", f"rm {path}")
    sheet.fine("Version", _versions())
    ctx.exit(sheet.show("To check the seals of all files: rawko verify"))


class Sheet:
    """What was looked at, each with a mark: ✓ fine, ! a note, ✗ a problem. Then the counts, and what to type."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._rows: list[tuple[str, str, str]] = []
        self._advice: dict[str, str] = {}
        self._problems = self._notes = 0

    def fine(self, group: str, text: str) -> None:
        self._rows.append((click.style("✓", fg="green"), group, text))

    def note(self, group: str, text: str, advice: str) -> None:
        self._notes += 1
        self._rows.append((click.style("!", fg="yellow"), group, text))
        self._advice.setdefault(advice, group)

    def check(self, group: str, problems: Iterable[tuple[str, str]], otherwise: str = "") -> None:
        """Problems and what to do about each; if there are none, a tick with the words ``otherwise``."""
        found = list(problems)
        for text, advice in found:
            self._rows.append((click.style("✗", fg="red"), group, text))
            self._advice.setdefault(advice, group)
        self._problems += len(found)
        if not found and otherwise:
            self.fine(group, otherwise)

    def show(self, last: str = "") -> int:
        """Prints it all. Returns the exit code: 1 if there is a problem."""
        room = screen().columns - _INDENT if is_terminal() else 10_000
        lines = [self._title, ""]
        for mark, group, text in self._rows:
            first, *more = wrapped(visible(" ".join(text.split())), max(room, 20)) or [""]
            lines += [f"{mark} {group:{_INDENT - 2}}{first}", *(" " * _INDENT + each for each in more)]
        notes = counted(self._notes, "note") if self._notes else ""
        count = counted(self._problems, "problem") if self._problems else "No problems found"
        lines += ["", f"{count}, {notes}." if notes else f"{count}."]
        lines += commands_shown((visible(advice), group) for advice, group in self._advice.items())
        say([*lines, last] if last else lines)
        return 1 if self._problems else 0


_INDENT = 16
_TAIL = 4_000_000
"""Up to this many bytes, a search adds what the search index lacks by itself."""


def _versions() -> str:
    rawko = metadata.version("rawko-state")
    return f"rawko {rawko}, Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}"


def _server(store: Store) -> Sheet:
    """What can be seen of the tasks of a server."""
    sheet = Sheet(f"{click.style('server', bold=True)}  {visible(store.where)}")
    _index(store, sheet)
    sheet.check("Damage", _tasks(store))
    _exact(store, sheet)
    return sheet


def _index(store: Store, sheet: Sheet) -> None:
    sizes = store.disk()
    try:
        count, where, faults = store.health()
    except RawkoError as error:
        sheet.check("Index", [(str(error), "rawko reindex")])
        return
    kept = ", ".join(f"{name} {size_text(size)}" for name, size in sizes.items() if size)
    sheet.fine("Task files", counted(count, "task") + (f" ({kept})" if kept else ""))
    wrong = ((f"The index is inconsistent: {fault}.", "rawko reindex") for fault in faults)
    sheet.check("Index", wrong, f"up to date ({with_tilde(where)})")


def _search(store: ProjectStore, sheet: Sheet) -> None:
    """Checks that the search index can be used, and shows how far behind it is."""
    try:
        left = store.unflushed()
        problem = store.search_trouble()
    except RawkoError as error:
        sheet.check("Search", [(f"The search index can't be used: {error}", "rawko reindex --search")])
        return
    if problem is not None:
        words = f"The search index can't be used ({problem}); searches read the task files."
        sheet.check("Search", [(words, "rawko reindex")])
    elif left > _TAIL:
        behind = f"{size_text(left)} are not in the index yet; searches find them, but more slowly"
        sheet.note("Search", behind, "rawko reindex --search")
    else:
        sheet.fine(
            "Search", f"up to date; the newest {size_text(left)} are read from the files" if left else "up to date"
        )


_MOST = 10


def _listed(ids: list[str]) -> str:
    return ", ".join(ids[:_MOST]) + (f" and {len(ids) - _MOST} more" if len(ids) > _MOST else "")


def _exact(store: Store, sheet: Sheet) -> None:
    """Shows the tasks in which programs keep values that are not redacted."""
    exact = [task.id for task in store.history(TaskFilter(exact=True, limit=_MOST + 1))]
    if exact:
        more = " …" if len(exact) > _MOST else ""
        sheet.fine("Exact", f"state and payload are not redacted in {', '.join(exact[:_MOST])}{more}")


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
        each = f"rawko verify {ids[0]}" if len(ids) == 1 else "rawko verify -q"
        yield f"{_listed(ids)}: {what}", f"{each}, then: rawko verify --repair"


def _in_git(root: Path) -> bool:
    return Repository.around(root) is not None and load(root)["state.share"] != "git"


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


def _place(root: Path, state: Path, sheet: Sheet) -> None:
    """Where the project is: on a network file system, moved, or one of several worktrees."""
    kind = _file_system(state)
    if kind is not None:
        shared = f"{state} is on a network file system ({kind}): locks may not work between machines."
        sheet.check("Place", [(shared, "Use one machine at a time, or rawko serve.")])
    before = [place for place in stood_at(root) if place != str(root)]
    if before:
        sheet.fine("Place", f"moved from {before[-1]}")
    others = [folder for folder in worktrees(root) if folder != str(root)]
    used = [folder for folder in others if (Path(folder) / ".rawko" / "state").is_dir()]
    if used:
        sheet.fine("Worktrees", f"{len(others) + 1}; tasks are also recorded in {', '.join(used[:5])}")


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
