"""rawko reindex: rebuild the index from the task files."""

from __future__ import annotations

import click

from rawko_state.cli import Page
from rawko_state.cli.printing import counted, progress, size_text, warn
from rawko_state.cli.project import store_of


@click.command(
    name="reindex",
    cls=Page,
    examples="""
    rawko reindex
    rawko reindex --search
    rawko -C ~/src/shop reindex --quiet
    """,
)
@click.option("--search", "only_search", is_flag=True, help="Only add what is new to the search index")
@click.option("--quiet", is_flag=True, help="Print errors only")
@click.pass_context
def command(ctx: click.Context, only_search: bool, quiet: bool) -> None:
    """Rebuild the index and the search index from the task files.

    Other processes can keep reading and writing, and you can interrupt it at any time. Exits with 1 if a file could not be read
    completely.
    With --remote, the server does it (role admin).
    """
    store = store_of(ctx)
    files, taken = (None, None) if quiet else (progress("Indexing", "files"), progress("Updating the search index"))
    done, problems = 0, []
    if only_search:
        done = store.flush(taken)
    else:
        problems = store.reindex(files, taken)
    for task_id, problem in problems:
        warn(f"warning: {task_id}: {problem}")
    if not quiet:
        left = store.unflushed()
        if only_search and not done and left:
            click.echo(
                f"{size_text(left)} are not in the search index yet: another process is updating it, or it can't be written."
            )
        elif only_search:
            click.echo(f"Added {size_text(done)} to the search index.")
        else:
            total = counted(len(store.task_ids()), "task")
            wrong = f" Files with problems: {len(problems)}." if problems else ""
            click.echo(f"Indexed {total}.{wrong}")
    ctx.exit(1 if problems else 0)
