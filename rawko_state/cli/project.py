"""Shared by the commands: finding the store for the current folder, and common options."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import click

from rawko_state.backends.select import LOCAL, learn_of, open_files, open_store, server_named
from rawko_state.cli.printing import one_line, visible
from rawko_state.config.project import find_project
from rawko_state.config.settings import load
from rawko_state.errors import InvalidValue, NoProject, RawkoError, ServerAway, StorageError
from rawko_state.lazy import lazy
from rawko_state.model.status import FINISHED
from rawko_state.store import TaskFilter

if TYPE_CHECKING:
    from rawko_state.lifecycle import cleanup
    from rawko_state.store.contract import ProjectStore, Store
else:
    cleanup = lazy("rawko_state.lifecycle.cleanup")

REMOTE, WORKSPACE = "rawko.remote", "rawko.workspace"
_LABEL = re.compile(r"[A-Za-z0-9_.-]+")


def store_of(ctx: click.Context, *, tidy: bool = True, only_look: bool = False) -> Store:
    """The store named by --remote or the settings, else that of the project given by -C, RAWKO_DIR or the current folder.

    With ``tidy``, the retention settings are applied after the command, at most once a day. With ``only_look`` (a dry run),
    nothing is done that was not asked for.
    """
    meta = ctx.find_root().meta
    root = root_of(ctx)
    store = open_store(root, remote=meta.get(REMOTE), workspace=meta.get(WORKSPACE), warn=_warn)
    if only_look or not store.is_local:
        return store
    for task_id in store.reconcile():
        if store.status(task_id) not in FINISHED:
            _warn(
                f"the process that ran task {task_id} has died; what it had said is kept: 'rawko resume {task_id}' shows"
                " where it stands, and how to go on"
            )
    if (root / ".rawko/state/live/hooks.sessions").exists():
        from rawko_state.backends.select import open_files
        from rawko_state.integrations.hooks import end_abandoned

        for task_id in end_abandoned(open_files(root)):
            _warn(f"the agent that worked on task {task_id} has died; 'rawko resume {task_id}' shows where it stands")
    if tidy:
        ctx.find_root().call_on_close(lambda: _daily(store))
    return store


def root_of(ctx: click.Context, *, anywhere: bool = False) -> Path:
    """The enclosing project. Falls back to the current folder if none is needed: the tasks are on a server, or the command
    works ``anywhere``."""
    try:
        return find_project(override=ctx.find_root().obj)
    except NoProject:
        named = ctx.find_root().meta.get(REMOTE) or load(None)["remote-server"]
        if anywhere or named not in (None, LOCAL):
            return Path.cwd()
        raise


def is_remote(ctx: click.Context) -> bool:
    """Whether --remote or the settings name a server."""
    return server_named(root_of(ctx, anywhere=True), ctx.find_root().meta.get(REMOTE)) is not None


def files_of(ctx: click.Context, *, tidy: bool = True, only_look: bool = False) -> ProjectStore:
    """Like store_of(), for commands that need the files."""
    store = store_of(ctx, tidy=tidy, only_look=only_look)
    if not store.is_local:
        raise InvalidValue(
            f"'{ctx.command_path}' works on files, and the tasks are on {store.where}: run it there, or with '--remote local'"
        )
    return cast("ProjectStore", store)


def fallback_of(ctx: click.Context) -> Store:
    """Like store_of(), for data that must not be lost: if the server is unreachable, warns and uses the local files."""
    store = store_of(ctx)
    if store.is_local:
        return store
    try:
        store.check()
    except (ServerAway, StorageError) as error:
        _warn(f"{error}; recording to the files here: 'rawko history export' and 'import rawko' bring it there later")
        ctx.find_root().meta[REMOTE] = "local"
        ctx.find_root().meta[WORKSPACE] = None
        return store_of(ctx)
    return store


def _daily(store: Store) -> None:
    """Daily upkeep. The command is already done, so errors here must not fail it."""
    try:
        with store.daily() as mine:
            _learn_of(store.root, again=mine)
            done = cleanup.once_a_day(store) if mine else None
        if done:
            _warn(f"cleanup: {cleanup.described(done)}")
    except InvalidValue as error:
        _warn(f"no cleanup today: {error}")
    except Exception:  # a full disk, a lock, a missing folder: try again tomorrow
        return


def _learn_of(root: Path, *, again: bool) -> None:
    """Adds this project to the list of projects: once a day, and at once if it is new or was moved."""
    with contextlib.suppress(Exception):  # it can be added again later
        places, here = stood_at(root), str(root)
        if (root / ".rawko/state/live").exists() and (again or places[-1:] != [here]):
            learn_of(root)
            kept = [place for place in places if place != here]
            path = _places_file(root)
            path.touch(mode=0o600)
            path.write_bytes(b"\0".join(map(os.fsencode, [*kept, here])))


def stood_at(root: Path) -> list[str]:
    """The folders where this project has been used, most recent last. The list is stored in the project and moves with it."""
    try:
        return [os.fsdecode(place) for place in _places_file(root).read_bytes().split(b"\0") if place]
    except OSError:
        return []


def _places_file(root: Path) -> Path:
    return root / ".rawko" / "state" / "live" / "learned"


def me(root: Path | None = None) -> str:
    """The name to put into records: from the settings, else the user of this machine."""
    import getpass

    named = load(root)["user.name"]
    if named is not None:
        return str(named)
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return "unknown_user"


def _warn(message: str) -> None:
    click.echo(f"rawko: {visible(message)}", err=True)


def stop_tasks(ctx: click.Context, task_ids: tuple[str, ...], status: str, reason: str | None, by: str | None) -> None:
    """Pauses or cancels tasks one by one; exits with 1 if any of them fails."""
    store = store_of(ctx)
    failed = False
    for task_id in task_ids:
        try:
            with store.attach(task_id) as task:
                if task.state.status != status:
                    task.set_status(status, by=by or me(store.root), reason=reason)
                click.echo(f"{task.id} is {status}", err=True)
        except RawkoError as error:
            failed = True
            click.echo(f"rawko: {visible(str(error))}", err=True)
    ctx.exit(1 if failed else 0)


def complete_ids(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """Task ids for shell completion, newest first, each with its title or request."""
    from click.shell_completion import CompletionItem

    try:
        store = open_files(find_project(override=ctx.find_root().obj))
        found = store.history(TaskFilter(limit=200))
    except Exception:  # a completion that fails must not litter the command line
        return []
    return [
        CompletionItem(summary.id, help=one_line(summary.title or summary.request or "", 60))
        for summary in found
        if summary.id.startswith(incomplete)
    ]


def labels_of(pairs: tuple[str, ...]) -> dict[str, str]:
    labels = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not _LABEL.fullmatch(key):
            raise InvalidValue(f"a label is NAME=VALUE, with letters, digits, '_', '.', '-' in the name; not {pair!r}")
        labels[key] = value
    return labels


def text_of(value: str | None) -> str | None:
    """The argument, or all of standard input if it is '-'."""
    if value != "-":
        return value
    return stdin().read().decode("utf-8", "surrogateescape")


def stdin() -> IO[bytes]:
    if sys.stdin is None:
        raise InvalidValue("standard input is closed")
    return sys.stdin.buffer
