"""rawko token: the tokens that a server accepts, and this user's tokens for other servers."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rawko_state.backends.select import open_database, open_server_state
from rawko_state.cli import PageGroup
from rawko_state.cli.printing import visible
from rawko_state.config.project import find_project
from rawko_state.errors import InvalidValue, RawkoError
from rawko_state.lazy import installing

if TYPE_CHECKING:
    from rawko_state.store.hosting import ServerState

_DATABASE = click.option(
    "--database",
    metavar="URL",
    envvar="RAWKO_DATABASE",
    help="The server's PostgreSQL database (default: this project)",
)


@click.group(
    name="token",
    cls=PageGroup,
    examples="""
    rawko token create --role write --note ann
    rawko token revoke 3f2a9c0d1e4b
    rawko token save https://tasks.example.com
    """,
)
def command() -> None:
    """Manage access tokens.

    Run create, list and revoke where the server's tasks are: in its project, or with --database. Run save and forget on the
    machine of a client.
    """


@contextlib.contextmanager
def _server_state(ctx: click.Context, database: str | None) -> Iterator[ServerState]:
    if database is None:
        state = open_server_state(find_project(override=ctx.find_root().obj))
        try:
            yield state
        finally:
            state.close()
        return
    host = open_database(database, Path.cwd())
    try:
        yield host.state
    finally:
        host.close()


@command.command(
    examples="""
    rawko token create --role write --note ann
    rawko token create --role read --workspace web --database postgresql://db/x
    """
)
@click.option("--role", type=click.Choice(["read", "write", "admin"]), required=True, help="What the token allows")
@click.option("--workspace", metavar="NAME", help="Limit the token to this workspace")
@click.option("--note", metavar="TEXT", help="Whose token it is; recorded with every change")
@_DATABASE
@click.pass_context
def create(ctx: click.Context, role: str, workspace: str | None, note: str | None, database: str | None) -> None:
    """Create a token and print it. It is shown only once. Running servers accept it at once."""
    if workspace is not None:
        if database is None:
            raise InvalidValue("--workspace needs --database: a project has no workspaces.")
        with contextlib.closing(open_database(database, Path.cwd())) as host:
            if not host.has(workspace):
                raise InvalidValue(
                    f"There is no workspace {workspace!r}.\n  Create it: rawko workspace create {workspace}"
                )
    with _server_state(ctx, database) as state:
        click.echo(state.create_token(role, workspace, note))


@command.command(name="list", examples="rawko token list")
@_DATABASE
@click.pass_context
def list_command(ctx: click.Context, database: str | None) -> None:
    """List tokens, without their secrets."""
    with _server_state(ctx, database) as state:
        tokens = state.tokens()
    for token in tokens:
        valid = f"revoked {token.revoked_at}" if token.revoked_at else "valid"
        where = token.workspace or "-"
        click.echo(
            f"{token.id}  {token.role:5}  {where:12}  {token.created_at}  {valid}  {visible(token.note or '')}".rstrip()
        )


@command.command(examples="rawko token revoke 3f2a9c0d1e4b")
@click.argument("token_id", metavar="ID")
@_DATABASE
@click.pass_context
def revoke(ctx: click.Context, token_id: str, database: str | None) -> None:
    """Revoke a token, given its id or the token itself. It stops working at once."""
    key = token_id.split("_")[1] if token_id.startswith("rawko_") and token_id.count("_") >= 2 else token_id
    with _server_state(ctx, database) as state:
        done = state.revoke_token(key)
    if not done:
        raise RawkoError(f"No valid token {visible(key)[:20]!r}.\n  List them: rawko token list")
    click.echo(f"Revoked {key}.", err=True)


@command.command(examples="rawko token save https://tasks.example.com")
@click.argument("url")
def save(url: str) -> None:
    """Save a token for a server in the system keyring. Asks for it, or reads standard input."""
    keyring = _keyring()
    token = click.prompt("Token", hide_input=True, err=True) if sys.stdin.isatty() else sys.stdin.readline().strip()
    if not token:
        raise InvalidValue("No token given.")
    try:
        keyring.set_password("rawko", url.rstrip("/"), token)
    except Exception as error:  # each keyring raises its own errors
        raise RawkoError(f"The keyring refused the token: {error}. Set RAWKO_REMOTE_TOKEN instead.") from None
    click.echo(f"Saved the token for {visible(url)}.", err=True)


@command.command(examples="rawko token forget https://tasks.example.com")
@click.argument("url")
def forget(url: str) -> None:
    """Remove a server's token from the keyring."""
    keyring = _keyring()
    try:
        keyring.delete_password("rawko", url.rstrip("/"))
    except Exception as error:
        raise RawkoError(f"The keyring has no token for {visible(url)}: {error}.") from None


def _keyring() -> Any:
    """The keyring module, an optional dependency."""
    try:
        import keyring
    except ImportError:
        raise RawkoError(
            f"No keyring is available. Set RAWKO_REMOTE_TOKEN instead.\n  Or install one: {installing('keyring')}"
        ) from None
    return keyring
