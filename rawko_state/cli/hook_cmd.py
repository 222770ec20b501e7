"""rawko hook: record what an agent does, through its own hooks."""

from __future__ import annotations

import json

import click

from rawko_state.cli import PageGroup

_AGENTS = click.Choice(["claude-code", "codex"])


@click.group(
    name="hook",
    cls=PageGroup,
    examples="""
    rawko hook install claude-code
    rawko hook install codex --project
    rawko hook uninstall claude-code
    """,
)
def command() -> None:
    """Record Claude Code or Codex automatically, through their hooks."""


@command.command(examples="rawko hook run claude-code < event.json")
@click.argument("agent", type=_AGENTS)
@click.argument("event", required=False)
def run(agent: str, event: str | None) -> None:
    """Called by the agent, with an event as JSON on standard input or as EVENT.

    Always succeeds; problems are reported by 'rawko doctor'.
    """
    from rawko_state.integrations import hook_event

    hook_event.run(agent, event)


@command.command(hidden=True)
@click.pass_context
def sweep(ctx: click.Context) -> None:
    """Record the events that hooks have collected. Started by the hooks."""
    from rawko_state.backends.select import open_files
    from rawko_state.config.project import find_project
    from rawko_state.integrations import hooks

    hooks.sweep(open_files(find_project(override=ctx.find_root().obj)))


def _change(ctx: click.Context, agent: str, project: bool, dry_run: bool, *, install: bool) -> None:
    from rawko_state.cli.printing import visible
    from rawko_state.config.project import find_project
    from rawko_state.errors import StorageError
    from rawko_state.integrations.install import changed, difference, settings_files, write

    root = find_project(override=ctx.find_root().obj) if project else None
    changes = []
    for path in settings_files(agent, root):
        try:
            before = path.read_bytes().decode("utf-8") if path.exists() else ""
        except (OSError, UnicodeDecodeError) as error:
            raise StorageError(f"Can't read {path}: {error}.", str(path)) from error
        changes.append((path, before, changed(agent, before, path, install=install)))
    # All of them are read and checked before the first is written.
    for path, before, after in changes:
        if (not install and not before) or _same(before, after):
            click.echo(f"Nothing to change in {path}.")
            continue
        click.echo(visible(difference(before, after, path)), nl=False)
        if not dry_run and not install and _is_nothing(after):
            path.unlink()
            click.echo(f"Deleted {path}: it held nothing else.", err=True)
        elif not dry_run:
            write(path, after)
            undo = f"rawko hook uninstall {agent}{' --project' if project else ''}"
            click.echo(f"Updated {path}." + (f" Undo: {undo}" if install else ""), err=True)
    if agent == "codex" and install and not dry_run:
        click.echo(
            "Codex asks once whether you trust these hooks. Until then it reports finished turns only.", err=True
        )


def _is_nothing(text: str) -> bool:
    """Whether the settings are empty, as they were before install()."""
    return text.strip() in ("", "{}")


def _same(before: str, after: str) -> bool:
    try:
        return bool(json.loads(before) == json.loads(after))
    except ValueError:
        return before == after


def _options(function: click.decorators.FC) -> click.decorators.FC:
    for option in (
        click.option("--user", "project", flag_value=False, default=False, type=bool, help="For all your projects (default)"),
        click.option("--project", "project", flag_value=True, type=bool, help="For this project only"),
        click.option("--dry-run", "-n", is_flag=True, help="Show the change without making it"),
    ):  # fmt: skip
        function = option(function)
    return function


@command.command(
    examples="""
    rawko hook install claude-code
    rawko hook install codex --dry-run
    """
)
@click.argument("agent", type=_AGENTS)
@_options
@click.pass_context
def install(ctx: click.Context, agent: str, project: bool, dry_run: bool) -> None:
    """Add rawko's hooks to the agent's settings. Shows the change, and keeps everything else."""
    _change(ctx, agent, project, dry_run, install=True)


@command.command(examples="rawko hook uninstall claude-code")
@click.argument("agent", type=_AGENTS)
@_options
@click.pass_context
def uninstall(ctx: click.Context, agent: str, project: bool, dry_run: bool) -> None:
    """Remove rawko's hooks from the agent's settings."""
    _change(ctx, agent, project, dry_run, install=False)
