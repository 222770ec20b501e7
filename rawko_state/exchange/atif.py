"""Writes a task as a trajectory in the Agent Trajectory Interchange Format (ATIF), step by step.

A request or a message of a person is a ``user`` step, a note that is part of the conversation a ``system`` step, and a turn an
``agent`` step with its tool calls and their outputs. Tasks that name this one as their parent are embedded as sub-agents.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from rawko_state.exchange.sources.atif import OBSERVATION
from rawko_state.format.json_form import plain
from rawko_state.model.entries import IN_CONTEXT, Entry, Note, Request, Result, TaskHeader, ToolCall, Turn, touched
from rawko_state.store.contract import Store

VERSION: Final = "ATIF-v1.7"
_UNKNOWN: Final = "unknown"
_VERSIONS: Final = ("x-agent-version", "x-version", "version")
"""Fields that say which version of the agent it was."""
_TOTALS: Final = ("prompt_tokens", "completion_tokens", "cached_tokens", "cost_usd")


def trajectory(
    store: Store, task_id: str, clean: Callable[[Any], Any], seen: frozenset[str] = frozenset()
) -> Iterator[str]:
    """One task in pieces of JSON. ``clean`` removes secrets from an entry."""
    summary = store.summary(task_id)
    header, results = TaskHeader(id=task_id), list[Any]()
    totals: dict[str, float] = {}
    number, separator = 0, ""
    source = store.source(task_id) or ""
    yield f'{{"schema_version": {json.dumps(VERSION)}, "trajectory_id": {json.dumps(task_id)}, '
    yield f'"session_id": {json.dumps(source.partition(":")[2] or task_id)}, "steps": ['
    for _, entry in store.entries(task_id):
        cleaned = clean(entry)
        if isinstance(cleaned, TaskHeader):
            header = cleaned
        elif isinstance(cleaned, Result):
            results.append(plain(cleaned))
        for step in _steps(store, cleaned):
            number += 1
            for name in _TOTALS:
                if name in step.get("metrics", {}):
                    totals[name] = totals.get(name, 0) + step["metrics"][name]
            yield f"{separator}\n{json.dumps({'step_id': number, **step})}"
            separator = ","
    agent = {
        "name": header.agent or next(iter(summary.agents), _UNKNOWN),
        "version": next((field.value for field in header.extra if field.name.lower() in _VERSIONS), _UNKNOWN),
        "model_name": header.model or summary.model,
    }
    final = {f"total_{name}": value for name, value in totals.items()} | {"total_steps": number}
    extra: dict[str, Any] = {
        "recorded_by": "rawko",
        "status": summary.status,
        "title": summary.title,
        "parent": summary.parent,
    }
    extra |= {
        "cwd": header.cwd,
        "branch": header.branch,
        "commit": header.commit,
        "repo": header.repo,
        "results": results,
    }
    yield f'\n], "agent": {json.dumps(_known(agent))}, "final_metrics": {json.dumps(final)}, "extra": {json.dumps(_known(extra))}'
    children = [child for child, turn, _ in store.children(task_id) if turn is None and child not in seen | {task_id}]
    if children:
        yield ', "subagent_trajectories": ['
        for place, child in enumerate(children):
            yield ", " if place else ""
            yield from trajectory(store, child, clean, seen | {task_id, *children})
        yield "]"
    yield "}"


def _steps(store: Store, entry: Entry) -> Iterator[dict[str, Any]]:
    if isinstance(entry, Request):
        yield _known({"timestamp": _time(entry.at), "source": "user", "message": entry.text})
    elif isinstance(entry, Note) and entry.context == IN_CONTEXT and entry.content:
        yield _known({"timestamp": _time(entry.at), "source": "system", "message": entry.content})
    elif isinstance(entry, Turn):
        yield _of_turn(store, entry)


def _of_turn(store: Store, turn: Turn) -> dict[str, Any]:
    extra: dict[str, Any] = {
        "turn": turn.number,
        "agent": turn.agent,
        "status": turn.status,
        "duration_ms": turn.duration_ms,
    }
    if turn.agent == "user":
        more = _known({"turn": turn.number, "answers": turn.answers})
        return _known(
            {"timestamp": _time(turn.started), "source": "user", "message": turn.content or "", "extra": more}
        )
    extra |= {"selected": turn.selected, "decision": turn.decision, "reason": turn.reason, "guidance": turn.guidance}
    extra |= {"question": plain(turn.question), "files": [[file.operation, file.path] for file in touched(turn)]}
    extra |= {"diffs": [plain(diff) for diff in turn.diffs]}
    calls: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for place, call in enumerate(turn.tools, 1):
        if isinstance(call, str):
            results.append({"content": call})
            continue
        key = str(call.more.get("id") or f"call_{turn.number}_{place}")
        output = store.turn_output(call)
        content = output if output is not None else call.result
        if call.tool == OBSERVATION and not call.args:
            results.append({"content": content})
            continue
        calls.append({"tool_call_id": key, "function_name": call.tool, "arguments": _arguments(call)})
        if content is not None:
            failed = {"extra": {"error": call.more["error"]}} if call.more.get("error") else {}
            results.append({"source_call_id": key, "content": content, **failed})
    said = turn.content if turn.content is not None else _decided(turn)
    return _known(
        {
            "timestamp": _time(turn.started),
            "source": "agent",
            "model_name": turn.model,
            "message": said,
            "reasoning_content": turn.thinking,
            "tool_calls": calls or None,
            "observation": {"results": results} if results else None,
            "metrics": _metrics(turn) or None,
            "extra": _known(extra),
        }
    )


def _decided(turn: Turn) -> str:
    return f"Selected {turn.selected}" if turn.selected else turn.decision or ""


def _arguments(call: ToolCall) -> dict[str, Any]:
    given = call.more.get("input")
    return given if isinstance(given, dict) else {"arguments": call.args} if call.args else {}


def _metrics(turn: Turn) -> dict[str, Any]:
    """Tokens in their terms: input from a cache counts as input, too."""
    tokens = turn.tokens
    found: dict[str, Any] = {}
    if "in" in tokens:
        found["prompt_tokens"] = tokens["in"] + tokens.get("cache_read", 0) + tokens.get("cache_write", 0)
    names = {"completion_tokens": "out", "cached_tokens": "cache_read"}
    found |= {name: tokens[ours] for name, ours in names.items() if ours in tokens}
    if turn.cost is not None and turn.cost.currency == "USD":
        found["cost_usd"] = float(turn.cost.amount)
    more = {"cache_write": tokens.get("cache_write"), "reasoning_tokens": tokens.get("reasoning")}
    return {**found, "extra": _known(more)} if _known(more) else found


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value not in (None, [], {})}


def _time(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat().replace("+00:00", "Z")
