"""rawko redact: remove secrets from recorded tasks."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import click

from rawko_state.cli import Page
from rawko_state.cli.printing import counted, warn
from rawko_state.cli.project import complete_ids, me, store_of
from rawko_state.errors import RawkoError


@click.command(
    name="redact",
    cls=Page,
    examples="""
    rawko redact --dry-run
    rawko redact abc123
    rawko redact
    """,
)
@click.argument("task_ids", metavar="[ID...]", nargs=-1, shell_complete=complete_ids)
@click.option("--dry-run", "-n", is_flag=True, help="Show what would be removed and change nothing")
@click.option("--json", "as_json", is_flag=True, help="Print JSON")
@click.pass_context
def command(ctx: click.Context, task_ids: tuple[str, ...], dry_run: bool, as_json: bool) -> None:
    """Remove secrets from recorded tasks: from those given, or from all.

    New recordings are already clean: secrets are removed before anything is written. Use this for older files, or after adding
    rules. Affected files are rewritten and resealed, a note in each says so, and the index is rebuilt. Backups, commits and the
    trash are not changed: revoke any secret that was stored.
    """
    store = store_of(ctx, only_look=dry_run)
    chosen = [store.find(task_id).id for task_id in task_ids] or store.task_ids()
    was_due = store.begin_redacting() if not dry_run else False
    found_in: list[dict[str, Any]] = []
    total: Counter[str] = Counter()
    changed = failed = 0
    for task_id in chosen:
        try:
            found = store.redact(task_id, dry_run=dry_run, by=me(store.root))
        except RawkoError as error:
            failed += 1
            warn(str(error))
            continue
        if found.rules:
            total.update(found.rules)
            changed += 1
            found_in.append({"id": task_id, "secrets": dict(found.rules)})
            if not as_json:
                click.echo(f"{task_id}  " + ", ".join(f"{rule} {count}" for rule, count in sorted(found.rules.items())))
    if not dry_run:
        store.end_redacting(changed=bool(changed), was_due=was_due)
    if as_json:
        click.echo(json.dumps({"version": 1, "dry_run": dry_run, "tasks": found_in, "failed": failed}, indent=1))
    else:
        verb = "have" if dry_run else "had"
        if changed:
            secrets = counted(sum(total.values()), "secret")
            click.echo(f"{changed} of {counted(len(chosen), 'task')} {verb} secrets: {secrets} in all.", err=True)
        else:
            click.echo(f"No secrets found in {counted(len(chosen), 'task')}.", err=True)
        if store.trash():
            click.echo("The trash was not checked. Delete it: rawko cleanup --empty-trash", err=True)
    ctx.exit(1 if failed else 0)
