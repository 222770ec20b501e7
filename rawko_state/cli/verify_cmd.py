"""rawko verify: check the seal chains of task files."""

from __future__ import annotations

import json

import click

from rawko_state.cli import Page
from rawko_state.cli.completing import complete_ids
from rawko_state.cli.printing import counted, say, visible, warn
from rawko_state.cli.project import store_of
from rawko_state.store.contract import Store, Verdict


@click.command(
    name="verify",
    cls=Page,
    examples="""
    rawko verify
    rawko verify abc123
    rawko verify --repair
    """,
)
@click.argument("task_id", metavar="[ID]", required=False, shell_complete=complete_ids)
@click.option(
    "--repair",
    is_flag=True,
    help="Fix unfinished writes, header copies, line endings and git conflicts. No byte is lost",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per file")
@click.option("--quiet", "-q", is_flag=True, help="List only files with problems")
@click.option("--verbose", "-v", is_flag=True, help="List every file")
@click.pass_context
def command(ctx: click.Context, task_id: str | None, repair: bool, as_json: bool, quiet: bool, verbose: bool) -> None:
    """Check task files for damage: one task, or all. Exits with 1 if any file is damaged.

    A warning is not damage.
    """
    store = store_of(ctx)
    files = bad = doubtful = records = unsealed = 0
    can_repair: list[str] = []
    for verdict in store.verify(task_id, repair=repair):
        files += 1
        records += verdict.records
        fixed = repair and bool(verdict.repaired) and not _faults_left(store, verdict.name.id)
        bad += bool(verdict.faults) and not fixed
        doubtful += bool(verdict.warnings) and not repair
        unsealed += verdict.unsealed
        if as_json:
            click.echo(json.dumps(_as_json(verdict)))
            continue
        if verdict.faults or verdict.warnings:
            say(_problems(verdict))
            if verdict.can_repair and not repair:
                can_repair.append(verdict.name.id)
        elif verbose or (task_id is not None and not quiet):
            click.echo(_sound(verdict))
    for stranger in store.strangers():
        warn(f"warning: Not a task file: {stranger!r}")
    if not as_json and not quiet:
        counts = f"{counted(files, 'file')}, {counted(records, 'record')}"
        if not bad and not doubtful:
            say([click.style("✓", fg="green") + f" {counts}: no damage found."])
        else:
            good = files - bad - doubtful
            warnings = f", {doubtful} with warnings" if doubtful else ""
            click.echo(f"{counts}: {good} intact, {bad} damaged{warnings}.")
        if unsealed:
            have = "has" if unsealed == 1 else "have"
            click.echo(f"{counted(unsealed, 'file')} {have} no seals (written by hand or by another program).")
        if can_repair:
            one = f" {can_repair[0]}" if len(can_repair) == 1 else ""
            click.echo(f"  To fix what can be fixed: rawko verify --repair{one}")
    ctx.exit(1 if bad else 0)


def _as_json(verdict: Verdict) -> dict[str, object]:
    return {
        "version": 1,
        "id": verdict.name.id,
        "file": verdict.name.filename,
        "unsealed": verdict.unsealed,
        "records": verdict.records,
        "turns": verdict.turns,
        "torn_bytes": verdict.torn,
        "faults": verdict.faults,
        "warnings": verdict.warnings,
        "repaired": verdict.repaired,
    }


def _problems(verdict: Verdict) -> list[str]:
    mark = click.style("✗", fg="red") if verdict.faults else click.style("!", fg="yellow")
    said = [*verdict.faults, *(f"warning: {warning}" for warning in verdict.warnings)]
    head, indent = f"{mark} {click.style(verdict.name.id, bold=True)}  ", " " * (len(verdict.name.id) + 4)
    lines = [f"{head}{visible(said[0])}", *(f"{indent}{visible(each)}" for each in said[1:])]
    return lines + [f"{indent}Fixed: {visible(done)}" for done in verdict.repaired]


def _sound(verdict: Verdict) -> str:
    kind = "not sealed, " if verdict.unsealed else ""
    torn = f", {verdict.torn} bytes of unfinished writes kept" if verdict.torn else ""
    counts = f"{counted(verdict.records, 'record')}, {counted(verdict.turns, 'turn')}"
    return f"✓ {verdict.name.id}  {kind}{counts}{torn}"


def _faults_left(store: Store, task_id: str) -> bool:
    return any(verdict.faults for verdict in store.verify(task_id))
