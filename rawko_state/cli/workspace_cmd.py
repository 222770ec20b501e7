"""rawko workspace: the workspaces of a server on PostgreSQL."""

from __future__ import annotations

import click

from rawko_state.errors import InvalidValue, RawkoError
from rawko_state.index.server_state import PostgresServerState

_DATABASE = click.option("--database", metavar="URL", envvar="RAWKO_DATABASE", required=True, help="postgresql://…")


@click.group(name="workspace")
def command() -> None:
    """The workspaces of a server on PostgreSQL: each has tasks, values and tokens of its own, and sees no other's."""


def _opened(database: str) -> PostgresServerState:
    from rawko_state.backends.postgres.connection import Postgres

    return PostgresServerState(Postgres(database))


@command.command()
@click.argument("name")
@_DATABASE
def create(name: str, database: str) -> None:
    """Make a workspace."""
    db = _opened(database)
    made = db.create_workspace(name)
    db.close()
    if not made:
        raise InvalidValue(f"there is a workspace {name!r} already")


@command.command(name="list")
@_DATABASE
def list_command(database: str) -> None:
    """List them, one a line."""
    db = _opened(database)
    for row in db.workspaces():
        click.echo(row["name"])
    db.close()


@command.command()
@click.argument("name")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@_DATABASE
def drop(name: str, yes: bool, database: str) -> None:
    """Delete a workspace with all its tasks, for good. Its trash goes too."""
    db = _opened(database)
    if not db.has_workspace(name):
        db.close()
        raise RawkoError(f"there is no workspace {name!r}")
    if not yes:
        click.confirm(f"Delete everything in {name}, for good?", abort=True, err=True)
    db.drop_workspace(name)
    db.close()
    click.echo(f"{name} is gone", err=True)
