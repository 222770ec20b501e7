"""rawko cleanup: move old tasks to the trash, or pack them, according to the settings."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from rawko_state.cli import Page
from rawko_state.cli.completing import complete_trash
from rawko_state.cli.printing import counted, hint, is_terminal, one_line, screen, size_text, table, warn
from rawko_state.cli.project import me, store_of
from rawko_state.cli.times import ago
from rawko_state.config.settings import load
from rawko_state.errors import RawkoError
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


@click.command(
    name="cleanup",
    cls=Page,
    examples="""
    rawko cleanup --dry-run
    rawko cleanup --trash
    rawko cleanup --restore abc123
    """,
)
@click.option("--dry-run", "-n", is_flag=True, help="Show what would happen and change nothing")
@click.option("--yes", "-y", is_flag=True, help="Don't ask for confirmation (required without a terminal)")
@click.option("--json", "as_json", is_flag=True, help="Print JSON")
@click.option(
    "--restore",
    is_flag=False,
    flag_value=_ALL,
    default=None,
    metavar="[ID]",
    shell_complete=complete_trash,
    help="Restore a task from the trash; without ID, all of them",
)
@click.option("--trash", "list_trash", is_flag=True, help="List the trash")
@click.option("--empty-trash", is_flag=True, help="Permanently delete everything in the trash")
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
    """Move old tasks to the trash and compress finished ones, according to state.retention.* in the settings.

    Without such settings nothing is ever removed. Tasks in the trash can be restored unchanged until they expire.
    """
    if sum((restore is not None, list_trash, empty_trash)) > 1:
        raise click.UsageError("Use only one of --restore, --trash and --empty-trash", ctx)
    if restore is not None and dry_run:
        raise click.UsageError("--restore has no dry run. To see what can be restored: rawko cleanup --trash", ctx)
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
            click.echo("No retention is set, so nothing is ever removed.")
            click.echo("  Set one: rawko config set state.retention.max_age 90d --project")
        plan = _show(store, chosen, expired)
        if plan and not yes:
            click.echo(f"Would {plan}." + (" Nothing was changed." if dry_run else ""))
        elif not plan and policy.is_set:
            click.echo("Nothing to do.")
    if dry_run:
        if as_json:
            click.echo(json.dumps(_as_json(store, chosen, expired, dry_run=True), indent=1))
        return
    if not (chosen.removals or chosen.packings or expired):
        if as_json:
            click.echo(json.dumps(_as_json(store, chosen, expired, dry_run=False), indent=1))
        return
    if not yes:
        _ask(f"{_in_short(chosen, expired)}?")
    report = _as_json(store, chosen, expired, dry_run=False)
    done = carry_out(store, policy, chosen, by=me(store.root))
    if as_json:
        # Report what was done, which may be less than planned.
        report["removed"] = [each for each in report["removed"] if each["id"] in done.removed]
        report["packed"] = [each for each in report["packed"] if each["id"] in done.packed]
        report["deleted"] = [_trash_json(each) for each in done.deleted]
        click.echo(json.dumps(report, indent=1))
        return
    said = described(done)
    click.echo(said[0].upper() + said[1:] + ("" if said.endswith(".") else "."))
    left = len(chosen.removals) - len(done.removed)
    if left:
        warn(f"Kept {counted(left, 'task')} that changed during the cleanup or {'is' if left == 1 else 'are'} running.")


def _ask(question: str) -> None:
    """Asks on standard error, apart from output for programs. Without a terminal, nothing is done."""
    if sys.stdin is None or not sys.stdin.isatty():
        raise click.UsageError(
            f"{question.removesuffix('?')}: there is no terminal to ask. Confirm with --yes, or look first with --dry-run"
        )
    click.confirm(question, abort=True, err=True)


def _in_short(chosen: Plan, expired: list[InTrash]) -> str:
    parts = []
    if chosen.removals:
        parts.append(f"move {counted(len(chosen.removals), 'task')} to the trash")
    if chosen.packings:
        parts.append(f"compress {counted(len(chosen.packings), 'task')}")
    if expired:
        parts.append(f"permanently delete {counted(len(expired), 'task')} from the trash")
    said = ", ".join(parts)
    return said[:1].upper() + said[1:]


def _show(store: Store, chosen: Plan, expired: list[InTrash]) -> str:
    """Lists the tasks that would go, and returns what would be done in words; nothing if that is nothing."""
    blobs = store.freed_bytes([task.id for task, _ in chosen.removals])
    total = 0
    rows = []
    for start in range(0, len(chosen.removals), _SOME):
        some = chosen.removals[start : start + _SOME]
        titles = {s.id: s.title or s.request or "" for s in store.history(TaskFilter(ids=tuple(t.id for t, _ in some)))}
        for task, rule in some:
            size = task.size + blobs.get(task.id, 0)
            total += size
            rows.append([task.id, ago(task.last), task.status, rule, size_text(size), titles.get(task.id, "")])
    _table(["ID", "ENDED", "STATUS", "RULE", "SIZE", "REQUEST"], rows)
    parts = [f"move {counted(len(rows), 'task')} to the trash ({size_text(total)})"] if rows else []
    if chosen.packings:
        now = size_text(sum(task.size for task in chosen.packings))
        parts.append(f"compress {counted(len(chosen.packings), 'task')} ({now} now)")
    if expired:
        now = size_text(sum(each.size for each in expired))
        parts.append(f"permanently delete {counted(len(expired), 'task')} from the trash ({now})")
    return ", ".join(parts)


def _table(heads: list[str], rows: list[list[str]]) -> None:
    """The last column is cut to fit a terminal; in a pipe, columns are separated by tabs."""
    if not rows:
        return
    if not is_terminal():
        click.echo("\n".join("\t".join(one_line(cell, 10_000) for cell in row) for row in rows))
        return
    columns = screen().columns
    for row in rows:
        used = sum(max(len(each[n]) for each in [heads, *rows]) + 2 for n in range(len(heads) - 1))
        row[-1] = one_line(row[-1], max(10, columns - used))
    click.echo("\n".join(table(heads, rows, right=[heads.index("SIZE")])))


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
    if prefix is not None and not any(each.id.startswith(prefix) for each in store.trash()):
        raise _not_in_trash(store, prefix)
    back = store.restore(prefix)
    if as_json:
        click.echo(json.dumps({"version": 1, "restored": back}))
        return
    for task_id in back:
        click.echo(task_id)
    click.echo(
        f"Restored {counted(len(back), 'task')}. Cleanup leaves {'it' if len(back) == 1 else 'them'} alone from now on.",
        err=True,
    )


def _not_in_trash(store: Store, prefix: str) -> RawkoError:
    try:
        there = store.summary(prefix).id
    except RawkoError:
        return RawkoError(f"No task in the trash starts with {prefix!r}.\n  List the trash: rawko cleanup --trash")
    return RawkoError(f"Task {there} is not in the trash. Read it: rawko show {there}")


def _list_trash(store: Store, as_json: bool) -> None:
    found = store.trash()
    if as_json:
        click.echo(json.dumps({"version": 1, "trash": [_trash_json(each) for each in found]}, indent=1))
        return
    _table(
        ["ID", "DELETED", "RULE", "SIZE"],
        [[each.id, ago(write_time(each.at)), each.rule, size_text(each.size)] for each in found],
    )
    if not found:
        click.echo("The trash is empty.", err=True)
        return
    click.echo(f"{counted(len(found), 'task')} in the trash ({size_text(sum(each.size for each in found))}).", err=True)
    hint((f"rawko cleanup --restore {found[0].id}", "restore it"))


def _empty(store: Store, dry_run: bool, yes: bool, as_json: bool) -> None:
    found = store.trash()
    if found and not dry_run and not yes:
        size = size_text(sum(each.size for each in found))
        _ask(f"Permanently delete {counted(len(found), 'task')} ({size})? This can't be undone.")
    gone = found if dry_run else store.empty_trash()
    if as_json:
        report = {"version": 1, "dry_run": dry_run, "deleted": [_trash_json(each) for each in gone]}
        click.echo(json.dumps(report, indent=1))
    else:
        verb = "Would permanently delete" if dry_run else "Permanently deleted"
        click.echo(f"{verb} {counted(len(gone), 'task')}." if gone else "The trash is empty.")
