"""The list of tasks, what runs and waits now, and the search."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import partial
from hashlib import sha256
from itertools import groupby
from typing import Any, Final, NamedTuple

from markupsafe import Markup

from rawko_state.errors import InvalidValue, RawkoError
from rawko_state.format.when import WHEN_HELP, parse_when
from rawko_state.model import status as words
from rawko_state.model.frozen import Frozen, replace
from rawko_state.store import RELEVANCE, SORTS, Hit, TaskFilter, TaskSummary, Usage
from rawko_state.web import wording
from rawko_state.web.fragments import telling_now
from rawko_state.web.rendering import plain
from rawko_state.web.sums import cost_of
from rawko_state.web.visits import FILTERS, Reply, View, Visit
from rawko_state.web.wording import Said

PAGE: Final = 50
_WAIT, _RUN = 20, 8
"""How many tasks stand on top of the list."""
_SUMMED: Final = 2_000
_NEWEST: Final = 60
"""Lines of a draft that are looked at, from its end."""
_LINE: Final = 120
_PLACES: Final = 3
_HITS, _HITS_TYPED = 60, 24
"""Places that a search looks for; fewer while somebody types."""
_BEGINNING: Final = 3
"""Letters that a word must have before all words that begin with it are looked for."""
SORT_WORDS: Final = {
    "updated": "Last active", "created": "Newest", "completed": "Last completed", "duration": "Longest", "turns": "Most turns",
    "tokens": "Most tokens",
}  # fmt: skip
_STATUSES: Final = ("running", "waiting", "paused", "failed", "interrupted", "completed")


class Row(Frozen):
    """A task in a list."""

    task: TaskSummary
    title: str
    ex: str
    """What else one should know at a glance: why it failed."""
    at: datetime | None
    age: Said
    took: Said
    cost: Said
    files: int | None
    """How many files it changed; None if that was not looked up."""

    @property
    def agent(self) -> str | None:
        """Who spoke last; a person only if nobody else did."""
        return next((name for name in reversed(self.task.agents) if name != "user"), None)

    @property
    def others(self) -> int:
        return max(0, len({name for name in self.task.agents if name != "user"}) - 1)


class Asked(NamedTuple):
    """A task that runs or waits, and what it does or asks."""

    row: Row
    line: str
    is_approval: bool
    agent: str | None


class Now(NamedTuple):
    """What waits for a person, then what runs; and whether there are more of each."""

    tasks: list[Asked]
    more_wait: bool
    more_run: bool


def rows_of(visit: Visit, tasks: Sequence[TaskSummary], sort: str = "updated", *, most: int = _SUMMED) -> list[Row]:
    """``most``: turns of a task that are read to sum up what it cost, if it states no cost."""
    summed = [task.id for task in tasks if task.cost is None and task.turns <= most]
    try:
        changed, used = visit.store.files_changed([task.id for task in tasks]), visit.store.used(summed)
    except RawkoError:
        changed, used, summed = {}, {}, []
    return [
        _row(task, sort, changed.get(task.id), used.get(task.id, ()) if task.id in summed else None) for task in tasks
    ]


def row_of(visit: Visit, task: TaskSummary) -> Row:
    return rows_of(visit, [task], most=task.turns)[0]


def _row(task: TaskSummary, sort: str, changed: int | None, used: Sequence[Usage] | None) -> Row:
    at = wording.when(getattr(task, sort if sort in ("created", "completed") else "updated"))
    return Row(
        task,
        wording.first_line(task.title or task.request) or "(no request)",
        wording.first_line(task.summary, 90) if task.status in (words.FAILED, words.INTERRUPTED) else "",
        at,
        wording.age(at),
        wording.duration(task.duration_ms, task.status, wording.when(task.created)),
        cost_of(task, used),
        changed,
    )


def filter_of(visit: Visit, *, limit: int = PAGE + 1) -> TaskFilter:
    """The filters in the address."""
    labels = [label.partition("=") for label in visit.query.getlist("label") if label.strip()]
    sort = visit.get("sort") or "updated"
    if sort not in SORTS:
        raise InvalidValue(f"Unknown order: {sort[:40]!r}. Known: {', '.join(SORTS)}.")
    pinned = visit.get("pinned")
    return TaskFilter(
        status=tuple(word for word in visit.query.getlist("status") if word),
        agent=visit.get("agent"),
        model=visit.get("model"),
        file=visit.get("file"),
        branch=visit.get("branch"),
        since=_time(visit, "since"),
        until=_time(visit, "until"),
        labels=tuple((name, value if equals else None) for name, equals, value in labels),
        pinned=None if pinned is None else pinned == "1",
        ids=(visit.get("task") or "",) if visit.get("task") else None,
        sort=sort,
        reverse=visit.get("reverse") == "1",
        limit=limit,
        after=visit.get("after"),
    )


def _time(visit: Visit, name: str) -> datetime | None:
    given = visit.get(name)
    found = parse_when(given) if given else None
    if given and found is None:
        raise InvalidValue(f"Not a date or time: {given[:40]!r}. {WHEN_HELP}")
    return found


def is_filtered(visit: Visit) -> bool:
    return any(visit.query.get(name) for name in FILTERS)


def state_of(tasks: Sequence[TaskSummary]) -> str:
    """A mark that changes when a list of these tasks would. The newest task alone is not enough: many may end in one second."""
    told = [(each.id, each.updated, each.status, each.turns, each.title, each.pinned) for each in tasks[:PAGE]]
    return sha256(repr(told).encode()).hexdigest()[:20]


def now_list(visit: Visit) -> Now:
    """What runs never takes the place of what waits. The order does not change while they work."""
    waiting = visit.store.history(TaskFilter(status=(words.WAITING,), limit=_WAIT + 1))
    running = visit.store.history(TaskFilter(status=(words.RUNNING,), limit=_RUN + 1))
    tasks = [*_by_age(waiting[:_WAIT]), *_by_age(running[:_RUN])]
    shown = [_asked(visit, row) for row in rows_of(visit, tasks)]
    return Now(shown, len(waiting) > _WAIT, len(running) > _RUN)


def _by_age(tasks: list[TaskSummary]) -> list[TaskSummary]:
    return sorted(tasks, key=lambda task: (task.created or "", task.id), reverse=True)


def _asked(visit: Visit, row: Row) -> Asked:
    task = row.task
    if task.status == words.WAITING:
        try:
            turn = visit.store.open_question(task.id)
        except RawkoError:
            turn = None
        if turn is not None and turn.question is not None:
            approval = turn.question.kind == "approval"
            return Asked(row, wording.first_line(turn.question.text, 160), approval, row.agent)
        return Asked(row, "Waits", False, row.agent)
    lines = visit.store.draft_lines(task.id)
    return Asked(
        row, _doing(lines) or (f"Run {task.runs}" if task.runs > 1 else ""), False, speaker(lines) or row.agent
    )


def speaker(draft: list[bytes]) -> str | None:
    """The agent of a turn that runs."""
    try:
        return str(json.loads(draft[0]).get("agent") or "") or None if draft else None
    except (ValueError, AttributeError):
        return None


def _doing(draft: list[bytes]) -> str:
    """What its turn does now: the newest tool call or step, or the end of what it says."""
    said = ""
    for line in reversed(draft[-_NEWEST:]):
        try:
            event = json.loads(line)
        except ValueError:
            continue  # it is being written
        kind, text = event.get("kind"), str(event.get("text") or "")
        if kind in ("text", "think"):
            said = text + said
        elif kind in ("tool", "progress"):
            if said.strip():
                break
            told = telling_now(str(event.get("tool") or ""), str(event.get("args") or "")) if kind == "tool" else None
            return wording.first_line(f"{told.verb} {told.subject}" if told else text, _LINE)
        if len(said) > 2 * _LINE:
            break
    said = " ".join(said.split())
    return said if len(said) <= _LINE else f"…{said[-_LINE:]}"


class Listed(NamedTuple):
    """What a page of the list shows."""

    rows: list[Row]
    days: list[tuple[str, list[Row]]]
    total: int | None
    next: str | None
    now: Now

    @property
    def menus(self) -> dict[str, list[str]]:
        """Suggestions for filters, from the tasks that are shown."""
        agents = {agent for row in self.rows for agent in row.task.agents}
        models = {row.task.model for row in self.rows if row.task.model}
        labels = {f"{name}={value}" if value else name for row in self.rows for name, value in row.task.labels.items()}
        return {"agent": sorted(agents)[:12], "model": sorted(models)[:12], "label": sorted(labels)[:12]}


def tasks(visit: Visit) -> Reply:
    """The list. Paged by key: each page costs the same. Whether the tasks can be read is known before the page begins."""
    wanted = filter_of(visit)
    found = visit.store.history(wanted)
    filtered = is_filtered(visit)
    first = visit.get("after") is None
    has_now = first and not filtered and wanted.sort == "updated"
    listed = partial(_listed, visit, wanted, found, has_now=has_now)
    values: dict[str, Any] = {"list_tasks": listed, "sort": wanted.sort}
    if visit.is_part:
        return Reply("tasks_rows.html", {"listed": listed(), "sort": wanted.sort})
    if not found and first and not filtered and visit.get("trashed") is None:  # undoing stays possible
        return Reply("empty.html", {"place": "tasks", "state": state_of(())})
    values |= {
        "place": "tasks",
        "state": state_of(found if has_now else visit.store.history(TaskFilter(limit=PAGE))),
        "has_now": has_now,
        "is_first": first,
        "filtered": filtered,
        "statuses": _STATUSES,
        "chosen": visit.query.getlist("status"),
        "sorts": SORT_WORDS,
        "trashed": visit.get("trashed"),
    }
    return Reply("tasks.html", values, begins=True)


def _listed(visit: Visit, wanted: TaskFilter, found: list[TaskSummary], *, has_now: bool) -> Listed:
    rows = rows_of(visit, found[:PAGE], wanted.sort)
    more = found[PAGE - 1].id if len(found) > PAGE else None
    now = now_list(visit) if has_now else Now([], False, False)
    on_top = {each.row.task.id for each in now.tasks}
    by_day = wanted.sort in ("updated", "created", "completed")
    return Listed(
        rows,
        list(_days([row for row in rows if row.task.id not in on_top], by_day=by_day)),
        _total(visit, wanted, None if more or wanted.after else len(rows)),
        visit.here(after=more, part=None) if more else None,
        now,
    )


def _total(visit: Visit, wanted: TaskFilter, known: int | None) -> int | None:
    """None: to count the tasks of an agent or of a file takes as long as the whole page may."""
    if known is not None or wanted.agent or wanted.file:
        return known
    return visit.store.count(wanted)


def _days(rows: list[Row], *, by_day: bool) -> Iterator[tuple[str, list[Row]]]:
    if not by_day:
        yield "", rows
        return
    for heading, group in groupby(rows, key=lambda row: wording.day_heading(row.at)):
        yield heading, list(group)


# Search


class Place(NamedTuple):
    """A place in a task that matched."""

    turn: int | None
    kind: str
    excerpt: Markup


class Found(NamedTuple):
    row: Row
    places: list[Place]
    more: int

    @property
    def places_shown(self) -> int:
        return len(self.places)


def search(visit: Visit) -> Reply:
    query = (visit.get("q") or "")[:1000]
    if not query:
        return Reply(to=visit.at(""))
    values: dict[str, Any] = {
        "place": "tasks",
        "query": query,
        "hits": [],
        "hint": None,
        "suggestion": None,
        "trouble": "",
        "full": False,
        "begun": False,
        "filtered": is_filtered(visit),
    }
    most = _HITS_TYPED if visit.is_part else _HITS
    begun = unfinished(query)
    try:
        wanted = replace(filter_of(visit, limit=most), sort=RELEVANCE)
        answer = visit.store.search((visit.is_part and begun) or query, wanted, turns=True)
        if not answer.hits and begun and not visit.is_part:
            longer = visit.store.search(begun, wanted, turns=True)
            values["begun"] = bool(longer.hits)
            answer = longer if longer.hits else answer
    except InvalidValue as error:
        values["trouble"] = str(error)
    else:
        values |= {"hits": grouped(visit, answer.hits), "hint": answer.hint, "suggestion": answer.suggestion}
        values["full"] = len(answer.hits) >= most
    return Reply("search_hits.html" if visit.is_part else "search.html", values)


def unfinished(query: str) -> str | None:
    """The query with its last word taken for the beginning of one, as somebody may still be typing it."""
    word = query.rsplit(None, 1)[-1]
    is_word = len(word) >= _BEGINNING and word.isalnum() and word not in ("AND", "NOT")
    return f"{query}*" if is_word and query.count('"') % 2 == 0 and not query[-1].isspace() else None


def grouped(visit: Visit, hits: tuple[Hit, ...]) -> list[Found]:
    """By task, with the best places of each; all of them, in their order, if only one task is searched."""
    by_task: dict[str, list[Hit]] = {}
    for hit in hits:
        by_task.setdefault(hit.task.id, []).append(hit)
    rows = rows_of(visit, [own[0].task for own in by_task.values()])
    if visit.get("task"):
        by_task = {task_id: sorted(own, key=lambda hit: hit.turn or 0) for task_id, own in by_task.items()}
    most = None if visit.get("task") else _PLACES
    return [
        Found(
            row,
            [Place(hit.turn, hit.kind, marked(hit.excerpt, hit.highlights)) for hit in own[:most] if hit.excerpt],
            max(0, len(own) - most) if most else 0,
        )
        for row, own in zip(rows, by_task.values(), strict=True)
    ]


def marked(text: str, spans: tuple[tuple[int, int], ...]) -> Markup:
    """An excerpt with its matches marked. Each piece is escaped by itself."""
    pieces, at = [], 0
    for start, end in sorted(spans):
        if start < at or end > len(text) or start >= end:
            continue
        pieces += [plain(text[at:start]), Markup("<mark>"), plain(text[start:end]), Markup("</mark>")]
        at = end
    return Markup("").join([*pieces, plain(text[at:])])


VIEWS: Final = (View("/", tasks), View("/search", search))
