"""Claude Code: ``~/.claude/projects/<folder>/<session>.jsonl``, and its sub-agents in ``<session>/subagents/agent-*.jsonl``."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from rawko_state.exchange.transcript import (
    LONGEST_LINE,
    Aside,
    Call,
    Output,
    Session,
    Step,
    Trouble,
    Usage,
    counts,
    dollars,
    handed_over,
    holds,
    in_order,
    lines,
    mapping,
    object_of,
    objects,
    only,
    safely,
    session_id,
    text_of,
    text_or_none,
    time_of,
    walked,
    words,
)
from rawko_state.format.diffs import compared, overwritten, replacement, structured
from rawko_state.format.fair_json import shallow
from rawko_state.model.entries import Diff
from rawko_state.model.frozen import replace

MAIN: Final = "claude"
_WRITES: Final = frozenset(("Edit", "Write", "MultiEdit", "NotebookEdit"))
_SAID_BY_THE_PROGRAM: Final = (
    "<command-name>", "<local-command", "<system-reminder>", "Caveat:", "This session is being continued from a previous conv",
)  # fmt: skip
_TOLD_BY_THE_PROGRAM: Final = "<task-notification>"
_RUN_BY_A_PERSON = re.compile(r"<bash-input>(.*)</bash-input>\s*", re.DOTALL)
_SHOWN_TO_A_PERSON = re.compile(r"<bash-std(?:out|err)>(.*?)</bash-std(?:out|err)>", re.DOTALL)
_COMMAND = re.compile(
    r"<command-message>[^<]*</command-message>\s*<command-name>([^<]+)</command-name>(?:\s*<command-args>(.*)</command-args>)?",
    re.DOTALL,
)
_NOT_ASKED: Final = "No response requested."
"""What the program puts in place of an answer when a session is resumed."""
_NO_MODEL: Final = "<synthetic>"
"""The model of what the program itself says in an answer's place."""
_STOPPED: Final = "[Request interrupted by user"
_MODEL_TOKENS: Final = {
    "inputTokens": "in",
    "outputTokens": "out",
    "cacheReadInputTokens": "cache_read",
    "cacheCreationInputTokens": "cache_write",
}
_TOKENS: Final = {
    "input_tokens": "in",
    "output_tokens": "out",
    "cache_read_input_tokens": "cache_read",
    "cache_creation_input_tokens": "cache_write",
}


def home() -> Path:
    return Path(os.environ.get("CLAUDE_CONFIG_DIR") or Path.home() / ".claude")


def found(paths: list[Path], root: Path, wrong: list[Trouble]) -> Iterator[Session]:
    for path in paths or [home() / "projects"]:
        if path.is_dir():
            for file in walked(path, "*.jsonl", wrong):
                yield from _one(file, wrong, is_file=True)
        elif path.is_file():
            yield from _one(path, wrong)
        elif paths:
            wrong.append(Trouble(path, "No such file or folder"))


def named(key: str) -> Session | None:
    paths = sorted((home() / "projects").glob(f"*/{key}.jsonl"))
    return next(_one(paths[0], []), None) if paths else None


def subagent(session: Session, name: str) -> Session | None:
    """A sub-agent's session, by the name of its file."""
    plain = "".join(c for c in name if c.isalnum() or c in "-_")
    path = session.path.with_suffix("") / "subagents" / f"{plain}.jsonl"
    return next(_one(path, []), None) if path.is_file() else None


def siblings(session: Session) -> list[Session]:
    """The sessions that were run in the same folder."""
    return [each for path in sorted(session.path.parent.glob("*.jsonl")) for each in _one(path, [])]


def _one(path: Path, wrong: list[Trouble], *, is_file: bool = False) -> Iterator[Session]:
    if not is_file and path.is_dir():
        wrong.append(Trouble(path, "Expected a session file, found a folder"))
        return
    if not (is_file or path.is_file()) or path.name in ("history.jsonl", "journal.jsonl"):
        return
    if path.parent.name == "subagents":
        parent = path.parent.parent.name
        about = _about_subagent(path)
        name = about.get("agentType") or path.stem
        above = _started_by(path, about)
        whose = parent if above is None else f"{parent}/{above}"
        yield Session("claude-code", f"{parent}/{path.stem}", path, _read, whose, agent=name, about=about)
    else:
        # Older versions kept sub-agents beside the session, with its id.
        is_old = path.stem.startswith("agent-")
        key = path.stem if is_old else session_id(path.stem, lambda: _told_id(path))
        yield Session(
            "claude-code", key, path, _read_old_subagent if is_old else _read, agent=path.stem if is_old else MAIN
        )


def _told_id(path: Path) -> str | None:
    """The session that the first records of a file name, if it is one and the same."""
    try:
        with open(path, "rb") as stream:
            named = {match[1].decode() for match in _SESSION.finditer(stream.read(1 << 18))}
    except OSError:
        return None
    return named.pop() if len(named) == 1 else None


_SESSION = re.compile(rb'"sessionId": ?"([0-9a-f-]{36})"')


def _about_subagent(path: Path) -> dict[str, str]:
    """What the file beside a sub-agent's session says of it: its type, its description, and the call that started it."""
    try:
        with open(path.with_suffix(".meta.json"), "rb") as stream:
            found = json.loads(shallow(stream.read(1 << 16)))
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict):
        return {}
    depth = found.get("spawnDepth")
    about = words(found, "agentType", "description", "toolUseId", "parentAgentId")
    return {**about, "spawnDepth": str(depth)} if type(depth) is int and depth > 1 else about


def _read_old_subagent(session: Session, start: int, wrong: list[str]) -> Iterator[tuple[int, Step]]:
    """The steps of a sub-agent whose parent is only named in its records."""
    parent = _told_id(session.path)
    about = _told_by_parent(session.path, parent) if parent is not None else {}
    facts = only(parent=parent, title=about.get("description"), call=about.get("toolUseId"))
    for place, step in _read(replace(session, agent=about.get("agentType") or session.agent), start, wrong):
        yield place, replace(step, facts={**facts, **step.facts}) if facts else step
        facts = {}


def _told_by_parent(path: Path, parent: str) -> dict[str, str]:
    """What the session that started a sub-agent says of it: the result of the call names the sub-agent, the call describes it."""
    wanted, calls = path.stem.removeprefix("agent-"), dict[str, dict[str, Any]]()
    with contextlib.suppress(OSError):
        for _, line in lines(path.with_name(f"{parent}.jsonl"), 0, []):
            if '"subagent_type"' not in line and wanted not in line:
                continue
            record = _object(line)
            parts = objects(mapping(record.get("message")).get("content"))
            calls |= {
                str(part.get("id")): mapping(part.get("input")) for part in parts if part.get("type") == "tool_use"
            }
            if mapping(record.get("toolUseResult")).get("agentId") == wanted:
                call = next((str(part.get("tool_use_id")) for part in parts if part.get("type") == "tool_result"), "")
                given = words(calls.get(call, {}), "subagent_type", "description")
                return only(agentType=given.get("subagent_type"), description=given.get("description"), toolUseId=call)
    return {}


def _object(line: str) -> dict[str, Any]:
    try:
        return object_of(line)
    except ValueError:
        return {}


def _started_by(path: Path, about: Mapping[str, str]) -> str | None:
    """The sub-agent that started this one, by the name of its file. Older versions do not name it, only how deep this one is."""
    if "parentAgentId" in about:
        return f"agent-{about['parentAgentId']}"
    call = about.get("toolUseId")
    if call is None or "spawnDepth" not in about:
        return None
    others = (other for other in sorted(path.parent.glob("agent-*.jsonl")) if other != path)
    return next((other.stem for other in others if holds(other, call)), None)


def _read(session: Session, start: int, wrong: list[str]) -> Iterator[tuple[int, Step]]:
    about = session.about
    if about and not start:
        facts = {"title": about.get("description", ""), "call": about.get("toolUseId", "")}
        first = {name: value for name, value in facts.items() if value}
    else:
        first = {}
    found = (
        (place, safely(lambda text: step_of(text, session.agent), line))
        for place, line in lines(session.path, start, wrong)
    )
    for place, step in in_order(found, start):
        step = _with_long_outputs(step, session)
        yield place, replace(step, facts={**first, **step.facts}) if first else step
        first = {}


_KEPT_APART = re.compile(r"(?m)^.*saved to: .*[/\\]tool-results[/\\]([\w.-]+)")


def _with_long_outputs(step: Step, session: Session) -> Step:
    """Claude Code keeps long outputs in files of their own, and says so in the record."""
    if not any("tool-results" in output.text for output in step.outputs):
        return step

    def whole(output: Output) -> Output:
        named = _KEPT_APART.search(output.text)
        if named is None:
            return output
        path = session.path.with_suffix("") / "tool-results" / named[1]
        try:
            with open(path, "rb") as stream:
                return replace(output, text=stream.read(LONGEST_LINE).decode("utf-8", "surrogateescape"))
        except OSError:
            return output  # it is gone; the record has its beginning

    return replace(step, outputs=tuple(map(whole, step.outputs)))


def step_of(line: str, agent: str = MAIN) -> Step:
    """The step for one record. Also handles records from hooks and ``--output-format stream-json``."""
    try:
        record = json.loads(shallow(line))
    except ValueError:
        return Step(line, unknown="not JSON")
    if not isinstance(record, dict):
        return Step(line, unknown="not an object")
    kind, at = str(record.get("type")), time_of(record.get("timestamp"))
    facts = words(record, "cwd", "gitBranch", "version", "sessionId", "session_id", "subagent_type")
    facts = {_FACTS.get(name, name): value for name, value in facts.items()}
    ours = handed_over(record, at, facts)
    if ours is not None:
        return ours
    inside = record.get("parent_tool_use_id")
    key, follows = text_or_none(record.get("uuid")), text_or_none(record.get("parentUuid"))
    origin = record.get("forkedFrom")
    if isinstance(origin, dict) and isinstance(origin.get("sessionId"), str):
        facts["forked"] = origin["sessionId"]
    if kind in ("user", "assistant"):
        by_agent = record.get("isSidechain") is True and agent == MAIN  # a sub-agent's, in the file of its session
        step = _user(line, record, at, facts) if kind == "user" else _assistant(line, record, at, facts, agent)
        step = replace(step, prompt=None, aborted=None) if by_agent and step.prompt is not None else step
        return replace(step, key=key, follows=follows, inside=inside if isinstance(inside, str) else step.inside)
    for name in ("customTitle", "aiTitle", "summary"):
        if kind in ("custom-title", "ai-title", "summary") and isinstance(record.get(name), str):
            return Step(line, at, title=record[name], facts=facts)
    if kind == "system":
        subtype = str(record.get("subtype"))
        said = text_or_none(record.get("prompt"))
        # A command that runs in the background is a task, too, but nobody is asked for anything.
        if subtype == "task_started" and said is not None and isinstance(record.get("tool_use_id"), str):
            task = record.get("task_id")
            started = {**facts, "sub_session": f"agent-{task}"} if isinstance(task, str) else facts
            return Step(line, at, prompt=said, facts=started, inside=record["tool_use_id"], key=key)
        if subtype == "task_notification" and isinstance(record.get("tool_use_id"), str):
            return _ended(line, at, record, facts)
        aborted = True if subtype == "api_error" else None
        aside = _compacted(record) if subtype == "compact_boundary" else None
        unknown = None if subtype in _SYSTEM else f"system/{subtype}"
        return Step(line, at, aborted=aborted, aside=aside, facts=facts, key=key, follows=follows, unknown=unknown)
    if kind == "attachment":
        about = mapping(record.get("attachment"))
        asked, told = _asked_meanwhile(about), _told(about.get("prompt"))
        return Step(line, at, prompt=asked, facts=facts, key=key, follows=follows, inside=told[0], outcome=told[1])
    if kind == "result":  # the last line of stream-json
        failed = text_of(record.get("result")) or str(record.get("subtype")) if record.get("is_error") else None
        return Step(line, at, failed=failed, used=_used(record), facts=facts)
    if kind == "queue-operation":
        told = _told(record.get("content"))
        return Step(line, at, facts=facts, inside=told[0], outcome=told[1])
    if kind == "cost-state":
        spent = _used(record, "totalCostUSD")
        is_known = spent.cost is not None and record.get("hasUnknownModelCost") is not True
        return Step(line, at, spent=spent if is_known else None, facts=facts)
    return Step(line, at, facts=facts, key=key, follows=follows, unknown=None if kind in _PASSED_ON else kind)


_FACTS: Final = {
    "gitBranch": "branch",
    "sessionId": "session",
    "session_id": "session",
    "subagent_type": "subagent",
}
_SYSTEM: Final = frozenset(
    (
        "compact_boundary", "local_command", "turn_duration", "api_error", "informational", "init", "stop_hook_summary",
        "thinking_tokens", "task_started", "task_progress", "task_updated", "task_notification", "status", "hook_started",
        "hook_progress", "hook_response", "background_tasks_changed", "files_persisted", "away_summary", "scheduled_task_fire",
        "microcompact_boundary", "agents_killed", "api_retry", "bridge_state", "bridge_status", "commands_changed",
        "file_snapshot", "instruction_size_warning", "memory_recall", "memory_saved", "model_fallback", "model_refusal_fallback",
        "notification", "per_turn_effort_changed", "permission_check_status", "permission_denied", "permission_retry",
        "plugin_install", "post_turn_summary", "session_metadata", "session_state_changed", "session_title_changed",
        "task_summary", "turn_starting", "vcs_state_changed",
    )
)  # fmt: skip
_PASSED_ON: Final = frozenset(
    (
        "progress", "file-history-snapshot", "file-history-delta", "last-prompt", "mode", "permission-mode", "repl-mode",
        "memory-mode", "stream_event", "rate_limit_event", "tool_progress", "tool_use_summary", "auth_status", "agent-name",
        "agent-color", "agent-setting", "pr-link", "frame-link", "tag", "api-request", "api-request-blob", "api-request-shape",
        "api-request-resumed", "atis-latch", "isolation-latch", "tools-used", "artifact-autoreact-ledger",
        "artifact-comment-monitor", "attribution-snapshot", "bridge-session", "content-replacement", "continued-in",
        "data-flow-incomplete", "data-flow-records", "derived-from", "dev-mods", "ended-by-model", "fork-context-ref",
        "history-suppression", "observer-ref", "relocated", "resume-head-vouch", "session-owner", "task-summary",
        "worktree-state",
    )
)  # fmt: skip


def _asked_meanwhile(about: Mapping[str, Any]) -> str | None:
    """What a person typed while the agent was at work, and the program gave to the model between two steps."""
    is_typed = about.get("commandMode") in (None, "prompt") and mapping(about.get("origin")).get("kind") in (
        None,
        "human",
    )
    text = text_of(about.get("prompt")) if about.get("type") == "queued_command" and is_typed else ""
    return None if not text.strip() or text.startswith(_TOLD_BY_THE_PROGRAM) else text


_ENDED: Final = {"completed": "success", "failed": "failure", "killed": "cancelled", "stopped": "cancelled"}


_OF_CALL = re.compile(r"<tool-use-id>([^<]*)</tool-use-id>.*?<status>([^<]*)</status>", re.DOTALL)


def _told(text: object) -> tuple[str, str] | tuple[None, None]:
    """The call that started something in the background which has ended, and how that ended."""
    found = _OF_CALL.search(text) if isinstance(text, str) and text.startswith(_TOLD_BY_THE_PROGRAM) else None
    return (None, None) if found is None else (found[1], _ENDED.get(found[2], "unknown"))


def _ended(line: str, at: Any, record: Mapping[str, Any], facts: Mapping[str, str]) -> Step:
    """A sub-agent, or a command in the background, has ended. One that used no tokens cannot have succeeded at anything: older
    versions say "completed" of it."""
    outcome = _ENDED.get(str(record.get("status")), "unknown")
    if outcome == "success" and mapping(record.get("usage")).get("total_tokens") == 0:
        outcome = "unknown"
    failed = text_or_none(record.get("summary")) if outcome == "failure" else None
    return Step(line, at, failed=failed, facts=facts, inside=record["tool_use_id"], outcome=outcome)


def _compacted(record: Mapping[str, Any]) -> Aside:
    """The moment at which earlier messages were replaced by a summary."""
    about = record.get("compactMetadata") or record.get("compact_metadata")
    about = about if isinstance(about, dict) else {}
    before = about.get("preTokens", about.get("pre_tokens"))
    how = {"manual": " by /compact", "auto": " automatically"}.get(str(about.get("trigger")), "")
    size = f" from {before:,} tokens" if type(before) is int else ""
    return Aside("compacted", f"The conversation was compacted{how}{size}.")


def _used(record: Mapping[str, Any], cost: str = "total_cost_usd") -> Usage:
    """What a whole run used, sub-agents included. Other lines of a stream only have the counts of when a message began."""
    by_model = record.get("modelUsage")
    tokens: dict[str, int] = {}
    for used in by_model.values() if isinstance(by_model, dict) else ():
        for name, count in counts(used, _MODEL_TOKENS).items():
            tokens[name] = tokens.get(name, 0) + count
    return Usage(tokens or counts(record.get("usage"), _TOKENS), dollars(record.get(cost)))


def _user(line: str, record: dict[str, Any], at: Any, facts: Mapping[str, str]) -> Step:
    content = _content(record)
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    diffs = _diffs(record)
    result = mapping(record.get("toolUseResult", record.get("tool_use_result")))
    is_unchanged = isinstance(result.get("content"), str) and result["content"] == result.get("originalFile")
    outputs = tuple(
        Output(
            str(part.get("tool_use_id")),
            text_of(part.get("content")),
            bool(part.get("is_error")),
            diffs,
            is_unchanged,
            goes_on=result.get("status") == "async_launched",
        )
        for part in parts
        if isinstance(part, dict) and part.get("type") == "tool_result"
    )
    text = "\n".join(
        text_of(part) for part in parts if isinstance(part, dict) and part.get("type") in ("text", "image", "document")
    )
    if outputs or not text or record.get("isMeta") or record.get("isCompactSummary"):
        # What a tool gave goes back to the model, which has to answer.
        return Step(line, at, outputs=outputs, working=True if outputs else None, facts=facts)
    if text.startswith(_STOPPED):
        return Step(line, at, aborted=True, facts=facts)
    if command := _RUN_BY_A_PERSON.match(text):
        call = Call(str(record.get("uuid")), "bash", command[1].strip())
        return Step(line, at, turn=call.id, agent="user", calls=(call,), facts=facts)
    if shown := _SHOWN_TO_A_PERSON.findall(text) if text.startswith(("<bash-stdout>", "<bash-stderr>")) else []:
        said = "\n".join(each.strip("\n") for each in shown if each.strip())
        return Step(line, at, outputs=(Output(str(record.get("parentUuid")), said),), facts=facts)
    if asked := _COMMAND.match(text):  # one of the user's own, or a skill
        prompt = f"{asked[1]} {asked[2] or ''}".strip()
        return Step(line, at, prompt=prompt, aborted=False, facts=facts)
    if text.startswith(_TOLD_BY_THE_PROGRAM):  # something in the background has ended; the model answers it
        told = _told(text)
        return Step(line, at, working=True, facts=facts, inside=told[0], outcome=told[1])
    if text.startswith(_SAID_BY_THE_PROGRAM):
        return Step(line, at, facts=facts)
    return Step(line, at, prompt=text, aborted=False, facts=facts)


def _assistant(line: str, record: dict[str, Any], at: Any, facts: Mapping[str, str], agent: str) -> Step:
    message = record.get("message") if isinstance(record.get("message"), dict) else {}
    assert isinstance(message, dict)
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    known = [part for part in parts if isinstance(part, dict)]
    text = "\n".join(text_of(part) for part in known if part.get("type") == "text") or None
    failed = (text_of(content) or "API error") if record.get("isApiErrorMessage") else None
    if message.get("model") == _NO_MODEL and text == _NOT_ASKED and failed is None:
        return Step(line, at, facts=facts)
    is_streamed = "sessionId" not in record and "session_id" in record
    calls = tuple(call_of(part) for part in known if part.get("type") == "tool_use")
    key = message.get("id") or record.get("requestId") or record.get("uuid") or line[:64]
    name = record.get("agentId")
    return Step(
        line,
        at,
        turn=str(key),
        agent=agent if agent != MAIN or not isinstance(name, str) or not record.get("isSidechain") else f"agent-{name}",
        text=text,
        thinking="\n".join(str(part.get("thinking") or "") for part in known if part.get("type") == "thinking") or None,
        failed=failed,
        model=text_or_none(message.get("model")) if message.get("model") != _NO_MODEL else None,
        tokens={} if is_streamed else counts(message.get("usage"), _TOKENS),
        calls=calls,
        working=bool(calls) or message.get("stop_reason") == "tool_use",
        facts=facts,
    )


def _content(record: dict[str, Any]) -> Any:
    message = record.get("message")
    return message.get("content") if isinstance(message, dict) else message or ""


def call_of(part: Mapping[str, Any]) -> Call:
    given = part.get("input")
    given = given if isinstance(given, dict) else {}
    name = str(part.get("name"))
    path = next((given[k] for k in ("file_path", "notebook_path", "path") if isinstance(given.get(k), str)), None)
    touches: tuple[tuple[str, str], ...] = ()
    if path is not None and name in _WRITES:
        touches = (("write", path),)
    elif path is not None and name == "Read":
        touches = (("read", path),)
    args = next((given[k] for k in ("command", "file_path", "notebook_path", "pattern", "url", "query", "description")
                 if isinstance(given.get(k), str)), None)  # fmt: skip
    diffs = _asked_for(name, path, given) if path is not None else ()
    return Call(str(part.get("id")), name, args if args is not None else json.dumps(given)[:2000], touches, diffs)


def _diffs(record: Mapping[str, Any]) -> tuple[Diff, ...]:
    """What a call changed, as its result says."""
    result = record.get("toolUseResult", record.get("tool_use_result"))
    if not isinstance(result, dict):
        return ()
    path, notebook = result.get("filePath"), result.get("notebook_path")
    if isinstance(notebook, str) and not result.get("error"):
        before, after = result.get("original_file"), result.get("updated_file")
        return (compared(notebook, before, after),) if isinstance(before, str) and isinstance(after, str) else ()
    if not isinstance(path, str):
        return ()
    patch, content = result.get("structuredPatch"), result.get("content")
    if patch and isinstance(patch, list):
        return (structured(path, [(hunk["oldStart"], hunk["newStart"], hunk["lines"]) for hunk in patch]),)
    if result.get("type") == "create" and isinstance(content, str):
        return (compared(path, None, content),)
    return ()


def _asked_for(name: str, path: str, given: Mapping[str, Any]) -> tuple[Diff, ...]:
    """What a call would change, as its arguments say. They do not say where in the file."""
    if name == "Write" and isinstance(given.get("content"), str):
        return (overwritten(path, given["content"]),)
    edits = given.get("edits") if name == "MultiEdit" else [given] if name == "Edit" else []
    pairs = [(edit.get("old_string"), edit.get("new_string")) for edit in edits or () if isinstance(edit, dict)]
    return tuple(replacement(path, old, new) for old, new in pairs if isinstance(old, str) and isinstance(new, str))
