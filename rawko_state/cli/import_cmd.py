"""rawko import: import what other agents recorded, or what rawko exported."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rawko_state.backends.select import user_state
from rawko_state.cli import Page
from rawko_state.cli.history_search import in_background
from rawko_state.cli.printing import counted, hint, progress, visible
from rawko_state.cli.project import stood_at, store_of
from rawko_state.cli.times import When, took
from rawko_state.config.project import remotes, worktrees
from rawko_state.errors import InvalidValue, RawkoError, TaskNotFound
from rawko_state.exchange.importing import Belonging, Report, import_sessions, plain_remote
from rawko_state.exchange.json_form import blobs_bytes, records_bytes
from rawko_state.exchange.sources import SOURCES
from rawko_state.format.fair_json import shallow
from rawko_state.model.names import parse_name
from rawko_state.store import TaskFilter

if TYPE_CHECKING:
    from rawko_state.store.contract import Store

_SOURCES = (*SOURCES, "rawko")
_WATCH_EVERY = 2.0


@click.command(
    name="import",
    cls=Page,
    examples="""
    rawko import
    rawko import claude-code
    rawko import codex --since '2 weeks ago' --dry-run
    rawko import claude-code --all-projects
    rawko import rawko tasks.json
    """,
)
@click.argument("source", metavar="[AGENT]", required=False, type=click.Choice(_SOURCES))
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--all-projects", is_flag=True, help="Import the sessions of every project, each into its own project if it exists"
)
@click.option("--since", type=When(), metavar="WHEN", help="Only sessions active since WHEN: 7d, monday, 2024-01-15")
@click.option("--dry-run", "-n", is_flag=True, help="Show what would be imported and change nothing")
@click.option(
    "--pack", is_flag=True, help="Store new tasks compressed (.task.gz, a fifth of the size; read with zgrep)"
)
@click.option("--watch", is_flag=True, help="Keep importing new sessions until stopped")
@click.option("--yes", "-y", is_flag=True, help="Without an agent: import everything new without asking")
@click.option("--json", "as_json", is_flag=True, help="Print JSON")
@click.pass_context
def command(
    ctx: click.Context,
    source: str | None,
    paths: tuple[Path, ...],
    all_projects: bool,
    since: datetime | None,
    dry_run: bool,
    pack: bool,
    watch: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Import sessions of other agents as tasks: those of this project.

    Without an agent, list the agents whose sessions are on this machine, and import everything new after one question.

    \b
    claude-code   ~/.claude/projects            codex     ~/.codex/sessions
    aider         .aider.chat.history.md here   opencode  ~/.local/share/opencode
    gemini        ~/.gemini/tmp                 qwen      ~/.qwen/projects
    pi            ~/.pi/agent/sessions          copilot   ~/.copilot/session-state
    cline         ~/.cline/data/sessions        cowork    ~/.cowork
    jsonl PATH    messages with role and content, one per line
    atif PATH     trajectories in the Agent Trajectory Interchange Format
    rawko PATH    what 'rawko export' wrote as json or jsonl, byte for byte

    Each session becomes a task with its times, models, tokens, tool calls and files, and every record of the source as it was.
    The originals are only read. Run it again to import what is new.
    """
    store = store_of(ctx, only_look=dry_run)
    if source is None:
        if watch or as_json:
            raise click.UsageError("--watch and --json need the name of an agent", ctx)
        ctx.exit(_whatever_is_here(store, _belonging(store, all_projects), since, pack, dry_run, yes))
    if source == "rawko":
        if all_projects or since or pack or watch or as_json:
            raise click.UsageError("'rawko import rawko' takes files and no option except --dry-run", ctx)
        ctx.exit(_exported(store, paths, dry_run))
    if source in ("jsonl", "atif") and not paths:
        raise click.UsageError(f"'rawko import {source}' needs a file or a folder: rawko import {source} PATH", ctx)
    belonging = _belonging(store, all_projects)
    reported: set[tuple[str, str]] = set()
    while True:
        began = time.monotonic()
        report = import_sessions(
            store,
            source,
            paths,
            belonging=belonging,
            since=since,
            dry_run=dry_run,
            pack=pack,
            step=None if as_json else progress("Importing"),
        )
        if watch:  # report each problem with a file once, not on every pass
            report.wrong = [each for each in report.wrong if (str(each.path), each.text) not in reported]
            report.empty = [path for path in report.empty if (str(path), "empty") not in reported]
            reported |= {(str(each.path), each.text) for each in report.wrong} | {
                (str(p), "empty") for p in report.empty
            }
        if not watch or report.new or report.grown or report.wrong:
            _report(store, report, dry_run, as_json, time.monotonic() - began)
        if report.new and not dry_run:
            _flush(store)
        if not watch:
            break
        time.sleep(_WATCH_EVERY)
    ctx.exit(1 if report.wrong else 0)


def _whatever_is_here(
    store: Store, belonging: Belonging, since: datetime | None, pack: bool, dry_run: bool, yes: bool
) -> int:
    """Shows whose sessions are on this machine, and imports what is new."""
    found = {}
    for source in SOURCES:
        if source not in ("jsonl", "atif"):
            step = progress(f"Looking at {source}")
            report = import_sessions(store, source, (), belonging=belonging, since=since, dry_run=True, step=step)
            known = len(report.new) + len(report.grown) + report.same
            if known + report.elsewhere:
                found[source] = report
                if len(found) == 1:
                    click.echo(f"{'AGENT':<12}  {'SESSIONS':>8}  {'THIS PROJECT':>12}  {'NEW':>5}")
                fresh = len(report.new) + len(report.grown)
                click.echo(f"{source:<12}  {known + report.elsewhere:>8,}  {known:>12,}  {fresh:>5,}")
    if not found:
        click.echo(
            "No sessions of other agents on this machine. 'rawko import --help' lists where they are looked for."
        )
        return 0
    wanted = {source: report for source, report in found.items() if report.new or report.grown}
    count = sum(len(report.new) + len(report.grown) for report in wanted.values())
    if not count:
        known = sum(report.same for report in found.values())
        elsewhere = sum(report.elsewhere for report in found.values())
        if known or not elsewhere:
            click.echo("Nothing new to import.")
        else:
            click.echo(f"None of these {counted(elsewhere, 'session')} is from this project.")
            click.echo("  Import those of every project: rawko import --all-projects")
        return 0
    if dry_run:
        return 0
    sessions = counted(count, "session")
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError(f"{sessions} to import. Confirm with --yes, or look first with --dry-run.")
        which = "" if belonging.everywhere else " of this project"
        if not click.confirm(f"\nImport {sessions}{which}? The originals are only read.", default=True, err=True):
            return 0
    began = time.monotonic()
    whole = Report()
    for source in wanted:
        step = progress(f"Importing {source}")
        report = import_sessions(store, source, (), belonging=belonging, since=since, pack=pack, step=step)
        whole.new += report.new
        whole.grown += report.grown
        whole.same += report.same
        whole.elsewhere += report.elsewhere
        whole.wrong += report.wrong
        whole.empty += report.empty
        whole.unknown += report.unknown
    _report(store, whole, dry_run=False, as_json=False, seconds=time.monotonic() - began)
    _flush(store)
    return 1 if whole.wrong else 0


def _belonging(store: Store, everywhere: bool) -> Belonging:
    """The folders that count as this project: its own, its other worktrees, and its previous locations."""
    mine = frozenset(plain_remote(url) for url in remotes(store.root))
    roots = [str(store.root), *worktrees(store.root)]
    # A copied project inherits the list of the original, so skip folders that still exist.
    roots += [place for place in stood_at(store.root) if not Path(place).is_dir()]
    with user_state() as user:
        for project in user.projects():
            moved = project.remote is not None and plain_remote(project.remote) in mine
            if moved and not Path(project.root).is_dir():
                roots.append(project.root)
    return Belonging(tuple(dict.fromkeys(roots)), mine, everywhere)


def _flush(store: Store) -> None:
    """Makes searches fast. They are correct without it."""
    try:
        if store.flush_due() == "background":
            in_background(["-C", str(store.root), "reindex", "--search", "--quiet"])
        else:
            store.flush()
    except RawkoError as error:
        click.echo(f"rawko: {visible(str(error))}", err=True)


def _report(store: Store, report: Report, dry_run: bool, as_json: bool, seconds: float) -> None:
    for trouble in report.wrong:
        click.echo(f"rawko: {visible(str(trouble.path))}: {visible(trouble.text)}", err=True)
    for path in report.empty if not as_json else ():
        click.echo(f"rawko: warning: {visible(str(path))} is empty; skipped.", err=True)
    if as_json:
        shown = {"version": 1, "dry_run": dry_run, "new": report.new, "grown": report.grown, "same": report.same}
        shown |= {
            "elsewhere": report.elsewhere,
            "empty": [str(path) for path in report.empty],
            "unknown": dict(report.unknown),
        }
        shown["wrong"] = [{"path": str(each.path), "message": each.text} for each in report.wrong]
        click.echo(json.dumps(shown, indent=1))
        return
    rest = [f"{report.same:,} unchanged"] if report.same else []
    rest += [f"{report.elsewhere:,} from other projects (--all-projects)"] if report.elsewhere else []
    rest += [f"{len(report.empty):,} empty"] if report.empty else []
    new, grown = counted(len(report.new), "session"), counted(len(report.grown), "task")
    if dry_run and (report.new or report.grown):
        update = f" and update {grown}" if report.grown else ""
        click.echo(f"Would import {new}{update}. Nothing was changed.")
    elif report.new:
        updated = f" and updated {grown}" if report.grown else ""
        kind = "a task" if len(report.new) == 1 else "tasks"
        click.echo(f"Imported {new} as {kind}{updated} in {took(int(seconds * 1000))}.")
        click.echo(f"  {_statuses(store, report.new)}")
    elif report.grown:
        click.echo(f"Updated {grown} in {took(int(seconds * 1000))}.")
    elif rest or not report.wrong:
        click.echo(f"Nothing new: {', '.join(rest) or 'no sessions found'}.")
        rest = []
    if rest:
        click.echo(f"  {' · '.join(rest)}")
    if report.new and not dry_run:
        hint(("rawko history", "list them"), ("rawko search WORDS", "find one"))
    if report.unknown:
        kinds = ", ".join(f"{visible(kind)} {count}" for kind, count in report.unknown.most_common(8))
        click.echo(f"Kept records of unknown kinds: {kinds}", err=True)


def _statuses(store: Store, ids: list[str]) -> str:
    """How the imported tasks ended, as was written: nobody should believe in so many successes."""
    from collections import Counter

    found: Counter[str] = Counter()
    for start in range(0, len(ids), 500):
        found.update(task.status for task in store.history(TaskFilter(ids=tuple(ids[start : start + 500]))))
    return " · ".join(f"{count:,} {visible(status)}" for status, count in found.most_common())


def _exported(store: Store, paths: tuple[Path, ...], dry_run: bool) -> int:
    """Recreates each task file, byte for byte. Skips those already here; rejects different content under the same id."""
    if not paths:
        raise click.UsageError("Name the files to import: rawko import rawko FILE")
    for path in paths:
        if not path.exists():
            raise click.UsageError(f"{path} does not exist.")
    new = same = bad = 0
    for path in paths:
        try:
            for task in _tasks(path):
                is_new = _placed(store, task, dry_run)
                new, same = new + is_new, same + (not is_new)
        except (RawkoError, OSError) as error:
            bad += 1
            click.echo(f"rawko: {visible(str(path))}: {visible(str(error))}", err=True)
    verb = "Would import" if dry_run else "Imported"
    facts = [f"{same:,} unchanged"] if same else []
    facts += [f"{counted(bad, 'file')} could not be read"] if bad else []
    rest = f" ({', '.join(facts)})" if facts else ""
    click.echo(f"{verb} {counted(new, 'task')}{rest}.")
    return 1 if bad else 0


def _placed(store: Store, task: dict[str, Any], dry_run: bool) -> bool:
    filename, data, blobs = str(task.get("file")), records_bytes(task), blobs_bytes(task)
    if dry_run:
        name = parse_name(filename)
        if name is None:
            raise InvalidValue(f"Not a task file name: {filename!r}.")
        try:
            return store.find(name.id).id != name.id
        except TaskNotFound:
            return True
    if store.add_file(filename, data, blobs) is None:
        return False
    _warn(store, filename)
    return True


def _warn(store: Store, filename: str) -> None:
    """Warns about secrets in an imported file, which is kept byte for byte."""
    name = parse_name(filename)
    found = store.redact(name.id, dry_run=True).rules if name is not None else None
    if name is not None and found:
        rules = ", ".join(f"{rule} {count}" for rule, count in sorted(found.items()))
        click.echo(
            f"rawko: warning: Task {name.id} contains secrets ({rules}). Remove them: rawko redact {name.id}", err=True
        )


def _tasks(path: Path) -> Iterator[dict[str, Any]]:
    """Tasks from JSON lines, read one by one, or from a single object or an array of objects."""
    with open(path, encoding="utf-8", errors="replace") as stream:
        first = _parsed(stream.readline())
        if isinstance(first, dict):
            yield first
            for number, line in enumerate(stream, 2):
                if line.strip():
                    task = _parsed(line)
                    if not isinstance(task, dict):
                        raise InvalidValue(f"Not a rawko export: line {number} is not a JSON object.")
                    yield task
            return
    whole = _parsed(path.read_text(encoding="utf-8", errors="replace"))
    if whole is None:
        raise InvalidValue("Not a rawko export: neither JSON nor JSON lines.")
    for task in whole if isinstance(whole, list) else [whole]:
        if not isinstance(task, dict):
            raise InvalidValue("Not a rawko export.")
        yield task


def _parsed(text: str) -> Any:
    try:
        return json.loads(shallow(text))
    except ValueError:
        return None
