"""rawko cancel: cancel a task; the store tells the process that runs it."""

from __future__ import annotations

import click

from rawko_state.cli import Page
from rawko_state.cli.completing import complete_unfinished
from rawko_state.cli.project import stop_tasks


@click.command(
    name="cancel",
    cls=Page,
    examples="""
    rawko cancel abc123
    rawko cancel abc123 --reason "asked for the wrong thing"
    rawko history --ids --status waiting | xargs rawko cancel
    """,
)
@click.argument("task_ids", metavar="ID...", nargs=-1, required=True, shell_complete=complete_unfinished)
@click.option("--reason", metavar="TEXT", help="Reason to record")
@click.option("--by", metavar="NAME", help="Name to record (default: you)")
@click.pass_context
def command(ctx: click.Context, task_ids: tuple[str, ...], reason: str | None, by: str | None) -> None:
    """Cancel tasks.

    The process that runs a task stops at its next step. A cancelled task is finished; 'rawko resume ID -m …' starts another run.
    """
    stop_tasks(ctx, task_ids, "cancelled", reason, by)
