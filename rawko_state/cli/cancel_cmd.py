"""rawko cancel: cancel a task; the store tells the process that runs it."""

from __future__ import annotations

import click

from rawko_state.cli.project import complete_ids, stop_tasks


@click.command(name="cancel")
@click.argument("task_ids", metavar="ID...", nargs=-1, required=True, shell_complete=complete_ids)
@click.option("--reason", help="Why.")
@click.option("--by", help="Who does it; by default the user of this machine.")
@click.pass_context
def command(ctx: click.Context, task_ids: tuple[str, ...], reason: str | None, by: str | None) -> None:
    """Cancel a task. The process that runs it sees it at its next step and stops; the task is finished."""
    stop_tasks(ctx, task_ids, "cancelled", reason, by)
