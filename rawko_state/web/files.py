"""The files that agents touched, and one file's history across tasks, with its diffs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from markupsafe import Markup

from rawko_state.errors import RawkoError
from rawko_state.model.entries import touched
from rawko_state.store import TaskFilter
from rawko_state.web import fragments
from rawko_state.web.tasks import Row, rows_of
from rawko_state.web.turn_view import diff_at
from rawko_state.web.visits import Reply, View, Visit

_MOST: Final = 1_000
_PAGE: Final = 500
_TASKS: Final = 12
_TURNS: Final = 40
_FEW: Final = 80
"""Rows of each diff."""
_LINES: Final = 4_000
"""Lines of diffs on one page; further ones are opened one by one."""


class Edit(NamedTuple):
    turn: int
    agent: str
    added: int
    removed: int
    diffs: list[Markup]
    operation: str


class Chapter(NamedTuple):
    """What one task did to a file."""

    row: Row
    edits: list[Edit]
    reads: int


def most_touched(visit: Visit) -> Mapping[str, int]:
    """The files that the most tasks touched, and how many tasks that was."""
    return visit.store.stats(TaskFilter(sort="created"), days=1, top=_MOST).by_file


def files(visit: Visit) -> Reply:
    query, after = visit.get("q") or "", visit.get("after")
    found = visit.store.paths(query, after=after or "", limit=_PAGE + 1)
    by_folder: dict[str, list[tuple[str, str, int]]] = {}
    for path, number in found[:_PAGE]:
        folder, _, name = path.rpartition("/")
        by_folder.setdefault(folder, []).append((path, name, number))
    values: dict[str, Any] = {
        "place": "files",
        "folders": by_folder,
        "query": query,
        "after": after,
        "next": visit.here(after=found[_PAGE - 1][0]) if len(found) > _PAGE else None,
    }
    return Reply("files.html", values)


def file(visit: Visit) -> Reply:
    path = visit.get("path")
    if path is None:
        return Reply(to=visit.at("files"))
    found = visit.store.history(TaskFilter(file=path, limit=_TASKS + 1, after=visit.get("after")))
    left = [_LINES]
    chapters = [_chapter(visit, path, row, left) for row in rows_of(visit, found[:_TASKS])]
    values = {
        "place": "files",
        "path": path,
        "chapters": chapters,
        "split": visit.get("diff") == "split",
        "next": visit.here(after=found[_TASKS - 1].id) if len(found) > _TASKS else None,
    }
    return Reply("file.html", values)


def _chapter(visit: Visit, path: str, row: Row, left: list[int]) -> Chapter:
    edits: list[Edit] = []
    reads = 0
    with visit.store.reading():
        for turn, operation, each in visit.store.files(row.task.id):
            if each != path:
                continue
            if operation == "read":
                reads += 1
            elif turn and len(edits) < _TURNS:
                edits.append(_edit(visit, row.task.id, turn, path, operation, left))
    return Chapter(row, edits, reads)


def _edit(visit: Visit, task_id: str, number: int, path: str, operation: str, left: list[int]) -> Edit:
    try:
        turn = visit.store.turn(task_id, number)
    except RawkoError:
        return Edit(number, "", 0, 0, [], operation)
    own = [diff for diff in turn.diffs if path in (diff.path, diff.old)]
    done = next((each.operation for each in touched(turn) if each.path == path), operation)
    html = []
    for diff in own:
        most = min(_FEW, max(0, left[0]))
        at = diff_at(visit.at("t", task_id, number), turn, diff)
        html.append(fragments.diff(diff, at, split=visit.get("diff") == "split", store=visit.store, most=most))
        left[0] -= min(diff.added + diff.removed, most)
    return Edit(number, turn.agent, sum(diff.added for diff in own), sum(diff.removed for diff in own), html, done)


VIEWS: Final = (View("/files", files), View("/file", file))
