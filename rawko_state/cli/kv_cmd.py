"""rawko kv: the user's own small values, stored beside the tasks."""

from __future__ import annotations

from pathlib import Path

import click

from rawko_state.backends.select import redactor_for, user_state
from rawko_state.errors import InvalidValue


@click.group(name="kv")
def command() -> None:
    """Small values of your own, kept per user in state.db: under a scope (user, project, repo, …) and a key."""


@command.command()
@click.argument("scope")
@click.argument("key")
@click.pass_context
def get(ctx: click.Context, scope: str, key: str) -> None:
    """Print a value; exit with 1 if there is none."""
    value = user_state().get(scope, key)
    if value is None:
        ctx.exit(1)
    click.echo(value)


@command.command(name="set")
@click.argument("scope")
@click.argument("key")
@click.argument("value")
def set_value(scope: str, key: str, value: str) -> None:
    """Keep a value. A secret is refused: state.db is no place for it."""
    said = f"{scope} {key}={value}"
    if redactor_for(Path.cwd()).text(said) != said:
        raise InvalidValue("this looks like a secret, and is not kept: use a keyring for it")
    user_state().set(scope, key, value)


@command.command()
@click.argument("scope")
@click.argument("key")
@click.pass_context
def delete(ctx: click.Context, scope: str, key: str) -> None:
    """Forget a value; exit with 1 if there is none."""
    ctx.exit(0 if user_state().delete(scope, key) else 1)


@command.command(name="list")
@click.argument("scope", required=False)
def list_values(scope: str | None) -> None:
    """List values, tab-separated: scope, key, value."""
    for row in user_state().items(scope):
        click.echo("\t".join(row))
