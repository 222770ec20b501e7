"""rawko config: settings, and where each comes from."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import click

from rawko_state.backends.select import apply_sharing
from rawko_state.cli import PageGroup
from rawko_state.cli.printing import counted, is_terminal, table, visible, warn
from rawko_state.cli.project import complete_settings
from rawko_state.config import settings as layers
from rawko_state.config.change import put
from rawko_state.config.project import find_project
from rawko_state.config.schema import BY_KEY, DURATION, SETTINGS, write_duration
from rawko_state.errors import InvalidValue, NoProject, RawkoError


@click.group(
    name="config",
    cls=PageGroup,
    examples="""
    rawko config list
    rawko config set state.retention.max_age 90d --project
    rawko config list --origin
    """,
)
def command() -> None:
    """Show and change settings.

    Later layers win: system, user, project (.rawko/config.yaml), your own for this project (.rawko/config.user.yaml),
    environment (RAWKO_…), options.
    """


def _root(ctx: click.Context) -> Path | None:
    try:
        return find_project(override=ctx.find_root().obj)
    except NoProject:
        return None


def _loaded(ctx: click.Context) -> layers.Settings:
    found = layers.load(_root(ctx))
    for problem in found.problems:
        warn(f"warning: {problem}")
    return found


def _where(function: Any) -> Any:
    """Adds the options that choose a file."""
    for name, help_text in (
        ("user", "Your settings, for all projects (default)"),
        ("project", "The project's settings, shared with others"),
        ("project-user", "Your settings for this project"),
        ("system", "System settings"),
    ):
        function = click.option(f"--{name}", "layer", flag_value=name, help=help_text)(function)
    return function


def _file(ctx: click.Context, layer: str | None) -> Path:
    root = _root(ctx)
    layer = layer or "user"
    if layer.startswith("project") and root is None:
        raise NoProject("Not in a project, so --project and --project-user have no file.")
    return layers.files(root)[layer]


def _shown(key: str, value: Any) -> str:
    """The value as it would be written in a file."""
    if value is None or value == () or value == {}:
        return "-"
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, tuple):
        return visible(", ".join(value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return write_duration(value) if BY_KEY[key].type is DURATION else visible(str(value))


@command.command(
    name="list",
    examples="""
    rawko config list
    rawko config list --origin
    rawko config list --json
    """,
)
@click.option("--origin", is_flag=True, help="Show where each value comes from")
@click.option("--json", "as_json", is_flag=True, help="Print JSON")
@click.pass_context
def list_command(ctx: click.Context, origin: bool, as_json: bool) -> None:
    """List settings and their values."""
    found = _loaded(ctx)
    if as_json:
        shown = {s.key: {"value": found[s.key], "origin": found.value(s.key).origin} for s in SETTINGS}
        click.echo(json.dumps({"version": 1, **shown}, indent=1))
        return
    rows = []
    for setting in SETTINGS:
        value = found.value(setting.key)
        rows.append([setting.key, _shown(setting.key, value.value), *([visible(value.origin)] if origin else [])])
    if is_terminal():
        click.echo("\n".join(table(["KEY", "VALUE", *(["FROM"] if origin else [])], rows)))
    else:
        click.echo("\n".join("\t".join(row) for row in rows))


@command.command(
    examples="""
    rawko config get resume.budget
    rawko config get state.retention.max_age || echo "not set"
    """
)
@click.argument("key", shell_complete=complete_settings)
@click.pass_context
def get(ctx: click.Context, key: str) -> None:
    """Print one setting. Exits with 1 if it is not set."""
    value = _loaded(ctx)[key]
    if value is None:
        ctx.exit(1)
    click.echo(_shown(key, value))


@command.command(
    name="set",
    examples="""
    rawko config set user.name ann
    rawko config set state.retention.max_age 90d --project
    """,
)
@click.argument("key", shell_complete=complete_settings)
@click.argument("value")
@_where
@click.pass_context
def set_command(ctx: click.Context, key: str, value: str, layer: str | None) -> None:
    """Set one setting. The rest of the file stays unchanged."""
    if layer in ("project", "project-user") and key in BY_KEY and BY_KEY[key].own_only:
        raise InvalidValue(f"{key} can't be set for a project: it {layers.OWN_ONLY}. Use --user.")
    path = _file(ctx, layer)
    put(path, key, value)
    _follow(ctx, key)
    now = _shown(key, _loaded(ctx)[key])
    click.echo(f"Set {key} in {path}. Its value here is now {now}.", err=True)


@command.command(
    examples="""
    rawko config unset user.name
    rawko config unset state.retention.max_age --project
    """
)
@click.argument("key", shell_complete=complete_settings)
@_where
@click.pass_context
def unset(ctx: click.Context, key: str, layer: str | None) -> None:
    """Remove one setting from its file."""
    path = _file(ctx, layer)
    put(path, key, None)
    _follow(ctx, key)
    click.echo(f"Removed {key}. Its value here is now {_shown(key, _loaded(ctx)[key])}.", err=True)


def _follow(ctx: click.Context, key: str) -> None:
    """Applies settings that are also stored elsewhere."""
    if key == "state.share":
        with contextlib.suppress(NoProject):  # then it applies to future projects
            apply_sharing(find_project(override=ctx.find_root().obj))


@command.command(
    examples="""
    rawko config edit
    EDITOR=nano rawko config edit --project
    """
)
@_where
@click.pass_context
def edit(ctx: click.Context, layer: str | None) -> None:
    """Edit a settings file in $VISUAL or $EDITOR, then check it."""
    path = _file(ctx, layer)
    path.parent.mkdir(parents=True, exist_ok=True)
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        done = subprocess.run([*shlex.split(editor), str(path)])
    except (OSError, ValueError) as error:
        raise RawkoError(f"Can't run {editor}: {error}.") from None
    if done.returncode:
        raise RawkoError(f"{editor} exited with code {done.returncode}.")
    ctx.invoke(check)


@command.command(
    examples="""
    rawko config check
    rawko -C ~/src/shop config check
    """
)
@click.pass_context
def check(ctx: click.Context) -> None:
    """Check all settings files and variables. Exits with 1 if something is wrong."""
    found = _loaded(ctx)
    if not found.problems:
        files = [path for path in layers.files(_root(ctx)).values() if path.exists()]
        given = f"{len(found.values)} of {counted(len(BY_KEY), 'setting')} set"
        click.echo(f"No problems: {counted(len(files), 'file')}, {given}.")
    ctx.exit(1 if found.problems else 0)
