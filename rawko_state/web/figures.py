"""Figures: sums, a calendar, cost and tokens by day, durations, and the numbers behind them as tables.

A sum says what it leaves out. "Not recorded" is not "none": days before the first record are hatched, days without tasks empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, Final, NamedTuple

from rawko_state.store import Stats, TaskFilter, Usage
from rawko_state.web import wording
from rawko_state.web.sums import Sum
from rawko_state.web.tasks import filter_of
from rawko_state.web.visits import Reply, View, Visit

PERIODS: Final = {"7d": ("7 days", 7), "30d": ("30 days", 30), "365d": ("A year", 365), "all": ("All", None)}
_SERIES: Final = 5
_SAMPLE: Final = 2_000
_BINS: Final = (
    (60, "under 1m"), (300, "1–5m"), (900, "5–15m"), (1800, "15–30m"), (3600, "30–60m"), (7200, "1–2h"), (None, "over 2h"),
)  # fmt: skip
WIDTH, HEIGHT, LEFT, BOTTOM = 860, 180, 46, 22


def summed(rows: Iterable[Usage], key: Callable[[Usage], str]) -> dict[str, Sum]:
    found: dict[str, Sum] = {}
    for row in rows:
        found.setdefault(key(row), Sum()).add(row)
    return found


class Rect(NamedTuple):
    x: float
    y: float
    width: float
    height: float
    style: str
    title: str


class Chart(NamedTuple):
    """Bars by day, stacked."""

    rects: list[Rect]
    lines: list[tuple[float, str]]
    labels: list[tuple[float, str]]
    legend: list[tuple[str, str, str]]
    """Hue, name, sum."""
    table: list[tuple[str, list[str]]]
    heads: list[str]


class Calendar(NamedTuple):
    rects: list[Rect]
    months: list[tuple[float, str]]
    limits: list[str]
    width: int
    table: list[tuple[str, int]]


def figures(visit: Visit) -> Reply:
    period = visit.get("period") or "30d"
    if period not in PERIODS:
        period = "30d"
    days = PERIODS[period][1]
    today = datetime.now(timezone.utc).date()
    since = datetime.combine(today - timedelta(days=days - 1), datetime.min.time(), timezone.utc) if days else None
    given = filter_of(visit, limit=1)
    wanted = TaskFilter(agent=given.agent, model=given.model, labels=given.labels, since=since, sort="created")
    stats = visit.store.stats(wanted, days=3660, top=12)
    year = visit.store.stats(
        TaskFilter(agent=given.agent, model=given.model, labels=given.labels, sort="created"), days=3660, top=1
    )
    total = Sum()
    for row in stats.usage:
        total.add(row)
    by_model = summed(stats.usage, lambda row: row.model or "")
    by_agent = summed(stats.usage, lambda row: row.agent)
    span = _span(stats, today, days)
    by_model = dict(sorted(by_model.items(), key=lambda each: -(each[1].tokens_in or 0)))
    by_agent = dict(sorted(by_agent.items(), key=lambda each: -each[1].turns))
    hues = {name: f"h{number % 6 + 1}" for number, name in enumerate(by_model)}
    by = "agent" if visit.get("by") == "agent" else "model"
    series = {"agent": by_agent, "model": by_model}[by]
    values: dict[str, Any] = {
        "place": "figures",
        "periods": PERIODS,
        "period": period,
        "stats": stats,
        "total": total,
        "by_model": list(by_model.items()),
        "hues": hues,
        "by_agent": list(by_agent.items()),
        "by": by,
        "calendar": calendar_of(year, today),
        "costs": chart(series, by, span, lambda one: one.days, lambda value: wording.dollars(Decimal(value)))
        if total.cost
        else None,
        "tokens": chart(series, by, span, lambda one: one.tokens, lambda value: wording.count(int(value)))
        if total.tokens_in is not None
        else None,
        "durations": durations(visit, wanted),
        "width": WIDTH,
        "height": HEIGHT,
        "left": LEFT,
    }
    return Reply("figures.html", values)


def _span(stats: Stats, today: date, days: int | None) -> list[str]:
    """The days that are drawn; of a long time, the last half year."""
    known = sorted({row.day for row in stats.usage if row.day})
    first = today - timedelta(days=(days or 183) - 1)
    if days is None and known:
        first = max(first, date.fromisoformat(known[0]))
    count = (today - first).days + 1
    return [(first + timedelta(days=number)).isoformat() for number in range(max(count, 1))]


def chart(
    series: dict[str, Sum],
    by: str,
    span: list[str],
    values_of: Callable[[Sum], dict[str, Any]],
    say: Callable[[float], str],
) -> Chart | None:
    days = set(span)
    sums = {
        name: sum(float(value) for day, value in values_of(one).items() if day in days) for name, one in series.items()
    }
    named = [name for name in sorted(sums, key=lambda name: -sums[name]) if sums[name]]
    shown, rest = named[:_SERIES], named[_SERIES:]
    by_day: dict[str, list[float]] = {
        day: [float(values_of(series[name]).get(day, 0)) for name in shown]
        + ([sum(float(values_of(series[name]).get(day, 0)) for name in rest)] if rest else [])
        for day in span
    }
    highest = max((sum(values) for values in by_day.values()), default=0.0)
    if not highest:
        return None
    top = _nice(highest)
    names = [name or f"unknown {by}" for name in shown] + (["others"] if rest else [])
    order = list(series)
    hues = [wording.hue(name) if by == "agent" else f"h{order.index(name) % 6 + 1}" for name in shown]
    hues += ["h6"] if rest else []
    step = (WIDTH - LEFT) / len(span)
    height = HEIGHT - BOTTOM - 8
    rects = []
    for number, day in enumerate(span):
        y = float(HEIGHT - BOTTOM)
        for name, hue, value in zip(names, hues, by_day[day], strict=True):
            tall = value / top * height
            if value:
                y -= tall
                rects.append(
                    Rect(
                        round(LEFT + number * step + step * 0.12, 1),
                        round(y, 1),
                        round(max(1.0, step * 0.76), 1),
                        round(max(0.6, tall - 0.6), 1),
                        hue,
                        f"{day}, {name}: {say(value)}",
                    )
                )
    lines = [(round(HEIGHT - BOTTOM - height * part / 4, 1), say(top * part / 4)) for part in range(5)]
    every = max(1, len(span) // 8)
    labels = [
        (round(LEFT + number * step + step / 2, 1), _short(day))
        for number, day in enumerate(span)
        if number % every == 0
    ]
    legend = [
        (hue, name, say(sums[key] if key is not None else sum(sums[each] for each in rest)))
        for hue, name, key in zip(hues, names, [*shown, *([None] if rest else [])], strict=True)
    ]
    table = [
        (day, [say(value) if value else "" for value in by_day[day]]) for day in reversed(span) if any(by_day[day])
    ]
    return Chart(rects, lines, labels, legend, table, names)


def _nice(value: float) -> float:
    size = 1.0
    while size * 10 <= value:
        size *= 10
    while size > value:
        size /= 10
    return next(size * factor for factor in (1, 2, 4, 5, 10, 20) if size * factor >= value)


def _short(day: str) -> str:
    value = date.fromisoformat(day)
    return f"{value.day} {value:%b}"


def calendar_of(stats: Stats, today: date) -> Calendar:
    """A year of days, a column for each week."""
    by_day = {day: number for day, number in stats.by_day.items() if day != "unknown"}
    first_known = min(by_day, default=today.isoformat())
    start = today - timedelta(days=today.weekday() + 52 * 7)
    counts = sorted(number for day, number in by_day.items() if day >= start.isoformat())
    limits = sorted({counts[len(counts) * part // 4] for part in (1, 2, 3)}) if counts else []
    rects, months, seen = [], [], -1
    for number in range((today - start).days + 1):
        value = start + timedelta(days=number)
        day = value.isoformat()
        week, weekday = divmod(number, 7)
        x, y = 34 + week * 13.0, 16 + weekday * 13.0
        tasks = by_day.get(day, 0)
        if day < first_known:
            rects.append(Rect(x, y, 11, 11, "qu", f"{day}: not recorded"))
        else:
            level = 0 if not tasks else 1 + sum(tasks > limit for limit in limits)
            rects.append(
                Rect(
                    x,
                    y,
                    11,
                    11,
                    f"q{min(level, 4)}",
                    f"{day}: {wording.counted(tasks, 'task') if tasks else 'no tasks'}",
                )
            )
        if weekday == 0 and value.month != seen and value.day <= 7:
            seen = value.month
            months.append((x, f"{value:%b}"))
    table = sorted(((day, number) for day, number in by_day.items() if day >= start.isoformat()), reverse=True)
    return Calendar(rects, months, [str(limit) for limit in limits], 34 + 53 * 13 + 2, table)


def durations(visit: Visit, wanted: TaskFilter) -> dict[str, Any]:
    """How long tasks took, of the newest ones."""
    found = visit.store.history(
        TaskFilter(
            agent=wanted.agent,
            model=wanted.model,
            labels=wanted.labels,
            since=wanted.since,
            sort="created",
            limit=_SAMPLE,
        )
    )
    known = [task.duration_ms / 1000 for task in found if task.duration_ms is not None]
    bins: list[tuple[str, int]] = []
    low = 0
    for high, name in _BINS:
        bins.append((name, sum(low <= each < (high if high is not None else float("inf")) for each in known)))
        low = high or 0
    top = _nice(float(max((number for _, number in bins), default=0) or 1))
    width = (WIDTH - LEFT) / len(bins)
    height = HEIGHT - BOTTOM - 8
    rects = [
        Rect(
            round(LEFT + number * width + width * 0.1, 1),
            round(HEIGHT - BOTTOM - count / top * height, 1),
            round(width * 0.8, 1),
            round(count / top * height, 1),
            "h6",
            f"{name}: {wording.counted(count, 'task')}",
        )
        for number, (name, count) in enumerate(bins)
    ]
    labels = [(round(LEFT + number * width + width / 2, 1), name) for number, (name, _) in enumerate(bins)]
    lines = [(round(HEIGHT - BOTTOM - height * part / 2, 1), f"{top * part / 2:g}") for part in range(3)]
    return {
        "rects": rects,
        "labels": labels,
        "lines": lines,
        "bins": bins,
        "known": len(known),
        "without": len(found) - len(known),
        "is_cut": len(found) >= _SAMPLE,
    }


VIEWS: Final = (View("/figures", figures),)
