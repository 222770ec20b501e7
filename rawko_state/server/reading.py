"""Read operations: lists, searches, one task and its parts, its bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

from rawko_state.errors import InvalidValue, RawkoError
from rawko_state.exchange.exporting import exported
from rawko_state.format import fair_json
from rawko_state.format.json_form import plain
from rawko_state.format.records import emit_blocks
from rawko_state.format.values import read_time
from rawko_state.lifecycle import context as contexts
from rawko_state.lifecycle.prices import estimated
from rawko_state.model import status as words
from rawko_state.model.entries import Blob, Turn, blobs_of
from rawko_state.model.events import Event
from rawko_state.model.state import TaskState
from rawko_state.server.operations import BYTES, READ, Call, Operation, Param, Streamed
from rawko_state.server.problems import Refused
from rawko_state.server.schemas import COUNT, FLAG, STRING, lists, obj, of_type
from rawko_state.store import RELEVANCE, SORTS, TIME, Hit, RunRow, Said, Stats, TaskFilter, TurnRow
from rawko_state.store.wire import summary_json, to_wire

_PAGE: Final = 1_000
_PIECE: Final = 1 << 20
_EVENTS: Final = 5_000
_EVENTS_SIZE: Final = 4 << 20
"""Letters of events after which an answer ends. An event may be as long as a turn."""
_FORMS: Final = {"json": "application/json", "md": "text/markdown", "html": "text/html", "task": "text/plain"}
ID: Final = Param("id", {"type": "string", "pattern": "^[0-9A-Za-z]{1,64}$"}, "Task id, or a unique prefix", True)
_TURN: Final = Param("n", {"type": "integer", "minimum": 1, "maximum": 10**15}, "Turn number", True)
_MOMENT: Final = {"type": "string", "format": "date-time"}
FILTERS: Final = (
    Param(
        "status", {"type": "string", "enum": [*words.STATUSES, *words.SYNONYMS]}, "Repeat for any of several", many=True
    ),
    Param("agent", STRING, "Agent that took a turn; * and ? match"),
    Param("file", STRING, "File, folder or glob that was touched"),
    Param(
        "since",
        _MOMENT,
        "At or after. Compares the time that sort names: created (the default), completed, else updated",
    ),
    Param("until", _MOMENT, "Before; compares the same time"),
    Param("label", STRING, "NAME or NAME=VALUE; repeat for all of several", many=True),
    Param("pinned", FLAG),
    Param("model", STRING),
    Param("exact", FLAG, "Whether state and payload are kept without redaction."),
    Param("source", {"type": "string", "maxLength": 1000}, "Exactly this source"),
    Param("branch", STRING),
    Param("ids", {"type": "string", "pattern": "^[0-9A-Za-z]{1,64}$"}, "Only these.", many=True),
    Param("reverse", FLAG, "Reverse the order"),
    Param("limit", {"type": "integer", "minimum": 0, "maximum": 10**9}, "At most this many; 0 for all."),
)
_SORT: Final = Param("sort", {"type": "string", "enum": list(SORTS)}, "Largest or newest first")
_AFTER: Final = Param("after", {"type": "string", "pattern": "^[0-9A-Za-z]{1,64}$"}, "Last task of the previous page")
CURSOR: Final = Param("after", {"type": "string", "maxLength": 200}, "Cursor of the last event you have seen")
TASK: Final = {"$ref": "#/components/schemas/Task"}


def _time(text: str | None) -> Any:
    if text is None:
        return None
    found = read_time(text)
    if found is None:
        try:
            found = datetime.fromisoformat(text)
        except ValueError:
            found = None
    if found is None or found.tzinfo is None:
        raise InvalidValue(f"Not a time with a time zone: {text!r:.60}.")
    return found


def filter_of(params: dict[str, Any], sort: str) -> TaskFilter:
    labels = [label.partition("=") for label in params.get("label") or ()]
    limit = params.get("limit")
    return TaskFilter(
        status=tuple(params.get("status") or ()),
        agent=params.get("agent"),
        file=params.get("file"),
        since=_time(params.get("since")),
        until=_time(params.get("until")),
        labels=tuple((name, value if equals else None) for name, equals, value in labels),
        pinned=params.get("pinned"),
        model=params.get("model"),
        branch=params.get("branch"),
        source=params.get("source"),
        exact=params.get("exact"),
        ids=tuple(params["ids"]) if params.get("ids") else None,
        sort=params.get("sort") or sort,
        reverse=bool(params.get("reverse")),
        limit=100 if limit is None else limit or None,
        after=params.get("after"),
    )


def list_tasks(call: Call) -> Any:
    wanted = filter_of(call.params, "created")
    found = call.store.history(wanted)
    more = wanted.limit is not None and len(found) == wanted.limit
    return {
        "version": 1,
        "tasks": [summary_json(summary) for summary in found],
        "next": found[-1].id if more and found else None,
    }


def count_tasks(call: Call) -> Any:
    return {"version": 1, "count": call.store.count(filter_of({**call.params, "limit": 0}, "created"))}


def search_tasks(call: Call) -> Any:
    answer = call.store.search(
        call.params["q"], filter_of(call.params, RELEVANCE), turns=bool(call.params.get("turns"))
    )
    hits = [{**summary_json(hit.task), "hit": _hit(hit)} for hit in answer.hits]
    return {"version": 1, "tasks": hits, "hint": answer.hint, "suggestion": answer.suggestion}


def _hit(hit: Hit) -> dict[str, Any]:
    return {name: value for name, value in to_wire(hit).items() if name != "task"}


def get_stats(call: Call) -> Any:
    days, top = call.params["days"] or 30, call.params["top"] or 10
    return to_wire(call.store.stats(filter_of({**call.params, "limit": 0}, "created"), days=days, top=top))


def get_task(call: Call) -> Any:
    """A task as lists show it, and what a writer needs to go on: its state, its last seal, how long it is."""
    name = call.store.find(call.params["id"])
    call.task = name.id
    summary = call.store.summary(name.id)
    end, seal, state = call.store.position(name.id)
    with call.store.reader(name.id) as reader:
        size = reader.size
    return {
        "version": 1,
        "task": summary_json(summary),
        "state": to_wire(state),
        "seal": seal,
        "end": end,
        "size": size,
        "file": name.filename,
        "live": name.id in call.store.alive(),
        "warm": name.id in call.workspace.warm,
        "source": call.store.source(name.id),
    }


def list_turns(call: Call) -> Any:
    asked = call.params
    if asked.get("limit") is not None:
        beyond = -1 if asked.get("beyond") is None else asked["beyond"]
        page = {"after": asked.get("after") or 0, "beyond": beyond, "limit": asked["limit"]}
        rows = call.store.turn_page(call.id, **page, newest=bool(asked.get("newest")))
        return {"version": 1, "turns": to_wire(rows), "total": len(rows)}
    rows, total = call.store.turn_rows(call.id, asked["up_to"], asked["most"])
    return {"version": 1, "turns": to_wire(rows), "total": total}


def get_turn(call: Call) -> Any:
    try:
        return {"version": 1, **plain(call.store.turn(call.id, call.params["n"]))}
    except RawkoError as error:
        if type(error) is RawkoError:
            raise Refused(404, "NoTurn", str(error)) from None
        raise


def list_runs(call: Call) -> Any:
    return {"version": 1, "runs": to_wire(call.store.runs(call.id))}


def list_files(call: Call) -> Any:
    found = call.store.files(call.id)
    return {
        "version": 1,
        "files": [{"turn": turn, "operation": operation, "path": path} for turn, operation, path in found],
    }


def list_snapshots(call: Call) -> Any:
    return {"version": 1, "snapshots": call.store.snapshots(call.id)}


def list_children(call: Call) -> Any:
    found = call.store.children(call.id)
    return {"version": 1, "children": [{"id": each[0], "turn": each[1], "request": each[2]} for each in found]}


def list_said(call: Call) -> Any:
    """List requests, and notes that are part of the context"""
    return {"version": 1, "said": to_wire(call.store.said(call.id, call.params["up_to"]))}


def get_memory(call: Call) -> Any:
    """What the task is to keep in mind."""
    return {"version": 1, "memory": call.store.memory(call.id)}


def get_question(call: Call) -> Any:
    turn = call.store.open_question(call.id)
    asked = None if turn is None or turn.question is None else plain(turn.question)
    return {"version": 1, "turn": None if turn is None else turn.number, "question": asked}


def get_context(call: Call) -> Any:
    """What whoever goes on with the task has to know: in words, as messages of a chat, or as data."""
    budget = call.params["budget"]
    found = contexts.build(call.store, call.id, call.params["at_turn"], budget)
    form = call.params["format"] or "json"
    if form == "messages":
        return {"version": 1, "messages": contexts.messages(call.store, found, budget)}
    if form == "prompt":
        return {"version": 1, "prompt": contexts.prompt(call.store, found, budget)}
    return contexts.as_json(call.store, found, budget)


def list_messages(call: Call) -> Any:
    """The conversation as chat APIs take it."""
    found = contexts.build(call.store, call.id, None, call.params["budget"])
    return {"version": 1, "messages": contexts.messages(call.store, found, call.params["budget"])}


def list_events(call: Call) -> Any:
    """Up to ``limit`` events, or fewer if they are long: ``more`` says whether others follow now."""
    events: list[Any] = []
    most, size, following = call.params["limit"] or _PAGE, 0, call.params["after"]
    for event in call.store.events(call.id, following):
        if len(events) == most or size >= _EVENTS_SIZE:
            return {"version": 1, "events": events, "next": following, "more": True}
        events.append(to_wire(event))
        size += len(fair_json.dumps(events[-1]))
        following = event.cursor
    return {"version": 1, "events": events, "next": following, "more": False}


def get_now(call: Call) -> Any:
    return {"version": 1, "cursor": call.store.now(call.id)}


def list_cursors(call: Call) -> Any:
    return {"version": 1, "cursors": call.store.cursors()}


def list_active(call: Call) -> Any:
    warm = {task_id for task_id in call.store.active() if task_id}
    return {"version": 1, "active": sorted(warm), "alive": sorted(call.store.alive())}


def list_sources(call: Call) -> Any:
    return {"version": 1, "sources": call.store.by_source(call.params["prefix"])}


def get_note(call: Call) -> Any:
    """Also as the block that stands in the file, from which a client makes the very same value."""
    note = call.store.last_note(call.id, call.params["kind"])
    if note is None:
        return {"version": 1, "note": None}
    return {"version": 1, "note": plain(note), "block": emit_blocks([note]).decode("utf-8", "surrogateescape")}


# Bytes


def get_file(call: Call) -> Streamed:
    """The task file, byte for byte; a part of it with ``Range``."""
    name = call.store.find(call.id).filename.removesuffix(".gz")
    with call.store.reader(call.id) as reader:
        size = reader.size
    span = _range(call.headers.get("range"), size)
    start, end = span or (0, size)

    def pieces() -> Iterator[bytes]:
        with call.store.reader(call.id) as reader:
            at = start
            while at < end and (piece := reader.fetch(at, min(_PIECE, end - at))):
                yield piece
                at += len(piece)

    headers = {"Accept-Ranges": "bytes", "Content-Length": str(end - start)}
    if span is not None:
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
    headers["Content-Disposition"] = f'attachment; filename="{name}"'
    return Streamed(pieces(), "text/plain; charset=utf-8", 206 if span is not None else 200, headers)


def _range(header: str | None, size: int) -> tuple[int, int] | None:
    """A single byte range. For anything else the whole file is sent, as HTTP allows."""
    match = re.fullmatch(r"bytes=([0-9]{1,18})-([0-9]{1,18})?", header or "")
    if match is None:
        return None
    start = int(match[1])
    end = min(size, int(match[2]) + 1) if match[2] else size
    if start >= size or start >= end:
        raise Refused(416, "NoSuchRange", f"The file has {size} bytes.", {"Content-Range": f"bytes */{size}"})
    return start, end


def export_task(call: Call) -> Streamed:
    """A task in another form; secrets that an older version recorded are left out, and are a reason to refuse the exact forms."""
    form = call.params["format"] or "json"
    media = _FORMS[form]
    pieces = exported(call.store, call.id, form, estimate=estimated)
    headers = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox"}
    return Streamed(pieces, f"{media}; charset=utf-8", 200, headers)


def list_blobs(call: Call) -> Any:
    found = {}
    for _, entry in call.store.entries(call.id):
        for blob in blobs_of(entry) if isinstance(entry, Turn) else ():
            found[blob.sha256] = blob.size
    return {"version": 1, "blobs": [{"sha256": sha256, "size": size} for sha256, size in found.items()]}


def get_blob(call: Call) -> Streamed:
    """A long output that some task refers to."""
    data = call.store.blob_bytes(Blob(call.params["sha256"], call.params["size"]))
    if data is None:
        raise Refused(404, "NoBlob", f"there is no output {call.params['sha256']}")
    return Streamed(iter((data,)), BYTES, 200, {"Content-Length": str(len(data))})


def get_draft(call: Call) -> Any:
    """What the running turn has said so far, line by line."""
    lines = [line for line in call.store.draft_lines(call.id) if line.endswith(b"\n")]
    try:
        return {"version": 1, "lines": [json.loads(line) for line in lines]}
    except ValueError:
        return {"version": 1, "lines": []}


def verify_task(call: Call) -> Any:
    (verdict,) = call.store.verify(call.id)
    return verdict_json(verdict)


def verify_all(call: Call) -> Streamed:
    """One object a line and task."""
    lines = (json.dumps(verdict_json(verdict)).encode() + b"\n" for verdict in call.store.verify())
    return Streamed(lines, "application/jsonl")


def verdict_json(verdict: Any) -> dict[str, Any]:
    names = ("unsealed", "records", "turns", "torn", "faults", "warnings", "repaired", "can_repair")
    return {
        "id": verdict.name.id,
        "file": verdict.name.filename,
        **{name: getattr(verdict, name) for name in names},
    }


_TASKS: Final = {"type": "object", "properties": {"tasks": lists(TASK)}}
_UP_TO: Final = Param("up_to", {"type": "integer", "minimum": 0, "maximum": 10**15}, "Up to this turn")
_BUDGET: Final = Param("budget", {"type": "integer", "minimum": 100, "maximum": 10**9}, "Shorten to this many tokens")

OPERATIONS: Final = (
    Operation("GET", "/tasks", "List tasks", READ, list_tasks, (*FILTERS, _SORT, _AFTER), answer=_TASKS),
    Operation(
        "GET",
        "/count",
        "Count tasks",
        READ,
        count_tasks,
        (*FILTERS[:-2], _SORT),
        answer=obj({"version": COUNT, "count": COUNT}),
    ),
    Operation(
        "GET",
        "/search",
        "Search tasks",
        READ,
        search_tasks,
        (
            Param("q", {"type": "string", "maxLength": 10_000}, "The query", True),
            Param("turns", FLAG, "Return every matching turn"),
            Param("sort", {"type": "string", "enum": [*SORTS, RELEVANCE, TIME]}, "Default: relevance"),
            *FILTERS,
        ),
        answer=_TASKS,
    ),
    Operation(
        "GET",
        "/stats",
        "Get statistics",
        READ,
        get_stats,
        (
            *FILTERS[:-2],
            Param("days", {"type": "integer", "minimum": 1, "maximum": 3650}),
            Param("top", {"type": "integer", "minimum": 1, "maximum": 1000}),
        ),
        answer=of_type(Stats),
    ),
    Operation("GET", "/tasks/{id}", "Get a task", READ, get_task, (ID,), answer=obj({"version": COUNT, "task": TASK, "state": of_type(TaskState), "seal": STRING, "end": COUNT, "size": COUNT, "file": STRING, "live": FLAG, "warm": FLAG, "source": {"type": ["string", "null"]}})),
    Operation("GET", "/tasks/{id}/turns", "List turns", READ, list_turns, (ID, _UP_TO, Param("most", {"type": "integer", "minimum": 1, "maximum": 10**9}, "Limit to the first turn and this many of the newest"), Param("limit", {"type": "integer", "minimum": 1, "maximum": 10_000}, "At most this many, in order; with after, beyond and newest"), Param("after", COUNT, "Only turns with a higher number"), Param("beyond", COUNT, "Only turns that start after this offset"), Param("newest", FLAG, "The last ones instead of the first")), answer=obj({"version": COUNT, "turns": lists(of_type(TurnRow)), "total": COUNT})),
    Operation("GET", "/tasks/{id}/turns/{n}", "Get a turn", READ, get_turn, (ID, _TURN), answer={"type": "object"}),
    Operation("GET", "/tasks/{id}/runs", "List runs", READ, list_runs, (ID,), answer=obj({"version": COUNT, "runs": lists(of_type(RunRow))})),
    Operation("GET", "/tasks/{id}/files", "List touched files", READ, list_files, (ID,), answer={"type": "object"}),
    Operation("GET", "/tasks/{id}/snapshots", "List snapshots", READ, list_snapshots, (ID,), answer={"type": "object"}),
    Operation("GET", "/tasks/{id}/children", "List forks and sub-agents", READ, list_children, (ID,), answer={"type": "object"}),
    Operation("GET", "/tasks/{id}/said", "List requests, and notes that are part of the context", READ, list_said, (ID, _UP_TO), answer=obj({"version": COUNT, "said": lists(of_type(Said))})),
    Operation("GET", "/tasks/{id}/memory", "Get the memory: preferences, important steps and summaries", READ, get_memory, (ID,), answer={"type": "object"}),
    Operation("GET", "/tasks/{id}/question", "Get the open question", READ, get_question, (ID,), answer={"type": "object"}),
    Operation("GET", "/tasks/{id}/context", "Get the context for resuming", READ, get_context, (ID, Param("at_turn", {"type": "integer", "minimum": 1, "maximum": 10**15}), _BUDGET, Param("format", {"type": "string", "enum": ["json", "messages", "prompt"]})), answer={"type": "object"}),
    Operation("GET", "/tasks/{id}/messages", "Get the conversation as messages", READ, list_messages, (ID, _BUDGET), answer={"type": "object"}),
    Operation("GET", "/tasks/{id}/events", "List events after a cursor", READ, list_events, (ID, CURSOR, Param("limit", {"type": "integer", "minimum": 1, "maximum": _EVENTS})), answer=obj({"version": COUNT, "events": lists(of_type(Event)), "next": {"type": ["string", "null"]}, "more": FLAG})),
    Operation("GET", "/tasks/{id}/cursor", "Get the newest cursor", READ, get_now, (ID,), answer=obj({"version": COUNT, "cursor": STRING})),
    Operation("GET", "/cursors", "Get the newest cursor of every task", READ, list_cursors, answer={"type": "object"}),
    Operation("GET", "/active", "List tasks that are open or running", READ, list_active, answer={"type": "object"}),
    Operation("GET", "/sources", "List imported tasks by source", READ, list_sources, (Param("prefix", {"type": "string", "maxLength": 1000}, "", True),), answer={"type": "object"}),
    Operation("GET", "/tasks/{id}/notes/{kind}", "Get the last note of a kind", READ, get_note, (ID, Param("kind", {"type": "string", "maxLength": 200}, "", True)), answer={"type": "object"}),
    Operation("GET", "/tasks/{id}/file", "Get the task file", READ, get_file, (ID,), answer="text/plain"),
    Operation("GET", "/tasks/{id}/export", "Export the task", READ, export_task, (ID, Param("format", {"type": "string", "enum": list(_FORMS)})), answer=tuple(_FORMS.values())),
    Operation("GET", "/tasks/{id}/blobs", "List stored outputs", READ, list_blobs, (ID,), answer={"type": "object"}),
    Operation("GET", "/blobs/{sha256}", "Get a stored output", READ, get_blob, (Param("sha256", {"type": "string", "pattern": "^[0-9a-f]{64}$"}, "", True), Param("size", {"type": "integer", "minimum": 0, "maximum": 10**15}, "", True)), answer=BYTES),
    Operation("GET", "/tasks/{id}/draft", "Get the draft of the running turn", READ, get_draft, (ID,), answer={"type": "object"}),
    Operation("GET", "/tasks/{id}/verify", "Verify a task", READ, verify_task, (ID,), answer={"type": "object"}),
    Operation("GET", "/verify", "Verify all tasks", READ, verify_all, answer="application/jsonl"),
)  # fmt: skip
