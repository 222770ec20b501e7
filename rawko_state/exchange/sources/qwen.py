"""Qwen Code: ``~/.qwen/projects/<folder>/chats/<session>.jsonl``, and its stream, which has the shape of Claude Code's.

Sub-agents have files of their own, ``subagents/<session>/agent-*.jsonl``. Older versions keep no conversation of them, only what
the session notes of their requests and tool calls. Then that becomes their task.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from rawko_state.exchange.sources import claude_code
from rawko_state.exchange.sources.gemini import call_of, exited_badly, says_that_it_failed, shown, shows_nothing
from rawko_state.exchange.transcript import (
    Aside,
    Call,
    Output,
    Session,
    Step,
    Trouble,
    Usage,
    after,
    counts,
    files,
    first_record,
    lines,
    mapping,
    object_of,
    objects,
    only,
    read_lines,
    safely,
    session_id,
    text_of,
    text_or_none,
    time_of,
    uncached,
)
from rawko_state.format.fair_json import shallow
from rawko_state.model.frozen import replace

_TOKENS: Final = {
    "promptTokenCount": "in",
    "candidatesTokenCount": "out",
    "cachedContentTokenCount": "cache_read",
    "thoughtsTokenCount": "reasoning",
}
_NOTED: Final = {
    "input_token_count": "in",
    "output_token_count": "out",
    "cached_content_token_count": "cache_read",
    "thoughts_token_count": "reasoning",
}
_STREAMED: Final = {"input_tokens": "in", "output_tokens": "out", "cache_read_input_tokens": "cache_read"}
_SYSTEM: Final = frozenset(
    (
        "ui_telemetry", "attribution_snapshot", "slash_command", "at_command", "file_history_snapshot", "session_artifact",
        "agent_bootstrap", "agent_launch_prompt", "agent_session_ready", "turn_boundary",
    )
)  # fmt: skip
_OF_A_SUBAGENT = re.compile(r'"prompt_id":"[^"#]*#([^"#]+)#[0-9]+"')
_BY_A_SUBAGENT = re.compile(r"[^#]*#[^#]+#[0-9]+")
_APART: Final = "subagents"
_API_ERROR: Final = "[API Error: "
_MOST: Final = 1000
"""Sub-agents of one session."""


def home() -> Path:
    return Path(os.environ.get("QWEN_RUNTIME_DIR") or os.environ.get("QWEN_HOME") or Path.home() / ".qwen")


def found(paths: list[Path], root: Path, wrong: list[Trouble]) -> Iterator[Session]:
    for path in files(paths, [home() / "projects", home() / "tmp"], "*.jsonl", wrong):
        head = first_record(path)
        if head and "sessionId" not in head:  # a stream that somebody kept, say
            if path in paths:
                wrong.append(Trouble(path, "not a session of Qwen Code"))
            continue
        if path.parent.parent.name == _APART:
            yield _apart(path)
            continue
        yield _session(path)
        if not (path.parent.parent / _APART / _key(path)).is_dir():
            yield from _subagents(path)


def named(key: str) -> Session | None:
    paths = sorted((home() / "projects").glob(f"*/chats/{key}.jsonl"))
    return _session(paths[0]) if paths else None


def _session(path: Path) -> Session:
    return Session("qwen", _key(path), path, _read, agent="qwen")


def _key(path: Path) -> str:
    return session_id(path.stem, lambda: first_record(path).get("sessionId"))


def _apart(path: Path) -> Session:
    """A sub-agent with a file of its own, and one beside it that says what it is."""
    beside = path.with_suffix(".meta.json")
    told = _json_in(beside)
    parent = path.parent.name
    above = text_or_none(told.get("parentAgentId"))
    about = only(call=told.get("toolUseId"), title=told.get("description"), status=told.get("status"))
    return Session(
        "qwen", f"{parent}/{path.stem.removeprefix('agent-')}", path, _read_apart,
        f"{parent}/{above}" if above else parent,
        agent=text_or_none(told.get("agentType")) or path.stem, about=about, also=beside,
    )  # fmt: skip


def _json_in(path: Path) -> dict[str, Any]:
    try:
        with open(path, "rb") as stream:
            return mapping(json.loads(shallow(stream.read(1 << 16))))
    except (OSError, ValueError):
        return {}


def _read_apart(session: Session, start: int, wrong: list[str]) -> Iterator[tuple[int, Step]]:
    """The steps of a sub-agent. Whether it failed stands only in the file beside it."""
    about = {name: text for name, text in session.about.items() if name != "status"}
    last: tuple[int, Step] | None = None
    for place, step in read_lines(session.path, start, wrong, step_of):
        if last is not None:
            yield last
        step = replace(step, agent=session.agent) if step.turn is not None else step
        last = place, replace(step, facts={**about, **step.facts})
    if last is None:
        return
    status = session.about.get("status")
    if status == "failed":
        last = last[0], replace(last[1], failed=last[1].failed or "the sub-agent failed")
    elif status == "cancelled":
        last = last[0], replace(last[1], aborted=True)
    yield last


def _subagents(path: Path) -> Iterator[Session]:
    """The sub-agents that a session tells of. The calls that start them do not name them, so they are paired in order."""
    names: dict[str, None] = {}
    calls: list[dict[str, Any]] = []
    try:
        for _, line in lines(path, 0, []):
            if '"subagent_type"' in line and '"functionCall"' in line:
                calls += _starting(line)
            match = _OF_A_SUBAGENT.search(line)
            if match is not None and len(names) < _MOST:
                names[match[1]] = None
    except OSError:
        return  # the session itself is read next, which reports it
    for name in names:
        kind = name.rpartition("-")[0] or name
        call = next((call for call in calls if mapping(call.get("args")).get("subagent_type") == kind), {})
        if not call:
            continue  # one of the program's own, such as that which keeps its memory
        calls = [each for each in calls if each is not call]
        about = only(call=call.get("id"), title=mapping(call.get("args")).get("description"))
        parent = _key(path)
        yield Session("qwen", f"{parent}/{name}", path, _read_subagent, parent, at=name, agent=kind, about=about)


def _starting(line: str) -> list[dict[str, Any]]:
    """The calls in a record that start sub-agents."""
    try:
        parts = objects(mapping(object_of(line).get("message")).get("parts"))
    except ValueError:
        return []
    calls = [mapping(part.get("functionCall")) for part in parts]
    return [call for call in calls if "subagent_type" in mapping(call.get("args"))]


def _read(session: Session, start: int, wrong: list[str]) -> Iterator[tuple[int, Step]]:
    return read_lines(session.path, start, wrong, step_of)


def step_of(line: str) -> Step:
    """The step for one record of a session."""
    record = object_of(line)
    return replace(_step(line, record), key=text_or_none(record.get("uuid")))


def _step(line: str, record: Mapping[str, Any]) -> Step:
    kind, at = str(record.get("type")), time_of(record.get("timestamp"))
    facts = only(
        cwd=record.get("cwd"),
        version=record.get("version"),
        branch=record.get("gitBranch"),
        session=record.get("sessionId"),
    )
    parts = objects(mapping(record.get("message")).get("parts"))
    if kind == "user":
        text = "\n".join(text_of(part) for part in parts if isinstance(part.get("text"), str))
        if record.get("subtype") is not None or not text:  # a notification, or a prompt at a set time
            return Step(line, at, facts=facts)
        return Step(line, at, prompt=text, aborted=False, working=True, facts=facts)
    if kind == "assistant":
        return _answer(line, at, record, parts, facts)
    if kind == "tool_result":
        result = mapping(record.get("toolCallResult"))
        stopped = True if result.get("status") == "cancelled" else None
        outputs = tuple(
            _output(mapping(part["functionResponse"]), result) for part in parts if "functionResponse" in part
        )
        return Step(line, at, outputs=outputs, aborted=stopped, working=True, facts=facts)
    if kind == "system":
        return _system(line, at, record, facts)
    return Step(line, at, facts=facts, unknown=kind)


def _answer(line: str, at: Any, record: Mapping[str, Any], parts: list[dict[str, Any]], facts: dict[str, str]) -> Step:
    said = [part for part in parts if isinstance(part.get("text"), str)]
    calls = tuple(call_of(mapping(part["functionCall"])) for part in parts if "functionCall" in part)
    return Step(
        line,
        at,
        turn=str(record.get("uuid")),
        agent="qwen",
        text="".join(part["text"] for part in said if not part.get("thought")) or None,
        thinking="".join(part["text"] for part in said if part.get("thought")) or None,
        model=text_or_none(record.get("model")),
        tokens=_tokens(record.get("usageMetadata")),
        calls=calls,
        working=bool(calls),
        facts=facts,
    )


def _tokens(usage: object) -> dict[str, int]:
    """Depending on the model's interface, the thoughts are part of the output or beside it; the total tells."""
    tokens = counts(usage, _TOKENS)
    total = counts(usage, {"totalTokenCount": "all"}).get("all")
    beside = tokens.get("in", 0) + tokens.get("out", 0) + tokens.get("reasoning", 0)
    if "out" in tokens and total == beside:
        tokens["out"] += tokens.get("reasoning", 0)
    return uncached(tokens)


def _output(answer: Mapping[str, Any], result: Mapping[str, Any]) -> Output:
    response = mapping(answer.get("response"))
    error = response.get("error")
    text = text_of(error) or text_of(response.get("output"))
    failed = bool(error) or result.get("status") in ("error", "cancelled")
    failed = failed or (answer.get("name") == "run_shell_command" and exited_badly(text))
    display = mapping(result.get("resultDisplay"))
    failed = failed or (display.get("type") == "task_execution" and display.get("status") == "failed")
    path = _written(text) if not failed and "fileDiff" in display else None
    unchanged = not failed and shows_nothing(display)
    return Output(str(answer.get("id")), text, failed, shown(path, display, text), is_unchanged=unchanged)


_WRITTEN = re.compile(
    r"(?:The file: (.+?) has been updated\.|(?:wrote to new file|overwrote file|new file): (.+?)\.?(?:\n|$| ))"
)


def _written(said: str) -> str | None:
    """The file that a result says was written. The display of its diff has only the last part of the path."""
    match = _WRITTEN.search(said[:5000])
    return (match[1] or match[2]) if match else None


def _system(line: str, at: Any, record: Mapping[str, Any], facts: dict[str, str]) -> Step:
    subtype, payload = str(record.get("subtype")), mapping(record.get("systemPayload"))
    if subtype == "custom_title":
        return Step(line, at, title=text_or_none(payload.get("customTitle")), facts=facts)
    if subtype == "chat_compression":
        before = mapping(payload.get("info")).get("originalTokenCount")
        size = f" from {before:,} tokens" if type(before) is int else ""
        return Step(line, at, aside=Aside("compacted", f"The conversation was compacted{size}."), facts=facts)
    if subtype == "rewind":
        return Step(
            line, at, aside=Aside("rewound", "The conversation was taken back to an earlier message."), facts=facts
        )
    event = mapping(payload.get("uiEvent"))
    if str(event.get("event.name")).endswith(".api_error") and not _BY_A_SUBAGENT.fullmatch(
        str(event.get("prompt_id"))
    ):
        error = text_or_none(event.get("error_message")) or "API error"
        if "abort" in error.lower():
            return Step(line, at, aborted=True, facts=facts)
        return Step(line, at, failed=error, facts=facts)
    return Step(line, at, facts=facts, unknown=None if subtype in _SYSTEM else f"system/{subtype}")


def _read_subagent(session: Session, start: int, wrong: list[str]) -> Iterator[tuple[int, Step]]:
    """The call that started a sub-agent, what the session notes of it, and the result of the call."""
    every = (
        (place, safely(lambda text: _of_subagent(text, session.at, session.about), line))
        for place, line in lines(session.path, 0, wrong)
    )
    return after(start, (each for each in every if each[1].happened))


def _of_subagent(line: str, name: str, about: Mapping[str, str]) -> Step:
    record = object_of(line)
    at, call = time_of(record.get("timestamp")), about.get("call")
    facts = only(cwd=record.get("cwd"), version=record.get("version"), branch=record.get("gitBranch"))
    for part in objects(mapping(record.get("message")).get("parts")) if call is not None else ():
        if mapping(part.get("functionCall")).get("id") == call:
            asked = text_of(mapping(mapping(part["functionCall"]).get("args")).get("prompt"))
            return Step(line, at, prompt=asked, working=True, facts={**facts, **about})
        if mapping(part.get("functionResponse")).get("id") == call:
            return _ended(line, at, mapping(record.get("toolCallResult")))
    event = mapping(mapping(record.get("systemPayload")).get("uiEvent"))
    if f"#{name}#" not in str(event.get("prompt_id")):
        return Step(line)
    what = str(event.get("event.name")).rpartition(".")[2]
    if what == "tool_call":
        given = {"id": record.get("uuid"), "name": event.get("function_name"), "args": event.get("function_args")}
        output = Output(str(record.get("uuid")), text_of(event.get("error")), event.get("success") is not True)
        return Step(line, at, calls=(call_of(given),), outputs=(output,), facts=facts, working=True)
    if what == "api_error":
        return Step(line, at, failed=text_or_none(event.get("error_message")) or "API error", facts=facts)
    if what != "api_response":
        return Step(line, at, facts=facts)
    return Step(
        line,
        at,
        turn=str(event.get("response_id")),
        agent=text_or_none(event.get("subagent_name")),
        text=text_or_none(event.get("response_text")),
        model=text_or_none(event.get("model")),
        tokens=uncached(counts(event, _NOTED)),
        facts=facts,
        working=True,
    )


def _ended(line: str, at: Any, result: Mapping[str, Any]) -> Step:
    """How a sub-agent ended, from the result of the call that started it."""
    display = mapping(result.get("resultDisplay"))
    status = display.get("status") or result.get("status")
    if status in ("completed", "success"):
        return Step(line, at, working=False)
    if status == "cancelled":
        return Step(line, at, aborted=True, working=False)
    return Step(line, at, failed=text_of(display.get("terminateReason")) or str(status), working=False)


class Stream:
    """Reads ``qwen -o stream-json``. The parts of one answer have ids of their own there; a tool's result ends the answer."""

    def __init__(self, agent: str) -> None:
        self._agent = agent
        self._turn, self._ended = 0, True
        self._told: Counter[str] = Counter()

    def step_of(self, line: str) -> Step:
        record = object_of(line)
        step = claude_code.step_of(line, self._agent)
        inside = step.inside
        message = mapping(record.get("message"))
        if record.get("type") == "assistant":
            if inside is None and self._ended:
                self._turn, self._ended = self._turn + 1, False
            usage = uncached(counts(message.get("usage"), _STREAMED))
            tokens = {name: count for name, count in usage.items() if count}
            self._told.update(tokens)
            calls = [part for part in objects(message.get("content")) if part.get("type") == "tool_use"]
            return Step(
                line,
                step.at,
                turn=str(self._turn) if inside is None else step.turn,
                agent=step.agent,
                text=step.text,
                thinking=step.thinking,
                model=step.model,
                tokens=tokens,
                calls=tuple(_called(part) for part in calls),
                inside=inside,
                failed=step.text[len(_API_ERROR) : -1]
                if (step.text or "").startswith(_API_ERROR) and step.text
                else None,
                facts=step.facts,
            )
        self._ended = self._ended or (inside is None and bool(step.outputs))
        if record.get("type") == "result":
            whole = uncached(counts(record.get("usage"), _STREAMED))
            left = {name: count - self._told[name] for name, count in whole.items() if count > self._told[name]}
            said = text_of(record.get("result"))
            failed = said[len(_API_ERROR) : -1] if said.startswith(_API_ERROR) else step.failed
            return Step(line, step.at, failed=failed, used=Usage(left), facts=step.facts)
        outputs = tuple(replace(each, failed=each.failed or says_that_it_failed(each.text)) for each in step.outputs)
        return replace(step, outputs=outputs) if outputs else step


def _called(part: Mapping[str, Any]) -> Call:
    return call_of({"id": part.get("id"), "name": part.get("name"), "args": part.get("input")})
