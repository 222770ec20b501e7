"""rawko token: the tokens that a server accepts, and this user's tokens for other servers."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rawko_state.backends.select import open_database, open_server_state
from rawko_state.cli.printing import visible
from rawko_state.config.project import find_project
from rawko_state.errors import InvalidValue, RawkoError

if TYPE_CHECKING:
    from rawko_state.store.hosting import ServerState

_DATABASE = click.option(
    "--database", metavar="URL", envvar="RAWKO_DATABASE", help="Of a server on PostgreSQL; else this project's."
)


@click.group(name="token")
def command() -> None:
    """Tokens: who may use a server. Run these where the server's tasks are.

    \b
    rawko token create --role write                      # prints the token, once
    rawko token list; rawko token revoke 3f2a9c0d1e4b
    rawko token save https://tasks.example.com           # on the other side: keep one in the keyring
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


@command.command()
@click.option("--role", type=click.Choice(["read", "write", "admin"]), required=True, help="What it allows.")
@click.option("--workspace", help="Only for this workspace.")
@click.option("--note", help="Whose it is; records then say so.")
@_DATABASE
@click.pass_context
def create(ctx: click.Context, role: str, workspace: str | None, note: str | None, database: str | None) -> None:
    """Make a token and print it. It is not kept, and not shown again; a running server knows it at once."""
    if workspace is not None:
        if database is None:
            raise InvalidValue("--workspace is for servers on PostgreSQL: give --database; a project has no workspaces")
        with contextlib.closing(open_database(database, Path.cwd())) as host:
            if not host.has(workspace):
                raise InvalidValue(
                    f"there is no workspace {workspace!r}: 'rawko workspace create {workspace}' makes it"
                )
    with _server_state(ctx, database) as state:
        click.echo(state.create_token(role, workspace, note))


@command.command(name="list")
@_DATABASE
@click.pass_context
def list_command(ctx: click.Context, database: str | None) -> None:
    """List the tokens, not their secrets."""
    with _server_state(ctx, database) as state:
        tokens = state.tokens()
    for token in tokens:
        valid = f"revoked {token.revoked_at}" if token.revoked_at else "valid"
        where = token.workspace or "-"
        click.echo(
            f"{token.id}  {token.role:5}  {where:12}  {token.created_at}  {valid}  {visible(token.note or '')}".rstrip()
        )


@command.command()
@click.argument("token_id", metavar="ID")
@_DATABASE
@click.pass_context
def revoke(ctx: click.Context, token_id: str, database: str | None) -> None:
    """Revoke a token, by its id or by itself. It is refused from now on."""
    key = token_id.split("_")[1] if token_id.startswith("rawko_") and token_id.count("_") >= 2 else token_id
    with _server_state(ctx, database) as state:
        done = state.revoke_token(key)
    if not done:
        raise RawkoError(f"there is no valid token {visible(key)[:20]!r}; 'rawko token list' lists them")
    click.echo(f"{key} is revoked", err=True)


@command.command()
@click.argument("url")
def save(url: str) -> None:
    """Keep a token for a server in the system's keyring. It is asked for, or read from standard input."""
    keyring = _keyring()
    token = click.prompt("token", hide_input=True, err=True) if sys.stdin.isatty() else sys.stdin.readline().strip()
    if not token:
        raise InvalidValue("no token was given")
    try:
        keyring.set_password("rawko", url.rstrip("/"), token)
    except Exception as error:  # each keyring raises its own errors
        raise RawkoError(f"the keyring does not take it: {error}; set RAWKO_REMOTE_TOKEN instead") from None
    click.echo(f"kept for {visible(url)}", err=True)


@command.command()
@click.argument("url")
def forget(url: str) -> None:
    """Take the token of a server out of the keyring."""
    keyring = _keyring()
    try:
        keyring.delete_password("rawko", url.rstrip("/"))
    except Exception as error:
        raise RawkoError(f"no token is kept for {visible(url)}: {error}") from None


def _keyring() -> Any:
    """The keyring module, an optional dependency."""
    try:
        import keyring
    except ImportError:
        raise RawkoError(
            "there is no keyring here: pip install 'rawko-state[keyring]', or set RAWKO_REMOTE_TOKEN"
        ) from None
    return keyring
