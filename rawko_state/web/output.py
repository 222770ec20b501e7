"""What a tool gave, when it is opened: its output and its diffs, a piece at a time."""

from __future__ import annotations

from typing import Final

from markupsafe import Markup

from rawko_state.model.entries import Diff, ToolCall, Turn, own_diffs
from rawko_state.server.problems import Refused
from rawko_state.web import fragments, wording
from rawko_state.web.turn_view import diff_at
from rawko_state.web.visits import Reply, View, Visit

PIECE: Final = 100_000
"""Characters of an output that are sent at a time."""


def output(visit: Visit) -> Reply:
    name = visit.store.find(visit.params["id"])
    number, which = int(visit.params["n"]), int(visit.params["k"])
    turn = visit.store.turn(name.id, number)
    if not 1 <= which <= len(turn.tools):
        raise Refused(
            404, "NoTool", f"Turn {number} of task {name.id} has {wording.counted(len(turn.tools), 'tool call')}."
        )
    call = turn.tools[which - 1]
    if not isinstance(call, ToolCall):
        raise Refused(404, "NoOutput", "This tool call has no output.")
    own = own_diffs(call, turn.diffs)
    at, place = visit.number("at") or 0, visit.at("t", name.id, number)
    whole = visit.store.turn_output(call)
    text = None if whole is None else whole[at : at + PIECE]
    values = {
        "place": "tasks",
        "id": name.id,
        "n": number,
        "k": which,
        "line": fragments.telling(call, turn),
        "call": call,
        "text": None if text is None else fragments.output(text),
        "length": len(text or ""),
        "at": at,
        "size": None if whole is None else len(whole),
        "next": at + PIECE if whole is not None and at + PIECE < len(whole) else None,
        "missing": whole is None and call.blob is not None,
        "diffs": [_diff(visit, turn, diff, place) for diff in own] if not at else [],
    }
    return Reply("output_part.html" if visit.is_part else "output.html", values)


def one_diff(visit: Visit) -> Reply:
    """A diff by itself, some rows at a time."""
    name = visit.store.find(visit.params["id"])
    number, which = int(visit.params["n"]), int(visit.params["k"])
    turn = visit.store.turn(name.id, number)
    if not 1 <= which <= len(turn.diffs):
        raise Refused(404, "NoDiff", f"Turn {number} of task {name.id} has {wording.counted(len(turn.diffs), 'diff')}.")
    found = turn.diffs[which - 1]
    place = visit.at("t", name.id, number)
    html = _diff(visit, turn, found, place, visit.number("at") or 0)
    values = {"place": "tasks", "id": name.id, "n": number, "diff": found, "html": html}
    return Reply("diff_part.html" if visit.is_part else "diff.html", values)


def _diff(visit: Visit, turn: Turn, diff: Diff, place: str, first: int = 0) -> Markup:
    split = visit.get("diff") == "split"
    return fragments.diff(diff, diff_at(place, turn, diff), split=split, store=visit.store, first=first)


VIEWS: Final = (View("/t/{id}/{n:int}/out/{k:int}", output), View("/t/{id}/{n:int}/diff/{k:int}", one_diff))
