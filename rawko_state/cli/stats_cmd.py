"""rawko stats: statistics, with small plots."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING

import click

from rawko_state.cli.printing import one_line, size_text
from rawko_state.cli.project import store_of
from rawko_state.cli.times import When, took
from rawko_state.store import TaskFilter

if TYPE_CHECKING:
    from rawko_state.store import Stats

_BAR = "█"
_SPARK = "▁▂▃▄▅▆▇█"


@click.command(name="stats")
@click.option("--since", type=When(), help="Only tasks created at or after: 2024-01-15, 7d.")
@click.option("--until", type=When(), help="Only tasks created before.")
@click.option("--agent", help="Only tasks in which this agent had a turn.")
@click.option("--days", type=click.IntRange(1, 3650), default=30, show_default=True, help="How many days to plot.")
@click.option("--top", type=click.IntRange(1, 1000), default=10, show_default=True, help="How many agents and files.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.pass_context
def command(
    ctx: click.Context,
    since: datetime | None,
    until: datetime | None,
    agent: str | None,
    days: int,
    top: int,
    as_json: bool,
) -> None:
    """Tasks and time by status, agent, day and file; tokens and cost where known; disk used."""
    stats = store_of(ctx).stats(TaskFilter(since=since, until=until, agent=agent), days=days, top=top)
    if as_json:
        click.echo(json.dumps({"version": 1, **asdict(stats)}, indent=1))
    else:
        _show(stats)


def _show(stats: Stats) -> None:
    click.echo(f"{stats.tasks} tasks, {stats.turns} turns, {took(stats.duration_ms)}")
    if stats.tokens_in is not None or stats.tokens_out is not None:
        click.echo(f"{stats.tokens_in or 0:,} tokens in, {stats.tokens_out or 0:,} out")
    if stats.cost is not None:
        click.echo(f"{stats.cost} USD")
    disk = ", ".join(f"{name} {size_text(size)}" for name, size in stats.disk.items())
    click.echo(f"disk: {disk}")
    _bars("Status", {name: (n, took(stats.time_by_status_ms.get(name))) for name, n in stats.by_status.items()})
    _bars("Agents, by turns", {name: (n, took(ms)) for name, (n, ms) in stats.by_agent.items()})
    _bars("Files, by tasks", {name: (n, "") for name, n in stats.by_file.items()})
    if len(stats.by_day) > 1:
        most = max(stats.by_day.values())
        line = "".join(_SPARK[min(7, n * 8 // (most + 1))] for n in stats.by_day.values())
        first, last = min(stats.by_day), max(stats.by_day)
        click.echo(click.style("\nDays with tasks", bold=True))
        click.echo(f"  {first} {line} {last}   most on a day: {most}")


def _bars(title: str, values: Mapping[str, tuple[int, str]]) -> None:
    if not values:
        return
    click.echo(click.style(f"\n{title}", bold=True))
    most = max(count for count, _ in values.values()) or 1
    width = min(40, max(len(name) for name in values))
    for name, (count, more) in values.items():
        bar = _BAR * max(1, count * 30 // most)
        click.echo(f"  {one_line(name, width).ljust(width)} {count:>7}  {bar} {more}".rstrip())
