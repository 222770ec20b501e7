"""rawko workspace: the workspaces of a server on PostgreSQL."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rawko_state.backends.select import open_database
from rawko_state.cli import PageGroup
from rawko_state.errors import RawkoError

if TYPE_CHECKING:
    from rawko_state.store.hosting import Host

_DATABASE = click.option(
    "--database", metavar="URL", envvar="RAWKO_DATABASE", required=True, help="The server's PostgreSQL database"
)


@click.group(
    name="workspace",
    cls=PageGroup,
    examples="""
    rawko workspace create web --database postgresql://rawko@db/rawko
    RAWKO_DATABASE=postgresql://rawko@db/rawko rawko workspace list
    rawko workspace drop web --database postgresql://rawko@db/rawko
    """,
)
def command() -> None:
    """Manage the workspaces of a server on PostgreSQL.

    Workspaces are separate: each has its own tasks, values and tokens.
    """


def _opened(database: str) -> contextlib.closing[Host]:
    return contextlib.closing(open_database(database, Path.cwd()))


@command.command(examples="rawko workspace create web --database postgresql://rawko@db/rawko")
@click.argument("name")
@_DATABASE
def create(name: str, database: str) -> None:
    """Create a workspace."""
    with _opened(database) as host:
        made = host.create_workspace(name)
    if not made:
        raise RawkoError(f"Workspace {name!r} already exists.")


@command.command(name="list", examples="rawko workspace list --database postgresql://rawko@db/rawko")
@_DATABASE
def list_command(database: str) -> None:
    """List workspaces."""
    with _opened(database) as host:
        for name in host.names():
            click.echo(name)


@command.command(examples="rawko workspace drop web --database postgresql://rawko@db/rawko")
@click.argument("name")
@click.option("--yes", "-y", is_flag=True, help="Don't ask for confirmation")
@_DATABASE
def drop(name: str, yes: bool, database: str) -> None:
    """Permanently delete a workspace with all its tasks and its trash."""
    with _opened(database) as host:
        if not host.has(name):
            raise RawkoError(f"There is no workspace {name!r}.")
        if not yes:
            click.confirm(
                f"Permanently delete workspace {name} with all its tasks? This can't be undone.", abort=True, err=True
            )
        host.drop_workspace(name)
    click.echo(f"Deleted workspace {name}.", err=True)
