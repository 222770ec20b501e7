"""rawko pause: pause a task; the store tells the process that runs it."""

from __future__ import annotations

import click

from rawko_state.cli.project import complete_ids, stop_tasks


@click.command(name="pause")
@click.argument("task_ids", metavar="ID...", nargs=-1, required=True, shell_complete=complete_ids)
@click.option("--reason", help="Why.")
@click.option("--by", help="Who does it; by default the user of this machine.")
@click.pass_context
def command(ctx: click.Context, task_ids: tuple[str, ...], reason: str | None, by: str | None) -> None:
    """Pause a task. The process that runs it sees it at its next step; rawko resume lets it go on."""
    stop_tasks(ctx, task_ids, "paused", reason, by)
