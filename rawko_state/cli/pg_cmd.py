"""rawko pg: move tasks between a project's files and PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click

from rawko_state.backends.select import open_files, open_postgres
from rawko_state.cli import PageGroup
from rawko_state.cli.printing import warn
from rawko_state.cli.project import REMOTE, files_of, root_of
from rawko_state.lifecycle.moving import Moved, move
from rawko_state.store import TaskFilter

_OPTIONS = (
    click.argument("task_ids", metavar="[ID...]", nargs=-1),
    click.option("--database", metavar="URL", envvar="RAWKO_DATABASE", required=True, help="PostgreSQL database"),
    click.option("--workspace", metavar="NAME", help="Workspace in the database  [default: default]"),
    click.option("--dry-run", "-n", is_flag=True, help="Show what would be copied and change nothing"),
    click.option("--json", "as_json", is_flag=True, help="Print JSON"),
)


@click.group(
    name="pg",
    cls=PageGroup,
    examples="""
    rawko pg push --database postgresql://rawko@db/rawko
    rawko pg pull --database postgresql://rawko@db/rawko --dry-run
    rawko pg push abc123 --database postgresql://rawko@db/rawko --workspace web
    """,
)
def command() -> None:
    """Copy tasks between this project's files and PostgreSQL.

    Only what is new is copied, byte for byte. If a task has changed on both sides, nothing is overwritten: the incoming version
    becomes a task of its own, named after it.
    """


def _with_options(function: Any) -> Any:
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@command.command(examples="rawko pg push --database postgresql://rawko@db/rawko")
@_with_options
@click.pass_context
def push(
    ctx: click.Context, task_ids: tuple[str, ...], database: str, workspace: str | None, dry_run: bool, as_json: bool
) -> None:
    """Copy tasks from this project to the database: those given, or all."""
    _move(ctx, task_ids, database, workspace, dry_run, as_json, push=True)


@command.command(examples="rawko pg pull --database postgresql://rawko@db/rawko")
@_with_options
@click.pass_context
def pull(
    ctx: click.Context, task_ids: tuple[str, ...], database: str, workspace: str | None, dry_run: bool, as_json: bool
) -> None:
    """Copy tasks from the database to this project: those given, or all."""
    _move(ctx, task_ids, database, workspace, dry_run, as_json, push=False)


def _move(
    ctx: click.Context,
    task_ids: tuple[str, ...],
    database: str,
    workspace: str | None,
    dry_run: bool,
    as_json: bool,
    *,
    push: bool,
) -> None:
    named = workspace or ctx.find_root().meta.get("rawko.workspace") or "default"
    ctx.find_root().meta["rawko.workspace"] = None
    # Outside a project, pull makes this folder one, and push has nothing to do.
    files = open_files(root_of(ctx, anywhere=True)) if ctx.find_root().meta.get(REMOTE) is None else files_of(ctx)
    there = open_postgres(database, named, files.root)
    source, target = (files, there) if push else (there, files)
    ids = [source.find(task_id).id for task_id in task_ids] or [task.id for task in source.history(TaskFilter())]
    moved = Moved()
    if dry_run:
        known = {task.id for task in target.history(TaskFilter())}
        moved.new = [task_id for task_id in ids if task_id not in known]
    else:
        for task_id, what, done in move(source, target, ids):
            moved = done
            if what == "forked" and not as_json:
                name = done.forked[task_id]
                click.echo(f"{task_id} has changed on both sides; the incoming version is now {name}.", err=True)
            elif what == "failed" and not as_json:
                warn(done.failed[task_id])
    there.close()
    _report(moved, dry_run, as_json)
    ctx.exit(1 if moved.failed else 0)


def _report(moved: Any, dry_run: bool, as_json: bool) -> None:
    if as_json:
        shown = {"new": moved.new, "grown": moved.grown, "forked": moved.forked, "same": moved.same}
        shown |= {"behind": moved.behind, "failed": moved.failed}
        click.echo(json.dumps({"version": 1, "dry_run": dry_run, **shown}, indent=1))
        return
    parts = list(_parts(moved, dry_run))
    click.echo(", ".join(parts) or "Nothing to copy.")


def _parts(moved: Any, dry_run: bool) -> Iterator[str]:
    yield f"{len(moved.new)} {'would be new' if dry_run else 'new'}"
    if moved.grown:
        yield f"{len(moved.grown)} updated"
    if moved.forked:
        yield f"{len(moved.forked)} changed on both sides"
    if moved.same:
        yield f"{moved.same} unchanged"
    if moved.behind:
        yield f"{moved.behind} newer on the other side"
    if moved.failed:
        yield f"{len(moved.failed)} failed"
