"""The queries on the index: lists of tasks, positions of turns, statistics."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from decimal import Decimal
from functools import partial, reduce
from operator import or_
from typing import Any, Final

from rawko_state.errors import InvalidValue
from rawko_state.format.values import read_label_lines, write_exact_time, write_labels, write_time
from rawko_state.index.orm import p
from rawko_state.index.rows import TaskDatabase
from rawko_state.model import status as words
from rawko_state.model.entries import UNKNOWN_USER
from rawko_state.store import RunRow, Stats, TaskFilter, TaskSummary, TurnRow, Usage

# Up to this many matching tasks are looked up one by one; beyond that, tasks are scanned in order until enough match.
_FEW: Final = 2_000


def history(index: TaskDatabase, wanted: TaskFilter, alive: Collection[str]) -> list[TaskSummary]:
    """The tasks that match. ``alive``: the tasks whose run lease is held; other running tasks count as interrupted."""
    with index.mapped():
        task = index.tables.tasks
        query = task.select().where(*_conditions(index, wanted, alive))
        column = _sorted_by(task, wanted.sort)
        if wanted.after is not None:
            query = query.where(_follows(task, column, wanted))
        order = [index.ordered(each, descending=not wanted.reverse) for each in (column, task.id)]
        query = query.order_by(*order)
        if wanted.limit is not None:
            query = query.limit(wanted.limit)
        rows = list(query.dicts())
        touched = _touched(index, wanted.file, [row["id"] for row in rows]) if wanted.file else {}
    return [_summary(row, alive, touched.get(row["id"], ())) for row in rows]


def _sorted_by(task: Any, sort: str) -> Any:
    columns = {
        "updated": task.updated_at,
        "created": task.created_at,
        "completed": task.completed_at,
        "duration": task.duration_ms,
        "turns": task.turns,
        "tokens": p.fn.COALESCE(task.tokens_in, 0) + p.fn.COALESCE(task.tokens_out, 0),
    }
    return columns[sort]


def _follows(task: Any, column: Any, wanted: TaskFilter) -> Any:
    """The condition for tasks that come after a given one in the wanted order. InvalidValue if that task no longer exists."""
    last = next(iter(task.select(column).where(task.id == wanted.after).tuples()), None)
    if last is None:
        raise InvalidValue(f"Task {wanted.after!r} no longer exists, so the list can't continue after it.")
    value = last[0]
    if wanted.reverse:
        beyond = column.is_null(False) if value is None else column > value
        next_id = task.id > wanted.after
    else:
        beyond = None if value is None else (column < value) | column.is_null(True)
        next_id = task.id < wanted.after
    same = (column.is_null(True) if value is None else column == value) & next_id
    return same if beyond is None else same | beyond


def _conditions(index: TaskDatabase, wanted: TaskFilter, alive: Collection[str]) -> list[Any]:
    tables = index.tables
    task = tables.tasks
    found: list[Any] = [task.id.is_null(False)]
    if wanted.status:
        found.append(reduce(or_, [_has_status(task, status, alive) for status in wanted.status]))
    when = {"created": task.created_at, "completed": task.completed_at}.get(wanted.sort, task.updated_at)
    written = write_exact_time if when is task.updated_at else write_time
    if wanted.since is not None:
        found.append(when >= written(wanted.since))
    if wanted.until is not None:
        found.append(when < written(wanted.until))
    for name, value in wanted.labels:
        needle = f"\n{write_labels({name: value})}\n" if value is not None else f"\n{name}="
        found.append(index.contains(task.labels, needle))
    if wanted.pinned is not None:
        found.append(task.pinned == int(wanted.pinned))
    for column, value in ((task.model, wanted.model), (task.branch, wanted.branch)):
        if value is not None:
            found.append(_like(index, column, value))
    if wanted.ids is not None:
        found.append(task.id.in_(wanted.ids))
    if wanted.agent is not None:
        agents = tables.agents
        found.append(_among(task, agents, _like(index, agents.agent, wanted.agent)))
    if wanted.file is not None:
        found.append(_among(task, tables.files, _is_file(index, wanted.file)))
    return found


def _has_status(task: Any, status: str, alive: Collection[str]) -> Any:
    status = words.canonical(status)
    is_alive = task.id.in_(list(alive)) | (task.detached == 1)
    if status == words.INTERRUPTED:
        return ((task.status == words.RUNNING) & ~is_alive) | (task.status == words.INTERRUPTED)
    if status == words.RUNNING:
        return (task.status == words.RUNNING) & is_alive
    return task.status == status


def _among(task: Any, table: Any, condition: Any) -> Any:
    """The tasks with a matching row in another table, using whichever query is cheaper."""
    few = [row[0] for row in table.select(table.task).where(condition).limit(_FEW).tuples()]
    if len(few) < _FEW:
        return task.id.in_(list(dict.fromkeys(few)))
    return p.fn.EXISTS(table.select(p.SQL("1")).where((table.task == task.id) & condition))


def _like(index: TaskDatabase, column: Any, wanted: str) -> Any:
    """Matches exactly or as a glob."""
    return (column == wanted) | index.glob(column, wanted) if _is_glob(wanted) else column == wanted


def _is_glob(text: str) -> bool:
    return any(character in text for character in "*?[")


def _is_file(index: TaskDatabase, wanted: str) -> Any:
    """An exact path, everything under a folder, or a glob."""
    files = index.tables.files
    folder = wanted.rstrip("/") + "/"
    below = (files.file_path >= folder) & (files.file_path < folder[:-1] + "0")  # "0" follows "/"
    plain = (files.file_path == wanted) | below
    if _is_glob(wanted):
        # Real paths may contain brackets: app/[id]/page.tsx.
        return plain | index.glob(files.file_path, wanted)
    return plain


def _touched(index: TaskDatabase, wanted: str, ids: list[str]) -> dict[str, tuple[tuple[str, str], ...]]:
    files = index.tables.files
    found: dict[str, dict[tuple[str, str], None]] = {}
    for start in range(0, len(ids), 500):
        some = ids[start : start + 500]
        query = files.select(files.task, files.file_path, files.operation).where(
            files.task.in_(some) & _is_file(index, wanted)
        )
        for task_id, path, operation in query.order_by(files.task, files.turn).tuples():
            found.setdefault(task_id, {})[(operation, path)] = None
    return {task_id: tuple(touched) for task_id, touched in found.items()}


def _summary(row: dict[str, Any], alive: Collection[str], touched: Iterable[tuple[str, str]]) -> TaskSummary:
    status = row["status"] or words.PENDING
    if status == words.RUNNING and not row["detached"] and row["id"] not in alive:
        status = words.INTERRUPTED
    parent = row["parent_id"]
    if parent and row["parent_turn"] is not None:
        parent = f"{parent}@{row['parent_turn']}"
    return TaskSummary(
        id=row["id"],
        created=row["created_at"],
        updated=row["updated_at"],
        completed=row["completed_at"],
        status=status,
        duration_ms=row["duration_ms"],
        request=row["request"],
        summary=row["result_summary"],
        title=row["title"],
        agents=tuple(row["agents"].split("\n")) if row["agents"] else (),
        labels=read_label_lines(row["labels"]),
        pinned=bool(row["pinned"]),
        turns=row["turns"],
        runs=row["runs"],
        parent=parent,
        model=row["model"],
        branch=row["branch"],
        tokens_in=row["tokens_in"],
        tokens_out=row["tokens_out"],
        cost=row["cost"],
        file=row["file_path"],
        damaged=row["damaged"],
        touched=tuple(touched),
    )


def ids(index: TaskDatabase, wanted: TaskFilter, alive: Collection[str]) -> dict[str, str | None]:
    """The ids of the tasks that match, in no particular order, with their creation times."""
    task = index.tables.tasks
    with index.mapped():
        query = task.select(task.id, task.created_at).where(*_conditions(index, wanted, alive))
        return {row[0]: row[1] for row in query.tuples()}


def turn_place(index: TaskDatabase, task_id: str, number: int) -> tuple[int, int, int] | None:
    """Whether the record of a turn is damaged, and its offset and length in the file."""
    agents = index.tables.agents
    with index.mapped():
        found = (
            agents.select(agents.damaged, agents.offset, agents.length)
            .where((agents.task == task_id) & (agents.turn == number))
            .order_by(agents.offset)
            .limit(1)
            .tuples()
        )
        return next(((row[0], row[1], row[2]) for row in found), None)


def turn_places(index: TaskDatabase, task_id: str) -> Iterator[tuple[int, int]]:
    """The positions of a task's turns, last one first."""
    agents = index.tables.agents
    with index.mapped():
        query = agents.select(agents.offset, agents.length).where((agents.task == task_id) & (agents.damaged == 0))
        for row in query.order_by(agents.offset.desc()).tuples().iterator():
            yield row[0], row[1]


def request_places(index: TaskDatabase, task_id: str, up_to: int | None) -> list[tuple[int, int]]:
    """The offsets of a task's requests, in order, and the distance from each to the end of its record. With ``up_to``, only of
    the runs that had started by that turn."""
    runs, records = index.tables.runs, index.tables.records
    with index.mapped():
        end = records.select(records.offset + records.length).where(
            (records.task == task_id) & (records.offset <= runs.offset)
        )
        query = runs.select(runs.offset, end.order_by(records.offset.desc()).limit(1)).where(runs.task == task_id)
        if up_to is not None:
            query = query.where(runs.first_turn <= up_to)
        return [(row[0], (row[1] or row[0]) - row[0]) for row in query.order_by(runs.run).tuples()]


def turn_rows(index: TaskDatabase, task_id: str, up_to: int | None, most: int | None) -> tuple[list[TurnRow], int]:
    """The turns of a task from the index, in file order, and their number. With ``most``, a longer task is limited to the first
    few turns and the newest turns and decisions."""
    agents = index.tables.agents
    mine = (agents.task == task_id) & (agents.turn <= up_to) if up_to is not None else agents.task == task_id
    with index.mapped():
        total = agents.select(p.fn.COUNT(agents.offset)).where(mine).scalar() or 0
        query = agents.select(*[getattr(agents, name) for name in TurnRow._fields]).where(mine)
        if most is None or total <= 2 * most:
            return [TurnRow(*row) for row in query.order_by(agents.offset).tuples()], total
        decisions = query.where(agents.selected.is_null(False) | agents.decision.is_null(False))
        newest = agents.offset.desc()
        parts = (query.order_by(agents.offset).limit(4), query.order_by(newest).limit(most))
        found = {TurnRow(*row) for part in (*parts, decisions.order_by(newest).limit(most)) for row in part.tuples()}
    return sorted(found, key=lambda row: row.offset), total


def status_before(index: TaskDatabase, task_id: str, offset: int) -> tuple[str, int | None] | None:
    """A task's status just before an offset, and the turn that set it. None if the index has none."""
    events = index.tables.events
    with index.mapped():
        query = events.select(events.text, events.turn).where(
            (events.task == task_id) & (events.seq < offset) & events.kind.in_(("status", "final"))
        )
        return next(((row[0], row[1]) for row in query.order_by(events.seq.desc()).limit(1).tuples()), None)


def by_source(index: TaskDatabase, prefix: str) -> dict[str, str]:
    """The tasks whose source starts with a prefix: a mapping of source to id."""
    task = index.tables.tasks
    with index.mapped():
        query = task.select(task.source, task.id).where((task.source >= prefix) & (task.source < prefix + "\U0010ffff"))
        return {row[0]: row[1] for row in query.tuples()}


def note_places(index: TaskDatabase, task_id: str) -> list[int]:
    """The offsets of a task's notes, last one first."""
    events = index.tables.events
    with index.mapped():
        query = events.select(events.seq).where((events.task == task_id) & (events.kind == "note"))
        return [row[0] for row in query.order_by(events.seq.desc()).tuples()]


def notes_for(index: TaskDatabase, task_id: str) -> list[tuple[int, str]]:
    """The notes with a purpose: their offsets, in order, and the purpose of each."""
    events = index.tables.events
    with index.mapped():
        mine = (events.task == task_id) & (events.kind == "note") & events.text.is_null(False)
        return [
            (row[0], row[1]) for row in events.select(events.seq, events.text).where(mine).order_by(events.seq).tuples()
        ]


def holds(index: TaskDatabase, task_id: str, seal: str) -> bool:
    """Whether a task has an undamaged record with this seal."""
    table = index.tables.records
    with index.mapped():
        mine = (table.task == task_id) & (table.seal == seal) & (table.kind != "damaged")
        return bool(table.select(p.SQL("1")).where(mine).exists())


def concerns(index: TaskDatabase) -> Iterator[tuple[str, str, bool]]:
    """Tasks with problems in their files: id, message, and whether an append in progress looks the same."""
    task = index.tables.tasks
    tail = (task.file_size > task.indexed_end) & task.tail_seal.is_null(False) & ~task.file_path.endswith(".gz")
    unfinished = task.format.is_null(True) & task.source.is_null(False) & task.tail_seal.is_null(False)
    with index.mapped():
        query = task.select(task.id, task.damaged, task.runs, tail, unfinished).order_by(task.id)
        query = query.where((task.damaged > 0) | (task.runs == 0) | tail | unfinished)
        for task_id, damaged, begun, torn, no_format in query.tuples():
            if not begun:
                yield task_id, "its file does not say what was asked: it is empty, cut off, or no task file", False
                continue
            if damaged:
                yield task_id, f"{damaged} damaged records", False
            if torn:
                yield task_id, "the end of its file is unfinished", True
            if no_format:
                yield (
                    task_id,
                    "an earlier version imported it without Format, and with a Status that is not kept",
                    False,
                )


def statuses(index: TaskDatabase) -> dict[str, str]:
    """What the records of each task say that it is."""
    task = index.tables.tasks
    with index.mapped():
        return {row[0]: row[1] or words.PENDING for row in task.select(task.id, task.status).tuples()}


def runs(index: TaskDatabase, task_id: str) -> list[RunRow]:
    table = index.tables.runs
    names = (
        "run",
        "status",
        "request",
        "by",
        "first_turn",
        "completed_at",
        "duration_ms",
        "summary",
        "error",
        "output",
    )
    with index.mapped():
        query = table.select(*[getattr(table, name) for name in names]).where(table.task == task_id)
        found = [RunRow(*row) for row in query.order_by(table.run).tuples()]
    return [row if row.by else row._replace(by=UNKNOWN_USER) for row in found]


def files(index: TaskDatabase, task_id: str) -> list[tuple[int, str, str]]:
    """The files that a task touched: turn, operation, path."""
    table = index.tables.files
    with index.mapped():
        query = table.select(table.turn, table.operation, table.file_path).where(table.task == task_id)
        return [
            (row[0], row[1], row[2]) for row in query.order_by(table.turn, table.file_path, table.operation).tuples()
        ]


def snapshots(index: TaskDatabase, task_id: str) -> list[dict[str, Any]]:
    table = index.tables.snapshots
    with index.mapped():
        query = table.select().where(table.task == task_id).order_by(table.turn)
        return [{name: value for name, value in row.items() if name != "task"} for row in query.dicts()]


def children(index: TaskDatabase, task_id: str) -> list[tuple[str, int | None, str]]:
    """The forks and children of a task: id, turn, request."""
    task = index.tables.tasks
    with index.mapped():
        query = task.select(task.id, task.parent_turn, task.request).where(task.parent_id == task_id)
        return [(row[0], row[1], row[2] or "") for row in query.order_by(task.created_at, task.id).tuples()]


def stats(index: TaskDatabase, wanted: TaskFilter, alive: Collection[str], days: int, top: int) -> Stats:
    """Each table is read once, and without a join if all tasks are wanted; large ones by several threads."""
    conditions = _conditions(index, replace(wanted, sort="created"), alive)
    everything = replace(wanted, sort="created", limit=None) == TaskFilter(sort="created")
    chosen = None if everything else conditions
    parts = _PARTS if index.is_shared and everything else _PARTS[:1]
    figures, finishing, costs, files, *used = _together(
        index,
        lambda: _figures(index, conditions, alive),
        lambda: _time_to_finish(index, conditions),
        lambda: _stated_costs(index, conditions),
        lambda: _most_touched(index, chosen, top),
        *(partial(_usage, index, chosen, part if len(parts) > 1 else None) for part in parts),
    )
    usage = _merged(row for rows in used for row in rows)
    by_status: dict[str, int] = {}
    time_by_status: dict[str, int] = {}
    by_day: dict[str, int] = {}
    tokens: list[int | None] = [None, None]
    for day, status, number, duration, tokens_in, tokens_out in figures:
        word = status or words.PENDING
        by_status[word] = by_status.get(word, 0) + number
        time_by_status[word] = time_by_status.get(word, 0) + int(duration or 0)
        by_day[day or "unknown"] = by_day.get(day or "unknown", 0) + number
        tokens = [_sum(tokens[0], tokens_in), _sum(tokens[1], tokens_out)]
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
        cost=f"{sum(costs):f}" if costs else None,
        usage=usage,
        time_to_finish_ms=finishing,
    )


# Ids are random, so these are equal shares of the tasks.
_PARTS: Final = (("", "9"), ("9", "i"), ("i", "r"), ("r", "\U0010ffff"))


def _together(index: TaskDatabase, *questions: Callable[[], Any]) -> list[Any]:
    """The answers to several questions, asked at the same time where the database allows that."""
    if not index.is_shared:
        return [ask() for ask in questions]
    answers: list[Any] = [None] * len(questions)
    errors: list[BaseException] = []
    waiting = iter(enumerate(questions))

    def work() -> None:
        try:
            for number, ask in waiting:
                answers[number] = ask()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(min(len(questions), os.cpu_count() or 1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return answers


def _figures(index: TaskDatabase, conditions: list[Any], alive: Collection[str]) -> list[tuple[Any, ...]]:
    """Tasks by day and status: how many, and their time and tokens."""
    task = index.tables.tasks
    with index.mapped():
        interrupted = (task.status == words.RUNNING) & (task.detached == 0) & task.id.not_in(list(alive))
        shown = p.Case(None, [(interrupted, words.INTERRUPTED)], task.status)
        day = p.fn.SUBSTR(task.created_at, 1, 10)
        sums = [p.fn.SUM(column) for column in (task.duration_ms, task.tokens_in, task.tokens_out)]
        query = task.select(day, shown, p.fn.COUNT(task.id), *sums).where(*conditions)
        # By position: some databases reject the repeated expressions.
        return list(query.group_by(p.SQL("1"), p.SQL("2")).tuples())


def _time_to_finish(index: TaskDatabase, conditions: list[Any]) -> dict[str, int]:
    task = index.tables.tasks
    with index.mapped():
        completed = (*conditions, task.status == words.COMPLETED, task.duration_ms > 0)
        number = task.select(p.fn.COUNT(task.id)).where(*completed).scalar() or 0
        ordered = task.select(task.duration_ms).where(*completed).order_by(task.duration_ms).limit(1)
        places = {"median": number // 2, "p90": number * 9 // 10} if number else {}
        return {name: int(ordered.offset(place).scalar()) for name, place in places.items()}


def _stated_costs(index: TaskDatabase, conditions: list[Any]) -> list[Decimal]:
    task = index.tables.tasks
    with index.mapped():
        query = task.select(task.cost).where(*conditions, task.cost.is_null(False))
        return [Decimal(row[0]) for row in query.tuples()]


def _most_touched(index: TaskDatabase, conditions: list[Any] | None, top: int) -> dict[str, int]:
    """The files that most tasks touched. Rows are counted first, as that is cheap: a file with few rows has few tasks."""
    files = index.tables.files
    with index.mapped():
        mine = _of_tasks(index, files, conditions)
        rows = p.fn.COUNT(files.task)
        counted = files.select(files.file_path, rows).where(*mine).group_by(files.file_path)
        wanted = 4 * top
        while True:
            bounds = list(counted.order_by(rows.desc(), files.file_path).limit(wanted).tuples())
            tasks = p.fn.COUNT(files.task.distinct())
            exact = files.select(files.file_path, tasks).where(files.file_path.in_([path for path, _ in bounds]), *mine)
            found = sorted(exact.group_by(files.file_path).tuples(), key=lambda each: (-each[1], each[0]))[:top]
            if len(bounds) < wanted or (len(found) == top and found[-1][1] > bounds[-1][1]):
                return dict(found)
            wanted *= 4


def _of_tasks(index: TaskDatabase, table: Any, conditions: list[Any] | None) -> list[Any]:
    """The rows of these tasks; None: of all."""
    if conditions is None:
        return [table.task.is_null(False)]
    task = index.tables.tasks
    return [table.task.in_(task.select(task.id).where(*conditions))]


def _usage(index: TaskDatabase, conditions: list[Any] | None, part: tuple[str, str] | None) -> list[tuple[Any, ...]]:
    """Turns by day, agent, model, and by whether their cost is stated. ``part``: only of tasks with these ids."""
    agents = index.tables.agents
    with index.mapped():
        mine = _of_tasks(index, agents, conditions)
        if part is not None:
            mine = [agents.task >= part[0], agents.task < part[1]]
        day, stated = p.fn.SUBSTR(agents.started_at, 1, 10), p.Case(None, [(agents.cost.is_null(False), 1)], 0)
        names = ("in", "out", "cache_read", "cache_write")
        tokens = [p.fn.SUM(index.number_in(agents.tokens, name)) for name in names]
        cost = p.fn.SUM(agents.cost.cast("numeric"))
        turns, spent = p.fn.COUNT(agents.offset), p.fn.SUM(agents.duration_ms)
        query = agents.select(day, agents.agent, agents.model, stated, turns, spent, *tokens, cost).where(*mine)
        return list(query.group_by(*(p.SQL(str(n)) for n in range(1, 5))).tuples())


def _merged(rows: Iterable[tuple[Any, ...]]) -> tuple[Usage, ...]:
    """The shares of the threads as one."""
    found: dict[tuple[Any, ...], list[Any]] = {}
    for row in rows:
        sums = found.setdefault(tuple(row[:4]), [0, 0, None, None, None, None, None])
        for n, value in enumerate(row[4:]):
            sums[n] = _sum(sums[n], None if value is None else value if n == 6 else int(value))
    return tuple(
        Usage._make((day, agent or "", model, bool(stated), *sums[:6], None if sums[6] is None else f"{sums[6]:.6f}"))
        for (day, agent, model, stated), sums in sorted(found.items(), key=lambda each: tuple(map(str, each[0])))
    )


def _sum(one: Any, two: Any) -> Any:
    """Unknown and known is known."""
    return two if one is None else one if two is None else one + two
