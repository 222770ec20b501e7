"""Claude Code: ``~/.claude/projects/<folder>/<session>.jsonl``, and its sub-agents in ``<session>/subagents/agent-*.jsonl``."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from rawko_state.exchange.transcript import (
    Call,
    Output,
    Session,
    Step,
    Trouble,
    counts,
    lines,
    safely,
    text_of,
    time_of,
    words,
)

_WRITES: Final = frozenset(("Edit", "Write", "MultiEdit", "NotebookEdit"))
_SAID_BY_THE_PROGRAM: Final = ("<command-name>", "<local-command", "<system-reminder>", "Caveat:")
_STOPPED: Final = "[Request interrupted by user"
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
            for file in sorted(path.rglob("*.jsonl")):
                yield from _one(file, wrong)
        elif path.is_file():
            yield from _one(path, wrong)
        elif paths:
            wrong.append(Trouble(path, "no such file or folder"))


def _one(path: Path, wrong: list[Trouble]) -> Iterator[Session]:
    if path.is_dir():
        wrong.append(Trouble(path, "a folder, where a session's file was looked for"))
        return
    if not path.is_file() or path.name in ("history.jsonl", "journal.jsonl"):
        return
    if path.parent.name == "subagents":
        parent = path.parent.parent.name
        yield Session("claude-code", f"{parent}/{path.stem}", path, _read, parent, agent=path.stem)
    else:
        yield Session("claude-code", path.stem, path, _read, agent="claude")


def _read(session: Session, start: int, wrong: list[str]) -> Iterator[tuple[int, Step]]:
    for place, line in lines(session.path, start, wrong):
        yield place, safely(lambda text: step_of(text, session.agent), line)


def step_of(line: str, agent: str = "claude") -> Step:
    """The step for one record. Also handles records from hooks and ``--output-format stream-json``."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return Step(line, unknown="not JSON")
    if not isinstance(record, dict):
        return Step(line, unknown="not an object")
    kind, at = str(record.get("type")), time_of(record.get("timestamp"))
    facts = words(record, "cwd", "gitBranch", "version", "sessionId", "session_id")
    facts = {_FACTS.get(name, name): value for name, value in facts.items()}
    if kind == "user":
        return _user(line, record, at, facts)
    if kind == "assistant":
        return _assistant(line, record, at, facts, agent)
    for name in ("customTitle", "aiTitle", "summary"):
        if kind in ("custom-title", "ai-title", "summary") and isinstance(record.get(name), str):
            return Step(line, at, title=record[name], facts=facts)
    if kind == "system":
        subtype = str(record.get("subtype"))
        aborted = True if subtype == "api_error" else None
        return Step(line, at, aborted=aborted, facts=facts, unknown=None if subtype in _SYSTEM else f"system/{subtype}")
    if kind == "result":  # the last line of stream-json
        return Step(line, at, aborted=bool(record.get("is_error")), facts=facts)
    return Step(line, at, facts=facts, unknown=None if kind in _PASSED_ON else kind)


_FACTS: Final = {"gitBranch": "branch", "sessionId": "session", "session_id": "session"}
_SYSTEM: Final = frozenset(
    ("compact_boundary", "local_command", "turn_duration", "api_error", "informational", "init", "stop_hook_summary")
)
_PASSED_ON: Final = frozenset(
    ("queue-operation", "attachment", "progress", "file-history-snapshot", "last-prompt", "mode", "permission-mode")
)


def _user(line: str, record: dict[str, Any], at: Any, facts: Mapping[str, str]) -> Step:
    content = _content(record)
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    outputs = tuple(
        Output(str(part.get("tool_use_id")), text_of(part.get("content")), bool(part.get("is_error")))
        for part in parts
        if isinstance(part, dict) and part.get("type") == "tool_result"
    )
    text = "\n".join(
        text_of(part) for part in parts if isinstance(part, dict) and part.get("type") in ("text", "image", "document")
    )
    if outputs or not text or record.get("isMeta") or record.get("isCompactSummary"):
        return Step(line, at, outputs=outputs, facts=facts)
    if text.startswith(_STOPPED):
        return Step(line, at, aborted=True, facts=facts)
    if text.startswith(_SAID_BY_THE_PROGRAM):
        return Step(line, at, facts=facts)
    return Step(line, at, prompt=text, aborted=False, facts=facts)


def _assistant(line: str, record: dict[str, Any], at: Any, facts: Mapping[str, str], agent: str) -> Step:
    message = record.get("message") if isinstance(record.get("message"), dict) else {}
    assert isinstance(message, dict)
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    known = [part for part in parts if isinstance(part, dict)]
    key = message.get("id") or record.get("requestId") or record.get("uuid") or line[:64]
    name = record.get("agentId")
    return Step(
        line,
        at,
        turn=str(key),
        agent=f"agent-{name}" if isinstance(name, str) and record.get("isSidechain") else agent,
        text="\n".join(text_of(part) for part in known if part.get("type") == "text") or None,
        thinking="\n".join(str(part.get("thinking") or "") for part in known if part.get("type") == "thinking") or None,
        failed=(text_of(content) or "API error") if record.get("isApiErrorMessage") else None,
        model=message["model"] if isinstance(message.get("model"), str) else None,
        tokens=counts(message.get("usage"), _TOKENS),
        calls=tuple(call_of(part) for part in known if part.get("type") == "tool_use"),
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
    return Call(str(part.get("id")), name, args if args is not None else json.dumps(given)[:2000], touches)
