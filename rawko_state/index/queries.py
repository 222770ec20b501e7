"""The queries on the index: lists of tasks, positions of turns.

These are SQL, not built from the models: they run in every short command, and loading Peewee and building its models takes longer
than the queries do. Each is written with ``?`` for values; ``TaskDatabase.read`` gives it the dialect of the database.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from rawko_state.errors import InvalidValue
from rawko_state.format.values import read_label_lines, write_exact_time, write_labels, write_time
from rawko_state.index.rows import Condition, TaskDatabase
from rawko_state.lazy import lazy
from rawko_state.model import status as words
from rawko_state.model.frozen import replace
from rawko_state.store import RunRow, TaskFilter, TaskSummary, TurnRow

if TYPE_CHECKING:
    from rawko_state.model import entries
else:
    entries = lazy("rawko_state.model.entries")

# Up to this many matching tasks are looked up one by one; beyond that, tasks are scanned in order until enough match.
_FEW: Final = 2_000


_SHOWN: Final = (
    "id, created_at, updated_at, completed_at, status, duration_ms, request, result_summary, title, agents, labels, pinned,"
    " turns, runs, parent_id, parent_turn, model, branch, tokens_in, tokens_out, cost, file_path, damaged, detached"
)
"""The columns of tasks that a list shows."""


def history(index: TaskDatabase, wanted: TaskFilter, alive: Collection[str]) -> list[TaskSummary]:
    """The tasks that match. ``alive``: the tasks whose run lease is held; other running tasks count as interrupted."""
    with index.mapped():
        found = conditions(index, wanted, alive)
        column = _SORTED_BY[wanted.sort]
        order = ", ".join(index.ordered(each, descending=not wanted.reverse) for each in (column, "id"))
        rows: list[Any] = []
        for part in _follows(index, column, wanted) if wanted.after is not None else [_ANY]:
            left = None if wanted.limit is None else wanted.limit - len(rows)
            if left == 0 and rows:
                break
            where, values = every([*found, part])
            limit = "" if left is None else f" LIMIT {int(left)}"
            statement = f"SELECT {_SHOWN} FROM {index.at('tasks')} WHERE {where} ORDER BY {order}{limit}"
            rows += index.read(statement, values)
        touched = _touched(index, wanted.file, [row[0] for row in rows]) if wanted.file else {}
    return [_summary(row, alive, touched.get(row[0], ())) for row in rows]


def count(index: TaskDatabase, wanted: TaskFilter, alive: Collection[str]) -> int:
    """How many tasks match, whatever the limit and the place in the list."""
    with index.mapped():
        where, values = every(conditions(index, wanted, alive))
        return int(next(iter(index.read(f"SELECT COUNT(*) FROM {index.at('tasks')} WHERE {where}", values)))[0])


_ANY: Final[Condition] = ("1 = 1", ())
_SORTED_BY: Final = {
    "updated": "updated_at",
    "created": "created_at",
    "completed": "completed_at",
    "duration": "duration_ms",
    "turns": "turns",
    "tokens": "COALESCE(tokens_in, 0) + COALESCE(tokens_out, 0)",
}


def _follows(index: TaskDatabase, column: str, wanted: TaskFilter) -> list[Condition]:
    """The tasks that come after a given one in the wanted order, in one or two parts: those without a value are the last, or with
    ``reverse`` the first. Each part is a range of the column's index, so that every page costs the same; a single condition with
    OR is not. InvalidValue if that task no longer exists."""
    statement = f"SELECT {column} FROM {index.at('tasks')} WHERE id = ?"
    last = next(iter(index.read(statement, (wanted.after,))), None)
    if last is None:
        raise InvalidValue(f"Task {wanted.after!r} no longer exists, so the list can't continue after it.")
    value, sign = last[0], ">" if wanted.reverse else "<"
    if value is None:
        same: Condition = f"{column} IS NULL AND id {sign} ?", (wanted.after,)
        return [same, (f"{column} IS NOT NULL", ())] if wanted.reverse else [same]
    further: Condition = (
        f"{column} {sign}= ? AND ({column} {sign} ? OR id {sign} ?)",
        (value, value, wanted.after),
    )
    return [further] if wanted.reverse else [further, (f"{column} IS NULL", ())]


def every(found: Iterable[Condition]) -> Condition:
    """All of these conditions."""
    return _joined(found, " AND ")


def either(found: Iterable[Condition]) -> Condition:
    """One of these conditions."""
    return _joined(found, " OR ")


def _joined(found: Iterable[Condition], word: str) -> Condition:
    texts, values = zip(*found, strict=True)
    return word.join(f"({text})" for text in texts), tuple(value for some in values for value in some)


def one_of(column: str, values: Collection[Any]) -> Condition:
    """A column has one of these values."""
    return (f"{column} IN ({', '.join('?' * len(values))})", tuple(values)) if values else ("1 = 0", ())


def conditions(index: TaskDatabase, wanted: TaskFilter, alive: Collection[str]) -> list[Condition]:
    """The conditions on the columns of tasks."""
    found: list[Condition] = [("id IS NOT NULL", ())]
    if wanted.status:
        found.append(either([_has_status(index, wanted, status, alive) for status in wanted.status]))
    when = {"created": "created_at", "completed": "completed_at"}.get(wanted.sort, "updated_at")
    written = write_exact_time if when == "updated_at" else write_time
    if wanted.since is not None:
        found.append((f"{when} >= ?", (written(wanted.since),)))
    if wanted.until is not None:
        found.append((f"{when} < ?", (written(wanted.until),)))
    for name, value in wanted.labels:
        needle = f"\n{write_labels({name: value})}\n" if value is not None else f"\n{name}="
        found.append(index.contains("labels", needle))
    if wanted.pinned is not None:
        found.append(("pinned = ?", (int(wanted.pinned),)))
    for column, value in (("model", wanted.model), ("branch", wanted.branch)):
        if value is not None:
            found.append(_like(index, column, value))
    if wanted.exact is not None:
        found.append(("exact = ?", (int(wanted.exact),)))
    if wanted.source is not None:
        found.append(("source = ?", (wanted.source,)))
    if wanted.ids is not None:
        found.append(one_of("id", wanted.ids))
    if wanted.agent is not None:
        took_turns = _among(index, "task_agents", _like(index, "agent", wanted.agent))
        found.append(either([took_turns, _like(index, "agent", wanted.agent)]))  # a task may have no turns yet
    if wanted.file is not None:
        found.append(_among(index, "task_files", _is_file(index, wanted.file)))
    return found


def _has_status(index: TaskDatabase, wanted: TaskFilter, status: str, alive: Collection[str]) -> Condition:
    status = words.canonical(status)
    # Nearly all tasks may have ended alike. To look up each of them and sort them takes five times as long as to read all tasks.
    is_common = status in words.ENDED and wanted.sort != "created"
    plain: Condition = f"{index.unindexed('status') if is_common else 'status'} = ?", (status,)
    is_alive = either([one_of("id", alive), ("detached = 1", ())])
    if status == words.INTERRUPTED:
        stopped = f"status = ? AND NOT ({is_alive[0]})", (words.RUNNING, *is_alive[1])
        return either([stopped, plain])
    return every([plain, is_alive]) if status == words.RUNNING else plain


def _among(index: TaskDatabase, table: str, condition: Condition) -> Condition:
    """The tasks with a matching row in another table, using whichever query is cheaper."""
    table, (where, values) = index.at(table), condition
    few = [row[0] for row in index.read(f"SELECT task_id FROM {table} WHERE {where} LIMIT {_FEW}", values)]
    if len(few) < _FEW:
        return one_of("id", dict.fromkeys(few))
    tasks = index.at("tasks")
    return f"EXISTS (SELECT 1 FROM {table} AS other WHERE other.task_id = {tasks}.id AND ({where}))", values


def _like(index: TaskDatabase, column: str, wanted: str) -> Condition:
    """Matches exactly or as a glob."""
    plain: Condition = f"{column} = ?", (wanted,)
    return either([plain, index.glob(column, wanted)]) if _is_glob(wanted) else plain


def _is_glob(text: str) -> bool:
    return any(character in text for character in "*?[")


def _is_file(index: TaskDatabase, wanted: str) -> Condition:
    """An exact path, everything under a folder, or a glob."""
    folder = wanted.rstrip("/") + "/"
    below: Condition = "file_path >= ? AND file_path < ?", (folder, folder[:-1] + "0")  # "0" follows "/"
    found: list[Condition] = [("file_path = ?", (wanted,)), below]
    if _is_glob(wanted):
        # Real paths may contain brackets: app/[id]/page.tsx.
        found.append(index.glob("file_path", wanted))
    return either(found)


def _touched(index: TaskDatabase, wanted: str, ids: list[str]) -> dict[str, tuple[tuple[str, str], ...]]:
    found: dict[str, dict[tuple[str, str], None]] = {}
    for start in range(0, len(ids), 500):
        where, values = every([one_of("task_id", ids[start : start + 500]), _is_file(index, wanted)])
        statement = (
            f"SELECT task_id, file_path, operation FROM {index.at('task_files')} WHERE {where} ORDER BY task_id, turn"
        )
        for task_id, path, operation in index.read(statement, values):
            found.setdefault(task_id, {})[(operation, path)] = None
    return {task_id: tuple(touched) for task_id, touched in found.items()}


def _summary(row: tuple[Any, ...], alive: Collection[str], touched: Iterable[tuple[str, str]]) -> TaskSummary:
    task_id, created, updated, completed, status, duration_ms, request, summary, title, agents, labels, *rest = row
    pinned, turns, runs, parent, parent_turn, model, branch, tokens_in, tokens_out, cost, file, damaged, detached = rest
    if status == words.RUNNING and not detached and task_id not in alive:
        status = words.INTERRUPTED
    return TaskSummary(
        id=task_id,
        created=created,
        updated=updated,
        completed=completed,
        status=status or words.PENDING,
        duration_ms=duration_ms,
        request=request,
        summary=summary,
        title=title,
        agents=tuple(agents.split("\n")) if agents else (),
        labels=read_label_lines(labels),
        pinned=bool(pinned),
        turns=turns,
        runs=runs,
        parent=f"{parent}@{parent_turn}" if parent and parent_turn is not None else parent,
        model=model,
        branch=branch,
        tokens_in=tokens_in,
        tokens_out=tokens_out,
        cost=cost,
        file=file,
        damaged=damaged,
        touched=tuple(touched),
    )


def ids(index: TaskDatabase, wanted: TaskFilter, alive: Collection[str]) -> dict[str, str | None]:
    """The ids of the tasks that match, in no particular order, with their creation times."""
    with index.mapped():
        where, values = every(conditions(index, wanted, alive))
        return dict(index.read(f"SELECT id, created_at FROM {index.at('tasks')} WHERE {where}", values))


def turn_place(index: TaskDatabase, task_id: str, number: int) -> tuple[int, int, int] | None:
    """Whether the record of a turn is damaged, and its offset and length in the file."""
    statement = (
        f'SELECT damaged, "offset", length FROM {index.at("task_agents")} WHERE task_id = ? AND turn = ?'
        ' ORDER BY "offset" LIMIT 1'
    )
    with index.mapped():
        return next(((row[0], row[1], row[2]) for row in index.read(statement, (task_id, number))), None)


def turn_places(index: TaskDatabase, task_id: str) -> Iterator[tuple[int, int]]:
    """The positions of a task's turns, last one first."""
    statement = f'SELECT "offset", length FROM {index.at("task_agents")} WHERE task_id = ? AND damaged = 0 ORDER BY "offset" DESC'
    with index.mapped():
        for row in index.read(statement, (task_id,)):
            yield row[0], row[1]


def request_places(index: TaskDatabase, task_id: str, up_to: int | None) -> list[tuple[int, int]]:
    """The offsets of a task's requests, in order, and the distance from each to the end of its record. With ``up_to``, only of
    the runs that had started by that turn."""
    statement = f"""
        SELECT runs."offset", (
            SELECT records."offset" + records.length FROM {index.at("task_records")} AS records
            WHERE records.task_id = runs.task_id AND records."offset" <= runs."offset"
            ORDER BY records."offset" DESC LIMIT 1
        ) FROM {index.at("task_runs")} AS runs WHERE runs.task_id = ?"""
    values: list[Any] = [task_id]
    if up_to is not None:
        statement += " AND first_turn <= ?"
        values.append(up_to)
    with index.mapped():
        rows = index.read(f"{statement} ORDER BY runs.run", values)
        return [(row[0], (row[1] or row[0]) - row[0]) for row in rows]


_TURN: Final = '"turn", agent, status, selected, decision, reason, tool_calls, run, damaged, "offset", length'


def turn_rows(index: TaskDatabase, task_id: str, up_to: int | None, most: int | None) -> tuple[list[TurnRow], int]:
    """The turns of a task from the index, in file order, and their number. With ``most``, a longer task is limited to the first
    few turns and the newest turns and decisions."""
    where, values = (
        ("task_id = ? AND turn <= ?", (task_id, up_to)) if up_to is not None else ("task_id = ?", (task_id,))
    )
    table = index.at("task_agents")

    def rows(more: str) -> Iterator[TurnRow]:
        return (TurnRow(*row) for row in index.read(f"SELECT {_TURN} FROM {table} WHERE {where} {more}", values))

    with index.mapped():
        total = next(iter(index.read(f"SELECT COUNT(*) FROM {table} WHERE {where}", values)))[0]
        if most is None or total <= 2 * most:
            return list(rows('ORDER BY "offset"')), total
        newest = f'ORDER BY "offset" DESC LIMIT {int(most)}'
        decisions = f"AND (selected IS NOT NULL OR decision IS NOT NULL) {newest}"
        found = {row for part in ('ORDER BY "offset" LIMIT 4', newest, decisions) for row in rows(part)}
    return sorted(found, key=lambda row: row.offset), total


def turn_page(index: TaskDatabase, task_id: str, after: int, beyond: int, limit: int, *, newest: bool) -> list[TurnRow]:
    """Some of a task's turns in file order: the first, or the newest, of those above a number and beyond an offset."""
    more, values = ("AND turn > ?", (task_id, beyond, after)) if after else ("", (task_id, beyond))
    order = f'ORDER BY "offset" {"DESC" if newest else ""} LIMIT {int(limit)}'
    statement = f'SELECT {_TURN} FROM {index.at("task_agents")} WHERE task_id = ? AND "offset" > ? {more} {order}'
    with index.mapped():
        found = [TurnRow(*row) for row in index.read(statement, values)]
    return found[::-1] if newest else found


def status_before(index: TaskDatabase, task_id: str, offset: int) -> tuple[str, int | None] | None:
    """A task's status just before an offset, and the turn that set it. None if the index has none."""
    statement = (
        f"SELECT text, turn FROM {index.at('task_events')} WHERE task_id = ? AND seq < ? AND kind IN ('status', 'final')"
        " ORDER BY seq DESC LIMIT 1"
    )
    with index.mapped():
        return next(((row[0], row[1]) for row in index.read(statement, (task_id, offset))), None)


def by_source(index: TaskDatabase, prefix: str) -> dict[str, str]:
    """The tasks with a source that starts with a prefix: a mapping of source to id. A task can have several sources."""
    first: Condition = "source >= ? AND source < ?", (prefix, prefix + "\U0010ffff")
    where, values = either([first, index.contains("source", f"\n{prefix}")])
    with index.mapped():
        rows = index.read(f"SELECT source, id FROM {index.at('tasks')} WHERE {where}", values)
        found = [(source, row[1]) for row in rows for source in row[0].split("\n")]
    return {source: task_id for source, task_id in found if source.startswith(prefix)}


def find_source(index: TaskDatabase, source: str) -> str | None:
    """The oldest task with exactly this source."""
    statement = f"SELECT id FROM {index.at('tasks')} WHERE source = ? ORDER BY created_at, id LIMIT 1"
    with index.mapped():
        return next((str(row[0]) for row in index.read(statement, (source,))), None)


def note_places(index: TaskDatabase, task_id: str) -> list[int]:
    """The offsets of a task's notes, last one first."""
    statement = f"SELECT seq FROM {index.at('task_events')} WHERE task_id = ? AND kind = 'note' ORDER BY seq DESC"
    with index.mapped():
        return [row[0] for row in index.read(statement, (task_id,))]


def notes_for(index: TaskDatabase, task_id: str) -> list[tuple[int, str]]:
    """The notes with a purpose: their offsets, in order, and the purpose of each."""
    where = "task_id = ? AND kind = 'note' AND text IS NOT NULL"
    with index.mapped():
        rows = index.read(f"SELECT seq, text FROM {index.at('task_events')} WHERE {where} ORDER BY seq", (task_id,))
        return [(row[0], row[1]) for row in rows]


def holds(index: TaskDatabase, task_id: str, seal: str) -> bool:
    """Whether a task has an undamaged record with this seal."""
    statement = f"SELECT 1 FROM {index.at('task_records')} WHERE task_id = ? AND seal = ? AND kind != 'damaged' LIMIT 1"
    with index.mapped():
        return bool(list(index.read(statement, (task_id, seal))))


def runs(index: TaskDatabase, task_id: str) -> list[RunRow]:
    statement = (
        "SELECT run, status, request, by, first_turn, completed_at, duration_ms, summary, error, output"
        f" FROM {index.at('task_runs')} WHERE task_id = ? ORDER BY run"
    )
    with index.mapped():
        found = [RunRow(*row) for row in index.read(statement, (task_id,))]
    return [row if row.by else replace(row, by=entries.UNKNOWN_USER) for row in found]


def files(index: TaskDatabase, task_id: str) -> list[tuple[int, str, str]]:
    """The files that a task touched: turn, operation, path."""
    statement = (
        f"SELECT turn, operation, file_path FROM {index.at('task_files')} WHERE task_id = ?"
        " ORDER BY turn, file_path, operation"
    )
    with index.mapped():
        return [(row[0], row[1], row[2]) for row in index.read(statement, (task_id,))]


def paths(index: TaskDatabase, part: str, after: str, limit: int) -> list[tuple[str, int]]:
    """The files that tasks touched, by path, whose path contains a text in either case; and how many tasks touched each."""
    found: list[Condition] = [("file_path > ?", (after,))]
    if part:
        found.append(index.contains("LOWER(file_path)", part.lower()))
    where, values = every(found)
    statement = (
        f"SELECT file_path, COUNT(DISTINCT task_id) FROM {index.at('task_files')} WHERE {where}"
        f" GROUP BY file_path ORDER BY file_path LIMIT {int(limit)}"
    )
    with index.mapped():
        return [(row[0], int(row[1])) for row in index.read(statement, values)]


def snapshots(index: TaskDatabase, task_id: str) -> list[dict[str, Any]]:
    names = ("turn", "provider", "ref", "path", "parent", "metadata")
    statement = f"SELECT {', '.join(names)} FROM {index.at('snapshots')} WHERE task_id = ? ORDER BY turn"
    with index.mapped():
        return [dict(zip(names, row, strict=True)) for row in index.read(statement, (task_id,))]


def children(index: TaskDatabase, task_id: str) -> list[tuple[str, int | None, str]]:
    """The forks and children of a task: id, turn, request."""
    statement = f"SELECT id, parent_turn, request FROM {index.at('tasks')} WHERE parent_id = ? ORDER BY created_at, id"
    with index.mapped():
        return [(row[0], row[1], row[2] or "") for row in index.read(statement, (task_id,))]
