"""Copilot CLI: ``~/.copilot/session-state/<id>/events.jsonl``, and the stream of ``copilot --output-format json``.

A sub-agent's events are in the file of the session that started it, with an ``agentId``. They are kept there, and are a task of
their own too.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from rawko_state.exchange.sources.messages import asked_of
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
from rawko_state.format.diffs import compared, made_of, replacement, unified
from rawko_state.model.entries import Diff
from rawko_state.model.frozen import replace

_TOKENS: Final = {
    "inputTokens": "in",
    "outputTokens": "out",
    "cacheReadTokens": "cache_read",
    "cacheWriteTokens": "cache_write",
    "reasoningTokens": "reasoning",
}
_KNOWN: Final = frozenset(
    (
        "agent.interrupted", "assistant.idle", "assistant.intent", "assistant.message_delta", "assistant.message_start",
        "assistant.reasoning", "assistant.reasoning_delta", "assistant.server_tool_progress", "assistant.streaming_delta",
        "assistant.tool_call_delta", "assistant.turn_end", "assistant.turn_retry", "assistant.turn_start", "assistant.usage",
        "auto_mode_switch.completed", "auto_mode_switch.requested", "capabilities.changed", "command.completed",
        "command.execute", "command.queued", "commands.changed", "elicitation.completed", "elicitation.requested",
        "exit_plan_mode.completed", "exit_plan_mode.requested", "external_tool.completed", "external_tool.requested",
        "hook.end", "hook.progress", "hook.start", "mcp.oauth_completed", "mcp.oauth_required", "model.call_failure",
        "model.call_final_result", "model.call_finished", "model.call_start", "pending_messages.modified",
        "permission.completed", "permission.requested", "prompt_cache_break", "sandbox.decision",
        "session.auto_mode_resolved", "session.autopilot_objective_changed", "session.autopilot_stopped",
        "session.background_tasks_changed", "session.binary_asset", "session.compaction_start", "session.completion_receipt",
        "session.custom_agents_updated", "session.custom_notification", "session.extensions_loaded", "session.handoff",
        "session.idle", "session.info", "session.mcp_server_status_changed", "session.mcp_server_tools_loaded",
        "session.mcp_servers_loaded", "session.memory_changed", "session.mode_changed", "session.mode_notice_delivered",
        "session.model_change", "session.permissions_changed", "session.plan_changed", "session.quota_observation",
        "session.remote_steerable_changed", "session.skills_loaded", "session.task_complete", "session.todos_changed",
        "session.tools_updated", "session.truncation", "session.usage_checkpoint", "session.usage_info",
        "session.usage_record", "session.warning", "session.workspace_file_changed", "skill.context_delivered",
        "skill.context_delivered_ref", "skill.invoked", "skill.invoked_ref", "subagent.configured", "subagent.deselected",
        "subagent.selected", "system.message", "system.notification", "tool.execution_partial_result",
        "tool.execution_progress", "tool.execution_start", "tool.shell_output", "tool_search.activated",
        "user_input.completed", "user_input.requested",
    )
)  # fmt: skip
_PAUSE: Final = 0.1
_LATE: Final = 10
"""The seconds by which clocks of files may be behind."""
_OF_A_SUBAGENT: Final = ("user.message", "assistant.", "tool.")
_AGENT = re.compile(r'"agentId":"([^"]{1,200})"')
_EXITED = re.compile(r"<[^<>\n]*with exit code (-?[0-9]+)>\s*$")
_NAME = re.compile(r"^name:\s*(.+?)\s*$", re.MULTILINE)
_MOST: Final = 1000
"""Sub-agents of one session."""


def home() -> Path:
    return Path(os.environ.get("COPILOT_HOME") or Path.home() / ".copilot")


def found(paths: list[Path], root: Path, wrong: list[Trouble]) -> Iterator[Session]:
    for path in files(paths, [home() / "session-state"], "events.jsonl", wrong):
        yield _session(path)
        yield from _subagents(path)


def named(key: str) -> Session | None:
    path = home() / "session-state" / key / "events.jsonl"
    return _session(path) if path.is_file() else None


def _session(path: Path) -> Session:
    return Session("copilot", _key(path), path, _read, agent="copilot", about=only(title=_title(path)))


def _key(path: Path) -> str:
    name = path.parent.name if path.name == "events.jsonl" else path.stem
    return session_id(name, lambda: mapping(first_record(path).get("data")).get("sessionId"))


def _title(path: Path) -> str | None:
    """The name that the session has in the file beside it."""
    try:
        with open(path.with_name("workspace.yaml"), "rb") as stream:
            match = _NAME.search(stream.read(1 << 16).decode("utf-8", "replace"))
    except OSError:
        return None
    return match[1].strip("\"'") if match else None


def _subagents(path: Path) -> Iterator[Session]:
    names: dict[str, dict[str, Any]] = {}
    try:
        for _, line in lines(path, 0, []):
            match = _AGENT.search(line)
            if match is None or match[1] in names or len(names) >= _MOST:
                continue
            record = _object(line)
            if record.get("agentId") == match[1]:
                names[match[1]] = mapping(record.get("data")) if record.get("type") == "subagent.started" else {}
    except OSError:
        return  # the session itself is read next, which reports it
    key = _key(path)
    for name, data in names.items():
        about = only(call=data.get("toolCallId"), title=data.get("agentDescription"))
        agent = text_or_none(data.get("agentName")) or "agent"
        yield Session("copilot", f"{key}/{name}", path, _read_subagent, key, at=name, agent=agent, about=about)


def _object(line: str) -> dict[str, Any]:
    try:
        return object_of(line)
    except ValueError:
        return {}


def _read(session: Session, start: int, wrong: list[str]) -> Iterator[tuple[int, Step]]:
    reader, title = Reader("copilot"), session.about.get("title")

    def own(line: str) -> Step:
        step = reader.step_of(line)
        # What a sub-agent did is in a task of its own.
        return step if step.inside is None else Step(step.raw, step.at, unknown=step.unknown)

    for place, step in read_lines(session.path, start, wrong, own):
        yield place, step if title is None else replace(step, title=title, facts={"title": title, **step.facts})
        title = None


def _read_subagent(session: Session, start: int, wrong: list[str]) -> Iterator[tuple[int, Step]]:
    return after(start, _of_subagent(session, lines(session.path, 0, wrong)))


def _of_subagent(session: Session, records: Iterable[tuple[int, str]]) -> Iterator[tuple[int, Step]]:
    reader = Reader(session.agent, session.at)
    facts = dict(session.about)
    for place, line in records:
        step = safely(reader.step_of, line)
        if _object(line).get("agentId") == session.at:
            yield place, replace(step, inside=None, facts={**facts, **step.facts})
        elif "cwd" in step.facts:
            facts |= {name: value for name, value in step.facts.items() if name != "session"}


class Stream:
    """The lines of ``copilot --output-format json``. Only the last one names the session, and does not come if Copilot is killed.
    So the session is known by its first prompt: it has the same id in the session's file, which is written a little later."""

    def __init__(self) -> None:
        self._reader = Reader("copilot")
        self._session: str | None = None
        self._prompt: str | None = None
        self._began = time.time()
        self._looked = 0.0

    def step_of(self, line: str) -> Step:
        step = self._reader.step_of(line) if line else Step("")  # nothing has come for a while
        if self._prompt is None and step.prompt is not None:
            self._prompt = text_or_none(object_of(line).get("id"))
        if self._session is None and self._prompt is not None and time.monotonic() > self._looked + _PAUSE:
            self._session, self._looked = self._found(self._prompt), time.monotonic()
            if self._session is not None:
                return replace(step, facts={**step.facts, "session": self._session})
        return step

    def _found(self, event: str) -> str | None:
        wanted = f'"id":"{event}"'.encode("utf-8", "replace")
        for path in (home() / "session-state").glob("*/events.jsonl"):
            with contextlib.suppress(OSError):
                if path.stat().st_mtime >= self._began - _LATE and wanted in path.read_bytes():
                    return _key(path)
        return None


class Reader:
    """Reads events, all of them or those of one sub-agent. What an answer used is told before it, under the id of its request."""

    def __init__(self, agent: str, only_of: str | None = None) -> None:
        self._agent, self._only_of = agent, only_of
        self._usage: dict[str, dict[str, int]] = {}
        self._told: set[str] = set()
        self._paths: dict[str, str] = {}
        self._started: dict[str, str] = {}
        """The calls that started sub-agents."""
        self._names: dict[str, str] = {}
        self._counted = False
        self._before: dict[str, int] = {}

    def step_of(self, line: str) -> Step:
        record = object_of(line)
        kind, data = str(record.get("type")), mapping(record.get("data"))
        step = self._event(line, time_of(record.get("timestamp")), kind, data, record)
        agent = record.get("agentId")
        if not isinstance(agent, str):
            return replace(step, key=text_or_none(record.get("id")))
        if kind == "subagent.started":
            self._started[agent] = str(data.get("toolCallId"))
            self._names[agent] = text_or_none(data.get("agentName")) or agent
        is_own = agent == self._only_of
        if is_own or not kind.startswith(_OF_A_SUBAGENT):
            # What a sub-agent does is not what the session does.
            return step if is_own else Step(line, step.at, unknown=step.unknown)
        inside = text_or_none(data.get("parentToolCallId")) or self._started.get(agent, agent)
        facts = {**step.facts, "subagent": self._names.get(agent, agent), "sub_session": agent}
        return replace(step, inside=inside, facts=facts)

    def _event(self, line: str, at: Any, kind: str, data: Mapping[str, Any], record: Mapping[str, Any]) -> Step:
        if kind in ("session.start", "session.resume", "session.context_changed"):
            return Step(line, at, facts=_facts(kind, data))
        if kind == "user.message":
            return _prompt(line, at, data)
        if kind == "assistant.message":
            return self._answer(line, at, data)
        if kind in ("session.usage_record", "assistant.usage"):
            return self._used(line, at, mapping(data.get("usage")) if kind == "session.usage_record" else data)
        if kind == "tool.execution_complete":
            return Step(line, at, outputs=(self._output(data),), working=True)
        if kind == "tool.user_requested":
            call = _call({**data, "name": data.get("toolName")})
            return Step(line, at, turn=call.id, agent="user", calls=(call,))
        if kind == "abort":
            return Step(line, at, aborted=True, working=False)
        if kind == "session.error":
            return Step(line, at, failed=text_or_none(data.get("message")) or "an error", working=False)
        if kind in ("subagent.completed", "subagent.failed") and self._only_of is not None:
            failed = text_or_none(data.get("error")) if kind == "subagent.failed" else None
            return Step(line, at, failed=failed, working=False)
        if kind == "session.compaction_complete" and data.get("success") is not False:
            before = data.get("preCompactionTokens")
            size = f" from {before:,} tokens" if type(before) is int else ""
            return Step(line, at, aside=Aside("compacted", f"The conversation was compacted{size}."))
        if kind == "session.snapshot_rewind":
            return Step(line, at, aside=Aside("rewound", "The conversation was taken back to an earlier message."))
        if kind == "session.title_changed":
            return Step(line, at, title=text_or_none(data.get("title")))
        if kind == "session.shutdown":
            return self._shutdown(line, at, data)
        if kind == "result":  # the last line of a stream
            return Step(line, at, facts=only(session=record.get("sessionId")))
        known = kind in _KNOWN or kind.startswith(("subagent.", "session.compaction"))
        return Step(line, at, unknown=None if known else kind, facts=_session_of(data))

    def _answer(self, line: str, at: Any, data: Mapping[str, Any]) -> Step:
        request = str(data.get("apiCallId") or data.get("messageId"))
        turn = f"{data.get('interactionId')}/{data.get('turnId')}" if "turnId" in data else str(data.get("messageId"))
        calls = tuple(_call(each) for each in objects(data.get("toolRequests")))
        self._paths |= {call.id: call.touches[0][1] for call in calls if call.touches}
        self._told.add(request)
        return Step(
            line,
            at,
            turn=turn,
            agent=self._agent,
            text=text_or_none(data.get("content")),
            thinking=text_or_none(data.get("reasoningText")),
            model=text_or_none(data.get("model")),
            tokens=self._usage.pop(request, {}),
            calls=calls,
            working=bool(calls),
        )

    def _used(self, line: str, at: Any, usage: Mapping[str, Any]) -> Step:
        """What a request used. Its ``cost`` is in requests and not in money."""
        tokens, request = uncached(counts(usage, _TOKENS)), str(usage.get("apiCallId"))
        self._counted = True
        if request in self._told:
            return Step(line, at, tokens=tokens)
        self._usage[request] = tokens
        return Step(line, at)

    def _shutdown(self, line: str, at: Any, data: Mapping[str, Any]) -> Step:
        """Older versions only tell at the end what was used, in all runs so far."""
        models = mapping(data.get("modelMetrics")) or mapping(
            mapping(data.get("accountingSnapshot")).get("modelMetrics")
        )
        whole: dict[str, int] = {}
        for each in models.values():
            for name, count in uncached(counts(mapping(mapping(each).get("usage")), _TOKENS)).items():
                whole[name] = whole.get(name, 0) + count
        tokens = {name: count - self._before.get(name, 0) for name, count in whole.items()}
        self._before = whole
        used = None if self._counted or not any(tokens.values()) else Usage(tokens)
        failed = None
        if data.get("shutdownType") == "error":
            failed = text_or_none(data.get("errorReason")) or "it ended with an error"
        return Step(line, at, used=used, failed=failed)

    def _output(self, data: Mapping[str, Any]) -> Output:
        key, result = str(data.get("toolCallId")), mapping(data.get("result"))
        text = text_of(result.get("content"))
        code = mapping(data.get("shellExecution")).get("exitCode")
        if code is None and (match := _EXITED.search(text)):
            code = int(match[1])
        failed = data.get("success") is not True or code not in (0, None)
        if data.get("success") is not True:
            text = text_of(mapping(data.get("error")).get("message")) or text
        path = self._paths.pop(key, None)
        return Output(key, text, failed, () if failed else _diffs(path, data, result.get("detailedContent")))


def _facts(kind: str, data: Mapping[str, Any]) -> dict[str, str]:
    context = mapping(data.get("context")) if kind != "session.context_changed" else data
    name, host = text_or_none(context.get("repository")), text_or_none(context.get("repositoryHost"))
    return only(
        cwd=context.get("cwd"),
        branch=context.get("branch"),
        commit=context.get("headCommit"),
        repo=None if name is None else f"https://{host or 'github.com'}/{name}",
        version=data.get("copilotVersion"),
        model=data.get("selectedModel"),
        session=data.get("sessionId"),
    )


def _session_of(data: Mapping[str, Any]) -> dict[str, str]:
    """A stream names the session with its first request; else only at its end."""
    accounting = mapping(mapping(data.get("usage")).get("accounting"))
    return only(session=accounting.get("sourceSessionId"))


def _prompt(line: str, at: Any, data: Mapping[str, Any]) -> Step:
    """What a person said, or the agent that started this one. Copilot also speaks to its model in messages of the user."""
    source = data.get("source")
    own = isinstance(source, str) and source != "user" and not source.startswith(("agent-", "command-"))
    if own or data.get("isAutopilotContinuation"):
        return Step(line, at)
    return Step(line, at, prompt=text_of(data.get("content")), aborted=False, working=True)


def _call(request: Mapping[str, Any]) -> Call:
    given, name = mapping(request.get("arguments")), str(request.get("name"))
    asked = request.get("arguments")
    path = text_or_none(given.get("path"))
    doing = str(given.get("command")) if name == "str_replace_editor" else name
    touches: tuple[tuple[str, str], ...] = ()
    diffs: tuple[Diff, ...] = ()
    if path is not None and doing in ("edit", "create", "str_replace", "insert"):
        touches, diffs = (("write", path),), _asked_for(path, given)
    elif path is not None and doing == "view":
        touches = (("read", path),)
    text = asked if isinstance(asked, str) else path if name == "str_replace_editor" and path else asked_of(given)
    return Call(str(request.get("toolCallId")), name, text[:4000], touches, diffs)


def _asked_for(path: str, given: Mapping[str, Any]) -> tuple[Diff, ...]:
    """What a call would change. An edit does not say where in the file."""
    old, new, content = (given.get(name) for name in ("old_str", "new_str", "file_text"))
    if isinstance(content, str):
        return (compared(path, None, content),)
    return (replacement(path, old, new),) if isinstance(old, str) and isinstance(new, str) else ()


def _diffs(path: str | None, data: Mapping[str, Any], shown: object) -> tuple[Diff, ...]:
    """The diffs that a tool shows. Their paths have lost the slash in front, so they are matched with the files written."""
    edits = {str(edit.get("path")): edit.get("kind") for edit in objects(data.get("fileEdits"))}
    if not edits or not isinstance(shown, str):
        return ()
    known = {name.lstrip("/"): name for name in (*edits, *([path] if path is not None else ()))}
    made: list[Diff] = []
    for diff in unified(shown):
        old, new = (None if side in (None, "dev/null") else side for side in (diff.old, diff.new))
        name = known.get(new or old or "", path or new or old)
        if name is not None and diff.hunks:
            created = old is None or edits.get(name) == "create"
            made.append(made_of(None if created else name, None if new is None else name, diff.hunks))
    return tuple(made)
