"""What the commands share: the store around the current folder, and options that several of them take."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import click

from rawko_state.backends.select import LOCAL, learn_of, open_files, open_store
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
    """The store that --remote or the settings name, else that of the project that -C, RAWKO_DIR or the current folder names.

    Unless told not to ``tidy``, what the settings say of retention is done when the command is done, at most once a day. With
    ``only_look`` nothing at all is done that was not asked for: a dry run.
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
    if tidy:
        ctx.find_root().call_on_close(lambda: _daily(store))
    return store


def root_of(ctx: click.Context, *, anywhere: bool = False) -> Path:
    """The project around; the current folder, where none is needed: the tasks are on a server, or the command works
    ``anywhere``."""
    try:
        return find_project(override=ctx.find_root().obj)
    except NoProject:
        named = ctx.find_root().meta.get(REMOTE) or load(None)["remote-server"]
        if anywhere or named not in (None, LOCAL):
            return Path.cwd()
        raise


def files_of(ctx: click.Context, *, tidy: bool = True, only_look: bool = False) -> ProjectStore:
    """The same, for what can be done only where the files are."""
    store = store_of(ctx, tidy=tidy, only_look=only_look)
    if not store.is_local:
        raise InvalidValue(
            f"'{ctx.command_path}' works on files, and the tasks are on {store.where}: run it there, or with '--remote local'"
        )
    return cast("ProjectStore", store)


def fallback_of(ctx: click.Context) -> Store:
    """The same, for what must not be lost: when the server is away, the files here, and that is said."""
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
    """Whatever happens here, the command has done its work."""
    try:
        with store.daily() as mine:
            _learn_of(store.root, again=mine)
            done = cleanup.once_a_day(store) if mine else None
        if done:
            _warn(f"cleanup: {cleanup.described(done)}")
    except InvalidValue as error:
        _warn(f"no cleanup today: {error}")
    except Exception:  # a full disk, a lock, a folder that is gone: tomorrow is another day
        return


def _learn_of(root: Path, *, again: bool) -> None:
    """The list of projects hears of this one once a day, and at once when it is new or stands somewhere else than before."""
    with contextlib.suppress(Exception):  # it can be learned of anew
        places, here = stood_at(root), str(root)
        if (root / ".rawko/state/live").exists() and (again or places[-1:] != [here]):
            learn_of(root)
            kept = [place for place in places if place != here]
            _places_file(root).write_bytes(b"\0".join(map(os.fsencode, [*kept, here])))


def stood_at(root: Path) -> list[str]:
    """The folders in which this project has been used, the last one last. The list moves along with it."""
    try:
        return [os.fsdecode(place) for place in _places_file(root).read_bytes().split(b"\0") if place]
    except OSError:
        return []


def _places_file(root: Path) -> Path:
    return root / ".rawko" / "state" / "live" / "learned"


def me(root: Path | None = None) -> str:
    """Who records say did something: as the settings say, else the user of this machine."""
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
    """Pauses or cancels tasks, one after another; exits with 1 if one of them cannot be."""
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
    """Task ids for the shell, newest first, each with what was asked."""
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
    """An argument, or all of standard input when it is '-'."""
    if value != "-":
        return value
    return stdin().read().decode("utf-8", "surrogateescape")


def stdin() -> IO[bytes]:
    if sys.stdin is None:
        raise InvalidValue("standard input is closed")
    return sys.stdin.buffer
