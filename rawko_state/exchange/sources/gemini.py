"""Gemini CLI: ``~/.gemini/tmp/<project>/chats/session-*.jsonl``, sub-agents in ``chats/<parent>/``, and its stream.

A message is written again, under the same id, when it changes: first without its tool calls, then with them and their results.
Each record therefore tells only what is new since the last one of the same id.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
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
    safely,
    text_of,
    text_or_none,
    time_of,
    uncached,
)
from rawko_state.format.diffs import compared, overwritten, patch_of, replacement
from rawko_state.format.fair_json import shallow
from rawko_state.model.entries import Diff
from rawko_state.model.frozen import replace

_TOKENS: Final = {"input": "in", "output": "out", "cached": "cache_read", "thoughts": "reasoning"}
_READS: Final = frozenset(("read_file",))
_WRITES: Final = frozenset(("write_file", "replace", "edit"))
_RUNNING: Final = frozenset(("validating", "scheduled", "executing", "awaiting_approval", "pending"))
_EXITED = re.compile(r"^(Exit Code|Signal): (\S+)$", re.MULTILINE)
_SILENT = re.compile(r"Command exited with code: (?!0$)-?[0-9]+|Command terminated by signal: \w+")
_OWN_ID = re.compile(r"[0-9a-f]{32}")
"""The id of a message that the program writes by itself; those of prompts have dashes."""
_OWN_WORDS: Final = ("<session_context>", "<hook_context>", "<state_snapshot>")
_LARGEST: Final = 256 << 20


def home() -> Path:
    return Path(os.environ.get("GEMINI_CLI_HOME") or Path.home()) / ".gemini"


def found(paths: list[Path], root: Path, wrong: list[Trouble]) -> Iterator[Session]:
    for path in files(paths, [home() / "tmp"], "*.json*", wrong):
        if path.suffix in (".jsonl", ".json") and (path.name.startswith("session-") or _is_child(path)):
            yield _session(path)


def named(key: str) -> Session | None:
    for path in sorted((home() / "tmp").glob(f"*/chats/session-*-{key[:8]}.json*")):
        session = _session(path)
        if session.key == key and path.suffix in (".jsonl", ".json"):
            return session
    children = sorted((home() / "tmp").glob(f"*/chats/*/{key}.jsonl"))
    return _session(children[0]) if children else None


def _is_child(path: Path) -> bool:
    return path.suffix == ".jsonl" and path.parent.parent.name == "chats"


def _session(path: Path) -> Session:
    parent = path.parent.name if _is_child(path) else None
    folder = _project(path)
    read = _read if path.suffix == ".jsonl" else _read_whole
    return Session(
        "gemini", _key(path), path, read, parent, folder=None if folder is None else Path(folder), agent="gemini"
    )


def _key(path: Path) -> str:
    """The session's id, which the first record has. Older versions kept a session in one JSON object."""
    if path.suffix == ".jsonl":
        return text_or_none(first_record(path).get("sessionId")) or path.stem
    try:
        with open(path, "rb") as stream:
            match = re.search(r'"sessionId":\s*"([^"]+)"', stream.read(1 << 12).decode("utf-8", "replace"))
    except OSError:
        match = None
    return match[1] if match else path.stem


def _project(path: Path) -> str | None:
    """The folder that a session was run in: it is noted beside the folder of the sessions, or in a list of all of them."""
    above = next((folder for folder in path.parents if folder.name == "chats"), path.parent).parent
    try:
        return (above / ".project_root").read_text(encoding="utf-8", errors="surrogateescape")[:4096].strip() or None
    except (OSError, ValueError):
        pass
    try:
        with open(above.parent.parent / "projects.json", "rb") as stream:
            projects = mapping(mapping(json.loads(shallow(stream.read(1 << 22)))).get("projects"))
    except (OSError, ValueError):
        return None
    return next((folder for folder, name in projects.items() if name == above.name), None)


def _read(session: Session, start: int, wrong: list[str]) -> Iterator[tuple[int, Step]]:
    return after(start, _all(session, lines(session.path, 0, wrong)))


def _all(session: Session, records: Iterable[tuple[int, str]]) -> Iterator[tuple[int, Step]]:
    reader = Reader()
    facts = only(cwd=None if session.folder is None else str(session.folder))
    for place, line in records:
        for step in reader.steps_of(line):
            yield place, replace(step, facts={**facts, **step.facts}) if facts else step
            facts = {}


def _read_whole(session: Session, start: int, wrong: list[str]) -> Iterator[tuple[int, Step]]:
    """A session of an older version, in one JSON object. A place is a number of messages."""
    try:
        if session.path.stat().st_size > _LARGEST:
            raise ValueError(f"larger than {_LARGEST >> 20} MB")
        whole = object_of(session.path.read_text(encoding="utf-8", errors="surrogateescape"))
    except ValueError as error:
        wrong.append(f"not a session: {error}")
        return
    messages = objects(whole.pop("messages", None))
    done = max(0, start - 1)
    if len(messages) < done:
        wrong.append(f"it has {len(messages)} messages, and {done} were imported before: it was made shorter")
        return
    records = [json.dumps(whole, ensure_ascii=False), *(json.dumps(each, ensure_ascii=False) for each in messages)]
    yield from after(start, _all(session, enumerate(records, 1)))


@dataclass(slots=True)
class _Told:
    """What has been told of a message so far."""

    text: str = ""
    thoughts: int = 0
    begun: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)


class Reader:
    def __init__(self) -> None:
        self._told: dict[str, _Told] = {}
        self._turn = 0
        self._ended = True
        self._tools: dict[str, str] = {}

    def steps_of(self, line: str) -> list[Step]:
        """The steps for one record of a session. One that replaces all messages can tell several new ones."""
        news: list[Step] = []
        first = safely(lambda text: self._record(text, news), line)
        return [first, *news]

    def _record(self, line: str, news: list[Step]) -> Step:
        record = object_of(line)
        if "$set" in record or "sessionId" in record:
            changed = mapping(record.get("$set")) if "$set" in record else record
            news += self._unheard(objects(changed.get("messages")))
            at = time_of(changed.get("startTime"))
            title = text_or_none(changed.get("summary"))
            return Step(line, at, title=title, facts=only(session=changed.get("sessionId")))
        if "$rewindTo" in record:
            self._told.clear()  # a message that comes again is told again
            return Step(line, aside=Aside("rewound", "The conversation was taken back to an earlier message."))
        return self._message(line, record)

    def _unheard(self, messages: list[dict[str, Any]]) -> Iterator[Step]:
        """The steps for messages of a list that replaces all; most of them have been told."""
        for message in messages:
            told = self._told.get(str(message.get("id")))
            if told is not None:
                told.text = text_of(message.get("content"))  # it may be written in another way
            step = safely(lambda text: self._message(text, object_of(text)), json.dumps(message, ensure_ascii=False))
            if (told is None and step.happened) or step.calls or step.outputs:
                yield step

    def _message(self, line: str, record: Mapping[str, Any]) -> Step:
        kind, at = str(record.get("type")), time_of(record.get("timestamp"))
        if kind == "user":
            return self._user(line, at, record)
        if kind == "gemini":
            return self._answer(line, at, record)
        text = text_of(record.get("content"))
        if kind == "error":
            return Step(line, at, failed=text or "an error", working=False)
        if kind == "info" and "cancel" in text.lower():
            return Step(line, at, aborted=True, working=False)
        return Step(line, at, unknown=None if kind in ("info", "warning") else kind)

    def _user(self, line: str, at: Any, record: Mapping[str, Any]) -> Step:
        key, content = str(record.get("id")), record.get("content")
        if key in self._told:
            return Step(line, at)
        self._told[key] = _Told()
        parts = objects(content)
        answers = [mapping(part.get("functionResponse")) for part in parts if "functionResponse" in part]
        if answers:
            known = {call for told in self._told.values() for call in told.ended}
            left = [answer for answer in answers if str(answer.get("id")) not in known]
            outputs = tuple(_response(answer, self._tools.get(str(answer.get("id")), "")) for answer in left)
            return Step(line, at, outputs=outputs, working=True)
        text = text_of(record.get("displayContent") or content)
        if not text or _OWN_ID.fullmatch(key) or text.startswith(_OWN_WORDS):
            return Step(line, at)
        return Step(line, at, prompt=text, aborted=False, working=True)

    def _answer(self, line: str, at: Any, record: Mapping[str, Any]) -> Step:
        key = str(record.get("id"))
        told = self._told.setdefault(key, _Told())
        text = text_of(record.get("content"))
        new_text = text if text != told.text else ""
        thoughts = objects(record.get("thoughts"))
        new_thoughts = thoughts[told.thoughts :]
        told.text, told.thoughts = text, max(told.thoughts, len(thoughts))
        calls = objects(record.get("toolCalls"))
        begun = [call for call in calls if str(call.get("id")) not in told.begun]
        ended = [call for call in calls if _has_ended(call) and str(call.get("id")) not in told.ended]
        told.begun |= {str(call.get("id")) for call in begun}
        told.ended |= {str(call.get("id")) for call in ended}
        self._tools |= {str(call.get("id")): str(call.get("name")) for call in begun}
        stopped = bool(calls) and all(call.get("status") == "cancelled" for call in calls)
        return Step(
            line,
            at,
            turn=key,
            agent="gemini",
            text=new_text or None,
            thinking="\n".join(_thought(each) for each in new_thoughts) or None,
            model=text_or_none(record.get("model")),
            tokens=_tokens(record.get("tokens")),
            calls=tuple(call_of(call) for call in begun),
            outputs=tuple(_output(call) for call in ended),
            aborted=True if stopped else None,
            unsure=bool(text) and not calls,
            working=bool(calls)
            or not text,  # an answer without words calls tools, which are written when they have ended
        )

    def step_of(self, line: str) -> Step:
        """The step for one event of ``gemini -o stream-json``."""
        record = object_of(line)
        kind, at = str(record.get("type")), time_of(record.get("timestamp"))
        if kind == "init":
            model = record.get("model")
            return Step(
                line, at, facts=only(session=record.get("session_id"), model=None if model == "auto" else model)
            )
        if kind == "message":
            text = text_of(record.get("content"))
            if record.get("role") == "user":
                self._ended = True
                return Step(line, at, prompt=text)
            continued = bool(record.get("delta")) and not self._ended
            return Step(line, at, turn=self._key(), agent="gemini", text=text or None, continued=continued)
        if kind == "tool_use":
            given = {"id": record.get("tool_id"), "name": record.get("tool_name"), "args": record.get("parameters")}
            return Step(line, at, turn=self._key(), agent="gemini", calls=(call_of(given),))
        if kind == "tool_result":
            self._ended = True
            error = mapping(record.get("error")).get("message")
            text = text_of(record.get("output")) or text_of(error)
            failed = record.get("status") != "success" or says_that_it_failed(text)
            return Step(line, at, outputs=(Output(str(record.get("tool_id")), text, failed),))
        if kind == "error":
            text = text_of(record.get("message"))
            return Step(
                line, at, aside=Aside("warning", text), failed=text if record.get("severity") == "error" else None
            )
        if kind == "result":
            failed = None
            if record.get("status") != "success":
                failed = text_of(mapping(record.get("error")).get("message")) or str(record.get("status"))
            return Step(line, at, failed=failed, used=Usage(_all_tokens(mapping(record.get("stats")))))
        return Step(line, at, unknown=kind)

    def _key(self) -> str:
        """A turn of a stream ends with the results of its tools."""
        if self._ended:
            self._turn, self._ended = self._turn + 1, False
        return str(self._turn)


def _thought(thought: Mapping[str, Any]) -> str:
    subject, text = text_of(thought.get("subject")), text_of(thought.get("description"))
    return "\n".join(part for part in (subject, text) if part)


def _tokens(usage: object) -> dict[str, int]:
    """Gemini counts cached input as input, and neither thoughts nor what tools gave in with the rest."""
    tokens = uncached(counts(usage, _TOKENS))
    for name, more in (("out", tokens.get("reasoning", 0)), ("in", counts(usage, {"tool": "in"}).get("in", 0))):
        if name in tokens:
            tokens[name] += more
    return tokens


def _all_tokens(stats: Mapping[str, Any]) -> dict[str, int]:
    found = counts(stats, {"input_tokens": "in", "output_tokens": "out", "cached": "cache_read", "total_tokens": "all"})
    thoughts = found.pop("all", 0) - found.get("in", 0) - found.get("out", 0)
    tokens = uncached(found)
    if thoughts > 0 and "out" in tokens:
        tokens["out"] += thoughts
        tokens["reasoning"] = thoughts
    return tokens


def _has_ended(call: Mapping[str, Any]) -> bool:
    return call.get("result") is not None or call.get("status") not in (*_RUNNING, None)


def call_of(call: Mapping[str, Any]) -> Call:
    """A call of one of Gemini's tools, which are Qwen's too."""
    given, name = mapping(call.get("args")), str(call.get("name"))
    path = text_or_none(given.get("file_path")) or text_or_none(given.get("absolute_path"))
    touches: tuple[tuple[str, str], ...] = ()
    diffs: tuple[Diff, ...] = ()
    if path is not None and name in _WRITES:
        touches, diffs = (("write", path),), asked_for(path, given)
    elif path is not None and name in _READS:
        touches = (("read", path),)
    return Call(str(call.get("id")), name, asked_of(given), touches, diffs)


def asked_for(path: str, given: Mapping[str, Any]) -> tuple[Diff, ...]:
    """What a call would change. A replacement does not say where in the file."""
    content, old, new = (given.get(name) for name in ("content", "old_string", "new_string"))
    if isinstance(content, str):
        return (overwritten(path, content),)
    if isinstance(old, str) and isinstance(new, str):
        return (replacement(path, old, new) if old else compared(path, None, new),)
    return ()


def _output(call: Mapping[str, Any]) -> Output:
    """The result of a call: what the model was given, or what a person was shown."""
    answers = [mapping(part.get("functionResponse")) for part in objects(call.get("result"))]
    given = [_response(answer, str(call.get("name"))) for answer in answers if answer]
    display = call.get("resultDisplay")
    text = "\n".join(each.text for each in given) or (display if isinstance(display, str) else "")
    failed = call.get("status") != "success" or any(each.failed for each in given)
    path = text_or_none(mapping(call.get("args")).get("file_path"))
    diffs = () if failed else shown(path, display, text)
    return Output(str(call.get("id")), text, failed, diffs, is_unchanged=not failed and shows_nothing(display))


def _response(answer: Mapping[str, Any], tool: str) -> Output:
    response = mapping(answer.get("response"))
    error = response.get("error")
    text = text_of(error) or text_of(response.get("output")) or (json.dumps(response)[:2000] if response else "")
    return Output(str(answer.get("id")), text, bool(error) or (tool == "run_shell_command" and exited_badly(text)))


def says_that_it_failed(text: str) -> bool:
    """Whether this is what a stream has in place of the output of a command that failed and printed nothing."""
    return _SILENT.fullmatch(text.strip()) is not None


def exited_badly(text: str) -> bool:
    """Whether a command failed. The exit code follows the output, so the last line that looks like one counts."""
    said = dict(_EXITED.findall(text))
    return said.get("Exit Code", "0") not in ("0", "(none)") or said.get("Signal", "0") not in ("0", "(none)")


def shows_nothing(display: object) -> bool:
    """Whether the diff that a person was shown has no lines: the file was written as it was."""
    diff = mapping(display).get("fileDiff")
    return (
        isinstance(diff, str) and "--- " in diff and "@@" not in diff and not mapping(display).get("fileDiffTruncated")
    )


def shown(path: str | None, display: object, said: str) -> tuple[Diff, ...]:
    """The diff that a person was shown of a written file."""
    about = mapping(display)
    path = text_or_none(about.get("filePath")) or path
    if path is None or about.get("fileDiffTruncated"):
        return ()
    created = about.get("isNewFile") is True or "wrote to new file" in said[:200] or said.startswith("Created new file")
    return patch_of(path, about.get("fileDiff"), created=created)
