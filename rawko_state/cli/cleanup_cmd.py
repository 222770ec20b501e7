"""rawko cleanup: move old tasks to the trash, or pack them, according to the settings."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from rawko_state.cli.printing import one_line, size_text
from rawko_state.cli.project import me, store_of
from rawko_state.cli.times import local
from rawko_state.config.settings import load
from rawko_state.errors import TaskNotFound
from rawko_state.format.values import write_time
from rawko_state.lifecycle.cleanup import carry_out, described, old_trash, planned
from rawko_state.lifecycle.retention import policy_of
from rawko_state.store import TaskFilter

if TYPE_CHECKING:
    from rawko_state.lifecycle.retention import Plan
    from rawko_state.store import InTrash
    from rawko_state.store.contract import Store

_ALL = "\0all"
_SOME = 500


@click.command(name="cleanup")
@click.option("--dry-run", "-n", is_flag=True, help="Say what would be done, and do nothing.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option(
    "--restore", is_flag=False, flag_value=_ALL, default=None, metavar="[ID]", help="Bring back from the trash."
)
@click.option("--trash", "list_trash", is_flag=True, help="List what is in the trash.")
@click.option("--empty-trash", is_flag=True, help="Delete for good what is in the trash, whatever its age.")
@click.pass_context
def command(
    ctx: click.Context,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    restore: str | None,
    list_trash: bool,
    empty_trash: bool,
) -> None:
    """Move old tasks to the trash and pack finished ones, as state.retention.* in the settings says.

    Without such settings nothing is ever removed. What goes can be brought back, byte for byte, until its time is up.
    """
    if sum((restore is not None, list_trash, empty_trash)) > 1:
        raise click.UsageError("--restore, --trash and --empty-trash are three things: one at a time", ctx)
    if restore is not None and dry_run:
        raise click.UsageError("--restore has no dry run: --trash shows what could be brought back", ctx)
    store = store_of(ctx, tidy=False, only_look=dry_run)
    if restore is not None:
        _restore(store, None if restore == _ALL else restore, as_json)
    elif list_trash:
        _list_trash(store, as_json)
    elif empty_trash:
        _empty(store, dry_run, yes, as_json)
    else:
        _clean(store, dry_run, yes, as_json)


def _clean(store: Store, dry_run: bool, yes: bool, as_json: bool) -> None:
    policy = policy_of(load(store.root))
    chosen = planned(store, policy)
    expired = old_trash(store, policy)
    if not as_json:
        if not policy.is_set:
            click.echo("no retention is set: nothing is ever removed (state.retention.* in the settings)")
        _show(store, chosen, expired)
    if dry_run:
        if as_json:
            click.echo(json.dumps(_as_json(store, chosen, expired, dry_run=True), indent=1))
        return
    if not (chosen.removals or chosen.packings or expired):
        if as_json:
            click.echo(json.dumps(_as_json(store, chosen, expired, dry_run=False), indent=1))
        return
    if not yes:
        _ask("Do this?" if not as_json else f"{_in_short(chosen, expired)}. Do this?")
    report = _as_json(store, chosen, expired, dry_run=False)
    done = carry_out(store, policy, chosen, by=me(store.root))
    if as_json:
        # Report what was done, which may be less than planned.
        report["removed"] = [each for each in report["removed"] if each["id"] in done.removed]
        report["packed"] = [each for each in report["packed"] if each["id"] in done.packed]
        report["deleted"] = [_trash_json(each) for each in done.deleted]
        click.echo(json.dumps(report, indent=1))
        return
    click.echo(described(done))
    left = len(chosen.removals) - len(done.removed)
    if left:
        click.echo(f"rawko: {left} of them changed meanwhile, or are being run, and stay", err=True)


def _ask(question: str) -> None:
    """Asks on standard error, apart from output for programs. Without a terminal, nothing is done."""
    if sys.stdin is None or not sys.stdin.isatty():
        raise click.UsageError("nobody is here to be asked: give --yes to do it, or --dry-run to see it")
    click.confirm(question, abort=True, err=True)


def _in_short(chosen: Plan, expired: list[InTrash]) -> str:
    return f"{len(chosen.removals)} to the trash, {len(chosen.packings)} to be packed, {len(expired)} in the trash to be deleted"


def _show(store: Store, chosen: Plan, expired: list[InTrash]) -> None:
    blobs = store.freed_bytes([task.id for task, _ in chosen.removals])
    total = 0
    for start in range(0, len(chosen.removals), _SOME):
        some = chosen.removals[start : start + _SOME]
        titles = {s.id: s.title or s.request or "" for s in store.history(TaskFilter(ids=tuple(t.id for t, _ in some)))}
        for task, rule in some:
            size = task.size + blobs.get(task.id, 0)
            total += size
            what = one_line(titles.get(task.id, ""), 50)
            click.echo(f"{task.id}  {local(task.last)}  {task.status:11} {rule:9} {size_text(size):>9}  {what}")
    if chosen.removals:
        click.echo(f"{len(chosen.removals)} to the trash, {size_text(total)}")
    if chosen.packings:
        size = sum(task.size for task in chosen.packings)
        click.echo(f"{len(chosen.packings)} to be packed, {size_text(size)} now")
    if expired:
        click.echo(f"{len(expired)} in the trash to be deleted, {size_text(sum(each.size for each in expired))}")
    if not (chosen.removals or chosen.packings or expired):
        click.echo("nothing to do")


def _as_json(store: Store, chosen: Plan, expired: list[InTrash], *, dry_run: bool) -> dict[str, Any]:
    blobs = store.freed_bytes([task.id for task, _ in chosen.removals])
    removed = [
        {
            "id": task.id,
            "rule": rule,
            "status": task.status,
            "last": task.last,
            "bytes": task.size + blobs.get(task.id, 0),
        }
        for task, rule in chosen.removals
    ]
    packed = [{"id": task.id, "bytes": task.size} for task in chosen.packings]
    deleted = [_trash_json(each) for each in expired]
    return {"version": 1, "dry_run": dry_run, "removed": removed, "packed": packed, "deleted": deleted}


def _trash_json(each: InTrash) -> dict[str, Any]:
    return {"id": each.id, "at": write_time(each.at), "rule": each.rule, "bytes": each.size}


def _restore(store: Store, prefix: str | None, as_json: bool) -> None:
    if prefix is not None and not store.trash():
        raise TaskNotFound(prefix)
    back = store.restore(prefix)
    if as_json:
        click.echo(json.dumps({"version": 1, "restored": back}))
        return
    for task_id in back:
        click.echo(task_id)
    click.echo(f"{len(back)} brought back; cleanups leave them alone from now on", err=True)


def _list_trash(store: Store, as_json: bool) -> None:
    found = store.trash()
    if as_json:
        click.echo(json.dumps({"version": 1, "trash": [_trash_json(each) for each in found]}, indent=1))
        return
    for each in found:
        click.echo(f"{each.id}  {local(write_time(each.at))}  {each.rule:9} {size_text(each.size):>9}")
    click.echo(f"{len(found)} in the trash, {size_text(sum(each.size for each in found))}", err=True)


def _empty(store: Store, dry_run: bool, yes: bool, as_json: bool) -> None:
    found = store.trash()
    if found and not dry_run and not yes:
        _ask(f"Delete {len(found)} tasks for good?")
    gone = found if dry_run else store.empty_trash()
    if as_json:
        report = {"version": 1, "dry_run": dry_run, "deleted": [_trash_json(each) for each in gone]}
        click.echo(json.dumps(report, indent=1))
    else:
        click.echo(f"{len(gone)} {'would be deleted' if dry_run else 'deleted for good'}")
