"""rawko stats: tasks, time, tokens and cost."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING

import click

from rawko_state.cli import Page
from rawko_state.cli.completing import complete_agents
from rawko_state.cli.printing import counted, in_short, is_terminal, one_line, say, screen, size_text, table, wrapped
from rawko_state.cli.project import place_of, project_name, store_of, with_tilde
from rawko_state.cli.times import When, took
from rawko_state.format.figures import money
from rawko_state.lazy import lazy
from rawko_state.store import TaskFilter

if TYPE_CHECKING:
    from rawko_state.lifecycle import prices
    from rawko_state.store import Stats, Usage
else:
    prices = lazy("rawko_state.lifecycle.prices")

_BAR = "█"
_SPARK = "▁▂▃▄▅▆▇█"
_NONE = "·"


@click.command(
    name="stats",
    cls=Page,
    examples="""
    rawko stats
    rawko stats --since monday
    rawko stats --agent claude --days 90
    rawko stats --all-projects --since '4 weeks ago'
    """,
)
@click.option("--since", type=When(), metavar="WHEN", help="Only tasks created at or after WHEN")
@click.option("--until", type=When(), metavar="WHEN", help="Only tasks created before WHEN")
@click.option(
    "--agent", metavar="NAME", shell_complete=complete_agents, help="Only tasks in which this agent took a turn"
)
@click.option("--days", type=click.IntRange(1, 3650), default=30, show_default=True, metavar="N", help="Days to plot")
@click.option("--top", type=click.IntRange(1, 1000), default=10, show_default=True, metavar="N", help="Rows per table")
@click.option("--all-projects", is_flag=True, help="Sum over every project on this machine, with a table of them")
@click.option("--json", "as_json", is_flag=True, help="Print JSON")
@click.pass_context
def command(
    ctx: click.Context,
    since: datetime | None,
    until: datetime | None,
    agent: str | None,
    days: int,
    top: int,
    all_projects: bool,
    as_json: bool,
) -> None:
    """Show tasks, time, tokens and cost by status, agent, model, day, file and project.

    A cost that the agent stated is a sum. Where it stated none, the cost is estimated from list prices and marked with ~; a model
    without a known price has no estimate.
    """
    wanted = TaskFilter(since=since, until=until, agent=agent)
    by_project: dict[str, Stats] = {}
    if all_projects:
        from rawko_state.cli import stats_everywhere
        from rawko_state.cli.nothing import ANYWHERE

        by_project = stats_everywhere.asked(ctx, wanted, days=days, top=top)
        stats = stats_everywhere.summed(by_project, top)
        name = counted(len(by_project), "project")
        place = ANYWHERE
    else:
        store = store_of(ctx)
        stats = store.stats(wanted, days=days, top=top)
        name = project_name(store.root) if store.is_local else store.where
        place = place_of(store)
    if as_json and all_projects:
        rows = [{"project": root, **asdict(each)} for root, each in by_project.items()]
        click.echo(json.dumps({"version": 1, "projects": rows}, indent=1))
    elif as_json:
        click.echo(json.dumps({"version": 1, **asdict(stats)}, indent=1))
    elif not stats.tasks:
        from rawko_state.cli.nothing import no_tasks

        no_tasks(wanted, place, command="stats")
    else:
        say(_lines(stats, name, days, top, by_project))


@dataclass
class _Sum:
    """What a group of turns has used."""

    turns: int = 0
    duration_ms: int = 0
    tokens_in: int | None = None
    tokens_out: int | None = None
    cached: int | None = None
    cost: Decimal | None = None
    is_estimate: bool = False
    tokens_without_price: bool = False

    def add(self, row: Usage) -> None:
        self.turns += row.turns
        self.duration_ms += row.duration_ms
        self.tokens_in = _plus(self.tokens_in, row.tokens_in, row.cache_write)
        self.tokens_out = _plus(self.tokens_out, row.tokens_out)
        self.cached = _plus(self.cached, row.cache_read)
        cost = Decimal(row.cost) if row.cost is not None else None
        if cost is None and not row.stated:
            kinds = {"in": row.tokens_in, "out": row.tokens_out}
            cost = prices.estimated(row.model, {**kinds, "cache_read": row.cache_read, "cache_write": row.cache_write})
            self.is_estimate |= cost is not None
            self.tokens_without_price |= cost is None and bool(row.tokens_in or row.tokens_out)
        if cost is not None:
            self.cost = cost if self.cost is None else self.cost + cost

    @property
    def cells(self) -> list[str]:
        return [in_short(self.tokens_in), in_short(self.cached), in_short(self.tokens_out), self.money]

    @property
    def money(self) -> str:
        if self.cost is None:
            return "-"
        return f"{'~' if self.is_estimate else ''}{money(self.cost)}{'+' if self.tokens_without_price else ''}"


def _plus(*numbers: int | None) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


def _summed(rows: Iterable[Usage], key: Callable[[Usage], str]) -> dict[str, _Sum]:
    found: dict[str, _Sum] = {}
    for row in rows:
        found.setdefault(key(row), _Sum()).add(row)
    return found


def _lines(stats: Stats, name: str, days: int, top: int, by_project: Mapping[str, Stats]) -> list[str]:
    facts = [name, counted(stats.tasks, "task"), counted(stats.turns, "turn"), took(stats.duration_ms)]
    lines = [click.style(facts[0], bold=True) + " · " + " · ".join(facts[1:])]
    total = _Sum()
    for row in stats.usage:
        total.add(row)
    used = []
    if total.tokens_in is not None or total.tokens_out is not None:
        cached = f" ({in_short(total.cached)} more from a cache)" if total.cached else ""
        used.append(f"{in_short(total.tokens_in)} tokens in{cached}, {in_short(total.tokens_out)} out")
    if total.cost is not None:
        stated = f", {money(Decimal(stats.cost))} of it stated by agents" if stats.cost and total.is_estimate else ""
        used.append(f"{total.money}{stated}")
    lines += _prose(" · ".join(used)) if used else []
    if stats.time_to_finish_ms:
        median, most = (took(stats.time_to_finish_ms.get(key)) for key in ("median", "p90"))
        lines += _prose(f"Half of the completed tasks took at most {median}, nine in ten at most {most}.")
    lines += _days(stats.by_day, days)
    lines += _table(
        "STATUS",
        ["TASKS", "TIME", ""],
        {
            s: [f"{n:,}", _time(stats.time_by_status_ms.get(s)), _bar(n, stats.by_status)]
            for s, n in sorted(stats.by_status.items(), key=lambda each: -each[1])
        },
    )
    agents = sorted(_summed(stats.usage, lambda row: row.agent).items(), key=lambda each: -each[1].turns)[:top]
    lines += _table(
        "AGENT",
        ["TURNS", "TIME", "IN", "CACHED", "OUT", "COST"],
        {agent: [f"{used.turns:,}", _time(used.duration_ms), *used.cells] for agent, used in agents},
    )
    by_model = _summed((row for row in stats.usage if row.model), lambda row: row.model or "")
    models = sorted(by_model.items(), key=lambda each: (-(each[1].cost or 0), -each[1].turns))[:top]
    lines += _table("MODEL", ["IN", "CACHED", "OUT", "COST"], {model: used.cells for model, used in models})
    by_day = _summed(
        (row for row in stats.usage if row.day and (row.tokens_in or row.tokens_out)), lambda row: row.day or ""
    )
    recent = sorted(by_day.items(), reverse=True)[:top]
    lines += _table("DAY", ["IN", "CACHED", "OUT", "COST"], {day: used.cells for day, used in recent})
    lines += _projects(by_project, top)
    lines += _table("FILE", ["TASKS"], {file: [f"{n:,}"] for file, n in stats.by_file.items()})
    lines.append("")
    if total.is_estimate:
        dates = sorted({price.date for row in stats.usage if (price := prices.price_of(row.model)) is not None})
        lines += _prose(
            f"~ is an estimate from list prices of {dates[0]}"
            + ("; + leaves out models without a known price." if total.tokens_without_price else ".")
        )
    disk = ", ".join(f"{size_text(size)} {what}" for what, size in stats.disk.items() if size)
    lines.append(f"Disk: {disk or 'nothing'}.")
    return lines


def _projects(by_project: Mapping[str, Stats], top: int) -> list[str]:
    rows = {}
    for root, stats in sorted(by_project.items(), key=lambda each: -each[1].tasks)[:top]:
        total = _Sum()
        for row in stats.usage:
            total.add(row)
        rows[with_tilde(root)] = [f"{stats.tasks:,}", _time(stats.duration_ms), *total.cells]
    return _table("PROJECT", ["TASKS", "TIME", "IN", "CACHED", "OUT", "COST"], rows)


def _time(milliseconds: int | None) -> str:
    """Nothing at all means that no time was recorded, not that it took none."""
    return took(milliseconds or None)


def _prose(text: str) -> list[str]:
    return wrapped(text, screen().columns) if is_terminal() else [text]


def _days(by_day: Mapping[str, int], most_days: int) -> list[str]:
    """A bar for each day of the calendar, up to the last one with a task."""
    known = {date.fromisoformat(day): n for day, n in by_day.items() if day != "unknown"}
    if len(known) < 2:
        return []
    last = max(known)
    room = max(7, screen().columns - 24) if is_terminal() else most_days  # both dates stand beside it
    length = min((last - min(known)).days + 1, most_days, room)
    days = [last - timedelta(back) for back in reversed(range(length))]
    busiest = max(days, key=lambda day: known.get(day, 0))
    most = known.get(busiest, 0)
    line = "".join(_SPARK[min(7, known[day] * 8 // (most + 1))] if day in known else _NONE for day in days)
    return ["", f"{days[0]} {line} {last}", f"Busiest day: {busiest}, {counted(most, 'task')}."]


def _bar(count: int, all_counts: Mapping[str, int]) -> str:
    return _BAR * max(1, count * 30 // (max(all_counts.values()) or 1))


def _table(first: str, heads: list[str], rows: Mapping[str, list[str]]) -> list[str]:
    """A table. Columns whose figures are all unknown are left out."""
    if not rows:
        return []
    known = [n for n in range(len(heads)) if any(cells[n] != "-" for cells in rows.values())]
    width = max(20, screen().columns - 50) if is_terminal() else 1000
    shown = [[one_line(name, width), *(cells[n] for n in known)] for name, cells in rows.items()]
    chosen = [first, *(heads[n] for n in known)]
    return ["", *table(chosen, shown, right=[n for n, head in enumerate(chosen) if n and head])]
