"""rawko kv: the user's own small values, stored beside the tasks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from rawko_state.backends.select import open_values, redactor_for
from rawko_state.cli import PageGroup
from rawko_state.cli.project import REMOTE, WORKSPACE, root_of
from rawko_state.errors import InvalidValue

if TYPE_CHECKING:
    from rawko_state.store.hosting import Values


@click.group(
    name="kv",
    cls=PageGroup,
    examples="""
    rawko kv set project reviewer ann
    rawko kv get project reviewer
    rawko kv list project
    """,
)
def command() -> None:
    """Store small values of your own, by scope (user, project, repo, …) and key. Not for secrets."""


@command.command(examples="rawko kv get project reviewer")
@click.argument("scope")
@click.argument("key")
@click.pass_context
def get(ctx: click.Context, scope: str, key: str) -> None:
    """Print a value. Exits with 1 if there is none."""
    value = _values(ctx).get(scope, key)
    if value is None:
        ctx.exit(1)
    click.echo(value)


@command.command(name="set", examples="rawko kv set project reviewer ann")
@click.argument("scope")
@click.argument("key")
@click.argument("value")
@click.pass_context
def set_value(ctx: click.Context, scope: str, key: str, value: str) -> None:
    """Set a value. What looks like a secret is refused."""
    said, clean = f"{scope} {key}={value}", redactor_for(Path.cwd()).text
    if clean(said) != said:
        raise InvalidValue(f"The value of {clean(key)!r} looks like a secret and was not stored. Use a keyring for it.")
    _values(ctx).set(scope, key, value)


@command.command(examples="rawko kv delete project reviewer")
@click.argument("scope")
@click.argument("key")
@click.pass_context
def delete(ctx: click.Context, scope: str, key: str) -> None:
    """Delete a value. Exits with 1 if there is none."""
    ctx.exit(0 if _values(ctx).delete(scope, key) else 1)


@command.command(name="list", examples="rawko kv list\nrawko kv list project")
@click.argument("scope", required=False)
@click.pass_context
def list_values(ctx: click.Context, scope: str | None) -> None:
    """List values: scope, key and value, separated by tabs."""
    for row in _values(ctx).items(scope):
        click.echo("\t".join(row))


def _values(ctx: click.Context) -> Values:
    meta = ctx.find_root().meta
    return open_values(root_of(ctx, anywhere=True), meta.get(REMOTE), meta.get(WORKSPACE))
