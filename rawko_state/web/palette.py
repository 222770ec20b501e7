"""What Ctrl-K offers: tasks that match, or those that matter now, and paths of files. The page knows what can be done."""

from __future__ import annotations

from typing import Final, NamedTuple

from markupsafe import Markup

from rawko_state.errors import InvalidValue
from rawko_state.model.frozen import replace
from rawko_state.store import RELEVANCE, TaskFilter
from rawko_state.web.files import most_touched
from rawko_state.web.tasks import Row, filter_of, grouped, now_list, rows_of, unfinished
from rawko_state.web.visits import Reply, View, Visit

_TASKS: Final = 6
_HITS: Final = 24


class Choice(NamedTuple):
    """A task to go to, and the place in it that matched."""

    row: Row
    turn: int | None
    line: Markup | str


def palette(visit: Visit) -> Reply:
    query = (visit.get("q") or "")[:1000]
    if not visit.is_part:
        return Reply(to=visit.at("search", q=query) if query else visit.at(""))
    if visit.get("kind") == "files":
        return Reply("palette_files.html", {"files": most_touched(visit)})
    return Reply("palette_tasks.html", {"choices": _found(visit, query) if query else _recent(visit)})


def _recent(visit: Visit) -> list[Choice]:
    """What waits and runs, then what was last active."""
    now = [Choice(each.row, None, each.line) for each in now_list(visit).tasks]
    known = {each.row.task.id for each in now}
    last = visit.store.history(TaskFilter(limit=2 * _TASKS))
    now += [Choice(row, None, "") for row in rows_of(visit, [task for task in last if task.id not in known])]
    return now[:_TASKS]


def _found(visit: Visit, query: str) -> list[Choice]:
    by_id = visit.store.history(TaskFilter(ids=(query.lower(),), limit=1))
    choices = [Choice(row, None, "") for row in rows_of(visit, by_id)]
    try:
        wanted = replace(filter_of(visit, limit=_HITS), sort=RELEVANCE)
        hits = visit.store.search(unfinished(query) or query, wanted, turns=True).hits
    except InvalidValue:  # a query that is not finished yet: agent:
        return choices
    known = {each.row.task.id for each in choices}
    for found in grouped(visit, hits):
        if found.row.task.id not in known:
            place = found.places[0] if found.places else None
            choices.append(Choice(found.row, place.turn if place else None, place.excerpt if place else ""))
    return choices[:_TASKS]


VIEWS: Final = (View("/palette", palette),)
