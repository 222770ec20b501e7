"""rawko reindex: the index from the files, anew."""

from __future__ import annotations

import sys

import click

from rawko_state.cli.printing import visible
from rawko_state.cli.project import store_of


@click.command(name="reindex")
@click.pass_context
def command(ctx: click.Context) -> None:
    """Rebuild the index from the task files, beside the old one, and put it in its place.

    Others may read and write meanwhile; it may be interrupted at any moment. Exits with 1 if a file could not be fully read.
    """
    store = store_of(ctx)
    total = 0
    if sys.stderr.isatty():
        with click.progressbar(length=1, label="reindex", file=sys.stderr) as bar:

            def step(done: int, of: int) -> None:
                bar.length = max(1, of)
                bar.update(done - bar.pos)

            problems = store.reindex(step)
    else:
        problems = store.reindex()
    total = store.catalogue.index().count()
    for task_id, problem in problems:
        click.echo(f"rawko: {task_id}: {visible(problem)}", err=True)
    click.echo(f"{total} tasks indexed" + (f", {len(problems)} files with problems" if problems else ""))
    ctx.exit(1 if problems else 0)
