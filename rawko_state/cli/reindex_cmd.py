"""rawko reindex: rebuild the index from the task files."""

from __future__ import annotations

import click

from rawko_state.cli.printing import progress, visible
from rawko_state.cli.project import store_of


@click.command(name="reindex")
@click.option("--search", "only_search", is_flag=True, help="Only take what is new into the search index.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
@click.pass_context
def command(ctx: click.Context, only_search: bool, quiet: bool) -> None:
    """Rebuild the index and the search index from the task files, beside the old ones, and put them in their place.

    Others may read and write meanwhile; it may be interrupted at any moment. Exits with 1 if a file could not be fully read.
    With --remote the server does it (role admin).
    """
    store = store_of(ctx)
    files, taken = (None, None) if quiet else (progress("index "), progress("search"))
    done, problems = 0, []
    if only_search:
        done = store.flush(taken)
    else:
        problems = store.reindex(files, taken)
    for task_id, problem in problems:
        click.echo(f"rawko: {task_id}: {visible(problem)}", err=True)
    if not quiet:
        left = store.unflushed()
        if only_search and not done and left:
            click.echo(f"{left:,} bytes are left: another process is at it, or there is no place for a search index")
        elif only_search:
            click.echo(f"{done:,} bytes taken into the search index")
        else:
            total = len(store.task_ids())
            click.echo(f"{total} tasks indexed" + (f", {len(problems)} files with problems" if problems else ""))
    ctx.exit(1 if problems else 0)
