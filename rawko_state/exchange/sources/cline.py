"""Cline CLI: ``~/.cline/data/sessions/<id>/<id>.messages.json`` and ``<id>.json``, and the stream of ``cline --json``.

Both files are written anew whenever something changes. A place says when the last message that was read was written, how many
there were, and whether the prompt and the end of the session, which the other file tells, have been told.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from rawko_state.exchange.sources import apply_patch
from rawko_state.exchange.sources.messages import asked_of
from rawko_state.exchange.transcript import (
    Aside,
    Call,
    Output,
    Session,
    Step,
    Trouble,
    Usage,
    counts,
    dollars,
    files,
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
from rawko_state.format.diffs import compared, positionless, replacement, structured
from rawko_state.format.fair_json import shallow
from rawko_state.model.entries import Diff
from rawko_state.model.frozen import replace

_TOKENS: Final = {
    "inputTokens": "in",
    "outputTokens": "out",
    "cacheReadTokens": "cache_read",
    "cacheWriteTokens": "cache_write",
    "reasoningTokens": "reasoning",
}
_LARGEST: Final = 512 << 20
_COUNTED: Final = 1 << 10
_END: Final = 1
_PROMPT: Final = 2
_SPAWN: Final = "spawn_agent"
_INPUT = re.compile(r'\s*<user_input(?: mode="[^"]*")?>(.*)</user_input>\s*', re.DOTALL)
_SHOWN = re.compile(r"([+-])([0-9]+): (.*)")
"""A line of the diff that an edit shows: its sign, its number, its text."""
_MARK: Final = ".messages.json"
_AWAY: Final = timedelta(minutes=2)
_EVENTS: Final = frozenset(("iteration_start", "iteration_end", "content_start", "content_update", "done", "usage"))


def home() -> Path:
    moved = os.environ.get("CLINE_DATA_DIR")
    return Path(moved) if moved else Path(os.environ.get("CLINE_DIR") or Path.home() / ".cline") / "data"


def _folder() -> Path:
    return Path(os.environ.get("CLINE_SESSION_DATA_DIR") or home() / "sessions")


def found(paths: list[Path], root: Path, wrong: list[Trouble]) -> Iterator[Session]:
    for path in files(paths, [_folder()], f"*{_MARK}", wrong):
        if path.name.endswith(_MARK):
            yield _session(path)
        elif path in paths:
            wrong.append(Trouble(path, f"not a file of messages, whose name ends in {_MARK}"))


def named(key: str) -> Session | None:
    path = _folder() / key / f"{key}{_MARK}"
    return _session(path) if path.is_file() else None


def _session(path: Path) -> Session:
    """A session, or a sub-agent's, whose file is in the folder of the session that started it."""
    key, beside = path.name.removesuffix(_MARK), path.parent.name
    if key != beside and (path.parent / f"{beside}{_MARK}").is_file():
        return Session(
            "cline", f"{beside}/{key}", path, _read, beside, agent="agent", also=path.parent / f"{beside}.json"
        )
    return Session("cline", key, path, _read, agent="cline", also=path.with_name(f"{key}.json"))


def _loaded(path: Path) -> tuple[str, dict[str, Any]]:
    """A file as text, and as an object. Raises OSError and ValueError."""
    with open(path, "rb") as stream:
        text = stream.read(_LARGEST + 1)
    if len(text) > _LARGEST:
        raise ValueError(f"larger than {_LARGEST >> 20} MB")
    read = text.decode("utf-8", "surrogateescape")
    return read, object_of(read)


def _read(session: Session, start: int, wrong: list[str]) -> Iterator[tuple[int, Step]]:
    about_text, about = "", dict[str, Any]()
    try:
        if session.also is not None and session.also.exists():
            about_text, about = _loaded(session.also)
    except (OSError, ValueError) as error:
        wrong.append(f"{session.also.name if session.also is not None else ''} cannot be read: {error}")
    try:
        _, whole = _loaded(session.path)
    except ValueError as error:
        wrong.append(f"not a file of messages: {error}")
        return
    messages = whole.pop("messages", None)
    messages = messages if isinstance(messages, list) else []
    yield from _steps(session, start, wrong, messages, whole, about, about_text)


def _steps(
    session: Session,
    start: int,
    wrong: list[str],
    messages: list[Any],
    head: Mapping[str, Any],
    about: Mapping[str, Any],
    about_text: str,
) -> Iterator[tuple[int, Step]]:
    flags, since = start & 3, start >> 12
    times = _times(messages)
    known = sum(time <= since for time in times) if since else 0
    if since and known % _COUNTED != start >> 2 & _COUNTED - 1:
        wrong.append("messages from before the last import were removed or changed; what is new is added")
    facts, title = _facts(session, about, messages), text_or_none(mapping(about.get("metadata")).get("title"))
    prompt = _asked(text_of(about.get("prompt")))
    place, reader = start & ~_END, Reader(session.agent)
    for message in messages[:known]:
        safely(lambda text: reader.message(text, json.loads(text)), json.dumps(message))
    for number, (message, time) in enumerate(zip(messages[known:], times[known:], strict=True), known + 1):
        place = time << 12 | number % _COUNTED << 2 | flags & _PROMPT
        step = safely(lambda text: reader.message(text, object_of(text)), json.dumps(message, ensure_ascii=False))
        if number == 1 and flags & _PROMPT and step.prompt == prompt:
            step = replace(step, prompt=None)  # told before there were messages
        yield place, replace(step, facts={**facts, **step.facts}) if facts else step
        facts = {}
    if session.parent is not None or not about:
        return
    ended = about.get("status") not in ("running", "idle", "pending", "starting", None)
    if len(messages) > known or (ended and not flags & _END) or not start:
        raw = f"{json.dumps(head, ensure_ascii=False)}\n{about_text.strip()}"
        end = _end(raw, about, reader, title)
        if not start and not reader.has_cost:
            end = replace(end, used=Usage({}, dollars(mapping(about.get("metadata")).get("totalCost"))))
        if not messages and prompt and not flags & _PROMPT:
            place, end = place | _PROMPT, replace(end, prompt=prompt, working=True)
        yield place | (_END if ended else 0), replace(end, facts=facts)


def _times(messages: list[Any]) -> list[int]:
    """When each message was written. One that does not say comes right after the one before."""
    found: list[int] = []
    for message in messages:
        given = mapping(message).get("ts")
        time = int(given) if isinstance(given, (int, float)) and 0 < given < 1 << 41 else 0
        found.append(max(time, found[-1] + 1 if found and not time else found[-1] if found else 1))
    return found


def _facts(session: Session, about: Mapping[str, Any], messages: list[Any]) -> dict[str, str]:
    more = mapping(about.get("metadata"))
    return only(
        session=session.key,
        cwd=about.get("cwd"),
        model=about.get("model"),
        provider=about.get("provider"),
        branch=mapping(more.get("git")).get("branch"),
        version=mapping(more.get("sessionHistoryOrigin")).get("version"),
        title=more.get("title") if session.parent is None else None,
        call=_call_of_parent(session, messages) if session.parent is not None else None,
    )


def _call_of_parent(session: Session, messages: list[Any]) -> str | None:
    """The call that started a sub-agent: the one that gave it its first message."""
    try:
        others = objects(_loaded(session.path.with_name(f"{session.parent}{_MARK}"))[1].get("messages"))
    except (OSError, ValueError):
        return None
    asked = _asked(text_of(mapping(messages[0]).get("content"))) if messages else None
    calls = [part for each in others for part in objects(each.get("content")) if part.get("type") == "tool_use"]
    return next(
        (text_or_none(call.get("id")) for call in calls if mapping(call.get("input")).get("task") == asked), None
    )


def _end(raw: str, about: Mapping[str, Any], reader: Reader, title: str | None) -> Step:
    """How the session stands, as the other file tells."""
    at, status = time_of(about.get("ended_at")), str(about.get("status"))
    if status in ("cancelled", "canceled", "aborted", "stopped", "interrupted"):
        return Step(raw, at, title=title, aborted=True, working=False)
    if status in ("failed", "error"):
        code = about.get("exit_code")
        return Step(raw, at, title=title, failed=reader.error or f"it failed with exit code {code}", working=False)
    return Step(raw, at, title=title, working=False if status == "completed" else None)


def _asked(text: str) -> str:
    """A prompt as the user typed it."""
    match = _INPUT.fullmatch(text)
    return (match[1] if match else text).strip()


class Reader:
    """Messages in the shape of Anthropic's."""

    def __init__(self, agent: str) -> None:
        self._agent = agent
        self.error: str | None = None
        """What the program said went wrong, last."""
        self.has_cost = False
        """Whether the messages state what they cost; else only the session does, as a whole."""
        self._calls: dict[str, Call] = {}

    def message(self, raw: str, message: Mapping[str, Any]) -> Step:
        role, at = message.get("role"), time_of(message.get("ts"))
        content = message.get("content")
        parts = objects(content) if isinstance(content, list) else [{"type": "text", "text": content}]
        shown = mapping(message.get("metadata")).get("displayRole")
        text = "\n".join(text_of(part) for part in parts if part.get("type") in ("text", "image", "file"))
        if shown == "error":
            self.error = text or "an error"
            return Step(raw, at, failed=self.error, working=False)
        if role == "assistant":
            return self._answer(raw, at, message, parts)
        if role != "user":
            return Step(raw, at, unknown=None if role == "system" else f"message/{role}")
        outputs = tuple(self._output(part) for part in parts if part.get("type") == "tool_result")
        if outputs:
            return Step(raw, at, outputs=outputs, working=True)
        if shown in ("system", "status") or not text:
            return Step(raw, at)
        return Step(raw, at, prompt=_asked(text), aborted=False, working=True)

    def _answer(self, raw: str, at: Any, message: Mapping[str, Any], parts: list[dict[str, Any]]) -> Step:
        calls = tuple(self.called(part) for part in parts if part.get("type") == "tool_use")
        metrics, model = mapping(message.get("metrics")), mapping(message.get("modelInfo"))
        self.error, cost = None, dollars(metrics.get("cost", metrics.get("totalCost")))
        self.has_cost = self.has_cost or cost is not None
        return Step(
            raw,
            at,
            turn=str(message.get("id")),
            agent=self._agent,
            text="\n".join(text_of(part) for part in parts if part.get("type") == "text") or None,
            thinking="\n".join(text_of(part.get("thinking")) for part in parts if part.get("type") == "thinking")
            or None,
            model=text_or_none(model.get("id")),
            tokens=uncached(counts(metrics, _TOKENS)),
            cost=cost,
            calls=calls,
            working=bool(calls),
        )

    def called(self, part: Mapping[str, Any]) -> Call:
        call = _call(part)
        self._calls[call.id] = call
        return call

    def _output(self, part: Mapping[str, Any]) -> Output:
        return self.output(str(part.get("tool_use_id")), part.get("content"), bool(part.get("is_error")))

    def output(self, key: str, content: object, failed: bool) -> Output:
        """What a tool gave: a result, a list of them, one for each thing asked, or either as text."""
        given = content
        if isinstance(content, str) and content[:1] in ("{", "["):
            try:
                given = json.loads(shallow(content))
            except ValueError:
                given = content
        results = objects(given) if isinstance(given, list) else [given] if isinstance(given, dict) else []
        told = [result for result in results if "success" in result]
        failed = failed or (bool(told) and not all(result.get("success") for result in told))
        texts = [text_of(result.get("result")) or text_of(result.get("error")) or text_of(result) for result in results]
        text = "\n".join(each for each in texts if each) or text_of(content)
        call = self._calls.pop(key, None)
        diffs = () if failed or call is None else _shown(call, text)
        return Output(key, text, failed, diffs)


def _call(part: Mapping[str, Any]) -> Call:
    given, name = mapping(part.get("input")), str(part.get("name") or part.get("toolName"))
    path = text_or_none(given.get("path"))
    touches: tuple[tuple[str, str], ...] = ()
    diffs: tuple[Diff, ...] = ()
    if name == "editor" and path is not None:
        touches, diffs = (("write", path),), _asked_for(path, given)
    elif name == "read_files":
        touches = tuple(("read", each) for each in _paths(given))
    elif name == apply_patch.NAME:
        patch = text_of(given.get("input") or given.get("patch"))
        touches, diffs = apply_patch.touched(patch), apply_patch.diffs(patch)
    commands = given.get("commands")
    if name == "read_files" or (name == apply_patch.NAME and touches):
        asked = " ".join(each for _, each in touches)
    elif isinstance(commands, list):
        asked = "\n".join(each if isinstance(each, str) else text_of(mapping(each).get("command")) for each in commands)
    else:
        asked = text_or_none(given.get("task")) or asked_of(given)
    return Call(str(part.get("id") or part.get("toolCallId")), name, asked, touches, diffs)


def _paths(given: Mapping[str, Any]) -> list[str]:
    """The files that a call reads; the names of this argument have changed."""
    listed = [
        each for name in ("files", "file_paths", "paths") if isinstance(given.get(name), list) for each in given[name]
    ]
    found = [each if isinstance(each, str) else mapping(each).get("path") for each in (*listed, given.get("path"))]
    return [each for each in found if isinstance(each, str) and each]


def _asked_for(path: str, given: Mapping[str, Any]) -> tuple[Diff, ...]:
    """What a call would change: without an old text it creates a file, unless it says where to insert."""
    old, new = given.get("old_text"), given.get("new_text")
    if not isinstance(new, str):
        return ()
    if isinstance(old, str) and old:
        return (replacement(path, old, new),)
    if given.get("insert_line") is not None:
        return (positionless(path, [["+" + line for line in new.removesuffix("\n").split("\n")]]),)
    return (compared(path, None, new),)


def _shown(call: Call, text: str) -> tuple[Diff, ...]:
    """The diff that an edit shows, as lines with a sign and a number in front. Where lines are left out, another hunk begins."""
    if not call.diffs or "```diff" not in text:
        return ()
    hunks: list[tuple[int, int, list[str]]] = []
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    body: list[str] = []

    def done() -> None:
        if body:
            # A side without lines begins after the line before, which the other side tells.
            old, new = (first.get(sign, first.get(other, 1) - 1) for sign, other in (("-", "+"), ("+", "-")))
            hunks.append((old, new, list(body)))
        for each in (body, first, last):
            each.clear()

    for line in text.partition("```diff\n")[2].split("\n"):
        match = _SHOWN.fullmatch(line)
        if match is None:
            if line.startswith("```"):
                break
            done()
            continue
        sign, number = match[1], int(match[2])
        if sign in last and number != last[sign] + 1:
            done()
        first.setdefault(sign, number)
        last[sign] = number
        body.append(sign + match[3])
    done()
    return (structured(call.touches[0][1], hunks),) if hunks else ()


# The stream


class Stream:
    """Reads ``cline --json``. It does not name its session, so that is looked for: the one that began here just before."""

    def __init__(self) -> None:
        self._reader = Reader("cline")
        self._turns, self._session = [0], ""
        """The number of the turn, of the session and of each sub-agent in it."""
        self._spawning: list[str] = []
        """Calls that start a sub-agent, and have not ended."""
        self._inside: list[str] = []
        """The sub-agents that are at work, by the calls that started them. Their events come among those of the session."""

    def step_of(self, line: str) -> Step:
        record = object_of(line)
        kind, at = str(record.get("type")), time_of(record.get("ts"))
        facts = self._facts(at)
        if kind == "hook_event" and record.get("parentAgentId"):
            self._subagent(str(record.get("hookEventName")))
        if kind == "agent_event":
            inside = self._inside[-1] if self._inside else None
            step = replace(self._event(line, at, mapping(record.get("event"))), facts=facts, inside=inside)
            self._spawning += [call.id for call in step.calls if call.tool == _SPAWN]
            self._spawning = [call for call in self._spawning if all(call != output.id for output in step.outputs)]
            return step
        if kind == "run_result":
            reason = record.get("finishReason")
            said = text_or_none(record.get("text")) or str(reason)
            failed = said if reason in ("error", "mistake_limit", "max_iterations", "failed") else None
            return Step(line, at, failed=failed, aborted=True if reason == "aborted" else None, facts=facts)
        if kind == "error":
            return Step(line, at, failed=text_or_none(record.get("message")) or "an error", facts=facts)
        return Step(line, at, facts=facts, unknown=None if kind in ("hook_event", "run_start", "team_event") else kind)

    def _subagent(self, event: str) -> None:
        if event == "agent_start":
            left = [call for call in self._spawning if call not in self._inside]
            self._inside += left[:1]
            self._turns += [0] * len(left[:1])
        elif event == "agent_end" and self._inside:
            self._inside.pop()
            self._turns.pop()

    def _facts(self, at: Any) -> dict[str, str]:
        if not self._session and at is not None:
            self._session = _begun_here(at) or "-"
        return only(session=self._session) if self._session != "-" else {}

    def _event(self, line: str, at: Any, event: Mapping[str, Any]) -> Step:
        kind, what = str(event.get("type")), event.get("contentType")
        if kind == "iteration_start":
            self._turns[-1] += 1
        turn = str(self._turns[-1])
        if kind == "content_end" and what in ("text", "reasoning"):
            text, thought = text_or_none(event.get("text")), text_or_none(event.get("reasoning"))
            return Step(line, at, turn=turn, agent="cline", text=text, thinking=thought)
        if what == "tool" and kind == "content_start":
            call = self._reader.called(event)
            return Step(line, at, turn=turn, agent="cline", calls=(call,))
        if what == "tool" and kind == "content_end":
            failed = bool(event.get("error"))
            given = event.get("error") if failed else event.get("output")
            output = self._reader.output(str(event.get("toolCallId")), given, failed)
            return Step(line, at, turn=turn, agent="cline", outputs=(output,))
        if kind == "usage":
            tokens, cost = uncached(counts(event, _TOKENS)), dollars(event.get("cost"))
            return Step(line, at, turn=turn, agent="cline", tokens=tokens, cost=cost)
        if kind == "error":
            return Step(line, at, failed=text_of(event.get("error")) or text_of(event.get("message")) or "an error")
        if kind == "notice":
            return Step(line, at, aside=Aside("notice", text_of(event.get("message"))))
        known = kind in _EVENTS or (kind == "content_end" and what is not None)
        return Step(line, at, unknown=None if known else f"agent_event/{kind}")


def _begun_here(at: Any) -> str | None:
    """The session that began in this folder in the last minutes, if there is just one that has not ended."""
    here: list[str] = []
    for path in sorted(_folder().glob("*/*.json"), reverse=True)[:200]:
        if path.stem != path.parent.name:
            continue
        try:
            about = _loaded(path)[1]
        except (OSError, ValueError):
            continue
        begun, ended = time_of(about.get("started_at")), time_of(about.get("ended_at"))
        is_close = begun is not None and begun - _AWAY < at < begun + _AWAY and (ended is None or at < ended)
        if is_close and about.get("cwd") == os.getcwd():
            here.append(path.stem)
    return here[0] if len(here) == 1 else None
