"""rawko redact: remove secrets from recorded tasks, and explain what was removed."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import click

from rawko_state.cli import Page
from rawko_state.cli.completing import complete_ids
from rawko_state.cli.printing import counted, one_line, progress, warn
from rawko_state.cli.project import me, store_of
from rawko_state.errors import RawkoError
from rawko_state.store.contract import Store


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
@click.option(
    "--explain", is_flag=True, help="Show each redaction: rule, tag, place and surrounding text; changes nothing"
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON")
@click.pass_context
def command(ctx: click.Context, task_ids: tuple[str, ...], dry_run: bool, explain: bool, as_json: bool) -> None:
    """Remove secrets from recorded tasks: from some, or from all and the trash.

    New tasks have none: secrets are removed before they reach the disk. Use this for older files, and after adding rules. A file
    with secrets is rewritten and sealed again, and a note in it says so. The index and the search index are rebuilt. If it is
    interrupted, run it again: it continues where it stopped. Backups and commits are not reached, so change a secret that was
    recorded.

    --explain shows what was removed, and what would be removed now, without the secrets. To keep a value that is not a secret,
    add its tag to the setting redact.allow.
    """
    store = store_of(ctx, only_look=dry_run or explain)
    chosen = [store.find(task_id).id for task_id in task_ids] or store.task_ids()
    if explain:
        _explain(store, chosen, as_json)
        return
    was_due = store.begin_redacting() if not dry_run else False
    finished = store.redacted_so_far() if was_due and not task_ids else set()
    found_in: list[dict[str, Any]] = []
    total: Counter[str] = Counter()
    changed = failed = 0
    step = None if as_json else progress("Looking for secrets", "tasks")
    for done, task_id in enumerate(chosen, 1):
        if task_id in finished:
            continue
        try:
            found = store.redact(task_id, dry_run=dry_run, by=me(store.root))
        except RawkoError as error:
            failed += 1
            warn(str(error))
            continue
        if not dry_run and not task_ids:
            store.mark_redacted(task_id)
        if step is not None:
            step(done, len(chosen))
        if found.rules:
            total.update(found.rules)
            changed += 1
            found_in.append({"id": task_id, "secrets": dict(found.rules)})
            if not as_json:
                click.echo(f"{task_id}  {_counts(found.rules)}")
    trashed = (
        [] if task_ids else [found for found in store.redact_rest(dry_run=dry_run, by=me(store.root)) if found.rules]
    )
    for found in trashed:
        total.update(found.rules)
    if not dry_run:
        store.end_redacting(changed=bool(changed or trashed), was_due=was_due)
    if as_json:
        trash = [{"secrets": dict(found.rules)} for found in trashed]
        said = {
            "version": 1,
            "dry_run": dry_run,
            "tasks": found_in,
            "trash": trash,
            "rules": dict(total),
            "failed": failed,
        }
        click.echo(json.dumps(said, indent=1))
    else:
        verb = "have" if dry_run else "had"
        if total:
            click.echo(f"By rule: {_counts(total)}", err=True)
        if changed:
            secrets = counted(sum(total.values()), "secret")
            click.echo(f"{changed} of {counted(len(chosen), 'task')} {verb} secrets: {secrets} in all.", err=True)
        else:
            click.echo(f"No secrets found in {counted(len(chosen), 'task')}.", err=True)
        if trashed:
            click.echo(f"In the trash, {counted(len(trashed), 'task')} {verb} secrets.", err=True)
        if finished:
            click.echo(
                f"An earlier run, which was interrupted, had finished {counted(len(finished), 'task')}.", err=True
            )
    ctx.exit(1 if failed else 0)


def _counts(rules: Any) -> str:
    return ", ".join(f"{rule} {count}" for rule, count in sorted(rules.items()))


def _explain(store: Store, chosen: list[str], as_json: bool) -> None:
    rows = []
    for task_id in chosen:
        for each in store.explain(task_id):
            if as_json:
                said = {"rule": each.rule, "tag": each.tag, "place": each.place, "removed": each.removed}
                rows.append({"id": task_id, **said, "before": each.before, "after": each.after})
            else:
                state = "" if each.removed else "  (still there: rawko redact removes it)"
                click.echo(f"{task_id}  {each.tag}  {each.place}{state}")
                click.echo(f"    {one_line(f'{each.before}[…]{each.after}', 140)}")
    if as_json:
        click.echo(json.dumps({"version": 1, "redactions": rows}, indent=1))
