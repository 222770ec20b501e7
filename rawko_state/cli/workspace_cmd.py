"""rawko workspace: the workspaces of a server on PostgreSQL."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rawko_state.backends.select import open_database
from rawko_state.errors import InvalidValue, RawkoError

if TYPE_CHECKING:
    from rawko_state.store.hosting import Host

_DATABASE = click.option("--database", metavar="URL", envvar="RAWKO_DATABASE", required=True, help="postgresql://…")


@click.group(name="workspace")
def command() -> None:
    """The workspaces of a server on PostgreSQL: each has tasks, values and tokens of its own, and sees no other's."""


def _opened(database: str) -> contextlib.closing[Host]:
    return contextlib.closing(open_database(database, Path.cwd()))


@command.command()
@click.argument("name")
@_DATABASE
def create(name: str, database: str) -> None:
    """Make a workspace."""
    with _opened(database) as host:
        made = host.create_workspace(name)
    if not made:
        raise InvalidValue(f"there is a workspace {name!r} already")


@command.command(name="list")
@_DATABASE
def list_command(database: str) -> None:
    """List them, one a line."""
    with _opened(database) as host:
        for name in host.names():
            click.echo(name)


@command.command()
@click.argument("name")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@_DATABASE
def drop(name: str, yes: bool, database: str) -> None:
    """Delete a workspace with all its tasks, for good. Its trash goes too."""
    with _opened(database) as host:
        if not host.has(name):
            raise RawkoError(f"there is no workspace {name!r}")
        if not yes:
            click.confirm(f"Delete everything in {name}, for good?", abort=True, err=True)
        host.drop_workspace(name)
    click.echo(f"{name} is gone", err=True)
