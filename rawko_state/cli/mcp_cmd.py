"""rawko mcp: let agents look up past tasks."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from rawko_state.cli import PageGroup
from rawko_state.errors import InvalidValue, RawkoError
from rawko_state.lazy import installing

if TYPE_CHECKING:
    from collections.abc import Callable

    from rawko_state.store.contract import Store

_AGENTS = click.Choice(["claude-code", "codex"])


@click.group(
    name="mcp",
    cls=PageGroup,
    invoke_without_command=True,
    examples="""
    rawko mcp install claude-code
    rawko mcp install codex --write
    rawko mcp uninstall claude-code
    rawko mcp --write
    """,
)
@click.option("--write", is_flag=True, help="Also let the agent record notes and decisions")
@click.option(
    "--max-bytes",
    type=click.IntRange(1024, 1 << 20),
    default=4096,
    show_default=True,
    metavar="N",
    help="Longest answer",
)
@click.pass_context
def command(ctx: click.Context, write: bool, max_bytes: int) -> None:
    """Let an agent look up past tasks: a server that speaks MCP on standard input and output.

    Agents start it themselves, in the folder they work in. Set that up with 'rawko mcp install'. It only reads, unless you
    pass --write. Answers are short, come in pages, and name the task and the seal of each record.
    """
    if ctx.invoked_subcommand is not None:
        return
    if sys.stdin is None or sys.stdin.isatty():
        raise click.UsageError(
            "An agent starts this and talks to it through a pipe.\n  Set it up: rawko mcp install claude-code", ctx
        )
    server = _sdk()

    def opened() -> Store:
        from rawko_state.cli.project import store_of

        return store_of(ctx, only_look=not write)

    server(opened, write=write, limit=max_bytes).run("stdio")


def _sdk() -> Callable[..., Any]:
    try:
        from rawko_state.integrations.mcp import server
    except ImportError as error:
        raise RawkoError(
            f"The MCP server needs more packages ({error.name} is missing).\n  Install them: {installing('mcp')}"
        ) from None
    return server


def _options(function: click.decorators.FC) -> click.decorators.FC:
    for option in (
        click.option("--user", "project", flag_value=False, default=False, type=bool, help="For all your projects (default)"),
        click.option("--project", "project", flag_value=True, type=bool, help="For everyone in this project: a file to commit"),
        click.option("--dry-run", "-n", is_flag=True, help="Show the change without making it"),
        click.option("--yes", "-y", is_flag=True, help="Don't ask for confirmation (required without a terminal)"),
    ):  # fmt: skip
        function = option(function)
    return function


@command.command(
    examples="""
    rawko mcp install claude-code
    rawko mcp install codex --write
    rawko mcp install claude-code --project --dry-run
    """
)
@click.argument("agent", type=_AGENTS)
@click.option("--write", is_flag=True, help="Also let the agent record notes and decisions")
@_options
@click.pass_context
def install(ctx: click.Context, agent: str, write: bool, project: bool, dry_run: bool, yes: bool) -> None:
    """Add rawko's server to the agent's settings. Shows the change, asks, and keeps everything else."""
    from rawko_state.integrations.mcp_install import command as words

    if not dry_run:
        _sdk()  # better now than when the agent starts
    _change(ctx, agent, words(write=write, shared=project), project=project, dry_run=dry_run, yes=yes)


@command.command(examples="rawko mcp uninstall claude-code")
@click.argument("agent", type=_AGENTS)
@_options
@click.pass_context
def uninstall(ctx: click.Context, agent: str, project: bool, dry_run: bool, yes: bool) -> None:
    """Remove rawko's server from the agent's settings. Shows the change, and asks."""
    _change(ctx, agent, None, project=project, dry_run=dry_run, yes=yes)


def _change(
    ctx: click.Context, agent: str, words: list[str] | None, *, project: bool, dry_run: bool, yes: bool
) -> None:
    from rawko_state.cli.printing import visible
    from rawko_state.config.project import find_project
    from rawko_state.errors import StorageError
    from rawko_state.integrations.install import difference, write
    from rawko_state.integrations.mcp_install import changed, settings_file

    root = find_project(override=ctx.find_root().obj) if project else None
    path = settings_file(agent, root)
    try:
        before = path.read_bytes().decode("utf-8") if path.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise StorageError(f"Can't read {path}: {error}.", str(path)) from error
    after = changed(before, path, words)
    if after == before:
        click.echo(f"Nothing to change in {path}.")
        return
    click.echo(visible(difference(before, after, path)), nl=False)
    if dry_run:
        return
    if not yes:
        if not sys.stdin.isatty():
            raise InvalidValue("Nothing was changed: this needs a confirmation. Add --yes to go ahead without one.")
        click.confirm(f"Change {path}?", default=True, abort=True, err=True)
    if words is None and after.strip() in ("", "{}"):
        path.unlink()
        click.echo(f"Deleted {path}: it held nothing else.", err=True)
        return
    write(path, after)
    undo = f"rawko mcp uninstall {agent}{' --project' if project else ''}"
    click.echo(f"Updated {path}." + (f" Undo: {undo}" if words is not None else ""), err=True)
