"""rawko history: list tasks, and its subcommands show and export."""

from __future__ import annotations

import json
import sys
from datetime import datetime

import click

from rawko_state.cli.printing import one_line, screen
from rawko_state.cli.project import store_of
from rawko_state.cli.times import When, local, took
from rawko_state.store import RELEVANCE, SORTS, TIME, TaskFilter, TaskSummary

JSON_VERSION = 1
STATUS_COLOURS = {
    "completed": "green",
    "failed": "red",
    "cancelled": "red",
    "interrupted": "red",
    "running": "blue",
    "waiting": "yellow",
    "paused": "yellow",
}


class History(click.Group):
    """`rawko history` itself lists tasks; its subcommands `show` and `export` have their own files."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return ["export", "show"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "show":
            from rawko_state.cli import history_show

            return history_show.command
        if cmd_name == "export":
            from rawko_state.cli import history_export

            return history_export.command
        return None


@click.group(name="history", cls=History, invoke_without_command=True)
@click.option(
    "-n", "--limit", type=click.IntRange(0, 10**9), default=20, show_default=True, help="At most so many; 0 for all."
)
@click.option(
    "--status",
    "statuses",
    multiple=True,
    help="running, waiting, paused, completed, failed, cancelled, interrupted, pending.",
)
@click.option("--search", metavar="QUERY", help="By what was said, asked, run and touched; see below.")
@click.option("--turns", is_flag=True, help="With --search: every turn that matches, not the best one of each task.")
@click.option("--file", metavar="PATH", help="Tasks that touched this path, folder or glob.")
@click.option("--agent", help="Tasks in which this agent had a turn.")
@click.option(
    "--since", type=When(), help="At or after: 2024-01-15, yesterday, 7d. By the time that --sort names; else updated."
)
@click.option("--until", type=When(), help="Before; likewise.")
@click.option(
    "--label", "labels", multiple=True, metavar="NAME[=VALUE]", help="With this label; may be given several times."
)
@click.option(
    "--sort",
    type=click.Choice([*SORTS, RELEVANCE, TIME]),
    help="Largest or newest first. The default is updated (the last activity); with --search it is relevance.",
)
@click.option("--reverse", is_flag=True, help="The other way round.")
@click.option("--all-projects", is_flag=True, help="Of all projects in which rawko was used.")
@click.option("--json", "form", flag_value="json", help="One JSON object.")
@click.option("--jsonl", "form", flag_value="jsonl", help="One JSON object a line.")
@click.option("--ids", "form", flag_value="ids", help="One id a line and nothing else.")
@click.pass_context
def command(
    ctx: click.Context,
    limit: int,
    statuses: tuple[str, ...],
    search: str | None,
    file: str | None,
    agent: str | None,
    since: datetime | None,
    until: datetime | None,
    labels: tuple[str, ...],
    turns: bool,
    sort: str | None,
    reverse: bool,
    all_projects: bool,
    form: str | None,
) -> None:
    """List tasks, the last active first. All options can be combined.

    \b
    rawko history --status failed --since 7d
    rawko history --file 'src/auth/*' --agent developer
    rawko history --ids --label team=auth | xargs -n 1 rawko verify
    rawko history --search '"clock skew" (sso OR oauth) NOT saml valid* tool:shell.exec'

    A query is words that all stand somewhere in a task, in any case; OR, NOT, brackets, "phrases", prefix*, and fields:
    agent: file: tool: status: label: model: branch: id: after: before: is:pinned. An identifier is found whole and by its parts.
    """
    if ctx.invoked_subcommand is not None:
        return
    if search is None and (turns or sort in (RELEVANCE, TIME)):
        raise click.UsageError("--turns, --sort relevance and --sort time go with --search")
    wanted = TaskFilter(
        status=_statuses(statuses),
        agent=agent,
        file=file,
        since=since,
        until=until,
        labels=tuple(_label(label) for label in labels),
        sort=sort or ("updated" if search is None else RELEVANCE),
        reverse=reverse,
        limit=limit or None,
    )
    if all_projects:
        if ctx.find_root().meta.get("rawko.remote") not in (None, "local"):
            raise click.UsageError("--all-projects is about the projects on this machine: it does not go with --remote")
        from rawko_state.cli import history_everywhere

        history_everywhere.run(search, wanted, turns=turns, form=form)
        return
    store = store_of(ctx)
    if search is not None:
        from rawko_state.cli import history_search

        history_search.run(store, search, wanted, turns=turns, form=form)
        return
    found = store.history(wanted)
    from rawko_state.store.wire import summary_json

    if form == "ids":
        for summary in found:
            click.echo(summary.id)
    elif form == "jsonl":
        for summary in found:
            click.echo(json.dumps({"version": JSON_VERSION, **summary_json(summary)}))
    elif form == "json":
        click.echo(
            json.dumps({"version": JSON_VERSION, "tasks": [summary_json(summary) for summary in found]}, indent=1)
        )
    else:
        _table(list(found), filtered=bool(statuses or file or agent or since or until or labels))


def _statuses(given: tuple[str, ...]) -> tuple[str, ...]:
    from rawko_state.model import status as words

    return tuple(words.canonical(part) for value in given for part in value.split(",") if part)


def _label(text: str) -> tuple[str, str | None]:
    name, equals, value = text.partition("=")
    return name, value if equals else None


def _table(found: list[TaskSummary], *, filtered: bool) -> None:
    if not found:
        click.echo("no task matches" if filtered else "no task has been recorded here yet", err=True)
        return
    size = screen()
    rows = [
        (
            s.id,
            local(s.updated),
            one_line(s.status, 16),
            took(s.duration_ms),
            one_line(", ".join(s.agents), 24),
            about(s),
        )
        for s in found
    ]
    heads = ("ID", "UPDATED", "STATUS", "TOOK", "AGENTS", "REQUEST")
    widths = [max(len(heads[n]), *(len(row[n]) for row in rows)) for n in range(5)]
    left = max(20, size.columns - sum(widths) - 2 * 5)
    lines = [click.style("  ".join([*(heads[n].ljust(widths[n]) for n in range(5)), heads[5]]), dim=True)]
    for summary, row in zip(found, rows, strict=True):
        cells = [row[n].ljust(widths[n]) for n in range(5)]
        cells[0] = click.style(cells[0], bold=True)
        cells[2] = click.style(cells[2], fg=STATUS_COLOURS.get(summary.status))
        lines.append("  ".join([*cells, one_line(row[5], left)]))
        lines.extend(
            click.style(f"        {operation:6} {one_line(path, size.columns - 16)}", dim=True)
            for operation, path in summary.touched[:5]
        )
        if len(summary.touched) > 5:
            lines.append(click.style(f"        and {len(summary.touched) - 5} more", dim=True))
    page(lines, size.lines)


def about(summary: TaskSummary) -> str:
    mark = "* " if summary.pinned else ""
    damage = " [damaged]" if summary.damaged else ""
    return f"{mark}{summary.title or summary.request or ''}{damage}"


def page(lines: list[str], height: int) -> None:
    """Prints the lines, through a pager if they do not fit on the terminal."""
    colour = use_colour()
    text = "\n".join(lines)
    if sys.stdout.isatty() and len(lines) >= height:
        click.echo_via_pager(click.unstyle(text) if colour is False else text, color=colour)
    else:
        click.echo(text, color=colour)


def use_colour() -> bool | None:
    import os

    if os.environ.get("NO_COLOR"):
        return False
    return None if sys.stdout.isatty() else False
