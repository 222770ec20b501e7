"""The way to the next prompt, edit or error of a task, as the browser has only some of the turns; and to the next task."""

from __future__ import annotations

import time
from typing import Final

from rawko_state.errors import InvalidValue
from rawko_state.store import TaskFilter
from rawko_state.web.timeline import Shape, shape_of
from rawko_state.web.turn_view import has_failed, read_turn
from rawko_state.web.visits import Reply, View, Visit

_SECONDS: Final = 1.5
"""For which a request reads turns to find an error. The next one goes on where it ended."""
_AT_ONCE: Final = 200


def following(visit: Visit) -> Reply:
    name = visit.store.find(visit.params["id"])
    kind, back = visit.get("kind"), visit.get("back") == "1"
    at = visit.number("from") or 0
    said = f"no-{'earlier' if back else 'later'}-{kind}"
    with visit.store.reading():
        shape = shape_of(visit, name.id)
        at = min(at, shape.summary.turns + 1)
        if kind == "edit":
            chosen = _nearest(shape.edits, at, back=back)
        elif kind == "prompt":
            chosen = _nearest(_prompts(visit, shape), at, back=back)
        elif kind == "error":
            chosen, is_error = _error(visit, shape, at, back=back)
            if chosen is not None and not is_error:
                return Reply(to=_place(visit, name.id, chosen, "none-yet"))
        else:
            raise InvalidValue("Say what to look for: kind=prompt, edit or error.")
    if chosen is None:
        return Reply(to=_place(visit, name.id, min(at, shape.summary.turns), said))
    return Reply(to=_place(visit, name.id, chosen))


def beside(visit: Visit) -> Reply:
    """The task that was active just before this one, or ``back`` to the one after it."""
    name, back = visit.store.find(visit.params["id"]), visit.get("back") == "1"
    found = visit.store.history(TaskFilter(after=name.id, reverse=back, limit=1))
    return Reply(
        to=visit.at("t", found[0].id)
        if found
        else visit.at("t", name.id, said=f"no-{'earlier' if back else 'later'}-task")
    )


def _place(visit: Visit, task_id: str, number: int, said: str | None = None) -> str:
    """The address of a turn, with diffs and tools shown as they are now."""
    parts = ("t", task_id, number) if number else ("t", task_id)
    address = visit.at(*parts, said=said, diff=visit.get("diff"), tools=visit.get("tools"))
    return f"{address}#t{number}" if number else address


def _nearest(numbers: set[int], at: int, *, back: bool) -> int | None:
    return (
        max((n for n in numbers if n < at), default=None) if back else min((n for n in numbers if n > at), default=None)
    )


def _prompts(visit: Visit, shape: Shape) -> set[int]:
    """The turns in which a user speaks, and the first turn of each run: its request stands above it."""
    rows, _ = visit.store.turn_rows(shape.summary.id)
    return {row.turn for row in rows if row.agent == "user"} | {run.first_turn for run in shape.runs if run.first_turn}


def _error(visit: Visit, shape: Shape, at: int, *, back: bool) -> tuple[int | None, bool]:
    """The next turn with a failure; or, when the time is up, the last turn that was looked at."""
    until = time.monotonic() + _SECONDS
    total = shape.summary.turns
    with visit.store.reader(shape.summary.id) as reader:
        while (at > 1) if back else (at < total):
            first, last = (max(1, at - _AT_ONCE), at - 1) if back else (at + 1, min(total, at + _AT_ONCE))
            rows = visit.store.turn_page(shape.summary.id, after=first - 1, limit=last - first + 1)
            for row in reversed(rows) if back else rows:
                if row.status in ("failed", "interrupted") or row.damaged:
                    return row.turn, True
                turn, _ = read_turn(reader, row)
                if turn is not None and has_failed(turn):
                    return row.turn, True
            at = first if back else last
            if time.monotonic() > until and at not in (1, total):
                return at, False
    return None, False


VIEWS: Final = (View("/t/{id}/next", following), View("/t/{id}/beside", beside))
