"""rawko hook: record what an agent does, through its own hooks."""

from __future__ import annotations

import json

import click

_AGENTS = click.Choice(["claude-code", "codex"])


@click.group(name="hook")
def command() -> None:
    """Record what Claude Code or Codex does, by their own hooks.

    \b
    rawko hook install claude-code             # in all projects; --project: in this one
    rawko hook install codex
    """


@command.command()
@click.argument("agent", type=_AGENTS)
@click.argument("event", required=False)
def run(agent: str, event: str | None) -> None:
    """What the agent calls, with an event as JSON on standard input, or as EVENT. Never fails; trouble is in `rawko doctor`."""
    from rawko_state.integrations import hook_event

    hook_event.run(agent, event)


@command.command(hidden=True)
@click.pass_context
def sweep(ctx: click.Context) -> None:
    """Record what the hooks have told of. Started by them."""
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
            raise StorageError(f"cannot read {path}: {error}", str(path)) from error
        changes.append((path, before, changed(agent, before, path, install=install)))
    # All of them are read and checked before the first is written.
    for path, before, after in changes:
        if (not install and not before) or _same(before, after):
            click.echo(f"nothing to change in {path}")
            continue
        click.echo(visible(difference(before, after, path)), nl=False)
        if not dry_run and not install and _is_nothing(after):
            path.unlink()
            click.echo(f"{path} held nothing else, and is gone", err=True)
        elif not dry_run:
            write(path, after)
            undo = f"rawko hook uninstall {agent}{' --project' if project else ''}"
            click.echo(f"written to {path}" + (f"; undo: {undo}" if install else ""), err=True)
    if agent == "codex" and install and not dry_run:
        click.echo(
            "Codex asks once whether you trust these hooks; until then it reports finished turns only.", err=True
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
        click.option("--user", "project", flag_value=False, default=False, type=bool, help="For all projects (the default)."),
        click.option("--project", "project", flag_value=True, type=bool, help="The settings of this project."),
        click.option("--dry-run", "-n", is_flag=True, help="Show the change, and make none."),
    ):  # fmt: skip
        function = option(function)
    return function


@command.command()
@click.argument("agent", type=_AGENTS)
@_options
@click.pass_context
def install(ctx: click.Context, agent: str, project: bool, dry_run: bool) -> None:
    """Put the hooks into the agent's settings. Shows the change, and keeps what is there."""
    _change(ctx, agent, project, dry_run, install=True)


@command.command()
@click.argument("agent", type=_AGENTS)
@_options
@click.pass_context
def uninstall(ctx: click.Context, agent: str, project: bool, dry_run: bool) -> None:
    """Take the hooks out of the agent's settings again."""
    _change(ctx, agent, project, dry_run, install=False)
