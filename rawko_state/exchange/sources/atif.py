"""Trajectories in the Agent Trajectory Interchange Format (ATIF) of Harbor and Terminal-Bench: one JSON object per file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from rawko_state.exchange.sources.messages import call_of
from rawko_state.exchange.transcript import (
    Aside,
    Call,
    Output,
    Session,
    Step,
    Trouble,
    dollars,
    object_of,
    only,
    safely,
    text_of,
    time_of,
    uncached,
)

_LARGEST: Final = 512 << 20
_VERSION: Final = "ATIF-v"
OBSERVATION: Final = "observation"
"""Stands for a tool where a result names no call: what an agent saw without calling one."""


def found(paths: list[Path], root: Path, wrong: list[Trouble]) -> Iterator[Session]:
    """The trajectories in these files and in those that they hold of sub-agents."""
    if not paths:
        wrong.append(Trouble(root, "name the files: trajectories have no place of their own"))
    for path in paths:
        for file in sorted(path.rglob("*.json")) if path.is_dir() else [path]:
            try:
                whole = _loaded(file)
            except (OSError, ValueError) as error:
                wrong.append(Trouble(file, f"Not a trajectory: {error}"))
                continue
            yield from _sessions(whole, file, root, None, ())


def _loaded(path: Path) -> dict[str, Any]:
    if path.stat().st_size > _LARGEST:
        raise ValueError(f"larger than {_LARGEST >> 20} MB")
    whole = object_of(path.read_bytes().decode("utf-8", "surrogateescape"))
    if not str(whole.get("schema_version")).startswith(_VERSION):
        raise ValueError(f"it has no schema_version that begins with {_VERSION}")
    return whole


def _sessions(
    whole: Mapping[str, Any], file: Path, root: Path, parent: str | None, at: tuple[int, ...]
) -> Iterator[Session]:
    name = whole.get("trajectory_id") or (None if at else whole.get("session_id"))
    # Ids of sub-agents are unique within their parent only.
    key = f"{parent}/{name or at[-1]}" if parent is not None else str(name or file.resolve())
    agent = _mapping(whole.get("agent"))
    yield Session("atif", key, file, _read, parent, at=at, folder=root, agent=str(agent.get("name") or "agent"))
    subs = whole.get("subagent_trajectories")
    for number, sub in enumerate(subs if isinstance(subs, list) else ()):
        if isinstance(sub, dict) and len(at) < 20:
            yield from _sessions(sub, file, root, key, (*at, number))


def _read(session: Session, start: int, wrong: list[str]) -> Iterator[tuple[int, Step]]:
    """A place is the number of steps before it; the first step also tells what is known of the whole."""
    try:
        whole: Any = _loaded(session.path)
        for number in session.at:
            whole = whole["subagent_trajectories"][number]
    except (OSError, ValueError, LookupError, TypeError) as error:
        wrong.append(f"Not a trajectory: {error}")
        return
    steps = whole.get("steps")
    agent, extra = _mapping(whole.get("agent")), _mapping(whole.get("extra"))
    facts = only(session=whole.get("session_id"), version=agent.get("version"))
    facts |= only(**{name: extra.get(name) for name in ("cwd", "branch", "commit", "repo")})
    head = {name: value for name, value in whole.items() if name not in ("steps", "subagent_trajectories")}
    for number, record in enumerate(steps if isinstance(steps, list) else (), 1):
        if number <= start:
            continue
        raw = json.dumps(record, ensure_ascii=False)
        step = safely(lambda text: _step(text, session.agent, agent.get("model_name")), raw)
        if number == 1:
            raw = f"{json.dumps(head, ensure_ascii=False)}\n{raw}"
            step = replace(step, raw=raw, facts=facts, title=only(title=extra.get("title")).get("title"))
        yield number, step


def _step(raw: str, agent: str, model: Any) -> Step:
    step = object_of(raw)
    at, message = time_of(step.get("timestamp")), text_of(step.get("message"))
    results = [each for each in _mapping(step.get("observation")).get("results") or () if isinstance(each, dict)]
    if step.get("source") == "user":
        return Step(raw, at, prompt=message)
    if step.get("source") == "system":
        told = [message, *(text_of(each.get("content")) for each in results)]
        return Step(raw, at, aside=Aside("system", "\n".join(part for part in told if part)))
    if step.get("source") != "agent":
        return Step(raw, at, unknown=str(step.get("source")))
    given = [each for each in step.get("tool_calls") or () if isinstance(each, dict)]
    calls = tuple(
        call_of({"id": each.get("tool_call_id"), "name": each.get("function_name"), "input": each.get("arguments")})
        for each in given
    )
    unnamed = {at: f"{OBSERVATION} {at}" for at, each in enumerate(results) if each.get("source_call_id") is None}
    calls += tuple(Call(key, OBSERVATION, "") for key in unnamed.values())
    outputs = tuple(
        Output(unnamed.get(at) or str(each["source_call_id"]), text_of(each.get("content")), _failed(each))
        for at, each in enumerate(results)
    )
    metrics, named = _mapping(step.get("metrics")), step.get("model_name") or model
    more = _mapping(metrics.get("extra"))
    counted = {
        "in": metrics.get("prompt_tokens"),
        "out": metrics.get("completion_tokens"),
        "cache_read": metrics.get("cached_tokens"),
        "cache_write": more.get("cache_write"),
        "reasoning": more.get("reasoning_tokens"),
    }
    tokens = {name: count for name, count in counted.items() if isinstance(count, int) and count >= 0}
    thinking, extra = step.get("reasoning_content"), _mapping(step.get("extra"))
    return Step(
        raw,
        at,
        turn=str(step.get("step_id")),
        agent=str(extra.get("agent") or agent),
        text=message or None,
        thinking=thinking if isinstance(thinking, str) and thinking else None,
        model=named if isinstance(named, str) else None,
        tokens=uncached(tokens),
        cost=dollars(metrics.get("cost_usd")),
        calls=calls,
        outputs=outputs,
    )


def _failed(result: Mapping[str, Any]) -> bool:
    extra = _mapping(result.get("extra"))
    return bool(extra.get("is_error") or extra.get("error"))


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
