"""Write operations. Their JSON is that of `rawko record` (docs/reference/record.md); other rawko instances send records as bytes."""

from __future__ import annotations

import hashlib
from datetime import datetime, timezone
from io import BytesIO
from typing import Any, Final

from rawko_state.errors import ChainMoved, InvalidValue, TaskBusy
from rawko_state.format import fair_json
from rawko_state.format.records import scan_bytes
from rawko_state.format.values import read_time, write_time
from rawko_state.late import late
from rawko_state.model import status as words
from rawko_state.model.appended import Appended
from rawko_state.model.entries import MEMORY, Entry, Execution, Note, Request, Result, Resumed, TaskHeader, Turn
from rawko_state.model.frozen import replace
from rawko_state.model.names import checked_id, name_for
from rawko_state.server.operations import BLOCKS, BYTES, WRITE, Call, Operation, Param, done
from rawko_state.server.problems import Refused
from rawko_state.server.reading import ID
from rawko_state.server.schemas import ANY, COUNT, FLAG, MAPPING, STRING, STRINGS, TEXT, TIME, Schema, lists, obj
from rawko_state.store.wire import to_wire
from rawko_state.tasks.lines import Recorder
from rawko_state.tasks.task import Task

_SEAL: Final = late(r"[0-9a-f]{16}")
_ALLOWED: Final = (Turn, Note, Request, Execution, Result, Resumed)
_DONE: Final = {"version": COUNT, "task": STRING, "seal": STRING, "turn": COUNT, "status": STRING}
DONE: Final = obj(_DONE)
STARTED: Final = obj({**_DONE, "new": {"type": "boolean"}})
"""``new``: whether the task was made; false if it was found by its source."""


def _now(task: Task) -> dict[str, Any]:
    return {"version": 1, "task": task.id, "seal": task.seal, "turn": task.state.turns, "status": task.state.status}


def _recorded(call: Call, kind: str, more: dict[str, Any] | None = None) -> dict[str, Any]:
    """Uses the recorder, so that `rawko record` and the server accept the same input."""
    data = {**call.data, **(more or {})}

    def work(task: Task) -> dict[str, Any]:
        recorder = Recorder(call.store, task)
        recorder.do(kind, data)
        return _now(task)

    found: dict[str, Any] = call.writing(work)
    if kind == "result":
        call.workspace.warm.close(call.id)
    return found


def start_task(call: Call) -> Any:
    call.answer = lambda record: {**done(record), "new": True}
    recorder = Recorder(call.store, detached=True, before=call.with_record)
    recorder.do("start", dict(call.data))
    task = recorder.task
    assert task is not None
    found = {**_now(task), "new": task.is_new}
    task.close()
    call.task = task.id
    if task.is_new:
        call.changed(task.id)
        call.workspace.learn(**{name: call.data.get(name) for name in ("repo", "agent", "runtime")})
    return found


def append_turn(call: Call) -> Any:
    return _recorded(call, "turn")


def decide(call: Call) -> Any:
    return _recorded(call, "decision")


def add_note(call: Call) -> Any:
    return _recorded(call, "note", None if "by" in call.data else {"by": call.by})


def remember(call: Call) -> Any:
    """One note for each; the last one counts."""
    if not call.data:
        raise InvalidValue(f"Nothing to remember. Give at least one of {', '.join(MEMORY)}")
    by = call.by

    def work(task: Task) -> dict[str, Any]:
        return done(task.remember(by=by, **call.data))

    return call.writing(work)


def ask(call: Call) -> Any:
    return _recorded(call, "ask")


def answer(call: Call) -> Any:
    return _recorded(call, "answer", None if "by" in call.data else {"by": call.by})


def finish(call: Call) -> Any:
    return _recorded(call, "result")


def say(call: Call) -> Any:
    by = call.data.get("by") or call.by
    return call.writing(lambda task: done(task.say(call.data["text"], by=by)))


def _status(call: Call, status: str) -> Any:
    by = call.data.get("by") or call.by
    return call.writing(lambda task: done(task.set_status(status, by=by, reason=call.data.get("reason"))))


def pause(call: Call) -> Any:
    return _status(call, words.PAUSED)


def cancel(call: Call) -> Any:
    return _status(call, words.CANCELLED)


def resume(call: Call) -> Any:
    """The task goes on, written to by whoever comes. What a dead writer left becomes an interrupted turn."""
    call.workspace.warm.close(call.id)
    by = call.data.get("by") or call.by
    token = call.store.take_lease(call.id)
    try:
        task = call.store.attach(call.id)
        try:
            task.recover()
            task.before_write, task.expected = call.with_record, call.expected
            resumed = task.reopen(by=by, detached=True, message=call.data.get("message"))
        finally:
            task.close()
    finally:
        call.store.release_lease(call.id, token)
    call.changed(call.id)
    return done(resumed)


def fork(call: Call) -> Any:
    """A new task that goes on after a turn."""
    parent = call.id
    last = call.store.position(parent).seal
    if call.expected is not None and last != call.expected:
        raise ChainMoved(f"Task {parent} has changed: its last seal is not {call.expected}.", last=last)
    call.answer = lambda record: {**done(record), "parent": f"{parent}@{call.data['turn']}"}
    task = call.store.fork(
        parent,
        call.data["turn"],
        message=call.data.get("message"),
        by=call.data.get("by") or call.by,
        title=call.data.get("title"),
        detached=True,
        before=call.with_record,
    )
    found = _now(task)
    task.close()
    call.changed(task.id)
    return {**found, "parent": f"{parent}@{call.data['turn']}"}


# Records as bytes


def _entries(body: bytes) -> list[Entry]:
    """The blocks of one record, without its seal."""
    records, _ = scan_bytes(body)
    return [block.entry(lambda at, size: body[at : at + size]) for record in records for block in record.blocks]


def append_record(call: Call) -> Any:
    """Blocks as they stand in a task file, without a seal, as one record. Turns get their numbers here."""
    entries = _entries(call.body)
    if not entries or not all(isinstance(entry, _ALLOWED) for entry in entries):
        raise InvalidValue("A record may contain turns, notes, requests, executions, results and resumptions only.")

    lease = call.headers.get("rawko-lease")
    if lease:
        try:
            call.store.check_lease(call.id, lease)  # the client renews it by itself
        except TaskBusy:
            call.store.take_lease(call.id, lease)  # raises TaskBusy if another client has taken over the task

    call.answer = _added
    return call.writing(lambda task: _added(task.add(entries, expect=call.expected)))


def _added(record: Appended) -> dict[str, Any]:
    more = {"parent": record.parent, "offset": record.offset, "end": record.end, "state": to_wire(record.state)}
    return {**done(record), **more}


def create_record(call: Call) -> Any:
    """A new task from its first record: a header, whose id is chosen here, and what follows it."""
    entries = _entries(call.body)
    if not entries or not isinstance(entries[0], TaskHeader):
        raise InvalidValue("The first block must be the task header.")
    if not all(isinstance(entry, _ALLOWED) for entry in entries[1:]):
        raise InvalidValue("A record may contain turns, notes, requests, executions, results and resumptions only.")
    wanted = call.params.get("id")
    created = entries[0].created or datetime.now(timezone.utc).replace(microsecond=0)
    header = replace(entries[0], id="" if wanted is None else checked_id(wanted), created=created)

    def made(record: Appended) -> dict[str, Any]:
        assert header.created is not None
        name = name_for(header.created, record.state.id)
        told = {"state": to_wire(record.state), "end": record.end, "file": name.filename, "new": True}
        return {**done(record), **told}

    call.answer = made
    find = bool(call.params.get("find"))
    task = call.store.create(header, entries[1:], detached=True, before=call.with_record, find=find)
    told = {"end": task.end, "file": call.store.find(task.id).filename, "new": task.is_new}
    found = {**_now(task), "state": to_wire(task.state), **told}
    task.close()
    call.task = task.id
    if task.is_new:
        call.workspace.learn(header.repo, header.agent, header.runtime)
        call.changed(task.id)
    return found


def holds_record(call: Call) -> Any:
    return {"version": 1, "holds": call.store.holds(call.id, call.params["seal"])}


def place_task(call: Call) -> Any:
    """A whole task file, byte for byte; secrets in it are taken out, and it says so."""
    assert call.upload is not None
    placed, found = call.store.add_clean_file(call.params["file"], call.upload, call.by)
    if placed is not None:
        call.task = placed.id
        call.changed(placed.id)
    return {"version": 1, "task": placed.id if placed is not None else None, "redacted": found.changed}


def put_blob(call: Call) -> Any:
    """A long output, before the task that refers to it is placed."""
    wanted = call.params["sha256"]
    if hashlib.sha256(call.body).hexdigest() != wanted:
        raise InvalidValue("The content does not match its hash.")
    text = call.body.decode("utf-8", "surrogateescape")
    if call.store.redactor.text(text) != text:
        raise Refused(422, "HoldsSecrets", "This output contains secrets. Redact the task, then send it again.")
    call.store.put_blob(call.body)
    return {"version": 1, "sha256": wanted, "size": len(call.body)}


# Leases and drafts


def take_lease(call: Call) -> Any:
    seconds = min(call.data.get("seconds") or 30, 300)
    token = call.store.take_lease(call.id, call.data.get("token"), seconds)
    return {"version": 1, "task": call.id, "token": token, "seconds": seconds}


def give_lease_back(call: Call) -> Any:
    call.store.release_lease(call.id, call.params["token"])
    call.changed(call.id)


def _holding(call: Call) -> None:
    """Raises unless the client holds the lease: only the lease holder may write the draft."""
    call.store.check_lease(call.id, call.params["token"])


def begin_draft(call: Call) -> Any:
    """The first line is the head: who speaks, since when, and after which record."""
    _holding(call)
    call.lines = _clean(call, call.body)
    _check_head(fair_json.loads(call.lines.partition(b"\n")[0]))
    call.store.begin_draft(call.id, call.lines, before=call.with_draft)
    call.changed(call.id)


def _check_head(head: dict[str, Any]) -> None:
    started, since, seal = head.get("started"), head.get("since"), head.get("seal")
    time = read_time(started) if isinstance(started, str) else None
    if time is None or write_time(time) != started or not isinstance(head.get("agent"), str):
        raise InvalidValue("A draft must start with 'agent' and 'started', a time such as 2024-01-15T10:30:00.5Z.")
    if type(since) is not int or not 0 <= since < 10**15 or not isinstance(seal, str) or not _SEAL.fullmatch(seal):
        raise InvalidValue("A draft must start with 'since' (an offset) and the seal at that offset.")


def add_to_draft(call: Call) -> Any:
    """Answers with the task's last seal, so that the writer knows whether others have appended, without asking."""
    call.lines = _clean(call, call.body)
    seal = call.store.extend_draft(call.id, call.lines, call.params["token"], before=call.with_draft)
    if seal is None:
        raise Refused(409, "NoDraft", f"Task {call.id} has no draft: another process took over.")
    call.changed(call.id)
    call.says["ETag"] = f'"{seal}"'


def drop_draft(call: Call) -> Any:
    _holding(call)
    call.store.drop_draft(call.id)
    call.changed(call.id)


def _clean(call: Call, body: bytes) -> bytes:
    """The body as complete lines of JSON, without secrets."""
    lines = []
    for line in BytesIO(body):
        if line.strip():
            try:
                value = fair_json.loads(line)
            except ValueError as error:
                raise InvalidValue(f"A draft must be JSON lines: {error}.") from None
            if not isinstance(value, dict):
                raise InvalidValue("A draft must be JSON lines, one object each.")
            lines.append(fair_json.dumps(call.store.redactor.value(value)).encode() + b"\n")
    if not lines:
        raise InvalidValue("A draft must be JSON lines.")
    return b"".join(lines)


_TOOLS: Final = lists({"type": "object", "properties": {"tool": STRING}, "required": ["tool"]})
_QUESTION: Final[dict[str, Schema]] = {
    "choices": STRINGS,
    "default": TEXT,
    "deadline": TIME,
    "kind": {"type": "string", "enum": ["question", "approval"]},
}
_USED: Final[Schema] = {"type": "object", "additionalProperties": COUNT}
_DOLLARS: Final[Schema] = {"type": ["string", "number", "null"]}
START: Final = obj(
    {"request": STRING},
    **dict.fromkeys(
        ("title", "agent", "model", "provider", "repo", "branch", "commit", "cwd", "runtime", "user", "by", "source"),
        TEXT,
    ),
    id=TEXT,
    find=FLAG,
    exact=FLAG,
    labels=MAPPING,
    fields=MAPPING,
    sections=MAPPING,
    parent=TEXT,
    created=TIME,
)
TURN: Final = obj(
    {"agent": {"type": "string", "minLength": 1}},
    thinking=TEXT,
    content=TEXT,
    status=STRING,
    tools=_TOOLS,
    edits=lists(obj({"path": STRING}, diff=TEXT, before=TEXT, after=TEXT)),
    progress=lists(obj({"text": STRING}, kind=STRING, time=TEXT)),
    files=lists(obj({"operation": {"type": "string", "enum": ["read", "write", "delete"]}, "path": STRING})),
    question=obj({"text": STRING}, **_QUESTION),
    state=ANY,
    payload=TEXT,
    tokens=_USED,
    cost=_DOLLARS,
    model=TEXT,
    started=TIME,
    duration_ms={"type": ["integer", "null"], "minimum": 0, "maximum": 10**15},
    by=TEXT,
    reason=TEXT,
    fields=MAPPING,
    sections=MAPPING,
    snapshot={"type": ["object", "null"]},
    expect=TEXT,
)
_OWN_ID: Final = Param("id", {"type": "string", "pattern": "^[0-9a-z]{6,64}$"}, "The id of the task, if you choose it.")
_STOP: Final = obj(None, by=TEXT, reason=TEXT)
_TOKEN: Final = Param("token", {"type": "string", "pattern": "^[0-9a-f]{32}$"}, "Of the lease.", True)

OPERATIONS: Final = (
    Operation("POST", "/tasks", "Start a task", WRITE, start_task, body=START, answer=STARTED, status=201, records=True),
    Operation("POST", "/tasks/{id}/turns", "Append a turn; with If-Match, only after that seal", WRITE, append_turn, (ID,), TURN, DONE, 201, records=True),
    Operation("POST", "/tasks/{id}/decisions", "Add an arbiter's decision", WRITE, decide, (ID,), obj(None, selected=TEXT, decision=TEXT, reason=TEXT, guidance=TEXT, agent={"type": "string", "minLength": 1}), DONE, 201, records=True),
    Operation("POST", "/tasks/{id}/notes", "Add a note", WRITE, add_note, (ID,), obj(None, text=TEXT, title=TEXT, labels=MAPPING, unlabel=STRINGS, pinned={"type": ["boolean", "null"]}, by=TEXT, kind=TEXT, data=ANY, in_context={"type": ["boolean", "null"]}), DONE, 201, records=True),
    Operation("PATCH", "/tasks/{id}/memory", "Change the memory", WRITE, remember, (ID,), obj(None, **dict.fromkeys(MEMORY, ANY)), DONE, records=True),
    Operation("POST", "/tasks/{id}/questions", "Ask a question", WRITE, ask, (ID,), obj({"agent": {"type": "string", "minLength": 1}, "text": STRING}, content=TEXT, **_QUESTION), DONE, 201, records=True),
    Operation("POST", "/tasks/{id}/answers", "Answer the open question", WRITE, answer, (ID,), obj({"text": STRING}, by=TEXT), DONE, 201, records=True),
    Operation("POST", "/tasks/{id}/messages", "Add a user message", WRITE, say, (ID,), obj({"text": STRING}, by=TEXT), DONE, 201, records=True),
    Operation("POST", "/tasks/{id}/pause", "Pause a task", WRITE, pause, (ID,), _STOP, DONE, records=True),
    Operation("POST", "/tasks/{id}/cancel", "Cancel a task", WRITE, cancel, (ID,), _STOP, DONE, records=True),
    Operation("POST", "/tasks/{id}/resume", "Resume a task, or start another run", WRITE, resume, (ID,), obj(None, by=TEXT, message=TEXT), DONE),
    Operation("POST", "/tasks/{id}/fork", "Fork a task after a turn", WRITE, fork, (ID,), obj({"turn": {"type": "integer", "minimum": 1, "maximum": 10**15}}, message=TEXT, by=TEXT, title=TEXT), {"type": "object"}, 201, records=True),
    Operation("POST", "/tasks/{id}/finish", "Finish the current run", WRITE, finish, (ID,), obj(None, status={"type": "string", "enum": [*words.RESULT_WORDS]}, summary=TEXT, files=STRINGS, error=TEXT, by=TEXT, output=ANY, tokens=_USED, cost=_DOLLARS), DONE, records=True),
    Operation("POST", "/records", "Start a task from the bytes of its first record", WRITE, create_record, (_OWN_ID, Param("find", FLAG, "Return the task with the header's source, if there is one.")), BLOCKS, {"type": "object"}, 201, records=True),
    Operation("POST", "/tasks/{id}/records", "Append the bytes of a record", WRITE, append_record, (ID,), BLOCKS, {"type": "object"}, 201, records=True),
    Operation("GET", "/tasks/{id}/records/{seal}", "Check whether a record exists", "read", holds_record, (ID, Param("seal", {"type": "string", "pattern": "^[0-9a-f]{16}$"}, "", True)), answer=obj({"version": COUNT, "holds": FLAG})),
    Operation("PUT", "/files/{file}", "Upload a task file", WRITE, place_task, (Param("file", {"type": "string", "pattern": r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}-[0-9]{2}-[0-9]{2}-[0-9A-Za-z]{1,64}\.task$"}, "Its name.", True),), BYTES, {"type": "object"}, uploads=True),
    Operation("PUT", "/blobs/{sha256}", "Store an output", WRITE, put_blob, (Param("sha256", {"type": "string", "pattern": "^[0-9a-f]{64}$"}, "", True),), BYTES, {"type": "object"}),
    Operation("POST", "/tasks/{id}/lease", "Take or renew the lease", WRITE, take_lease, (ID,), obj(None, token={"type": "string", "pattern": "^[0-9a-f]{32}$"}, seconds={"type": "integer", "minimum": 1, "maximum": 300}), obj({"version": COUNT, "task": STRING, "token": STRING, "seconds": COUNT})),
    Operation("DELETE", "/tasks/{id}/lease", "Release the lease", WRITE, give_lease_back, (ID, _TOKEN), status=204),
    Operation("PUT", "/tasks/{id}/draft", "Start a draft", WRITE, begin_draft, (ID, _TOKEN), BYTES, status=204, records=True),
    Operation("POST", "/tasks/{id}/draft", "Append to a draft", WRITE, add_to_draft, (ID, _TOKEN), BYTES, status=204, records=True),
    Operation("DELETE", "/tasks/{id}/draft", "End a draft", WRITE, drop_draft, (ID, _TOKEN), status=204),
)  # fmt: skip
