"""The page of a task, and the turns for a gap that opens."""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from rawko_state.errors import InvalidValue
from rawko_state.exchange.telling import Telling
from rawko_state.model import status as words
from rawko_state.server.problems import Refused
from rawko_state.tasks.draft import draft_content
from rawko_state.web import beside, fragments, wording
from rawko_state.web.continuing import offered
from rawko_state.web.permalinks import checked_seal
from rawko_state.web.tasks import row_of
from rawko_state.web.timeline import WINDOW, Gap, Item, Timeline, shape_of, spans_around
from rawko_state.web.visits import Reply, View, Visit

_NUMBER = re.compile(r"[1-9][0-9]{0,14}")


def task(visit: Visit) -> Reply:
    prefix = visit.params["id"]
    name = visit.store.find(prefix)
    if name.id != prefix:
        return Reply(to=visit.at("t", name.id, *([visit.params["n"]] if "n" in visit.params else [])))
    anchor = _number(visit.params.get("n"))
    with visit.store.reading():
        shape = shape_of(visit, name.id)
        total = shape.summary.turns
        if anchor is not None and anchor > total:
            raise Refused(
                404, "NoTurn", f"Task {name.id} has {wording.counted(total, 'turn')}; there is no turn {anchor}."
            )
        cursor = visit.store.now(name.id)
        split = visit.get("diff") == "split"
        line = Timeline(visit, shape, split=split)
        items = list(line.items(spans_around(total, anchor)))
        seal = checked_seal(visit, name.id, anchor) if anchor is not None and visit.get("seal") else None
    is_whole = len(line.turns) == total
    used = beside.used_by(visit, name.id) if total <= beside.SUMMED else None
    values: dict[str, Any] = {
        "place": "tasks",
        "shape": shape,
        "task": shape.summary,
        "row": row_of(visit, shape.summary),
        "runs": offered(visit, shape.summary),
        "used": used,
        "models": list(used.models) if used else [shape.summary.model] if shape.summary.model else [],
        "items": items,
        "anchor": anchor,
        "cursor": cursor,
        "split": split,
        "tools_open": visit.get("tools") == "open",
        "seal": seal,
        "family": beside.family(visit, shape.summary),
        "outline": beside.outline_of(visit, shape, items),
        "files": beside.files_of(shape, line.turns, whole=is_whole),
        "strip": beside.strip(line.turns) if is_whole else None,
        "added": sum(turn.added for turn in line.turns) if is_whole else None,
        "removed": sum(turn.removed for turn in line.turns),
        "unstated": sum(turn.kind == "agent" and not turn.states_cost for turn in line.turns) if is_whole else 0,
        "alive": name.id in visit.store.alive(),
        "draft": _draft(visit, name.id) if shape.summary.status in (words.RUNNING, words.WAITING) else None,
        "message": visit.get("said"),
        "filename": name.filename,
    }
    return Reply("task.html", values)


def turns(visit: Visit) -> Reply:
    """Some turns, for a gap that opens."""
    name = visit.store.find(visit.params["id"])
    first, last = visit.number("from"), visit.number("to")
    if not first or not last or last < first:
        raise InvalidValue("Say which turns: from=21&to=120.")
    if not visit.is_part:
        return Reply(to=f"{visit.at('t', name.id, first)}#t{first}")
    with visit.store.reading():
        shape = shape_of(visit, name.id)
        last = min(last, shape.summary.turns)
        end = min(last, first + WINDOW - 1)
        items = list(Timeline(visit, shape, split=visit.get("diff") == "split").items([(first, end)], gaps=False))
    if end < last and not (items and items[-1].gap is not None):
        items.append(Item(gap=Gap(end + 1, last)))
    return Reply("items.html", {"items": items, "task": shape.summary, "tools_open": visit.get("tools") == "open"})


def _number(text: str | None) -> int | None:
    if text is None:
        return None
    if _NUMBER.fullmatch(text) is None:
        raise Refused(404, "NoTurn", f"Not the number of a turn: {text[:40]!r}.")
    return int(text)


class Begun(NamedTuple):
    """What a running turn has said and done so far."""

    agent: str
    thinking: str
    text: str
    tools: list[tuple[Telling, bool]]
    """Each with whether it runs."""
    step: str


def _draft(visit: Visit, task_id: str) -> Begun | None:
    """For browsers without scripts; scripts follow it live."""
    draft = draft_content(visit.store.draft_lines(task_id))
    if draft is None:
        return None
    running = set(draft.running.values())
    tools = [(fragments.telling_now(call.tool, call.args), at in running) for at, call in enumerate(draft.tools)]
    step = draft.progress[-1].text if draft.progress else ""
    return Begun(draft.agent, "".join(draft.thoughts), "".join(draft.text), tools, step)


VIEWS: Final = (
    View("/t/{id}", task),
    View("/t/{id}/turns", turns),
    View("/t/{id}/{n:int}", task),
)
