"""rawko stats --all-projects: the statistics of each project, and their sums."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING

import click

from rawko_state.cli.everywhere import each_project, short_names
from rawko_state.store import Stats, TaskFilter

if TYPE_CHECKING:
    from rawko_state.store.contract import Store


def asked(ctx: click.Context, wanted: TaskFilter, *, days: int, top: int) -> dict[str, Stats]:
    """The statistics of each project, by its folder."""
    found: dict[str, Stats] = {}

    def ask(root: str, store: Store) -> None:
        found[root] = store.stats(wanted, days=days, top=top)

    each_project(ctx, ask)
    return found


def summed(found: Mapping[str, Stats], top: int) -> Stats:
    """The sums over all projects. A median can't be told from medians, so there is none."""
    every = list(found.values())
    files = Counter[str]()
    for name, stats in zip(short_names(list(found)), every, strict=True):
        files.update({f"{name}: {path}": number for path, number in stats.by_file.items()})
    costs = [Decimal(stats.cost) for stats in every if stats.cost is not None]
    return Stats(
        tasks=sum(stats.tasks for stats in every),
        turns=sum(stats.turns for stats in every),
        duration_ms=sum(stats.duration_ms for stats in every),
        by_status=_added(stats.by_status for stats in every),
        time_by_status_ms=_added(stats.time_by_status_ms for stats in every),
        by_agent={},
        by_day=dict(sorted(_added(stats.by_day for stats in every).items())),
        by_file=dict(files.most_common(top)),
        tokens_in=_known([stats.tokens_in for stats in every]),
        tokens_out=_known([stats.tokens_out for stats in every]),
        cost=str(sum(costs)) if costs else None,
        disk=_added(stats.disk for stats in every),
        usage=tuple(row for stats in every for row in stats.usage),
    )


def _added(many: Iterable[Mapping[str, int]]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for each in many:
        found.update(each)
    return dict(found)


def _known(numbers: Sequence[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None
