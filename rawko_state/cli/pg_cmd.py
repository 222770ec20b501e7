"""rawko pg: move tasks between a project's files and PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click

from rawko_state.backends.select import open_files, open_postgres
from rawko_state.cli.printing import visible
from rawko_state.cli.project import REMOTE, files_of, root_of
from rawko_state.lifecycle.moving import Moved, move
from rawko_state.store import TaskFilter

_OPTIONS = (
    click.argument("task_ids", metavar="[ID...]", nargs=-1),
    click.option("--database", metavar="URL", envvar="RAWKO_DATABASE", required=True, help="postgresql://…"),
    click.option("--workspace", help="Of the database; default is 'default'."),
    click.option("--dry-run", "-n", is_flag=True, help="Say what would be moved, and move nothing."),
    click.option("--json", "as_json", is_flag=True, help="One JSON object."),
)


@click.group(name="pg")
def command() -> None:
    """Move tasks between the files here and PostgreSQL, both ways, byte for byte, and only what is new.

    A task that has grown on both sides is not overwritten: what comes becomes a task of its own, named after it.
    """


def _with_options(function: Any) -> Any:
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@command.command()
@_with_options
@click.pass_context
def push(
    ctx: click.Context, task_ids: tuple[str, ...], database: str, workspace: str | None, dry_run: bool, as_json: bool
) -> None:
    """Bring tasks from the files here into the database: some, or all."""
    _move(ctx, task_ids, database, workspace, dry_run, as_json, push=True)


@command.command()
@_with_options
@click.pass_context
def pull(
    ctx: click.Context, task_ids: tuple[str, ...], database: str, workspace: str | None, dry_run: bool, as_json: bool
) -> None:
    """Bring tasks from the database into the files here: some, or all."""
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
                click.echo(f"{task_id} has grown on both sides: what came is {name} there", err=True)
            elif what == "failed" and not as_json:
                click.echo(f"rawko: {visible(done.failed[task_id])}", err=True)
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
    click.echo(", ".join(parts) or "nothing to move")


def _parts(moved: Any, dry_run: bool) -> Iterator[str]:
    yield f"{len(moved.new)} {'would be new' if dry_run else 'new'}"
    if moved.grown:
        yield f"{len(moved.grown)} have grown"
    if moved.forked:
        yield f"{len(moved.forked)} had grown on both sides"
    if moved.same:
        yield f"{moved.same} there already"
    if moved.behind:
        yield f"{moved.behind} of which there is more on the other side"
    if moved.failed:
        yield f"{len(moved.failed)} failed"
