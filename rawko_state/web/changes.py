"""What a task changed in files, between two turns or in all: every diff, by file and in order."""

from __future__ import annotations

from typing import Final, NamedTuple

from markupsafe import Markup

from rawko_state.web import fragments
from rawko_state.web.turn_view import diff_at, read_turn
from rawko_state.web.visits import Reply, View, Visit

_TURNS: Final = 200
_LINES: Final = 4_000
"""Lines of diffs on one page. A diff counts with as many as are shown of it."""


class Change(NamedTuple):
    turn: int
    agent: str
    added: int
    removed: int
    html: Markup


def changes(visit: Visit) -> Reply:
    name = visit.store.find(visit.params["id"])
    only = visit.get("file")
    with visit.store.reading():
        summary = visit.store.summary(name.id)
        first = visit.number("from") or 1
        last = min(visit.number("to") or summary.turns, summary.turns)
        touched = [(turn, path) for turn, operation, path in visit.store.files(name.id) if operation != "read"]
        wanted = sorted({turn for turn, path in touched if first <= turn <= last and turn and only in (None, path)})
        shown = wanted[:_TURNS]
        by_path: dict[str, list[Change]] = {}
        unproved: dict[str, list[int]] = {}
        """Files of which the record proves only that they were changed."""
        lines, cut = 0, wanted[_TURNS] if len(wanted) > _TURNS else None
        rows = {number: row for number in shown for row in visit.store.turn_page(name.id, after=number - 1, limit=1)}
        with visit.store.reader(name.id) as reader:
            for number in shown:
                turn = read_turn(reader, rows[number])[0] if number in rows else None
                if turn is None:
                    continue
                if lines > _LINES:
                    cut = number
                    break
                proved = set()
                for diff in turn.diffs:
                    path = diff.path or ""
                    proved.add(path)
                    if only in (None, path):
                        lines += min(diff.added + diff.removed, fragments.ROWS)
                        at = diff_at(visit.at("t", name.id, number), turn, diff)
                        html = fragments.diff(diff, at, split=visit.get("diff") == "split", store=visit.store)
                        by_path.setdefault(path, []).append(Change(number, turn.agent, diff.added, diff.removed, html))
                for changed_in, path in touched:
                    if changed_in == number and path not in proved and only in (None, path):
                        unproved.setdefault(path, []).append(number)
    values = {
        "place": "tasks",
        "task": summary,
        "first": first,
        "last": last,
        "by_path": by_path,
        "unproved": unproved,
        "only": only,
        "cut": cut,
        "split": visit.get("diff") == "split",
        "added": sum(change.added for own in by_path.values() for change in own),
        "removed": sum(change.removed for own in by_path.values() for change in own),
    }
    return Reply("changes.html", values)


VIEWS: Final = (View("/t/{id}/changes", changes),)
