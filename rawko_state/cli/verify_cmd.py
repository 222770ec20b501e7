"""rawko verify: check the seal chains of task files."""

from __future__ import annotations

import json

import click

from rawko_state.cli.printing import visible
from rawko_state.cli.project import complete_ids, store_of
from rawko_state.store.contract import Store


@click.command(name="verify")
@click.argument("task_id", metavar="[ID]", required=False, shell_complete=complete_ids)
@click.option(
    "--repair",
    is_flag=True,
    help="Put right what can be: torn ends, header copies, line ends, git conflicts. Loses no byte.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a file.")
@click.option("--quiet", "-q", is_flag=True, help="Only files with faults.")
@click.pass_context
def command(ctx: click.Context, task_id: str | None, repair: bool, as_json: bool, quiet: bool) -> None:
    """Check every seal of one task file, or of all. Exits with 1 if any is bad; a warning is none."""
    store = store_of(ctx)
    files = bad = doubtful = 0
    for verdict in store.verify(task_id, repair=repair):
        files += 1
        mended = repair and bool(verdict.repaired) and not _faults_left(store, verdict.name.id)
        bad += bool(verdict.faults) and not mended
        doubtful += bool(verdict.warnings) and not repair
        if as_json:
            line = {"id": verdict.name.id, "file": verdict.name.filename, "unsealed": verdict.unsealed}
            counts = {"records": verdict.records, "turns": verdict.turns, "torn_bytes": verdict.torn}
            found = {"faults": verdict.faults, "warnings": verdict.warnings, "repaired": verdict.repaired}
            click.echo(json.dumps({**line, **counts, **found}))
            continue
        said = [*verdict.faults, *(f"warning: {warning}" for warning in verdict.warnings)]
        if said:
            click.echo(f"{verdict.name.filename}: {visible(said[0])}")
            for each in said[1:]:
                click.echo(f"  {visible(each)}")
            for done in verdict.repaired:
                click.echo(f"  repaired: {done}")
            if verdict.can_repair and not repair:
                click.echo(f"  'rawko verify --repair {verdict.name.id}' mends what can be mended")
        elif not quiet:
            kind = "unsealed, " if verdict.unsealed else ""
            torn = f", {verdict.torn} torn bytes kept" if verdict.torn else ""
            click.echo(f"{verdict.name.filename}: {kind}{verdict.records} records, {verdict.turns} turns{torn}: ok")
    for stranger in store.strangers():
        click.echo(f"rawko: not a task file: {visible(stranger)!r}", err=True)
    if not as_json and not quiet:
        click.echo(f"{files} files, {bad} bad" + (f", {doubtful} with warnings" if doubtful else ""))
    ctx.exit(1 if bad else 0)


def _faults_left(store: Store, task_id: str) -> bool:
    return any(verdict.faults for verdict in store.verify(task_id))
