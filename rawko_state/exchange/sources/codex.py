"""Codex: ``~/.codex/sessions/YYYY/MM/DD/rollout-*.jsonl``, older ones as ``.jsonl.zst``, and ``archived_sessions/``."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import tempfile
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

_NAME = re.compile(r"rollout-.{19}-(.+)\.jsonl(?:\.zst)?")
_PATCH = re.compile(r"^\*\*\* (Add|Update|Delete) File: (.+)$", re.MULTILINE)
_EXITED = re.compile(r"^Process exited with code (-?[0-9]+)", re.MULTILINE)
_RECORDS: Final = frozenset(("compacted", "world_state", "token_usage_record"))
_ITEMS: Final = frozenset(("web_search_call", "compaction", "additional_tools"))
_PASSED_ON: Final = frozenset(
    (
        "thread_settings_applied", "user_message", "agent_message", "agent_reasoning", "exec_command_begin", "exec_command_end",
        "patch_apply_begin", "web_search_begin", "web_search_end",
    )
)  # fmt: skip


def home() -> Path:
    return Path(os.environ.get("CODEX_HOME") or Path.home() / ".codex")


def found(paths: list[Path], root: Path, wrong: list[Trouble]) -> Iterator[Session]:
    for path in paths or [home() / "sessions", home() / "archived_sessions"]:
        if path.is_dir():
            for file in sorted(path.rglob("rollout-*")):
                yield from _one(file, wrong)
        elif path.is_file():
            yield from _one(path, wrong)
        elif paths:
            wrong.append(Trouble(path, "no such file or folder"))


def _one(path: Path, wrong: list[Trouble]) -> Iterator[Session]:
    match = _NAME.fullmatch(path.name)
    if match and path.is_dir():
        wrong.append(Trouble(path, "a folder, where a session's file was looked for"))
    if path.is_file() and path.name.endswith((".jsonl", ".jsonl.zst")):
        yield Session("codex", match[1] if match else path.name.partition(".")[0], path, _read, agent="codex")


def _read(session: Session, start: int, wrong: list[str]) -> Iterator[tuple[int, Step]]:
    reader = Reader()
    packed = session.path.name.endswith(".zst")
    for place, line in _unpacked(session.path, start, wrong) if packed else lines(session.path, start, wrong):
        yield place, safely(reader.step_of, line)


def _unpacked(path: Path, start: int, wrong: list[str]) -> Iterator[tuple[int, str]]:
    """Uses the zstd command, as Python can read this format only since 3.14."""
    command = shutil.which("zstd")
    if command is None:
        wrong.append(f"compressed: install the zstd command, or unpack it: zstd -d {path.name}")
        return
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "unpacked.jsonl"
        done = subprocess.run([command, "-q", "-d", "-o", plain, path], capture_output=True, text=True)
        if done.returncode:
            wrong.append(f"zstd: {done.stderr.strip()}")
            return
        yield from lines(plain, start, wrong)


class Reader:
    """Codex messages are not numbered, so a turn begins with the first message after a prompt or an output."""

    def __init__(self) -> None:
        self._turn = 0
        self._ended = True
        self._model: str | None = None
        """Stated once for everything that follows."""
        self._used: object = None

    def step_of(self, line: str) -> Step:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            return Step(line, unknown="not JSON")
        if not isinstance(record, dict):
            return Step(line, unknown="not an object")
        kind, at = str(record.get("type")), time_of(record.get("timestamp"))
        payload = record.get("payload")
        payload = payload if isinstance(payload, dict) else {}
        if kind == "session_meta":
            return Step(line, at, facts=_facts(payload))
        if kind == "turn_context":
            facts = words(payload, "cwd", "model")
            self._model = facts.get("model", self._model)
            return Step(line, at, facts=facts)
        if kind == "response_item":
            return self._item(line, at, payload)
        if kind == "event_msg":
            return self._event(line, at, payload)
        if kind.startswith(("item.", "turn.", "thread.")):  # codex exec --json
            return self._exec(line, at, kind, record)
        return Step(line, at, unknown=None if kind in _RECORDS else kind)

    def _key(self) -> str:
        if self._ended:
            self._turn, self._ended = self._turn + 1, False
        return str(self._turn)

    def _item(self, line: str, at: Any, payload: Mapping[str, Any]) -> Step:
        kind = str(payload.get("type"))
        if kind == "message":
            text = text_of(payload.get("content"))
            if payload.get("role") == "assistant":
                return Step(line, at, turn=self._key(), agent="codex", model=self._model, text=text)
            if payload.get("role") == "user" and not text.startswith(
                ("<environment_context>", "<user_instructions>", "<turn_aborted>", "# AGENTS.md")
            ):
                self._ended = True
                return Step(line, at, prompt=text, aborted=False)
            return Step(line, at)
        if kind == "reasoning":
            thought = text_of(payload.get("summary")) or None
            return Step(line, at, turn=self._key(), agent="codex", model=self._model, thinking=thought)
        if kind in ("function_call", "custom_tool_call", "local_shell_call"):
            called = (_call(payload, kind),)
            return Step(line, at, turn=self._key(), agent="codex", model=self._model, calls=called)
        if kind in ("function_call_output", "custom_tool_call_output"):
            self._ended = True
            return Step(line, at, outputs=(_output(payload),))
        return Step(line, at, unknown=None if kind in _ITEMS else f"response_item/{kind}")

    def _event(self, line: str, at: Any, payload: Mapping[str, Any]) -> Step:
        kind = str(payload.get("type"))
        if kind == "token_count":
            return Step(line, at, tokens=self._new_tokens(payload.get("info")))
        if kind == "turn_aborted":
            self._ended = True
            return Step(line, at, aborted=True, working=False)
        if kind == "task_started":
            return Step(line, at, working=True)
        if kind == "task_complete":
            self._ended = True
            return Step(line, at, aborted=False, working=False, failed=_error(payload.get("error")))
        if kind == "item_completed":
            return Step(line, at, touches=_touches(payload.get("item")))
        if kind == "patch_apply_end" and isinstance(payload.get("changes"), dict):
            changes = payload["changes"].items()
            gone = {
                path
                for path, what in changes
                if isinstance(what, dict) and ("delete" in what or what.get("type") == "delete")
            }
            return Step(line, at, touches=tuple(("delete" if path in gone else "write", path) for path, _ in changes))
        if kind == "thread_rolled_back":
            # Keep the turns, as their work was done. This record says that they are no longer part of the conversation.
            self._ended = True
            return Step(
                line,
                at,
                turn=self._key(),
                agent="codex",
                text=f"[the last {payload.get('num_turns')} turns were taken back]",
            )
        return Step(line, at, unknown=None if kind in _PASSED_ON else f"event_msg/{kind}")

    def _new_tokens(self, info: object) -> dict[str, int]:
        """The tokens of the last request. Codex repeats them, with the same total, when only the limits have changed."""
        if not isinstance(info, dict):
            return {}
        total = info.get("total_token_usage")
        is_told_again = total is not None and total == self._used
        self._used = total
        return {} if is_told_again else _tokens(info.get("last_token_usage"))

    def _exec(self, line: str, at: Any, kind: str, record: Mapping[str, Any]) -> Step:
        item = record.get("item")
        item = item if isinstance(item, dict) else {}
        what = item.get("type") or item.get("item_type")
        if kind == "thread.started":
            return Step(line, at, facts=_only(session=record.get("thread_id")))
        if kind == "turn.completed":
            self._ended = True
            return Step(line, at, tokens=_tokens(record.get("usage")), aborted=False)
        if kind == "turn.failed":
            return Step(line, at, failed=_error(record.get("error")) or "the turn failed")
        if kind == "item.completed" and what in ("agent_message", "assistant_message"):
            return Step(line, at, turn=self._key(), agent="codex", text=text_of(item.get("text")))
        if kind == "item.completed" and what == "reasoning":
            return Step(line, at, turn=self._key(), agent="codex", thinking=text_of(item.get("text")))
        if kind == "item.completed" and what == "command_execution":
            call = Call(str(item.get("id")), "shell", text_of(item.get("command")))
            failed = item.get("exit_code") not in (0, None)
            output = Output(call.id, text_of(item.get("aggregated_output")), failed)
            return Step(line, at, turn=self._key(), agent="codex", calls=(call,), outputs=(output,))
        if kind == "item.completed" and what == "file_change":
            changes = [change for change in item.get("changes") or () if isinstance(change, dict)]
            touches = tuple(
                ("delete" if change.get("kind") == "delete" else "write", str(change.get("path"))) for change in changes
            )
            return Step(line, at, turn=self._key(), agent="codex", touches=touches)
        return Step(
            line, at, unknown=None if kind in ("item.started", "item.updated", "turn.started") else f"{kind}/{what}"
        )


def _output(payload: Mapping[str, Any]) -> Output:
    """A command's output is plain text, or JSON in a string, with its exit code."""
    given = payload.get("output")
    code: object = None
    if isinstance(given, str) and given.startswith("{"):
        with contextlib.suppress(ValueError, RecursionError):
            inside = json.loads(given)
            about = inside.get("metadata")
            if isinstance(inside.get("output"), str) and isinstance(about, dict):
                given, code = inside["output"], about.get("exit_code")
    text = text_of(given)
    exited = _EXITED.search(text)
    failed = code not in (0, None) or (exited is not None and exited[1] != "0")
    return Output(str(payload.get("call_id")), text, failed)


def _error(error: object) -> str | None:
    """The words of an error, which may be JSON in a string."""
    if not error:
        return None
    text = text_of(error.get("message")) if isinstance(error, dict) else str(error)
    with contextlib.suppress(ValueError, RecursionError, AttributeError):
        inside = json.loads(text).get("error")
        text = str(inside.get("message") or text)
    return text or "the task failed"


def _touches(item: object) -> tuple[tuple[str, str], ...]:
    """The files that a completed item changed or read."""
    if not isinstance(item, dict) or item.get("status") not in (None, "completed"):
        return ()
    changes, commands = item.get("changes"), item.get("parsed_cmd")
    found: list[tuple[str, str]] = []
    for path, change in changes.items() if isinstance(changes, dict) else ():
        kind = change.get("type") if isinstance(change, dict) else None
        found.append(("delete" if kind == "delete" else "write", str(path)))
    for command in commands if isinstance(commands, list) else ():
        if isinstance(command, dict) and command.get("type") == "read" and isinstance(command.get("path"), str):
            found.append(("read", command["path"]))
    return tuple(found)


def _facts(payload: Mapping[str, Any]) -> dict[str, str]:
    git = payload.get("git")
    git = git if isinstance(git, dict) else {}
    return _only(
        session=payload.get("id"),
        cwd=payload.get("cwd"),
        version=payload.get("cli_version"),
        provider=payload.get("model_provider"),
        commit=git.get("commit_hash"),
        branch=git.get("branch"),
        repo=git.get("repository_url"),
        parent=payload.get("parent_thread_id") or payload.get("forked_from_id"),
    )


def _only(**values: object) -> dict[str, str]:
    return {name: value for name, value in values.items() if isinstance(value, str) and value}


def _tokens(usage: object) -> dict[str, int]:
    return counts(usage, {"input_tokens": "in", "output_tokens": "out", "cached_input_tokens": "cache_read"})


def _call(payload: Mapping[str, Any], kind: str) -> Call:
    name = str(payload.get("name") or "shell")
    given: Any = (
        payload.get("input") if kind == "custom_tool_call" else payload.get("arguments") or payload.get("action")
    )
    if isinstance(given, str):
        with contextlib.suppress(ValueError, RecursionError):
            given = json.loads(given)
    text = given if isinstance(given, str) else json.dumps(given)
    if isinstance(given, dict):
        command = given.get("command") or given.get("cmd")
        if isinstance(command, list):
            command = " ".join(map(str, command))
        text = command if isinstance(command, str) else given["input"] if isinstance(given.get("input"), str) else text
    touches = tuple(("delete" if what == "Delete" else "write", path.strip()) for what, path in _PATCH.findall(text))
    return Call(str(payload.get("call_id")), name, text[:4000], touches)
