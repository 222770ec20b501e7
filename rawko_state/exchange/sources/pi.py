"""pi: ``~/.pi/agent/sessions/--<folder>--/<time>_<id>.jsonl``, and the stream of ``pi --mode json``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
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
    counts,
    dollars,
    files,
    first_record,
    mapping,
    object_of,
    objects,
    only,
    read_lines,
    session_id,
    text_of,
    text_or_none,
    time_of,
)
from rawko_state.format.diffs import overwritten, replacement, structured
from rawko_state.model.entries import Diff
from rawko_state.model.frozen import replace

_TOKENS: Final = {
    "input": "in",
    "output": "out",
    "cacheRead": "cache_read",
    "cacheWrite": "cache_write",
    "reasoning": "reasoning",
}
_ENTRIES: Final = frozenset(("thinking_level_change", "custom", "custom_message", "label"))
_EVENTS: Final = frozenset(
    (
        "agent_start", "agent_end", "turn_start", "turn_end", "message_start", "message_update", "tool_execution_start",
        "tool_execution_update", "tool_execution_end", "queue_update", "compaction_start", "auto_retry_start", "auto_retry_end",
        "session_info_changed", "thinking_level_changed",
    )
)  # fmt: skip
_ROLES: Final = frozenset(("custom", "hookMessage", "branchSummary", "compactionSummary"))
_SHOWN = re.compile(r"([ +-]) *([0-9]+) (.*)")
"""A line of the diff that an edit shows: its sign, its number, its text."""


def home() -> Path:
    return Path(os.environ.get("PI_CODING_AGENT_DIR") or Path.home() / ".pi" / "agent").expanduser()


def _folder() -> Path:
    moved = os.environ.get("PI_CODING_AGENT_SESSION_DIR")
    return Path(moved).expanduser() if moved else home() / "sessions"


def found(paths: list[Path], root: Path, wrong: list[Trouble]) -> Iterator[Session]:
    for path in files(paths, [_folder()], "*_*.jsonl", wrong):
        yield _session(path)


def named(key: str) -> Session | None:
    paths = sorted(_folder().rglob(f"*_{key}.jsonl"))
    return _session(paths[0]) if paths else None


def _session(path: Path) -> Session:
    key = session_id(_key(path.name), lambda: first_record(path).get("id"))
    return Session("pi", key, path, _read, agent="pi")


def _key(name: str) -> str:
    stem = name.removesuffix(".jsonl")
    return stem.partition("_")[2] or stem


def _read(session: Session, start: int, wrong: list[str]) -> Iterator[tuple[int, Step]]:
    return read_lines(session.path, start, wrong, Reader().step_of)


class Reader:
    """Reads the records of a session, or the events of a stream. The diff of an edit does not name its file; the call does."""

    def __init__(self) -> None:
        self._paths: dict[str, str] = {}

    def step_of(self, line: str) -> Step:
        """The step for one record of a session, or for one event of a stream."""
        record = object_of(line)
        kind, at = str(record.get("type")), time_of(record.get("timestamp"))
        if kind == "message":
            # Messages of version 1 have no ids.
            step = self._message(line, at, record, str(record.get("id") or record.get("timestamp")))
            return replace(step, key=text_or_none(record.get("id")))
        if kind == "message_end":
            message = mapping(record.get("message"))
            at = time_of(message.get("timestamp"))
            return self._message(line, at, record, str(message.get("responseId") or message.get("timestamp")))
        if kind == "session":
            before = text_or_none(record.get("parentSession"))
            forked = None if before is None else _key(before.replace("\\", "/").rpartition("/")[2])
            return Step(line, at, facts=only(session=record.get("id"), cwd=record.get("cwd"), forked=forked))
        if kind == "model_change":
            return Step(line, at, facts=only(model=record.get("modelId"), provider=record.get("provider")))
        if kind == "session_info":
            return Step(line, at, title=text_or_none(record.get("name")))
        if kind == "compaction" or (kind == "compaction_end" and record.get("result")):
            about = mapping(record.get("result")) if kind == "compaction_end" else record
            before_it = about.get("tokensBefore")
            size = f" from {before_it:,} tokens" if type(before_it) is int else ""
            return Step(line, at, aside=Aside("compacted", f"The conversation was compacted{size}."))
        if kind == "branch_summary":
            text = text_of(record.get("summary"))
            return Step(line, at, aside=Aside("branched", f"Another branch was left. {text}".strip()))
        known = kind in _ENTRIES or kind in _EVENTS or kind == "compaction_end"
        return Step(line, at, unknown=None if known else kind)

    def _message(self, line: str, at: Any, record: Mapping[str, Any], key: str) -> Step:
        message = mapping(record.get("message"))
        role, content = message.get("role"), message.get("content")
        if role == "user":
            return Step(line, at, prompt=text_of(content), aborted=False, working=True)
        if role == "assistant":
            return self._answered(_answer(line, at, message, key))
        if role == "toolResult":
            return Step(line, at, outputs=(self._output(message),), working=True)
        if role == "bashExecution":  # the user's own command
            failed = bool(message.get("cancelled")) or message.get("exitCode") not in (0, None)
            call = Call(key, "bash", text_of(message.get("command")))
            output = Output(key, text_of(message.get("output")), failed)
            return Step(line, at, turn=key, agent="user", calls=(call,), outputs=(output,))
        return Step(line, at, unknown=None if role in _ROLES else f"message/{role}")

    def _answered(self, step: Step) -> Step:
        self._paths |= {call.id: call.touches[0][1] for call in step.calls if call.diffs}
        return step

    def _output(self, message: Mapping[str, Any]) -> Output:
        call, failed = str(message.get("toolCallId")), bool(message.get("isError"))
        path = self._paths.pop(call, None)
        shown = mapping(message.get("details")).get("diff")
        diffs = _shown(path, shown) if path is not None and isinstance(shown, str) and not failed else ()
        return Output(call, text_of(message.get("content")), failed, diffs)


def _answer(line: str, at: Any, message: Mapping[str, Any], key: str) -> Step:
    parts = objects(message.get("content"))
    usage, stop = mapping(message.get("usage")), message.get("stopReason")
    failed = (text_or_none(message.get("errorMessage")) or "the model's answer failed") if stop == "error" else None
    return Step(
        line,
        at,
        turn=key,
        agent="pi",
        text="\n".join(text_of(part) for part in parts if part.get("type") == "text") or None,
        thinking="\n".join(text_of(part.get("thinking")) for part in parts if part.get("type") == "thinking") or None,
        model=text_or_none(message.get("model")),
        tokens=counts(usage, _TOKENS),
        cost=dollars(mapping(usage.get("cost")).get("total")),
        calls=tuple(_call(part) for part in parts if part.get("type") == "toolCall"),
        facts=only(provider=message.get("provider")),
        aborted=True if stop == "aborted" else None,
        failed=failed,
        working=stop == "toolUse",
    )


def _call(part: Mapping[str, Any]) -> Call:
    given, name = mapping(part.get("arguments")), str(part.get("name"))
    path = text_or_none(given.get("path"))
    touches: tuple[tuple[str, str], ...] = ()
    diffs: tuple[Diff, ...] = ()
    if path is not None and name in ("edit", "write"):
        touches, diffs = (("write", path),), _asked_for(path, given)
    elif path is not None and name == "read":
        touches = (("read", path),)
    return Call(str(part.get("id")), name, asked_of(given), touches, diffs)


def _asked_for(path: str, given: Mapping[str, Any]) -> tuple[Diff, ...]:
    """What a call would change. An edit does not say where in the file."""
    if isinstance(given.get("content"), str):
        return (overwritten(path, given["content"]),)
    pairs = [(edit.get("oldText"), edit.get("newText")) for edit in objects(given.get("edits")) or [dict(given)]]
    return tuple(replacement(path, old, new) for old, new in pairs if isinstance(old, str) and isinstance(new, str))


def _shown(path: str, text: str) -> tuple[Diff, ...]:
    """The diff that an edit shows: lines with a sign and a number in front, and dots where lines are left out."""
    hunks: list[tuple[int, int, list[str]]] = []
    ahead, joined = 0, False
    for line in text.split("\n"):
        match = _SHOWN.fullmatch(line)
        if match is None:
            joined = False
            continue
        number = int(match[2])
        if not joined:
            old = number - ahead if match[1] == "+" else number
            hunks.append((old, old + ahead, []))
            joined = True
        hunks[-1][2].append(match[1] + match[3])
        ahead += (match[1] == "+") - (match[1] == "-")
    return (structured(path, hunks),) if hunks else ()
