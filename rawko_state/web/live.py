"""What happens, as it happens: server-sent events with pieces of the page.

A task's stream is that of the API (``server.feeds``), from a cursor on. What a running turn says is sent as text, which the
browser appends as text. A turn that has ended is sent once as HTML and replaces what was said of it, so a turn that arrives twice
stands there once. The stream of the list says what runs and waits now, and that the list has changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Callable
from hashlib import sha256
from typing import Any, Final

from rawko_state.errors import RawkoError, StorageError
from rawko_state.model.status import FINISHED
from rawko_state.server.feeds import follow
from rawko_state.server.responses import Pieces
from rawko_state.store import TaskFilter
from rawko_state.tasks.events import Cursor
from rawko_state.web import wording
from rawko_state.web.continuing import offered
from rawko_state.web.fragments import telling_now
from rawko_state.web.rendering import fragment
from rawko_state.web.tasks import PAGE, now_list, row_of, state_of
from rawko_state.web.timeline import Item, Timeline, shape_of
from rawko_state.web.visits import Visit

_EVERY: Final = 1.0
"""Seconds between two looks at what runs."""
_BEAT: Final = 15.0
_ADMITTED: Final = 5.0
"""Seconds after which it is checked again whether the visitor may look."""
_HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", "X-Content-Type-Options": "nosniff"}
May = Callable[[], object]


def of_task(visit: Visit, after: str | None, may: May) -> Pieces:
    task_id = visit.store.find(visit.params["id"]).id
    if after:
        Cursor.parse(after)
    return _streaming(_task_events(visit, task_id, after, may))


def of_list(visit: Visit, after: str | None, may: May) -> Pieces:
    return _streaming(_list_events(visit, may))


def _streaming(pieces: AsyncGenerator[str, None]) -> Pieces:
    return Pieces(pieces, 200, _HEADERS, "text/event-stream")


def _message(kind: str, data: Any, cursor: str | None = None) -> str:
    head = f"id: {cursor}\n" if cursor else ""
    return f"{head}event: {kind}\ndata: {json.dumps(data)}\n\n"


async def _task_events(visit: Visit, task_id: str, after: str | None, may: May) -> AsyncGenerator[str, None]:
    server = visit.server
    yield "retry: 1000\n\n"
    yield _message("hello", {"after": after})
    events = follow(server.hub, visit.workspace, task_id, after, server.run, until_over=False, may=may)
    try:
        async with contextlib.aclosing(events):
            async for each in events:
                if each is None:
                    yield ": \n\n"
                    continue
                cursor, text = each
                kind, data = await server.run(_told, visit, task_id, json.loads(text))
                yield _message(kind, data, cursor)
    except StorageError:
        return  # not reachable now: the browser comes back
    except RawkoError as error:
        yield _message("stop", {"text": str(error)})


def _told(visit: Visit, task_id: str, event: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """An event as the browser takes it."""
    kind, data = event["kind"], event.get("data") or {}
    if event.get("live"):
        who = {"agent": event.get("agent"), "hue": wording.hue(event.get("agent")), "at": event.get("at")}
        if kind in ("text", "thinking"):
            return "said", {**who, "kind": kind, "text": event.get("text") or ""}
        if kind == "tool":
            return "tool", {**who, **_tool(event.get("text"), data)}
        return "step", {**who, "kind": kind, "text": event.get("text") or ""}
    if kind == "turn":
        answered = data.get("answers")
        also = [turn_html(visit, task_id, answered)] if isinstance(answered, int) else []
        return "turn", {
            "number": event["turn"],
            "replaces": bool(event.get("replaces")),
            "html": turn_html(visit, task_id, event["turn"]),
            "also": also,
            **head(visit, task_id),
        }
    if kind in ("request", "final", "note", "status"):
        return "change", {
            "kind": kind,
            "text": event.get("text") or "",
            **head(visit, task_id),
            **_between(visit, task_id, kind),
        }
    if kind == "gap":
        return "gap", {"text": event.get("text") or ""}
    return "other", {"kind": kind}


def _tool(tool: str | None, data: dict[str, Any]) -> dict[str, Any]:
    """A tool call that runs, or has ended: then without its name."""
    found = {"key": data.get("key"), "going": bool(data.get("running")), "result": data.get("result")}
    if tool is None:
        return found
    line = telling_now(tool, str(data.get("args") or ""))
    return {**found, "verb": line.verb, "what": line.subject}


def turn_html(visit: Visit, task_id: str, number: int) -> str:
    with visit.store.reading():
        shape = shape_of(visit, task_id)
        line = Timeline(visit, shape, split=visit.get("diff") == "split")
        items = [item for item in line.items([(number, number)], gaps=False) if item.turn]
    return fragment(visit, "items.html", items=items, task=shape.summary, tools_open=visit.get("tools") == "open")


def head(visit: Visit, task_id: str) -> dict[str, Any]:
    summary = visit.store.summary(task_id)
    alive = task_id in visit.store.alive()
    html = fragment(visit, "task_facts.html", task=summary, row=row_of(visit, summary), used=None, alive=alive)
    buttons = fragment(visit, "task_buttons.html", task=summary, runs=offered(visit, summary))
    return {
        "head": html,
        "buttons": buttons,
        "status": summary.status,
        "over": summary.status in FINISHED and not alive,
    }


def _between(visit: Visit, task_id: str, kind: str) -> dict[str, Any]:
    """What stands between the turns: the newest request, or the end of the run."""
    if kind not in ("request", "final"):
        return {}
    with visit.store.reading():
        shape = shape_of(visit, task_id)
        line = Timeline(visit, shape, split=False)
        if kind == "final":
            found: list[Item] = list(line.end_of(max((run.run for run in shape.runs), default=0)))
        else:
            found = list(line.newest_prompt())
    return {"html": fragment(visit, "items.html", items=found, task=shape.summary, tools_open=False)} if found else {}


async def _list_events(visit: Visit, may: May) -> AsyncGenerator[str, None]:
    server, sent, told, quiet, admitted = visit.server, "", "", 0.0, 0.0
    yield "retry: 1000\n\n"
    while not server.hub.closing.is_set():
        try:
            if admitted >= _ADMITTED:
                await server.run(may)
                admitted = 0.0
            html, state = await server.run(_now, visit)
        except StorageError:
            return
        except RawkoError as error:
            yield _message("stop", {"text": str(error)})
            return
        mark = sha256(html.encode()).hexdigest()
        if mark != sent or state != told:
            yield _message("now", {"html": html, "state": state})
            sent, told, quiet = mark, state, 0.0
        elif quiet >= _BEAT:
            yield ": \n\n"
            quiet = 0.0
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(server.hub.closing.wait(), _EVERY)
        quiet += _EVERY
        admitted += _EVERY


def _now(visit: Visit) -> tuple[str, str]:
    state = state_of(visit.store.history(TaskFilter(limit=PAGE)))
    return fragment(visit, "now.html", now=now_list(visit)), state
