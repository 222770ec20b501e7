"""rawko history: list tasks. Its subcommands show and export are those of `rawko` itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import click

from rawko_state.cli import PageGroup
from rawko_state.cli.completing import complete_agents, complete_files, complete_labels, complete_statuses
from rawko_state.cli.printing import STATUS_COLOURS as STATUS_COLOURS
from rawko_state.cli.printing import (
    counted,
    first_line,
    footer,
    is_terminal,
    one_line,
    screen,
    styled_status,
    table,
    width_of,
)
from rawko_state.cli.printing import page as page
from rawko_state.cli.printing import use_colour as use_colour
from rawko_state.cli.project import place_of, root_of, store_of
from rawko_state.cli.times import When, ago, local, took
from rawko_state.config.project import as_recorded
from rawko_state.store import RELEVANCE, SORTS, TIME, TaskFilter, TaskSummary

JSON_VERSION = 1
FILTERS = ("statuses", "agent", "file", "labels", "since", "until", "search")
OUTPUT = ("limit", "sort", "reverse", "turns", "all_projects", "utc", "iso", "form")


class History(PageGroup):
    """`rawko history` itself lists tasks; `show` and `export` are the commands of that name."""

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

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([("show", "Same as 'rawko show'"), ("export", "Same as 'rawko export'")])


def filters(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that choose tasks and how they are listed: those of `rawko history` and `rawko search`."""
    for option in reversed(
        (
            click.option(
                "--status",
                "statuses",
                multiple=True,
                metavar="STATUS",
                shell_complete=complete_statuses,
                help="pending, running, waiting, paused, completed, failed, cancelled, interrupted, unknown"
                " (repeatable, or a,b)",
            ),
            click.option(
                "--agent", metavar="NAME", shell_complete=complete_agents, help="Tasks in which this agent took a turn"
            ),
            click.option(
                "--file",
                metavar="PATH",
                shell_complete=complete_files,
                help="Tasks that touched this file, folder or glob",
            ),
            click.option(
                "--label",
                "labels",
                multiple=True,
                metavar="NAME[=VALUE]",
                shell_complete=complete_labels,
                help="Tasks with this label (repeatable)",
            ),
            click.option(
                "--since",
                type=When(),
                metavar="WHEN",
                help="At or after: 7d, '2 weeks ago', monday, yesterday, 2024-01-15",
            ),
            click.option("--until", type=When(), metavar="WHEN", help="Before; written in the same way"),
            click.option(
                "-n",
                "--limit",
                type=click.IntRange(0, 10**9),
                default=20,
                show_default=True,
                metavar="N",
                help="Show at most N tasks; 0 for all",
            ),
            click.option("--reverse", is_flag=True, help="Reverse the order"),
            click.option("--all-projects", is_flag=True, help="Include every project on this machine"),
            click.option("--utc", is_flag=True, help="Show times in UTC"),
            click.option("--iso", is_flag=True, help="Show exact times"),
            click.option("--json", "form", flag_value="json", help="Print one JSON object"),
            click.option("--jsonl", "form", flag_value="jsonl", help="Print one JSON object per line"),
            click.option("--ids", "form", flag_value="ids", help="Print ids only"),
        )
    ):
        function = option(function)
    return function


def filter_of(
    ctx: click.Context,
    statuses: tuple[str, ...],
    agent: str | None,
    file: str | None,
    labels: tuple[str, ...],
    since: datetime | None,
    until: datetime | None,
    *,
    sort: str,
    reverse: bool,
    limit: int,
) -> TaskFilter:
    return TaskFilter(
        status=_statuses(statuses),
        agent=agent,
        file=None if file is None else as_recorded(root_of(ctx, anywhere=True), file),
        since=since,
        until=until,
        labels=tuple(_label(label) for label in labels),
        sort=sort,
        reverse=reverse,
        limit=limit or None,
    )


@click.group(
    name="history",
    cls=History,
    invoke_without_command=True,
    examples="""
    rawko history --status failed --since 7d
    rawko history --file 'src/auth/*' --agent developer
    rawko history --ids --label team=auth | xargs -n 1 rawko verify
    """,
    headings={"Filter": FILTERS, "Output": OUTPUT},
)
@filters
@click.option("--search", metavar="QUERY", help="Same as 'rawko search QUERY'")
@click.option("--turns", is_flag=True, help="With --search: list every matching turn")
@click.option(
    "--sort",
    type=click.Choice([*SORTS, RELEVANCE, TIME]),
    metavar="KEY",
    help=f"{', '.join(SORTS)}; largest or newest first  [default: updated]",
)
@click.pass_context
def command(
    ctx: click.Context,
    statuses: tuple[str, ...],
    agent: str | None,
    file: str | None,
    labels: tuple[str, ...],
    since: datetime | None,
    until: datetime | None,
    limit: int,
    reverse: bool,
    all_projects: bool,
    utc: bool,
    iso: bool,
    form: str | None,
    search: str | None,
    turns: bool,
    sort: str | None,
) -> None:
    """List tasks, the last active first.

    All options can be combined. --since and --until compare the time that --sort names: created or completed, else the last
    activity.
    """
    if ctx.invoked_subcommand is not None:
        return
    if search is None and (turns or sort in (RELEVANCE, TIME)):
        raise click.UsageError(f"--turns and --sort {RELEVANCE}|{TIME} need --search", ctx)
    wanted = filter_of(
        ctx,
        statuses,
        agent,
        file,
        labels,
        since,
        until,
        sort=sort or ("updated" if search is None else RELEVANCE),
        reverse=reverse,
        limit=limit,
    )
    if all_projects:
        from rawko_state.cli import history_everywhere

        history_everywhere.run(ctx, search, wanted, turns=turns, form=form, utc=utc, iso=iso)
        return
    store = store_of(ctx)
    if search is not None:
        from rawko_state.cli import history_search

        history_search.run(store, search, wanted, turns=turns, form=form)
        return
    from rawko_state.model.frozen import replace

    asked = wanted if wanted.limit is None or form else replace(wanted, limit=wanted.limit + 1)
    found = store.history(asked)
    if form == "ids":
        for summary in found:
            click.echo(summary.id)
    elif form in ("json", "jsonl"):
        _as_json(found, in_lines=form == "jsonl")
    elif not found:
        from rawko_state.cli.nothing import no_tasks

        no_tasks(wanted, place_of(store), any_at_all=bool(store.history(TaskFilter(limit=1))))
    else:
        shown = found[: wanted.limit]
        page(listed(shown, utc=utc, iso=iso))
        if len(found) > len(shown) and is_terminal():
            more_below(len(shown), store.count(wanted))


def more_below(shown: int, total: int) -> None:
    if total > shown:
        footer(f"{shown:,} of {counted(total, 'task')} · --limit 0 lists all")


def _as_json(found: list[TaskSummary], *, in_lines: bool) -> None:

    import json

    from rawko_state.store.wire import summary_json

    tasks = [summary_json(summary) for summary in found]
    if in_lines:
        for task in tasks:
            click.echo(json.dumps({"version": JSON_VERSION, **task}))
    else:
        click.echo(json.dumps({"version": JSON_VERSION, "tasks": tasks}, indent=1))


def _statuses(given: tuple[str, ...]) -> tuple[str, ...]:
    from rawko_state.model import status as words

    return tuple(words.canonical(part) for value in given for part in value.strip(",").split(","))


def _label(text: str) -> tuple[str, str | None]:
    name, equals, value = text.partition("=")
    return name, value if equals else None


def main_agent(summary: TaskSummary) -> str:
    """The agent that did the work: the first that is neither the user nor an arbiter."""
    return next((agent for agent in summary.agents if agent not in ("user", "arbiter")), "")


def listed(
    found: Sequence[TaskSummary], projects: Sequence[str] = (), *, utc: bool = False, iso: bool = False
) -> list[str]:
    """One line per task: fitted to a terminal, or whole and separated by tabs in a pipe. ``projects``: one for each task."""
    if not is_terminal():
        return [_in_pipe(summary, projects[n : n + 1]) for n, summary in enumerate(found)]
    size = screen()
    wide = size.columns >= 100
    agents = [main_agent(summary) for summary in found]
    columns: list[tuple[str, list[str]]] = [("ID", [summary.id for summary in found])]
    if size.columns >= 60:
        columns.append(("WHEN", [_when(summary.updated, utc=utc, iso=iso) for summary in found]))
    if size.columns >= 30:  # on a narrower terminal the request says more
        columns.append(("STATUS", [one_line(summary.status, 16) for summary in found]))
    if wide:
        columns.append(("TOOK", [took(summary.duration_ms) for summary in found]))
    if projects:
        from rawko_state.cli.everywhere import short_names

        columns.append(("PROJECT", short_names(projects)))
    elif size.columns >= 60 and any(agents) and (wide or len(set(agents)) > 1):
        more = [max(0, len([a for a in s.agents if a not in ("user", "arbiter")]) - 1) for s in found]
        columns.append(
            ("AGENT", [one_line(a, 12) + (f" +{n}" if n and wide else "") for a, n in zip(agents, more, strict=True)])
        )
    used = sum(max(map(width_of, (head, *cells))) + 2 for head, cells in columns)
    requests = [one_line(about(summary), max(1, size.columns - used)) for summary in found]
    columns.append(("REQUEST", requests))
    heads = [head for head, _ in columns]
    plain = table(
        heads,
        list(zip(*(cells for _, cells in columns), strict=True)),
        right=[n for n, h in enumerate(heads) if h == "TOOK"],
    )
    lines = [plain[0]]
    for summary, line in zip(found, plain[1:], strict=True):
        rest = line[len(summary.id) :]
        status = one_line(summary.status, 16)
        if rest.count(status):
            before, _, after = rest.partition(status)
            rest = before + styled_status(summary.status, status) + after
        lines.append(click.style(summary.id, bold=True) + rest)
        lines += _touched(summary, used, size.columns)
    return lines


def _touched(summary: TaskSummary, indent: int, width: int) -> list[str]:
    """With a file filter: what the task did to the files that match."""
    if not summary.touched:
        return []
    by_operation: dict[str, list[str]] = {}
    for operation, path in summary.touched:
        by_operation.setdefault(operation, []).append(path)
    words = {"write": "wrote", "delete": "deleted"}
    parts = []
    for operation, paths in by_operation.items():
        more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
        parts.append(f"{words.get(operation, operation)} {', '.join(paths[:3])}{more}")
    return [click.style(" " * indent + one_line(" · ".join(parts), max(1, width - indent)), dim=True)]


def _in_pipe(summary: TaskSummary, project: Sequence[str]) -> str:
    seconds = "" if summary.duration_ms is None else f"{summary.duration_ms / 1000:.1f}"
    cells = [summary.id, summary.status, summary.updated or "", seconds, main_agent(summary), about(summary)]
    cells += [f"{operation} {path}" for operation, path in summary.touched]
    return "\t".join(first_line(cell) for cell in [*cells, *project])


def _when(text: str | None, *, utc: bool, iso: bool) -> str:
    if iso:
        return text or "-"
    return local(text, utc=True) if utc else ago(text)


def about(summary: TaskSummary) -> str:
    """What a task is about. The marks stand first, so that they are never cut: ``*`` pinned, ``!`` damaged."""
    marks = ("* " if summary.pinned else "") + ("! " if summary.damaged else "")
    return f"{marks}{summary.title or summary.request or ''}"
