"""rawko reindex: the index from the files, anew."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import click

from rawko_state.cli.printing import visible
from rawko_state.cli.project import files_of


@click.command(name="reindex")
@click.option("--search", "only_search", is_flag=True, help="Only take what is new into the search index.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
@click.pass_context
def command(ctx: click.Context, only_search: bool, quiet: bool) -> None:
    """Rebuild the index and the search index from the task files, beside the old ones, and put them in their place.

    Others may read and write meanwhile; it may be interrupted at any moment. Exits with 1 if a file could not be fully read.
    """
    store = files_of(ctx)
    with _bars(quiet) as (files, taken):
        if only_search:
            done = store.flush(taken)
            problems = []
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


Step = Callable[[int, int], None]


@contextmanager
def _bars(quiet: bool) -> Iterator[tuple[Step | None, Step | None]]:
    """Two progress bars, one after the other, where there is somebody to see them."""
    if quiet or not sys.stderr.isatty():
        yield None, None
        return
    with ExitStack() as stack:

        def bar(label: str) -> Step:
            shown: list[Any] = []

            def step(done: int, of: int) -> None:
                if not shown:
                    made = click.progressbar(length=max(1, of), label=label, file=sys.stderr)
                    shown.append(stack.enter_context(made))
                shown[0].length = max(1, of)
                shown[0].update(done - shown[0].pos)

            return step

        yield bar("index "), bar("search")
