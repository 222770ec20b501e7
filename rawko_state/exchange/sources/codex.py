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

from rawko_state.exchange.sources import apply_patch
from rawko_state.exchange.transcript import (
    Aside,
    Call,
    Output,
    Session,
    Step,
    Trouble,
    Usage,
    counts,
    first_record,
    handed_over,
    is_session_id,
    lines,
    mapping,
    objects,
    safely,
    session_id,
    text_of,
    time_of,
    words,
)
from rawko_state.format.diffs import compared, unified
from rawko_state.format.fair_json import shallow
from rawko_state.model.entries import Diff
from rawko_state.model.frozen import replace

_NAME = re.compile(r"rollout-.{19}-(.+)\.jsonl(?:\.zst)?")
_EXITED = re.compile(r"^(?:Process exited with code|Exit code:) (-?[0-9]+)", re.MULTILINE)
_BEFORE_OUTPUT: Final = "\nOutput:\n"
_HEAD: Final = 500
_IMAGE = re.compile(r"<image\b[^\n]*>\n(?:\[input_image\]\n)?</image>")
_TOKENS: Final = {
    "input_tokens": "in",
    "output_tokens": "out",
    "cached_input_tokens": "cache_read",
    "cache_write_input_tokens": "cache_write",
    "reasoning_output_tokens": "reasoning",
}
_MOST_FORKS: Final = 20
_LARGEST: Final = 1 << 30
"""Bytes of a session that was compressed."""
_RECORDS: Final = frozenset(
    ("world_state", "token_usage_record", "inter_agent_communication", "inter_agent_communication_metadata")
)
_ITEMS: Final = frozenset(("web_search_call", "compaction", "additional_tools", "agent_message"))
_BARE: Final = frozenset(
    ("message", "reasoning", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output",
     "local_shell_call", "web_search_call")
)  # fmt: skip
_SAID_BY_THE_PROGRAM: Final = (
    "<environment_context>", "<user_instructions>", "<turn_aborted>", "# AGENTS.md", "<subagent_notification>", "<skill>",
    "<INSTRUCTIONS>", "<user_shell_command>", "<hook_prompt",
)  # fmt: skip
_FOLDER = re.compile(r"<cwd>([^<]+)</cwd>|Current working directory: ([^\n<]+)")
_NEW_TASK: Final = "Message Type: NEW_TASK\n"
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
            wrong.append(Trouble(path, "No such file or folder"))


def named(key: str) -> Session | None:
    for folder in (home() / "sessions", home() / "archived_sessions"):
        paths = sorted(folder.rglob(f"rollout-*-{key}.jsonl"))
        if paths:
            return next(_one(paths[0], []), None)
    return None


def siblings(session: Session) -> list[Session]:
    """The session, and those that it goes on with."""
    found, above = [session], session
    while len(found) < _MOST_FORKS:
        base = mapping(mapping(first_record(above.path).get("payload")).get("history_base")).get("thread_id")
        before = named("".join(c for c in str(base) if c.isalnum() or c == "-")) if base else None
        if before is None or any(before.key == each.key for each in found):
            break
        found.append(before)
        above = before
    return found


def _one(path: Path, wrong: list[Trouble]) -> Iterator[Session]:
    match = _NAME.fullmatch(path.name)
    if match and path.is_dir():
        wrong.append(Trouble(path, "Expected a session file, found a folder"))
    if path.is_file() and path.name.endswith((".jsonl", ".jsonl.zst")):
        name = match[1] if match else path.name.partition(".")[0]
        key = session_id(name, lambda: mapping(first_record(path).get("payload")).get("id"))
        yield Session("codex", key, path, _read, agent="codex")


def _read(session: Session, start: int, wrong: list[str]) -> Iterator[tuple[int, Step]]:
    reader = Reader()
    packed = session.path.name.endswith(".zst")
    for place, line in _unpacked(session.path, start, wrong) if packed else lines(session.path, start, wrong):
        step = safely(reader.step_of, line)
        if "parent" in step.facts:
            step = replace(step, facts={**step.facts, **_started_by(session, step.facts["parent"])})
        yield place, step


def _started_by(session: Session, parent: str) -> dict[str, str]:
    """The call in its parent's session that started a sub-agent."""
    if not is_session_id(parent):
        return {}
    beside = next(iter(session.path.parent.glob(f"rollout-*-{parent}.jsonl")), None)
    above = beside or next((found.path for found in (named(parent),) if found is not None), None)
    with contextlib.suppress(OSError):
        for _, line in lines(above, 0, []) if above is not None else ():
            if session.key in line:
                payload = mapping(mapping(_json(line)).get("payload"))
                call = payload.get("call_id") or mapping(payload.get("item")).get("id")
                if isinstance(call, str):
                    return {"call": call}
    return {}


def _json(text: str) -> object:
    with contextlib.suppress(ValueError):
        return json.loads(shallow(text))
    return None


def _unpacked(path: Path, start: int, wrong: list[str]) -> Iterator[tuple[int, str]]:
    """Uses the zstd command, as Python can read this format only since 3.14."""
    command = shutil.which("zstd")
    if command is None:
        wrong.append(f"Compressed with zstd: install the zstd command, or unpack it: zstd -d {path.name}")
        return
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "unpacked.jsonl"
        # A small file may unpack to a huge one, so the output is watched as it comes.
        process = subprocess.Popen([command, "-q", "-d", "-c", path], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        with process, open(plain, "wb") as stream:
            assert process.stdout is not None
            assert process.stderr is not None
            size = 0
            while piece := process.stdout.read(1 << 20):
                size += len(piece)
                if size > _LARGEST:
                    process.kill()
                    wrong.append(f"it unpacks to more than {_LARGEST >> 20:,} MB: left out")
                    return
                stream.write(piece)
            said = process.stderr.read(10_000).decode("utf-8", "replace").strip()
        if process.returncode:
            wrong.append(f"zstd: {said}")
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
        self._patched: set[object] = set()
        """Calls whose diffs are known. Some versions state them twice."""
        self._begun: set[str] = set()
        self._open: set[str] = set()
        """Items of a stream that have begun and not ended. Those that run at the same time belong to one turn."""
        self._running: dict[str, tuple[str, str]] = {}
        """Calls without output so far: the tool, and what it was given."""
        self._failed: dict[str, object] = {}
        """Calls in which a command failed that their output does not tell of, and its exit code."""

    def step_of(self, line: str) -> Step:
        try:
            record = json.loads(shallow(line))
        except ValueError:
            return Step(line, unknown="not JSON")
        if not isinstance(record, dict):
            return Step(line, unknown="not an object")
        kind, at = str(record.get("type")), time_of(record.get("timestamp"))
        payload = record.get("payload")
        if payload is None and kind in _BARE:  # before September 2025, items had no envelope
            kind, payload = "response_item", record
        elif payload is None and "type" not in record and isinstance(record.get("id"), str):
            kind, payload = "session_meta", record
        payload = payload if isinstance(payload, dict) else {}
        ours = handed_over(record, at, _facts(payload) if kind == "session_meta" else {})
        if ours is not None:
            return ours
        if kind == "session_meta":
            return Step(line, at, facts=_facts(payload))
        if kind == "turn_context":
            facts = words(payload, "cwd", "model")
            self._model = facts.get("model", self._model)
            return Step(line, at, facts=facts)
        if kind == "response_item":
            name = payload.get("id") or payload.get("call_id")
            key = f"{payload.get('type')}:{name}" if isinstance(name, str) else None
            return replace(self._item(line, at, payload), key=key)
        if kind == "event_msg":
            return self._event(line, at, payload)
        if kind.startswith(("item.", "turn.", "thread.")):  # codex exec --json
            return self._exec(line, at, kind, record)
        if kind == "compacted":
            return Step(line, at, aside=Aside("compacted", "The conversation was compacted."))
        return Step(line, at, unknown=None if kind in _RECORDS or "record_type" in record else kind)

    def _key(self) -> str:
        if self._ended:
            self._turn, self._ended = self._turn + 1, False
        return str(self._turn)

    def _item(self, line: str, at: Any, payload: Mapping[str, Any]) -> Step:
        kind = str(payload.get("type"))
        if kind == "message":
            text = _IMAGE.sub("[image]", text_of(payload.get("content")))
            if payload.get("role") == "assistant":
                return Step(line, at, turn=self._key(), agent="codex", model=self._model, text=text)
            if payload.get("role") == "user" and _is_from_a_person(payload, text):
                self._ended = True
                return Step(line, at, prompt=text, aborted=False)
            here = _FOLDER.search(text[:_HEAD]) if text.startswith("<environment_context>") else None
            return Step(line, at, facts={} if here is None else {"cwd": (here[1] or here[2]).strip()})
        if kind == "reasoning":
            thought = text_of(payload.get("summary")) or None
            return Step(line, at, turn=self._key(), agent="codex", model=self._model, thinking=thought)
        if kind in ("function_call", "custom_tool_call", "local_shell_call"):
            call = _call(payload, kind)
            self._running[call.id] = (call.tool, str(payload.get("input") or ""))
            return Step(line, at, turn=self._key(), agent="codex", model=self._model, calls=(call,))
        if kind in ("function_call_output", "custom_tool_call_output"):
            self._ended = True
            return Step(line, at, outputs=(self._output(payload),))
        if kind == "agent_message":
            task = _task_given(payload)
            self._ended = self._ended or task is not None
            return Step(line, at, prompt=task, aborted=None if task is None else False)
        return Step(line, at, unknown=None if kind in _ITEMS else f"response_item/{kind}")

    def _output(self, payload: Mapping[str, Any]) -> Output:
        found = _output(payload)
        tool, _ = self._running.pop(found.id, ("", ""))
        # Its words for a patch that cannot be applied differ, those for one that was applied do not.
        is_applied = _told(payload)[1] == 0 or "Success" in found.text[:_HEAD] or found.id in self._patched
        failed = found.failed or found.id in self._failed or (tool == apply_patch.NAME and not is_applied)
        code = self._failed.get(found.id)
        return replace(found, failed=failed, exit_code=code if type(code) is int else None)

    def _item_completed(self, line: str, at: Any, item: Mapping[str, Any]) -> Step:
        """What was really done. In code mode it happens inside a script, whose call is another one."""
        name = _text_or_none(item.get("id"))
        call = name if name in self._running else self._script_of(item)
        if item.get("exit_code") not in (0, None) and call is not None and call != name:
            self._failed[call] = item.get("exit_code")
        if item.get("status") not in (None, "completed"):
            return Step(line, at)
        diffs = _diffs(item.get("changes"))
        if diffs and name in self._patched:
            diffs = ()
        self._patched.add(name)
        return Step(line, at, touches=_reads(item), diffs=diffs, by_call=call or name)

    def _script_of(self, item: Mapping[str, Any]) -> str | None:
        """The script that did something: the first one that runs and mentions it, else the first one."""
        command = item.get("command")
        words = [command[-1]] if isinstance(command, list) and command else []
        words += [os.path.basename(path) for path in item.get("changes") or ()]
        scripts = {call: text for call, (tool, text) in self._running.items() if tool == "exec"}
        told = [json.dumps(str(word), ensure_ascii=False)[1:-1] for word in words]
        matching = (call for call, text in scripts.items() if any(word in text for word in told))
        return next(matching, None) or next(iter(scripts), None) if words else None

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
            item = payload.get("item")
            return self._item_completed(line, at, item if isinstance(item, dict) else {})
        if kind == "patch_apply_end" and payload.get("success") is not False:
            call = _text_or_none(payload.get("call_id"))
            diffs = () if call in self._patched else _diffs(payload.get("changes"))
            self._patched.add(call)
            return Step(line, at, diffs=diffs, by_call=call)
        if kind == "context_compacted":
            return Step(line, at)  # a record of its own says so
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
            return Step(line, at, used=Usage(_tokens(record.get("usage"))), aborted=False, working=False)
        if kind == "turn.started":
            return Step(line, at, working=True)
        if kind == "turn.failed":
            return Step(line, at, failed=_error(record.get("error")) or "the turn failed", working=False)
        if kind == "error":
            return Step(line, at)  # turn.failed says it too
        if what == "command_execution":
            return self._command(line, at, kind, item)
        if what in ("mcp_tool_call", "collab_tool_call", "web_search", "file_change"):
            return self._tool(line, at, kind, item, str(what))
        if kind == "item.completed" and what == "error":
            return Step(line, at, aside=Aside("warning", text_of(item.get("message"))))
        if kind == "item.completed" and what in ("agent_message", "assistant_message"):
            return Step(line, at, turn=self._key(), agent="codex", text=text_of(item.get("text")))
        if kind == "item.completed" and what == "reasoning":
            return Step(line, at, turn=self._key(), agent="codex", thinking=text_of(item.get("text")))
        known = kind in ("item.started", "item.updated") or what == "todo_list"
        return Step(line, at, unknown=None if known else f"{kind}/{what}")

    def _command(self, line: str, at: Any, kind: str, item: Mapping[str, Any]) -> Step:
        failed = item.get("exit_code") not in (0, None) or item.get("status") == "failed"
        call = Call(str(item.get("id")), "shell", text_of(item.get("command")))
        return self._running_or_ended(line, at, kind, call, text_of(item.get("aggregated_output")), failed)

    def _tool(self, line: str, at: Any, kind: str, item: Mapping[str, Any], what: str) -> Step:
        changes = [change for change in item.get("changes") or () if isinstance(change, dict)]
        touches = tuple(
            ("delete" if change.get("kind") == "delete" else "write", str(change.get("path"))) for change in changes
        )
        named = text_of(item.get("tool")) or what
        asked = next((text_of(item[name]) for name in ("prompt", "query") if isinstance(item.get(name), str)), "")
        args = asked or " ".join(path for _, path in touches) or json.dumps(item.get("arguments") or {})[:2000]
        failed = item.get("status") == "failed" or bool(item.get("error"))
        said = text_of(item.get("error")) or text_of(item.get("result"))
        step = self._running_or_ended(line, at, kind, Call(str(item.get("id")), named, args, touches), said, failed)
        threads = [each for each in item.get("receiver_thread_ids") or () if isinstance(each, str)]
        return replace(step, facts={"subagents": " ".join(threads)}) if named == "spawn_agent" and threads else step

    def _running_or_ended(self, line: str, at: Any, kind: str, call: Call, output: str, failed: bool) -> Step:
        """A call that begins, or has ended. What has begun and not ended is shown as running."""
        begun = call.id in self._begun
        self._begun.add(call.id)
        ended = kind == "item.completed"
        if ended:
            self._open.discard(call.id)
        elif not begun:
            self._open.add(call.id)
        outputs = (Output(call.id, output, failed),) if ended else ()
        calls = () if begun else (call,)
        step = Step(line, at, turn=self._key(), agent="codex", calls=calls, outputs=outputs)
        self._ended = self._ended or (ended and not self._open)
        return step


def _output(payload: Mapping[str, Any]) -> Output:
    """A command's output is plain text, or JSON in a string, with its exit code."""
    text, code = _told(payload)
    failed = code not in (0, None) or text.startswith("Script failed\n")
    return Output(str(payload.get("call_id")), text, failed)


def _told(payload: Mapping[str, Any]) -> tuple[str, int | None]:
    """The text of an output, and the exit code if it is told."""
    given = payload.get("output")
    if isinstance(given, str) and given.startswith("{"):
        with contextlib.suppress(ValueError):
            inside = json.loads(shallow(given))
            about = inside.get("metadata")
            if isinstance(inside.get("output"), str) and isinstance(about, dict):
                code = about.get("exit_code")
                return inside["output"], code if type(code) is int else None
    text = text_of(given)
    return text, _exit_code(text)


def _exit_code(text: str) -> int | None:
    """The exit code that stands before the output. What a command prints is not searched."""
    head, found, _ = text.partition(_BEFORE_OUTPUT)
    exited = _EXITED.search(head if found else text[:_HEAD])
    return int(exited[1]) if exited is not None else None


def _error(error: object) -> str | None:
    """The words of an error, which may be JSON in a string."""
    if not error:
        return None
    text = text_of(error.get("message")) if isinstance(error, dict) else str(error)
    with contextlib.suppress(ValueError, AttributeError):
        inside = json.loads(shallow(text)).get("error")
        text = str(inside.get("message") or text)
    return text or "the task failed"


def _is_from_a_person(payload: Mapping[str, Any], text: str) -> bool:
    """Codex also speaks to its model in messages of the user, and newer versions say which are which."""
    about = payload.get("internal_chat_message_metadata_passthrough")
    items = about.get("content_item_metadata") if isinstance(about, dict) else None
    said_by = [
        item["provenance"].get("type")
        for item in (items if isinstance(items, list) else ())
        if isinstance(item, dict) and isinstance(item.get("provenance"), dict)
    ]
    if said_by:
        return "user" in said_by
    return not text.startswith(_SAID_BY_THE_PROGRAM)


def _task_given(payload: Mapping[str, Any]) -> str | None:
    """What a sub-agent was started for, if this message says so. What it was told may be encrypted; its name is not."""
    content = payload.get("content")
    said = text_of(content)
    if not said.startswith(_NEW_TASK):
        return None
    told = [text for part in objects(content) if isinstance(text := part.get("encrypted_content"), str)]
    readable = "\n".join(text for text in told if " " in text.strip())
    return readable or said.removeprefix(_NEW_TASK).partition("\n")[0]


def _reads(item: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """The files that a completed command read."""
    commands = item.get("parsed_cmd")
    return tuple(
        ("read", command["path"])
        for command in (commands if isinstance(commands, list) and item.get("exit_code") in (0, None) else ())
        if isinstance(command, dict) and command.get("type") == "read" and isinstance(command.get("path"), str)
    )


def _diffs(changes: object) -> tuple[Diff, ...]:
    """What was changed, from ``{path: {type, unified_diff or content, move_path}}``; in older files the type is a key."""
    found: list[Diff] = []
    for path, change in changes.items() if isinstance(changes, dict) else ():
        if not isinstance(change, dict):
            continue
        kind = change.get("type") or next(iter(change), None)
        about = change if "type" in change else change.get(kind)
        about = about if isinstance(about, dict) else {}
        content, diff, moved = (about.get(name) for name in ("content", "unified_diff", "move_path"))
        if kind == "add":
            found.append(compared(path, None, text_of(content)))
        elif kind == "delete":
            found.append(compared(path, text_of(content), None))
        else:
            hunks = unified(diff, path) if isinstance(diff, str) and diff else ()
            made = hunks[0] if hunks else Diff(path, path)
            found.append(replace(made, old=path, new=moved if isinstance(moved, str) else path))
    return tuple(found)


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _facts(payload: Mapping[str, Any]) -> dict[str, str]:
    git = payload.get("git")
    git = git if isinstance(git, dict) else {}
    base = mapping(payload.get("history_base"))
    place = base.get("end_byte_offset")
    return _only(
        session=payload.get("id"),
        cwd=payload.get("cwd"),
        version=payload.get("cli_version"),
        provider=payload.get("model_provider"),
        commit=git.get("commit_hash"),
        branch=git.get("branch"),
        repo=git.get("repository_url"),
        parent=payload.get("parent_thread_id"),
        forked=base.get("thread_id") or payload.get("forked_from_id"),
        forked_at=str(place) if type(place) is int else None,
        **_spawned(payload.get("source")),
    )


def _spawned(source: object) -> dict[str, object]:
    """What a sub-agent is called, and who started it."""
    spawned: Any = source
    for name in ("subagent", "thread_spawn"):
        spawned = spawned.get(name) if isinstance(spawned, dict) else None
    if not isinstance(spawned, dict):
        return {}
    task = text_of(spawned.get("agent_path")).rpartition("/")[2]  # the name that its parent gave to the task
    return {"title": task or spawned.get("agent_nickname") or spawned.get("agent_role")}


def _only(**values: object) -> dict[str, str]:
    return {name: value for name, value in values.items() if isinstance(value, str) and value}


def _tokens(usage: object) -> dict[str, int]:
    found = counts(usage, _TOKENS)
    if "in" in found:  # here it includes what came from the cache
        found["in"] = max(0, found["in"] - found.get("cache_read", 0))
    return found


def _call(payload: Mapping[str, Any], kind: str) -> Call:
    name = str(payload.get("name") or "shell")
    given: Any = (
        payload.get("input") if kind == "custom_tool_call" else payload.get("arguments") or payload.get("action")
    )
    if isinstance(given, str):
        with contextlib.suppress(ValueError):
            given = json.loads(shallow(given))
    text = given if isinstance(given, str) else json.dumps(given)
    if isinstance(given, dict):
        command = given.get("command") or given.get("cmd")
        if isinstance(command, list):
            command = " ".join(map(str, command))
        text = command if isinstance(command, str) else given["input"] if isinstance(given.get("input"), str) else text
    touches = apply_patch.touched(text)
    asked = " ".join(path for _, path in touches) if name == apply_patch.NAME else ""
    diffs = apply_patch.diffs(text) if touches else ()
    return Call(str(payload.get("call_id")), name, asked or text[:4000], touches, diffs)
