"""Asking each project on this machine in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from rawko_state.backends.select import open_files, user_state
from rawko_state.cli.printing import cut, first_line, warn
from rawko_state.cli.projects_cmd import is_there
from rawko_state.errors import RawkoError

if TYPE_CHECKING:
    from rawko_state.store.contract import Store


def each_project(ctx: click.Context, ask: Callable[[str, Store], object]) -> None:
    """Calls ``ask`` with the folder and the store of every project. One that can't be read is warned of, and left out."""
    if ctx.find_root().meta.get("rawko.remote") not in (None, "local"):
        raise click.UsageError("--all-projects covers this machine's projects; it can't be used with --remote", ctx)
    with user_state() as user:
        projects = user.projects()
    for project in projects:
        if not is_there(project.root):
            warn(f"warning: {project.root} is gone. Forget it: rawko projects forget --gone")
            continue
        try:
            with open_files(project.root) as store:
                ask(project.root, store)
        except RawkoError as error:
            warn(f"warning: {project.root}: {error}")


def short_names(paths: Sequence[str]) -> list[str]:
    """The shortest end of each path that tells it apart from the others, in at most 20 columns."""
    parts = {path: path.rstrip("/").split("/") for path in set(paths)}
    names = {}
    for path, mine in parts.items():
        others = [theirs for other, theirs in parts.items() if other != path]
        length = 1
        while length < len(mine) and any(theirs[-length:] == mine[-length:] for theirs in others):
            length += 1
        names[path] = cut(first_line("/".join(mine[-length:])), 20)
    return [names[path] for path in paths]
