"""rawko pause: pause a task; the store tells the process that runs it."""

from __future__ import annotations

import click

from rawko_state.cli import Page
from rawko_state.cli.completing import complete_unfinished
from rawko_state.cli.project import stop_tasks


@click.command(
    name="pause",
    cls=Page,
    examples="""
    rawko pause abc123
    rawko pause abc123 --reason "waiting for the review"
    rawko history --ids --status running | xargs rawko pause
    """,
)
@click.argument("task_ids", metavar="ID...", nargs=-1, required=True, shell_complete=complete_unfinished)
@click.option("--reason", metavar="TEXT", help="Reason to record")
@click.option("--by", metavar="NAME", help="Name to record (default: you)")
@click.pass_context
def command(ctx: click.Context, task_ids: tuple[str, ...], reason: str | None, by: str | None) -> None:
    """Pause running tasks.

    The process that runs a task stops at its next step. 'rawko resume ID' continues it.
    """
    stop_tasks(ctx, task_ids, "paused", reason, by)
