"""Trash, projects, help, and what doctor and verify say, in plain words."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Final

from rawko_state import __version__
from rawko_state.errors import RawkoError
from rawko_state.server.operations import ADMIN
from rawko_state.web import wording
from rawko_state.web.visits import Reply, View, Visit

_CONCERNS: Final = 100
_SECONDS: Final = 20.0
"""For which a request reads files to check their seals."""


def trash(visit: Visit) -> Reply:
    found = visit.store.trash()
    rows = [(each, wording.age(each.at.astimezone())) for each in found[:500]]
    return Reply(
        "trash.html",
        {
            "place": "more",
            "rows": rows,
            "total": len(found),
            "restored": visit.get("restored"),
            "emptied": visit.get("emptied"),
        },
    )


def health(visit: Visit) -> Reply:
    """What rawko doctor says of the tasks."""
    store, wrong = visit.store, []
    count: int | None = None
    where = ""
    try:
        count, where, faults = store.health()
        wrong += [(f"The index is inconsistent: {fault}.", "rawko reindex") for fault in faults]
    except RawkoError as error:
        wrong.append((str(error), "rawko reindex"))
    try:
        by_what: dict[str, list[str]] = {}
        for task_id, what in store.concerns()[:_CONCERNS]:
            by_what.setdefault(what, []).append(task_id)
    except RawkoError as error:
        wrong.append((str(error), "rawko reindex"))
    try:
        unflushed: int | None = store.unflushed()
    except RawkoError as error:
        unflushed = None
        wrong.append((f"The search index can't be used: {error}", "rawko reindex --search"))
    values: dict[str, Any] = {
        "place": "more",
        "count": count,
        "where": os.path.basename(where),
        "wrong": wrong,
        "concerns": by_what,
        "unflushed": unflushed,
        "disk": dict(store.disk()),
        "strangers": store.strangers()[:20],
        "version": __version__,
        "kind": visit.host.kind,
    }
    return Reply("health.html", values)


def check(visit: Visit) -> Reply:
    """What rawko verify says of one task: every seal is computed anew."""
    name = visit.store.find(visit.params["id"])
    (verdict,) = visit.store.verify(name.id)
    return Reply("check.html", {"place": "tasks", "verdict": verdict, "task": visit.store.summary(name.id)})


def seals(visit: Visit) -> Reply:
    """What rawko verify says of all tasks, as far as it gets in some seconds."""
    until = time.monotonic() + _SECONDS
    checked, records, bad, unsealed = 0, 0, [], 0
    is_whole = True
    for verdict in visit.store.verify():
        checked, records, unsealed = checked + 1, records + verdict.records, unsealed + verdict.unsealed
        if verdict.faults or verdict.warnings:
            bad.append(verdict)
        if time.monotonic() > until:
            is_whole = False
            break
    values = {
        "place": "more",
        "checked": checked,
        "records": records,
        "unsealed": unsealed,
        "bad": bad[:_CONCERNS],
        "total": len(bad),
        "is_whole": is_whole,
        "seconds": int(_SECONDS),
    }
    return Reply("seals.html", values)


def projects(visit: Visit) -> Reply:
    """The projects, or workspaces, that this server serves."""
    mine = visit.visitor.who.workspace
    rows = []
    for each in visit.host.workspaces():
        if mine in (None, each["name"]):
            rows.append({"name": each["name"], "root": str(each.get("root") or each.get("external_id") or "")})
    return Reply("projects.html", {"place": "more", "rows": rows})


def keys(visit: Visit) -> Reply:
    return Reply("keys.html", {"place": "more", "back": visit.at("")})


def home_shortened(path: str) -> str:
    home = str(Path.home())
    return "~" + path.removeprefix(home) if path.startswith(home + os.sep) else path


VIEWS: Final = (
    View("/trash", trash),
    View("/health", health, ADMIN),
    View("/seals", seals, ADMIN),
    View("/projects", projects),
    View("/keys", keys),
    View("/t/{id}/check", check),
)
