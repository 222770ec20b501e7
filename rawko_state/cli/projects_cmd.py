"""rawko projects: the projects where rawko has been used."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import click

from rawko_state.backends.select import learn_of, open_files, user_state
from rawko_state.cli import PageGroup
from rawko_state.cli.printing import counted, is_terminal, say, table, visible
from rawko_state.cli.project import with_tilde
from rawko_state.cli.times import ago
from rawko_state.errors import NoProject, RawkoError


@click.group(
    name="projects",
    cls=PageGroup,
    invoke_without_command=True,
    examples="""
    rawko projects
    rawko projects scan ~/src
    rawko history --all-projects --since monday
    """,
)
@click.pass_context
def command(ctx: click.Context) -> None:
    """List the projects on this machine that use rawko.

    A project is listed once you have used rawko in it. 'rawko history --all-projects' covers all of them.
    """
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_command)


@command.command(name="list", examples="rawko projects list\nrawko projects list --json")
@click.option("--json", "as_json", is_flag=True, help="Print JSON")
def list_command(as_json: bool = False) -> None:
    """List projects, the last used first. Missing ones are marked."""
    with user_state() as user:
        found = user.projects()
    if as_json:
        rows = [{**each._asdict(), "exists": is_there(each.root)} for each in found]
        click.echo(json.dumps({"version": 1, "projects": rows}, indent=1))
        return
    if not found:
        click.echo("No projects yet.\n  Find them: rawko projects scan DIR", err=True)
    elif is_terminal():
        shown = [[with_tilde(each.root), *tasks_in(each.root)] for each in found]
        say(table(["PROJECT", "TASKS", "LAST ACTIVE"], shown, right=[1]))
    else:
        for each in found:
            click.echo(f"{visible(each.root)}\t{each.seen}\t{'' if is_there(each.root) else 'gone'}".rstrip())


def tasks_in(root: str) -> tuple[str, str]:
    """How many tasks a project has, and when one was last active; ``-`` for what is not known."""
    from rawko_state.store import TaskFilter

    if not is_there(root):
        return "-", "gone (moved or deleted)"
    try:
        with open_files(root) as store:
            newest = store.history(TaskFilter(limit=1))
            return f"{store.count(TaskFilter()):,}", ago(newest[0].updated) if newest else "-"
    except RawkoError:
        return "-", "-"


def is_there(root: str) -> bool:
    return os.path.isdir(os.path.join(root, ".rawko", "state"))


@command.command(examples="rawko projects add ~/src/shop ~/src/site")
@click.argument("folders", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False, path_type=Path))
def add(folders: tuple[Path, ...]) -> None:
    """Add projects to the list."""
    for folder in folders:
        root = folder.resolve()
        if not (root / ".rawko").is_dir():
            raise NoProject(f"{root} is not a project: it has no .rawko folder.")
        learn_of(root)
        click.echo(str(root))


@command.command(examples="rawko projects forget ~/src/old-shop\nrawko projects forget --gone")
@click.argument("folders", nargs=-1, type=click.Path(path_type=Path))
@click.option("--gone", is_flag=True, help="All that no longer exist")
def forget(folders: tuple[Path, ...], gone: bool) -> None:
    """Remove projects from the list. Their files stay."""
    with user_state() as user:
        chosen = [str(folder.resolve()) for folder in folders]
        chosen += [each.root for each in user.projects() if gone and not is_there(each.root)]
        unknown = [root for root in chosen if not user.forget_project(root)]
    if unknown:
        raise NoProject(f"Not in the list: {', '.join(unknown)}.")
    click.echo(f"Removed {counted(len(chosen), 'project')} from the list.", err=True)


@command.command(examples="rawko projects scan ~/src\nrawko projects scan ~ --depth 2")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--depth", type=click.IntRange(0, 20), default=4, show_default=True, metavar="N", help="How many levels to search"
)
def scan(folder: Path, depth: int) -> None:
    """Find projects in FOLDER and add them to the list."""
    count = 0
    for root in _below(folder.resolve(), depth):
        learn_of(root)
        click.echo(str(root))
        count += 1
    click.echo(f"Found {counted(count, 'project')}.", err=True)


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
