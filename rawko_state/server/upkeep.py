"""Operations for trash, retention and redaction, and for what a server stores besides tasks."""

from __future__ import annotations

import contextlib
import json
from typing import Any, Final

from rawko_state import __version__
from rawko_state.errors import InvalidValue, TaskNotFound
from rawko_state.format.values import read_time
from rawko_state.server.feeds import PROTOCOL
from rawko_state.server.operations import ADMIN, READ, WRITE, Call, Operation, Param
from rawko_state.server.problems import Refused
from rawko_state.server.reading import ID, verdict_json
from rawko_state.server.schemas import ANY, COUNT, FLAG, STRING, STRINGS, TEXT, TIME, lists, obj
from rawko_state.store import RetentionRow
from rawko_state.store.wire import to_wire

_MOST: Final = 10_000


def delete_task(call: Call) -> Any:
    """Into the trash, from which it can be brought back."""
    call.workspace.warm.close(call.id)
    gone = call.store.delete(call.id, by=call.by)
    call.workspace.forget_id(gone)
    call.changed(gone)
    return {"version": 1, "task": gone}


def list_trash(call: Call) -> Any:
    return {"version": 1, "trash": to_wire(call.store.trash())}


def restore(call: Call) -> Any:
    prefix = call.data.get("id")
    if prefix is not None and not call.store.trash():
        raise TaskNotFound(prefix)
    back = call.store.restore(prefix)
    for task_id in back:
        call.changed(task_id)
    return {"version": 1, "restored": back}


def empty_trash(call: Call) -> Any:
    """For good."""
    before = call.data.get("before")
    limit = read_time(before) if before is not None else None
    if before is not None and limit is None:
        raise InvalidValue(f"Not a time: {before!r:.60}.")
    return {"version": 1, "deleted": to_wire(call.store.empty_trash(limit, only=call.data.get("id")))}


def erase_task(call: Call) -> Any:
    """For good, in the trash or not; the audit says who did it."""
    prefix = call.params["id"]
    with contextlib.suppress(TaskNotFound):  # it may be in the trash
        call.workspace.warm.close(call.store.find(prefix).id)
    call.task = call.store.erase(prefix, by=call.by)
    call.workspace.forget_id(call.task)
    call.changed(call.task)
    return {"version": 1, "task": call.task}


def list_retention(call: Call) -> Any:
    """Every task as retention sees it."""
    only = call.params["id"]
    return {"version": 1, "tasks": to_wire(call.store.retention_rows(call.store.find(only).id if only else None))}


def list_freed(call: Call) -> Any:
    return {"version": 1, "freed": call.store.freed_bytes(call.data["ids"])}


def discard(call: Call) -> Any:
    """Tasks as they were when they were listed; what has changed since stays."""
    chosen = []
    for each in call.data["tasks"]:
        kept = RetentionRow(each["id"], None, "", False, False, None, each["file"], each["size"], each["mtime_ns"])
        call.workspace.warm.close(each["id"])
        chosen.append((kept, each["rule"]))
    gone = list(call.store.move_to_trash(chosen, by=call.by))
    for task_id in gone:
        call.changed(task_id)
    return {"version": 1, "discarded": gone}


def pack(call: Call) -> Any:
    found = call.store.retention_rows(call.id)
    call.workspace.warm.close(call.id)
    return {"version": 1, "packed": bool(found) and call.store.pack(found[0])}


def repair_task(call: Call) -> Any:
    """Repairs what can be, and says what was found."""
    call.workspace.warm.close(call.id)
    (verdict,) = call.store.verify(call.id, repair=True)
    call.changed(call.id)
    return verdict_json(verdict)


def redact(call: Call) -> Any:
    call.workspace.warm.close(call.id)
    found = call.store.redact(call.id, dry_run=bool(call.data.get("dry_run")), by=call.by)
    if found.changed:
        call.changed(call.id)
    return {"version": 1, "task": call.id, "rules": dict(found.rules), "changed": found.changed}


# Small values


def list_values(call: Call) -> Any:
    rows = call.registry.items(call.params["scope"])
    return {"version": 1, "values": [{"scope": scope, "key": key, "value": value} for scope, key, value in rows]}


def get_value(call: Call) -> Any:
    value = call.registry.get(call.params["scope"], call.params["key"])
    if value is None:
        raise Refused(404, "NoValue", "No such value.")
    return {"version": 1, "value": value}


def set_value(call: Call) -> Any:
    scope, key, value = call.params["scope"], call.params["key"], call.data["value"]
    said = f"{scope} {key}={value}"
    clean = call.store.redactor.text
    if clean(said) != said:
        raise InvalidValue(f"The value of {clean(key)!r} looks like a secret and was not stored.")
    call.registry.set(scope, key, value)


def delete_value(call: Call) -> Any:
    if not call.registry.delete(call.params["scope"], call.params["key"]):
        raise Refused(404, "NoValue", "No such value.")


# Repositories, agents, runtimes


def list_repos(call: Call) -> Any:
    return {"version": 1, "repos": call.registry.repos()}


def add_repo(call: Call) -> Any:
    clean = call.store.redactor.text
    call.registry.saw_repo(call.data["vcs"], clean(call.data["remote_url"]), call.data.get("default_branch"))


def list_agents(call: Call) -> Any:
    return {"version": 1, "agents": [_read(row) for row in call.registry.agent_rows()]}


def add_agent(call: Call) -> Any:
    call.registry.saw_agent(
        call.data["name"], call.data["version"], call.store.redactor.value(call.data.get("metadata"))
    )


def list_runtimes(call: Call) -> Any:
    return {"version": 1, "runtimes": [_read(row) for row in call.registry.runtimes()]}


def add_runtime(call: Call) -> Any:
    call.registry.saw_runtime(
        call.data["type"], call.data.get("devcontainer_path"), call.store.redactor.value(call.data.get("metadata"))
    )


def _read(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "metadata": json.loads(row["metadata"]) if row["metadata"] else None}


# The server itself


def get_doctor(call: Call) -> Any:
    """The state of the tasks and of what is derived from them."""
    count, where, faults = call.store.health()
    concerns = [{"task": task_id, "problem": what} for task_id, what in call.store.concerns()]
    return {
        "version": 1,
        "release": __version__,
        "kind": call.workspace.host.kind,
        "disk": dict(call.store.disk()),
        "tasks": count,
        "index": where,
        "faults": faults,
        "unflushed": call.store.unflushed(),
        "concerns": concerns,
    }


def reindex(call: Call) -> Any:
    """Rebuilds what is derived from the tasks' bytes."""
    problems = [{"task": task_id, "problem": what} for task_id, what in call.store.reindex()]
    return {"version": 1, "tasks": len(call.store.task_ids()), "problems": problems}


def get_hello(call: Call) -> Any:
    """Who one is talking to, and as whom."""
    return {
        "version": 1,
        "server": "rawko",
        "release": __version__,
        "protocol": PROTOCOL,
        "workspaces": bool(call.workspace.host.default),
        "workspace": call.workspace.name or None,
        "role": call.who.role,
        "who": call.who.id,
    }


def list_workspaces(call: Call) -> Any:
    mine = call.who.workspace
    found = [row for row in call.workspace.host.workspaces() if mine is None or row["name"] == mine]
    return {"version": 1, "workspaces": found}


def create_workspace(call: Call) -> Any:
    if not call.workspace.host.default:
        raise Refused(400, "NoWorkspaces", "This server serves one project and has no workspaces.")
    if call.who.workspace is not None:
        raise Refused(403, "Forbidden", "A token that is limited to one workspace can't create others.")
    made = call.workspace.host.create_workspace(call.data["name"], call.data.get("external_id"))
    return {"version": 1, "name": call.data["name"], "made": made}


def list_audit(call: Call) -> Any:
    workspace = call.who.workspace or (call.workspace.name or None)
    rows = call.state.audited(call.params["limit"] or 100, workspace, call.params["before"])
    return {"version": 1, "audit": rows}


_SCOPE: Final = Param("scope", {"type": "string", "maxLength": 200}, "", True)
_KEY: Final = Param("key", {"type": "string", "maxLength": 1000}, "", True)
_METADATA: Final = {"type": ["object", "null"]}
_CHOSEN: Final = obj({"id": STRING, "file": STRING, "size": COUNT, "mtime_ns": {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}, "rule": {"type": "string", "minLength": 1, "maxLength": 100}})  # fmt: skip
OPERATIONS: Final = (
    Operation("DELETE", "/tasks/{id}", "Move a task to the trash", WRITE, delete_task, (ID,), answer={"type": "object"}),
    Operation("GET", "/trash", "List the trash", READ, list_trash, answer={"type": "object"}),
    Operation("POST", "/trash/restore", "Restore tasks from the trash", WRITE, restore, body=obj(None, id=TEXT), answer={"type": "object"}),
    Operation("POST", "/trash/empty", "Permanently delete what is in the trash", ADMIN, empty_trash, body=obj(None, before=TIME, id=TEXT), answer={"type": "object"}),
    Operation("POST", "/tasks/{id}/erase", "Permanently delete a task, in the trash or not", ADMIN, erase_task, (ID,), answer={"type": "object"}),
    Operation("GET", "/retention", "List tasks as retention sees them", READ, list_retention, (Param("id", {"type": "string", "pattern": "^[0-9A-Za-z]{1,64}$"}),), answer={"type": "object"}),
    Operation("POST", "/retention/freed", "Get the size of stored outputs that would be freed", READ, list_freed, body=obj({"ids": STRINGS}), answer={"type": "object"}),
    Operation("POST", "/trash", "Move tasks to the trash by rule", WRITE, discard, body=obj({"tasks": lists(_CHOSEN)}), answer={"type": "object"}),
    Operation("POST", "/tasks/{id}/pack", "Compress a task, where the store does that", WRITE, pack, (ID,), answer={"type": "object"}),
    Operation("POST", "/tasks/{id}/verify", "Repair a task's chain of seals, where possible", WRITE, repair_task, (ID,), answer={"type": "object"}),
    Operation("POST", "/tasks/{id}/redact", "Remove secrets from a task", WRITE, redact, (ID,), obj(None, dry_run=FLAG), {"type": "object"}),
    Operation("GET", "/kv", "List values", READ, list_values, (Param("scope", {"type": "string", "maxLength": 200}),), answer={"type": "object"}),
    Operation("GET", "/kv/{scope}/{key}", "Get a value", READ, get_value, (_SCOPE, _KEY), answer=obj({"version": COUNT, "value": STRING})),
    Operation("PUT", "/kv/{scope}/{key}", "Set a value", WRITE, set_value, (_SCOPE, _KEY), obj({"value": STRING}), status=204),
    Operation("DELETE", "/kv/{scope}/{key}", "Delete a value", WRITE, delete_value, (_SCOPE, _KEY), status=204),
    Operation("GET", "/repos", "List repositories", READ, list_repos, answer={"type": "object"}),
    Operation("POST", "/repos", "Add a repository", WRITE, add_repo, body=obj({"vcs": {"type": "string", "minLength": 1}, "remote_url": {"type": "string", "minLength": 1}}, default_branch=TEXT), status=204),
    Operation("GET", "/agents", "List known agents", READ, list_agents, answer={"type": "object"}),
    Operation("POST", "/agents", "Add an agent", WRITE, add_agent, body=obj({"name": {"type": "string", "minLength": 1}, "version": STRING}, metadata=_METADATA), status=204),
    Operation("GET", "/runtimes", "List known runtimes", READ, list_runtimes, answer={"type": "object"}),
    Operation("POST", "/runtimes", "Add a runtime", WRITE, add_runtime, body=obj({"type": {"type": "string", "minLength": 1}}, devcontainer_path=TEXT, metadata=_METADATA), status=204),
    Operation("GET", "/doctor", "List problems", ADMIN, get_doctor, answer={"type": "object"}),
    Operation("POST", "/reindex", "Rebuild the index and the search index", ADMIN, reindex, answer={"type": "object"}),
    Operation("GET", "/hello", "Get the current identity and server version", READ, get_hello, answer={"type": "object"}),
    Operation("GET", "/workspaces", "List the workspaces you can use", READ, list_workspaces, answer={"type": "object"}, alone=True),
    Operation("POST", "/workspaces", "Create a workspace", ADMIN, create_workspace, body=obj({"name": STRING}, external_id=TEXT), answer={"type": "object"}, status=201, alone=True),
    Operation("GET", "/audit", "List the audit log", ADMIN, list_audit, (Param("limit", {"type": "integer", "minimum": 1, "maximum": _MOST}), Param("before", {"type": "integer", "minimum": 0, "maximum": 10**15}, "The id of the last one that was listed.")), answer=ANY),
)  # fmt: skip
