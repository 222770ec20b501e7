"""rawko pause: reaches the process that runs a task through the store."""

from __future__ import annotations

import click

from rawko_state.cli.printing import visible
from rawko_state.cli.project import complete_ids, me, store_of
from rawko_state.errors import RawkoError


@click.command(name="pause")
@click.argument("task_ids", metavar="ID...", nargs=-1, required=True, shell_complete=complete_ids)
@click.option("--reason", help="Why.")
@click.option("--by", help="Who does it; by default the user of this machine.")
@click.pass_context
def command(ctx: click.Context, task_ids: tuple[str, ...], reason: str | None, by: str | None) -> None:
    """Pause a task. The process that runs it sees it at its next step; rawko resume lets it go on."""
    store = store_of(ctx)
    failed = False
    for task_id in task_ids:
        try:
            with store.attach(task_id) as task:
                if task.state.status != "paused":
                    task.set_status("paused", by=by or me(store.root), reason=reason)
                click.echo(f"{task.id} is paused", err=True)
        except RawkoError as error:
            failed = True
            click.echo(f"rawko: {visible(str(error))}", err=True)
    ctx.exit(1 if failed else 0)
