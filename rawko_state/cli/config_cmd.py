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

from rawko_state.backends import select
from rawko_state.cli import PageGroup
from rawko_state.cli.completing import complete_settings
from rawko_state.cli.printing import counted, is_terminal, say, table, visible, warn
from rawko_state.cli.project import with_tilde
from rawko_state.config import settings as layers
from rawko_state.config.change import parse_value, place_of, put
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
    return write_duration(value) if place_of(key).setting.type is DURATION else visible(str(value))


def _current(ctx: click.Context, key: str) -> Any:
    place = place_of(key)
    return place.read(_loaded(ctx)[place.setting.key])


def _short(ctx: click.Context, path: Path) -> str:
    """A settings file as people name it: within the project, or with ~."""
    root = _root(ctx)
    return visible(str(path.relative_to(root))) if root is not None and path.is_relative_to(root) else with_tilde(path)


def _overruled(ctx: click.Context, key: str, path: Path) -> None:
    """Warns if what a file says has no effect here, as another layer wins."""
    found = _loaded(ctx).value(place_of(key).setting.key)
    file, _, line = found.origin.rpartition(":")
    if found.origin == "default" or Path(file if line.isdecimal() else found.origin) == path:
        return
    origin = found.origin if not line.isdecimal() else _short(ctx, Path(file))
    warn(f"warning: It has no effect here: {origin} sets it to {_shown(key, _current(ctx, key))}.")


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
        origins = [_short(ctx, Path(value.origin)) if is_terminal() else visible(value.origin)] if origin else []
        rows.append([setting.key, _shown(setting.key, value.value), *origins])
    if is_terminal():
        say(table(["KEY", "VALUE", *(["FROM"] if origin else [])], rows))
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
    value = _current(ctx, key)
    if value is None:
        ctx.exit(1)
    click.echo(_shown(key, value))


@command.command(
    name="set",
    examples="""
    rawko config set user.name ann
    rawko config set state.retention.max_age 90d --project
    rawko config set redact.patterns.acme-token 'acme_[0-9a-f]{32}'
    """,
)
@click.argument("key", shell_complete=complete_settings)
@click.argument("value")
@_where
@click.pass_context
def set_command(ctx: click.Context, key: str, value: str, layer: str | None) -> None:
    """Set one setting. The rest of the file stays unchanged.

    For a setting that is a mapping, give the name after a dot: redact.patterns.NAME, runners.NAME.
    """
    if layer in ("project", "project-user") and place_of(key).setting.own_only:
        raise InvalidValue(f"{key} can't be set for a project: it {layers.OWN_ONLY}. Use --user.")
    if key.startswith("redact.patterns."):
        parse_value(key, value)
        select.check_own_pattern(value)
    path = _file(ctx, layer)
    was = _current(ctx, key)
    put(path, key, value)
    _follow(ctx, key)
    now = _current(ctx, key)
    before = "" if was is None or was == now else f" (was {_shown(key, was)})"
    click.echo(f"Set {key} to {visible(value)} in {_short(ctx, path)}{before}.", err=True)
    _overruled(ctx, key, path)


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
    now = _current(ctx, key)
    left = "It is not set now." if now in (None, (), {}) else f"It is now {_shown(key, now)}."
    click.echo(f"Removed {key} from {_short(ctx, path)}. {left}", err=True)
    _overruled(ctx, key, path)


def _follow(ctx: click.Context, key: str) -> None:
    """Applies settings that are also stored elsewhere."""
    if key == "state.share":
        with contextlib.suppress(NoProject):  # then it applies to future projects
            select.apply_sharing(find_project(override=ctx.find_root().obj))


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
    """Check all settings files and variables, and your own redaction patterns. Exits with 1 if something is wrong."""
    found = _loaded(ctx)
    problems = select.own_pattern_problems(found)
    for problem in problems:
        warn(f"warning: {problem}")
    if not found.problems and not problems:
        files = [path for path in layers.files(_root(ctx)).values() if path.exists()]
        given = f"{len(found.values)} of {counted(len(BY_KEY), 'setting')} set"
        click.echo(f"No problems: {counted(len(files), 'file')}, {given}.")
    ctx.exit(1 if found.problems or problems else 0)
