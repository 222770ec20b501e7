"""Statistics over tasks.

Summing up all turns takes seconds in a long history, so the sums of each day are remembered in the index, with a mark of the
tasks that they were made from. A day whose tasks have changed since is summed up again. If only some tasks are wanted, nothing is
remembered.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator
from decimal import Decimal
from typing import Any, Final

from rawko_state.index.migrations import VERSION
from rawko_state.index.queries import conditions, every, one_of
from rawko_state.index.rows import Condition, TaskDatabase
from rawko_state.model import status as words
from rawko_state.model.frozen import replace
from rawko_state.store import Stats, TaskFilter, Usage
from rawko_state.version import __version__

_DAY: Final = "stats:used:"
_WHOLE: Final = "stats:whole:"
_DOLLARS: Final = (
    "CASE WHEN SUBSTR(cost, LENGTH(cost) - 3) = ' USD' THEN CAST(SUBSTR(cost, 1, LENGTH(cost) - 4) AS numeric) END"
)
"""Of a turn, whose cost names its currency. Other currencies are not added up."""


def stats(index: TaskDatabase, wanted: TaskFilter, alive: Collection[str], days: int, top: int) -> Stats:
    found = every(conditions(index, replace(wanted, sort="created"), alive))
    chosen = None if replace(wanted, sort="created", limit=None) == TaskFilter(sort="created") else found
    figures = _figures(index, found, alive)
    if index.remembers and chosen is None:
        marks = _marks(figures)
        usage = _merged(_usage_by_day(index, marks))
        whole = _remembered(
            index, f"{_WHOLE}{top}", repr(sorted(marks.items())), lambda: _whole(index, found, None, top)
        )
    else:
        usage = _merged(_usage(index, _of_tasks(index, chosen)))
        whole = _whole(index, found, chosen, top)
    finishing, cost, files = whole
    by_status: dict[str, int] = {}
    time_by_status: dict[str, int] = {}
    by_day: dict[str, int] = {}
    tokens: list[int | None] = [None, None]
    for day, status, number, duration, tokens_in, tokens_out, *_ in figures:
        word = status or words.PENDING
        by_status[word] = by_status.get(word, 0) + number
        time_by_status[word] = time_by_status.get(word, 0) + int(duration or 0)
        by_day[day or "unknown"] = by_day.get(day or "unknown", 0) + number
        tokens = [_sum(tokens[0], _count(tokens_in)), _sum(tokens[1], _count(tokens_out))]
    by_agent: dict[str, tuple[int, int]] = {}
    for row in usage:
        turns, spent = by_agent.get(row.agent, (0, 0))
        by_agent[row.agent] = (turns + row.turns, spent + row.duration_ms)
    most = sorted(by_agent.items(), key=lambda each: (-each[1][0], each[0]))[:top]
    return Stats(
        tasks=sum(by_status.values()),
        turns=sum(row.turns for row in usage),
        duration_ms=sum(time_by_status.values()),
        by_status=by_status,
        time_by_status_ms=time_by_status,
        by_agent=dict(most),
        by_day=dict(sorted(by_day.items())[-days:]),
        by_file=files,
        tokens_in=tokens[0],
        tokens_out=tokens[1],
        cost=cost,
        usage=usage,
        time_to_finish_ms=finishing,
    )


def _marks(figures: Iterable[tuple[Any, ...]]) -> dict[str, str]:
    """For each day, what changes whenever a task of that day does."""
    sums: dict[str, list[int]] = {}
    for day, _, number, _, _, _, *signs in figures:
        known = sums.setdefault(day or "", [0, 0, 0])
        for n, value in enumerate((number, *signs)):
            known[n] += int(value or 0)
    return {day: f"{__version__} {VERSION} {' '.join(map(str, known))}" for day, known in sums.items()}


def _remembered(index: TaskDatabase, key: str, mark: str, ask: Callable[[], Any]) -> Any:
    known = index.remembered(key).get(key, "")
    if known.startswith(f"{mark}\n"):
        return json.loads(known[len(mark) + 1 :])
    found = json.loads(json.dumps(ask()))
    index.remember({key: f"{mark}\n{json.dumps(found)}"})
    return found


def _usage_by_day(index: TaskDatabase, marks: dict[str, str]) -> Iterator[tuple[Any, ...]]:
    """The usage of all turns, as _usage() has it, by the days on which their tasks were created."""
    known, new = index.remembered(_DAY), {}
    for day, mark in marks.items():
        text = known.get(f"{_DAY}{day}", "")
        if text.startswith(f"{mark}\n"):
            rows = json.loads(text[len(mark) + 1 :])
        else:
            begun: Condition = (
                ("created_at >= ? AND created_at < ?", (day, f"{day}~")) if day else ("created_at IS NULL", ())
            )
            rows = [
                [*row[:-1], None if row[-1] is None else str(row[-1])] for row in _usage(index, _of_tasks(index, begun))
            ]
            new[f"{_DAY}{day}"] = f"{mark}\n{json.dumps(rows, default=int)}"
        yield from (tuple(row) for row in rows)
    if new:
        index.remember(new)


def _whole(index: TaskDatabase, found: Condition, chosen: Condition | None, top: int) -> tuple[Any, ...]:
    """What can't be added up from the sums of days."""
    costs = _stated_costs(index, found)
    return _time_to_finish(index, found), f"{sum(costs):f}" if costs else None, _most_touched(index, chosen, top)


def _figures(index: TaskDatabase, found: Condition, alive: Collection[str]) -> list[tuple[Any, ...]]:
    """Tasks by day and status: how many, their time and tokens, and two sums that change with their files."""
    marks = ", ".join("?" * len(alive))
    stopped = "status = ? AND detached = 0" + (f" AND id NOT IN ({marks})" if alive else "")
    where, values = found
    # By position: some databases reject the repeated expressions.
    statement = f"""
        SELECT SUBSTR(created_at, 1, 10), CASE WHEN {stopped} THEN ? ELSE status END,
            COUNT(*), SUM(duration_ms), SUM(tokens_in), SUM(tokens_out),
            SUM(indexed_end), SUM(file_mtime_ns % 1000000007)
        FROM {index.at("tasks")} WHERE {where} GROUP BY 1, 2"""
    with index.mapped():
        return list(index.read(statement, (words.RUNNING, *alive, words.INTERRUPTED, *values)))


def _time_to_finish(index: TaskDatabase, found: Condition) -> dict[str, int]:
    where, values = every([found, ("status = ? AND duration_ms > 0", (words.COMPLETED,))])
    with index.mapped():
        rows = index.read(f"SELECT duration_ms FROM {index.at('tasks')} WHERE {where}", values)
        times = sorted(int(row[0]) for row in rows)
    return {"median": times[len(times) // 2], "p90": times[len(times) * 9 // 10]} if times else {}


def _stated_costs(index: TaskDatabase, found: Condition) -> list[Decimal]:
    where, values = found
    with index.mapped():
        statement = f"SELECT cost FROM {index.at('tasks')} WHERE {where} AND cost IS NOT NULL"
        return [Decimal(row[0]) for row in index.read(statement, values)]


def _most_touched(index: TaskDatabase, found: Condition | None, top: int) -> dict[str, int]:
    """The files that most tasks touched. Rows are counted first, as that is cheap: a file with few rows has few tasks."""
    files, (where, values) = index.at("task_files"), _of_tasks(index, found)
    with index.mapped():
        wanted = 4 * top
        while True:
            counted = (
                f"SELECT file_path, COUNT(*) FROM {files} WHERE {where} GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT {wanted}"
            )
            bounds = list(index.read(counted, values))
            if not bounds:
                return {}
            marks = ", ".join("?" * len(bounds))
            exact = (
                f"SELECT file_path, COUNT(DISTINCT task_id) FROM {files} WHERE file_path IN ({marks}) AND {where}"
                " GROUP BY file_path"
            )
            rows = index.read(exact, (*(path for path, _ in bounds), *values))
            most = sorted(rows, key=lambda each: (-each[1], each[0]))[:top]
            if len(bounds) < wanted or (len(most) == top and most[-1][1] > bounds[-1][1]):
                return dict(most)
            wanted *= 4


def _of_tasks(index: TaskDatabase, found: Condition | None) -> Condition:
    """The rows of these tasks; None: of all."""
    if found is None:
        return "task_id IS NOT NULL", ()
    where, values = found
    return f"task_id IN (SELECT id FROM {index.at('tasks')} WHERE {where})", values


def _usage(index: TaskDatabase, mine: Condition, by: str = "SUBSTR(started_at, 1, 10)") -> list[tuple[Any, ...]]:
    """Turns by day or another column, agent, model, and by whether their cost is stated: by them, for their whole run, or for the
    run of which they are a sub-agent's."""
    where, values = mine
    names = ("in", "out", "cache_read", "cache_write")
    tokens = ", ".join(f"SUM({index.number_in('tokens', name)})" for name in names)
    is_subagent, call = index.contains("extra", '"X-Parent-Call"')
    is_priced = _DOLLARS.replace("cost", "runs.cost") + " IS NOT NULL"
    runs, tasks = f"{index.at('task_runs')} AS runs", index.at("tasks")
    is_stated = f"""{_DOLLARS} IS NOT NULL
        OR (task_id, run) IN (SELECT task_id, run FROM {runs} WHERE {where} AND {is_priced})
        OR task_id IN (SELECT task_id FROM (SELECT id AS task_id, parent_id, extra FROM {tasks}) AS mine
            WHERE {where} AND {is_subagent} AND EXISTS (
                SELECT 1 FROM {runs} WHERE runs.task_id = mine.parent_id AND {is_priced}))"""
    statement = f"""
        SELECT {by}, agent, model, CASE WHEN {is_stated} THEN 1 ELSE 0 END,
            COUNT(*), SUM(duration_ms), {tokens}, SUM({_DOLLARS})
        FROM {index.at("task_agents")} WHERE {where} GROUP BY 1, 2, 3, 4"""
    with index.mapped():
        return [*index.read(statement, (*values, *values, *call, *values)), *_told_at_the_end(index, mine)]


def _told_at_the_end(index: TaskDatabase, mine: Condition) -> Iterator[tuple[Any, ...]]:
    """What results tell and turns do not: agents that stream say at the end what a run used. What came from a cache is
    not among the columns of a task, so such tokens have no model, and so no estimate, unless their cost is stated."""
    where, values = mine
    into, out = (index.number_in("tokens", name) for name in ("in", "out"))
    spent = "COALESCE(CAST(cost AS numeric), 0) - COALESCE(turns_cost, 0)"
    more_in, more_out = (f"COALESCE(tokens_{way}, 0) - COALESCE(turns_{way}, 0)" for way in ("in", "out"))
    statement = f"""
        SELECT SUBSTR(created_at, 1, 10), COALESCE(agent, agents), CASE WHEN {spent} > 0 THEN model END,
            CASE WHEN {spent} > 0 THEN 1 ELSE 0 END, SUM({more_in}), SUM({more_out}), SUM({spent})
        FROM (SELECT id AS task_id, created_at, agent, agents, model, tokens_in, tokens_out, cost
            FROM {index.at("tasks")}) AS each_task
        LEFT JOIN (SELECT task_id AS of_task, SUM({into}) AS turns_in, SUM({out}) AS turns_out,
            SUM({_DOLLARS}) AS turns_cost
            FROM {index.at("task_agents")} WHERE {where} GROUP BY task_id) AS by_turns ON of_task = task_id
        WHERE {where} AND ({more_in} > 0 OR {more_out} > 0 OR {spent} > 0.0000000001)
        GROUP BY 1, 2, 3, 4"""
    for day, agents, model, is_stated, tokens_in, tokens_out, cost in index.read(statement, (*values, *values)):
        agent = (agents or "").split("\n")[0]
        yield day, agent, model, is_stated, 0, 0, tokens_in, tokens_out, None, None, cost if is_stated else None


def used(index: TaskDatabase, ids: Collection[str]) -> dict[str, tuple[Usage, ...]]:
    """What the turns of some tasks have used, by task."""
    by_task: dict[str, list[tuple[Any, ...]]] = {}
    for task_id, *row in _usage(index, one_of("task_id", ids), by="task_id") if ids else ():
        by_task.setdefault(task_id, []).append((None, *row))
    return {task_id: _merged(rows) for task_id, rows in by_task.items()}


def files_changed(index: TaskDatabase, ids: Collection[str]) -> dict[str, int]:
    """How many files each of some tasks changed."""
    if not ids:
        return {}
    where, values = one_of("task_id", ids)
    statement = (
        f"SELECT task_id, COUNT(DISTINCT file_path) FROM {index.at('task_files')}"
        f" WHERE {where} AND operation != 'read' GROUP BY task_id"
    )
    with index.mapped():
        found = {row[0]: int(row[1]) for row in index.read(statement, values)}
    return {task_id: found.get(task_id, 0) for task_id in ids}


def _merged(rows: Iterable[tuple[Any, ...]]) -> tuple[Usage, ...]:
    """The sums of several days as one."""
    found: dict[tuple[Any, ...], list[Any]] = {}
    for row in rows:
        sums = found.setdefault(tuple(row[:4]), [0, 0, None, None, None, None, None])
        for n, value in enumerate(row[4:]):
            sums[n] = _sum(sums[n], Decimal(str(value)) if n == 6 and value is not None else _count(value))
    usage = []
    for (day, agent, model, stated), sums in sorted(found.items(), key=lambda each: tuple(map(str, each[0]))):
        turns, spent, tokens_in, tokens_out, cache_read, cache_write, cost = sums
        tokens = (tokens_in, tokens_out, cache_read, cache_write)
        stated_cost = None if cost is None else f"{cost:.6f}"
        usage.append(Usage(day, agent or "", model, bool(stated), turns, spent, *tokens, stated_cost))
    return tuple(usage)


def _count(value: Any) -> int | None:
    """Some databases sum up numbers as decimals."""
    return None if value is None else int(value)


def _sum(one: Any, two: Any) -> Any:
    """Unknown and known is known."""
    return two if one is None else one if two is None else one + two
