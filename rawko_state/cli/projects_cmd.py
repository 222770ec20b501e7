"""rawko projects: the projects where rawko has been used."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import click

from rawko_state.backends.select import learn_of, user_state
from rawko_state.cli.printing import visible
from rawko_state.cli.times import local
from rawko_state.errors import NoProject


@click.group(name="projects", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """The projects in which rawko was used; `rawko history --all-projects` looks into all of them.

    A project is learned of when a command is run in it.
    """
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_command)


@command.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def list_command(as_json: bool = False) -> None:
    """All of them, the last used first. One that was moved or removed is marked as gone."""
    with user_state() as user:
        found = user.projects()
    if as_json:
        rows = [{**each._asdict(), "exists": is_there(each.root)} for each in found]
        click.echo(json.dumps({"version": 1, "projects": rows}, indent=1))
        return
    for each in found:
        gone = "" if is_there(each.root) else click.style("  gone: moved or removed", fg="red")
        click.echo(f"{local(each.seen)}  {each.vcs:4} {visible(each.root)}{gone}")
    if not found:
        click.echo("none yet: one is learned of when a command is run in it, or by 'rawko projects scan DIR'", err=True)


def is_there(root: str) -> bool:
    return os.path.isdir(os.path.join(root, ".rawko", "state"))


@command.command()
@click.argument("folders", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False, path_type=Path))
def add(folders: tuple[Path, ...]) -> None:
    """Learn of projects: folders with .rawko in them."""
    for folder in folders:
        root = folder.resolve()
        if not (root / ".rawko").is_dir():
            raise NoProject(f"{root} is no project: it has no .rawko folder")
        learn_of(root)
        click.echo(str(root))


@command.command()
@click.argument("folders", nargs=-1, type=click.Path(path_type=Path))
@click.option("--gone", is_flag=True, help="All that are not there any more.")
def forget(folders: tuple[Path, ...], gone: bool) -> None:
    """Forget projects. Their files stay."""
    with user_state() as user:
        chosen = [str(folder.resolve()) for folder in folders]
        chosen += [each.root for each in user.projects() if gone and not is_there(each.root)]
        unknown = [root for root in chosen if not user.forget_project(root)]
    if unknown:
        raise NoProject(f"not known as a project: {', '.join(unknown)}")
    click.echo(f"{len(chosen)} forgotten", err=True)


@command.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--depth", type=click.IntRange(0, 20), default=4, show_default=True, help="How deep to look.")
def scan(folder: Path, depth: int) -> None:
    """Look for projects below DIR."""
    count = 0
    for root in _below(folder.resolve(), depth):
        learn_of(root)
        click.echo(str(root))
        count += 1
    click.echo(f"{count} found", err=True)


def _below(folder: Path, depth: int) -> Iterator[Path]:
    if (folder / ".rawko" / "state").is_dir():
        yield folder
    if depth == 0:
        return
    try:
        entries = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False))
    except OSError:
        return
    for name in entries:
        if not name.startswith(".") and name not in ("node_modules", "__pycache__"):
            yield from _below(folder / name, depth - 1)
