"""rawko hook: record what an agent does, through its own hooks."""

from __future__ import annotations

import json

import click

from rawko_state.cli import PageGroup

_NAMES = {"claude-code": "Claude Code", "codex": "Codex"}
_AGENTS = click.Choice(list(_NAMES))


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


def _change(ctx: click.Context, agent: str, project: bool, dry_run: bool, yes: bool, *, install: bool) -> None:
    from rawko_state.cli.printing import visible
    from rawko_state.cli.project import with_tilde
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
        # All of them are read and checked before the first is written.
        after = changed(agent, before, path, install=install)
        if (not install and not before) or _same(before, after):
            click.echo(f"Nothing to change in {with_tilde(path)}.")
        else:
            changes.append((path, before, after))
    for path, before, after in changes:
        if dry_run:
            click.echo(visible(difference(before, after, path)), nl=False)
        else:
            click.echo(_told(agent, with_tilde(path), path.suffix == ".toml", install=install))
    if dry_run or not changes or not _agreed(yes):
        return
    for path, _, after in changes:
        if not install and _is_nothing(after):
            path.unlink()
            click.echo(f"Deleted {with_tilde(path)}: it held nothing else.", err=True)
        else:
            write(path, after)
    where = " --project" if project else ""
    if install:
        undo = f"rawko hook uninstall {agent}{where}"
        click.echo(f"New {_NAMES[agent]} sessions are recorded. Undo: {undo}", err=True)
        if agent == "codex":
            click.echo(
                "Codex asks once whether you trust these hooks. Until then it reports finished turns only.", err=True
            )
    else:
        click.echo(f"New {_NAMES[agent]} sessions are no longer recorded.", err=True)


def _told(agent: str, path: str, notify: bool, *, install: bool) -> str:
    """What will change, in a line or two. The exact change is many lines of JSON: --dry-run shows it."""
    if notify:
        return f"This {'sets' if install else 'removes'} 'notify' in {path}."
    from textwrap import fill

    from rawko_state.integrations.install import EVENTS

    events = EVENTS[agent]
    verb = f"adds rawko to {len(events)} events in" if install else "removes rawko from"
    listed = fill(", ".join(events), 78, initial_indent="  ", subsequent_indent="  ") if install else ""
    return f"This {verb} {path}{':' if install else '.'}" + (f"\n{listed}" if listed else "")


def _agreed(yes: bool) -> bool:
    """Asks on a terminal. Elsewhere the command itself is the answer: the change adds something, and can be undone."""
    import sys

    if yes or not (sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    return click.confirm("Write it?", default=True, err=True)


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
        click.option("--yes", "-y", is_flag=True, help="Don't ask"),
        click.option("--dry-run", "-n", is_flag=True, help="Show the exact change without making it"),
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
def install(ctx: click.Context, agent: str, project: bool, dry_run: bool, yes: bool) -> None:
    """Add rawko's hooks to the agent's settings. Everything else in them is kept."""
    _change(ctx, agent, project, dry_run, yes, install=True)


@command.command(examples="rawko hook uninstall claude-code")
@click.argument("agent", type=_AGENTS)
@_options
@click.pass_context
def uninstall(ctx: click.Context, agent: str, project: bool, dry_run: bool, yes: bool) -> None:
    """Remove rawko's hooks from the agent's settings."""
    _change(ctx, agent, project, dry_run, yes, install=False)
