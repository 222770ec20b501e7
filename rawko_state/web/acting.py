"""What one can do on the page: each a form that posts, and an operation of the API that carries it out.

So roles, the audit log and doing it once hold as they do for the API: a form carries a key of its own, and a form that is sent
twice is done once.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from rawko_state.errors import InvalidValue
from rawko_state.exchange.exporting import exported
from rawko_state.lifecycle.prices import estimated
from rawko_state.server.app import OPERATIONS
from rawko_state.server.operations import READ, WRITE, Call, Operation
from rawko_state.server.problems import Refused
from rawko_state.web.visits import Reply, View, Visit

_BY_NAME: Final = {operation.name: operation for operation in OPERATIONS}
_KEY = re.compile(r"[0-9A-Za-z-]{8,64}")


class Act(NamedTuple):
    operation: str
    data: Callable[[Mapping[str, str]], dict[str, Any]]
    """The body of the request, from the fields of the form."""
    to: Callable[[Visit, str, dict[str, Any]], str]
    """Where to go afterwards: the task's id and the answer are given."""


def _task(visit: Visit, task_id: str, answer: dict[str, Any]) -> str:
    turn = visit.form.get("turn", "")
    return visit.at("t", task_id) + (f"#t{turn}" if turn.isdecimal() else "")


def _answered(visit: Visit, task_id: str, answer: dict[str, Any]) -> str:
    number = answer.get("turn")
    return visit.at("t", task_id) + (f"#t{number}" if number else "")


def _text(form: Mapping[str, str]) -> dict[str, Any]:
    """Own words go before a choice."""
    said = form.get("text", "").strip() or form.get("choice", "")
    if not said:
        raise InvalidValue("Choose an answer, or write one.")
    return {"text": said}


def _reason(form: Mapping[str, str]) -> dict[str, Any]:
    reason = form.get("reason", "").strip()
    return {"reason": reason} if reason else {}


def _labels(form: Mapping[str, str]) -> dict[str, Any]:
    """``refunds, sev=2, -old``: what is named is set, what has a minus is taken off."""
    labels: dict[str, str] = {}
    unlabel = []
    for part in re.split(r"[,\s]+", form.get("labels", "")):
        if part.startswith("-") and len(part) > 1:
            unlabel.append(part[1:])
        elif part:
            name, _, value = part.partition("=")
            labels[name] = value
    if not labels and not unlabel:
        raise InvalidValue("Write a label: refunds, or sev=2, or -old to take one off.")
    return {"labels": labels, "unlabel": unlabel}


def _title(form: Mapping[str, str]) -> dict[str, Any]:
    title = " ".join(form.get("title", "").split())
    if not title:
        raise InvalidValue("A title is a line of text.")
    return {"title": title[:300]}


def _fork(form: Mapping[str, str]) -> dict[str, Any]:
    turn = form.get("turn", "")
    if not turn.isdecimal() or len(turn) > 15:
        raise InvalidValue("Say after which turn.")
    message = form.get("message", "").strip()
    return {"turn": int(turn), **({"message": message} if message else {})}


ACTS: Final = {
    "answer": Act("answer", _text, _answered),
    "say": Act("say", _text, _answered),
    "pause": Act("pause", _reason, _task),
    "cancel": Act("cancel", _reason, _task),
    "fork": Act("fork", _fork, lambda visit, task_id, answer: visit.at("t", answer["task"])),
    "labels": Act("add_note", _labels, _task),
    "title": Act("add_note", _title, _task),
    "pin": Act("add_note", lambda form: {"pinned": True}, _task),
    "unpin": Act("add_note", lambda form: {"pinned": False}, _task),
    "trash": Act("delete_task", lambda form: {}, lambda visit, task_id, answer: visit.at("", trashed=task_id)),
}


def act(visit: Visit) -> Reply:
    chosen = ACTS.get(visit.params["what"])
    if chosen is None:
        raise Refused(404, "NoAct", "There is nothing like that to do.")
    task_id = visit.store.find(visit.params["id"]).id
    answer = _carried_out(visit, _BY_NAME[chosen.operation], chosen.data(visit.form), {"id": task_id})
    return Reply(to=chosen.to(visit, task_id, answer))


def restore(visit: Visit) -> Reply:
    task_id = visit.form.get("id", "")
    _carried_out(visit, _BY_NAME["restore"], {"id": task_id}, {})
    if visit.form.get("back") == "task":
        return Reply(to=visit.at("t", quote(task_id, safe="")))
    return Reply(to=visit.at("trash", restored=task_id))


def empty(visit: Visit) -> Reply:
    """Deletes one task of the trash for good, or all."""
    task_id = visit.form.get("id", "")
    if not task_id and visit.form.get("sure") != "yes":
        raise InvalidValue("Tick the box: what is deleted from the trash is gone for good.")
    answer = _carried_out(visit, _BY_NAME["empty_trash"], {"id": task_id} if task_id else {}, {})
    return Reply(to=visit.at("trash", emptied=len(answer["deleted"])))


def _carried_out(visit: Visit, operation: Operation, data: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
    visit.server.guard.check_role(visit.visitor.who, operation.role)
    key = visit.form.get("key", "")
    headers = {"idempotency-key": f"page-{key}"} if _KEY.fullmatch(key) else {}
    body = json.dumps(data).encode() if isinstance(operation.body, dict) else b""
    call = Call(visit.workspace, visit.visitor.who, visit.peer, {}, body, None, headers)
    answer, _ = visit.server.carry_out(operation, call, lambda: params)
    found: dict[str, Any] = answer
    return found


def fork(visit: Visit) -> Reply:
    """Asks before it forks."""
    name = visit.store.find(visit.params["id"])
    turn = int(visit.params["n"])
    summary = visit.store.summary(name.id)
    if not 1 <= turn <= summary.turns:
        raise Refused(404, "NoTurn", f"Task {name.id} has no turn {turn}.")
    return Reply("fork.html", {"place": "tasks", "task": summary, "turn": turn, "key": secrets.token_hex(12)})


_FORMS: Final = {"html": "text/html", "md": "text/markdown", "json": "application/json", "task": "text/plain"}


def export(visit: Visit) -> Reply:
    """The task as a file to keep or send."""
    form = visit.get("format") or "html"
    if form not in _FORMS:
        raise InvalidValue(f"Unknown format: {form[:20]!r}. Known: {', '.join(_FORMS)}.")
    name = visit.store.find(visit.params["id"])
    headers = {
        "Content-Disposition": f'attachment; filename="{name.filename.removesuffix(".gz").removesuffix(".task")}.{form}"'
    }
    return Reply(pieces=exported(visit.store, name.id, form, estimate=estimated), media=_FORMS[form], headers=headers)


VIEWS: Final = (
    View("/t/{id}/do/{what}", act, READ, "POST"),
    View("/trash/restore", restore, READ, "POST"),
    View("/trash/empty", empty, READ, "POST"),
    View("/t/{id}/fork/{n:int}", fork, WRITE),
    View("/t/{id}/export", export),
)
