"""Shared by the commands: finding the store for the current folder, and common options."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

import click

from rawko_state.backends.select import LOCAL, learn_of, open_store, server_named
from rawko_state.cli.printing import visible, warn
from rawko_state.config.project import find_project
from rawko_state.config.settings import load
from rawko_state.errors import InvalidValue, NoProject, RawkoError, ServerAway, StorageError
from rawko_state.late import late
from rawko_state.lazy import lazy
from rawko_state.model.status import FINISHED

if TYPE_CHECKING:
    from rawko_state.lifecycle import cleanup
    from rawko_state.store.contract import ProjectStore, Store
else:
    cleanup = lazy("rawko_state.lifecycle.cleanup")

REMOTE, WORKSPACE, STORE = "rawko.remote", "rawko.workspace", "rawko.store"
_LABEL = late(r"[A-Za-z0-9_.-]+")


def store_of(ctx: click.Context, *, tidy: bool = True, only_look: bool = False) -> Store:
    """The store named by --remote or the settings, else that of the project given by -C, RAWKO_DIR or the current folder.

    With ``tidy``, the retention settings are applied after the command, at most once a day. With ``only_look`` (a dry run),
    nothing is done that was not asked for.
    """
    meta = ctx.find_root().meta
    root = root_of(ctx)
    store = open_store(root, remote=meta.get(REMOTE), workspace=meta.get(WORKSPACE), warn=warn)
    meta[STORE] = store
    if only_look or not store.is_local:
        return store
    for task_id in store.reconcile():
        if store.status(task_id) not in FINISHED:
            warn(
                f"Task {task_id} was interrupted: its process is gone. What it had said is recorded.\n"
                f"  Continue it: rawko resume {task_id}"
            )
    if (root / ".rawko/state/live/hooks.sessions").exists():
        from rawko_state.backends.select import open_files
        from rawko_state.integrations.hooks import end_abandoned

        for task_id in end_abandoned(open_files(root)):
            warn(
                f"The agent of task {task_id} ended unexpectedly. Its task is recorded up to there.\n"
                f"  Continue it: rawko resume {task_id}"
            )
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
            f"'{ctx.command_path}' needs the task files, and this project's tasks are on {store.where}.\n"
            "  Run it there, or use the files here: --remote local"
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
        warn(
            f"{str(error).rstrip('.')}. Recording to this project's files instead.\n"
            "  Copy it later: rawko export ID, then on the server rawko import rawko FILE"
        )
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
            warn(f"Cleanup: {cleanup.described(done)}")
    except InvalidValue as error:
        warn(f"Skipped today's cleanup: {error}")
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


def project_name(root: Path) -> str:
    """The name of a project for people: that of its folder."""
    return visible(root.name or str(root))


def place_of(store: Store) -> str:
    """Where tasks were looked for, for people: ``in shop``, ``on http://…``."""
    return f"in {project_name(store.root)}" if store.is_local else f"on {visible(store.where)}"


def with_tilde(path: str | Path) -> str:
    """A path as people write it: with ~ for their home folder."""
    home, text = os.path.expanduser("~"), str(path)
    return visible("~" + text[len(home) :] if home != "/" and (text + "/").startswith(home + "/") else text)


_STOPPED = {
    "paused": ("Paused", "Continue it: rawko resume {id}", "; only a running task can be paused."),
    "cancelled": ("Cancelled", "", "; there is nothing to cancel."),
}


def stop_tasks(ctx: click.Context, task_ids: tuple[str, ...], status: str, reason: str | None, by: str | None) -> None:
    """Pauses or cancels tasks one by one; exits with 1 if any of them fails."""
    store = store_of(ctx)
    failed = False
    word, advice, refusal = _STOPPED[status]
    for task_id in task_ids:
        try:
            with store.attach(task_id) as task:
                if task.state.status == status:
                    click.echo(f"{task.id} is already {status}.", err=True)
                    continue
                if task.state.is_finished:
                    raise RawkoError(f"Task {task.id} is already {task.state.status}{refusal}")
                alive = task.id in store.alive()
                task.set_status(status, by=by or me(store.root), reason=reason)
                how = "Its process stops at its next step." if alive else "Nothing was running it."
                click.echo(f"{word} {task.id}. {how} {advice.format(id=task.id)}".rstrip(), err=True)
        except RawkoError as error:
            failed = True
            complain(error, store)
    ctx.exit(1 if failed else 0)


def complain(error: RawkoError, store: Store) -> None:
    """Says what is wrong with one of several tasks; the command goes on with the others."""
    from rawko_state.cli.advice import name_tasks

    name_tasks(error, store)
    warn(str(error))


def labels_of(pairs: tuple[str, ...]) -> dict[str, str]:
    labels = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not _LABEL.fullmatch(key):
            raise InvalidValue(
                f"Not a label: {pair!r}. Write NAME=VALUE, and use only letters, digits, '_', '.' and '-' in NAME."
            )
        labels[key] = value
    return labels


def text_of(value: str | None) -> str | None:
    """The argument, or all of standard input if it is '-'."""
    if value != "-":
        return value
    return stdin().read().decode("utf-8", "surrogateescape")


def stdin() -> IO[bytes]:
    if sys.stdin is None:
        raise InvalidValue("Standard input is closed.")
    return sys.stdin.buffer
