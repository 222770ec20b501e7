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
from rawko_state.cli.printing import visible
from rawko_state.config import settings as layers
from rawko_state.config.change import put
from rawko_state.config.project import find_project
from rawko_state.config.schema import BY_KEY, DURATION, SETTINGS, write_duration
from rawko_state.errors import InvalidValue, NoProject


@click.group(name="config")
def command() -> None:
    """Show and change settings.

    Later ones win: the system's, the user's, the project's (.rawko/config.yaml), the user's for this project
    (.rawko/config.user.yaml), the environment (RAWKO_…), options.
    """


def _root(ctx: click.Context) -> Path | None:
    try:
        return find_project(override=ctx.find_root().obj)
    except NoProject:
        return None


def _loaded(ctx: click.Context) -> layers.Settings:
    found = layers.load(_root(ctx))
    for problem in found.problems:
        click.echo(f"rawko: {visible(str(problem))}", err=True)
    return found


def _where(function: Any) -> Any:
    """Adds the options that choose a file."""
    for name, help_text in (
        ("user", "The user's file, for all projects (the default)."),
        ("project", "The project's file, shared with others."),
        ("project-user", "The user's file for this project."),
        ("system", "The system's file."),
    ):
        function = click.option(f"--{name}", "layer", flag_value=name, help=help_text)(function)
    return function


def _file(ctx: click.Context, layer: str | None) -> Path:
    root = _root(ctx)
    layer = layer or "user"
    if layer.startswith("project") and root is None:
        raise NoProject("no project around this folder: --project and --project-user have no file here")
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


@command.command(name="list")
@click.option("--origin", is_flag=True, help="Also the file and line, or the variable, that each comes from.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.pass_context
def list_command(ctx: click.Context, origin: bool, as_json: bool) -> None:
    """All settings as they are here."""
    found = _loaded(ctx)
    if as_json:
        shown = {s.key: {"value": found[s.key], "origin": found.value(s.key).origin} for s in SETTINGS}
        click.echo(json.dumps(shown, indent=1))
        return
    width = max(len(setting.key) for setting in SETTINGS)
    for setting in SETTINGS:
        value = found.value(setting.key)
        click.echo(
            f"{setting.key:{width}}  {_shown(setting.key, value.value)}"
            + (f"  ({visible(value.origin)})" if origin else "")
        )


@command.command()
@click.argument("key")
@click.pass_context
def get(ctx: click.Context, key: str) -> None:
    """One setting, and nothing else. Exits with 1 if it has no value."""
    value = _loaded(ctx)[key]
    if value is None:
        ctx.exit(1)
    click.echo(_shown(key, value))


@command.command(name="set")
@click.argument("key")
@click.argument("value")
@_where
@click.pass_context
def set_command(ctx: click.Context, key: str, value: str, layer: str | None) -> None:
    """Set one, leaving the rest of its file as it stands."""
    if layer in ("project", "project-user") and key in BY_KEY and BY_KEY[key].own_only:
        raise InvalidValue(f"{key} {layers.OWN_ONLY}; use --user")
    path = _file(ctx, layer)
    put(path, key, value)
    _follow(ctx, key)
    click.echo(f"{key} is {_shown(key, _loaded(ctx)[key])} here; written to {path}", err=True)


@command.command()
@click.argument("key")
@_where
@click.pass_context
def unset(ctx: click.Context, key: str, layer: str | None) -> None:
    """Take one out of its file."""
    path = _file(ctx, layer)
    put(path, key, None)
    _follow(ctx, key)
    click.echo(f"{key} is {_shown(key, _loaded(ctx)[key])} here", err=True)


def _follow(ctx: click.Context, key: str) -> None:
    """Applies settings that are also stored elsewhere."""
    if key == "state.share":
        with contextlib.suppress(NoProject):  # then it applies to future projects
            apply_sharing(find_project(override=ctx.find_root().obj))


@command.command()
@_where
@click.pass_context
def edit(ctx: click.Context, layer: str | None) -> None:
    """Open a file in $VISUAL or $EDITOR, then check it."""
    path = _file(ctx, layer)
    path.parent.mkdir(parents=True, exist_ok=True)
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        done = subprocess.run([*shlex.split(editor), str(path)])
    except (OSError, ValueError) as error:
        raise InvalidValue(f"{editor!r} cannot be run: {error}") from None
    if done.returncode:
        raise InvalidValue(f"{editor!r} ended with exit code {done.returncode}")
    ctx.invoke(check)


@command.command()
@click.pass_context
def check(ctx: click.Context) -> None:
    """Look at all files and variables. Exits with 1 if something is wrong, and says where and what was expected."""
    found = _loaded(ctx)
    if not found.problems:
        files = [path for path in layers.files(_root(ctx)).values() if path.exists()]
        click.echo(f"{len(files)} files, {len(found.values)} of {len(BY_KEY)} settings given: all is well")
    ctx.exit(1 if found.problems else 0)
