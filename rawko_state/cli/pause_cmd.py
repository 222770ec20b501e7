"""rawko pause: reaches the process that runs a task through the store."""

from __future__ import annotations

import click

from rawko_state.cli.project import complete_ids, me, store_of


@click.command(name="pause")
@click.argument("task_ids", metavar="ID...", nargs=-1, required=True, shell_complete=complete_ids)
@click.option("--reason", help="Why.")
@click.option("--by", help="Who does it; by default the user of this machine.")
@click.pass_context
def command(ctx: click.Context, task_ids: tuple[str, ...], reason: str | None, by: str | None) -> None:
    """Pause a task. The process that runs it sees it at its next step; rawko resume lets it go on."""
    store = store_of(ctx)
    for task_id in task_ids:
        with store.attach(task_id) as task:
            task.set_status("paused", by=by or me(), reason=reason)
            click.echo(f"{task.id} is paused", err=True)
