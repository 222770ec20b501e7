"""rawko redact: remove secrets from recorded tasks."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import click

from rawko_state.cli.printing import visible
from rawko_state.cli.project import complete_ids, me, store_of
from rawko_state.errors import RawkoError


@click.command(name="redact")
@click.argument("task_ids", metavar="[ID...]", nargs=-1, shell_complete=complete_ids)
@click.option("--dry-run", "-n", is_flag=True, help="Say what is there, and change nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.pass_context
def command(ctx: click.Context, task_ids: tuple[str, ...], dry_run: bool, as_json: bool) -> None:
    """Take secrets out of tasks that were recorded with them: of some, or of all.

    What is recorded now has none: they are taken out before they reach the disk. This is for files of before, and for formats
    that were added since. A file with secrets is written anew, its seals too, and a note in it says so; the index and the search
    index are rebuilt. Copies elsewhere (a backup, a commit, a trash) are not reached: a secret that was written down should be
    changed.
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
            click.echo(f"rawko: {visible(str(error))}", err=True)
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
        click.echo(f"{changed} of {len(chosen)} tasks {verb} secrets, {sum(total.values())} in all", err=True)
        if store.trash():
            click.echo("the trash was not looked at: 'rawko cleanup --empty-trash' deletes what is in it", err=True)
    ctx.exit(1 if failed else 0)
