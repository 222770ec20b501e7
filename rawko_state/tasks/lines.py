"""The line protocol: JSON objects that drive a Task, one per line. Described in docs/reference/record.md."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, ClassVar

from rawko_state.errors import InvalidValue
from rawko_state.format.diffs import compared, unified
from rawko_state.format.fair_json import shallow
from rawko_state.format.parts import read_money
from rawko_state.format.values import read_time, read_tokens, write_tokens
from rawko_state.model.appended import Appended, BeforeWrite
from rawko_state.model.entries import (
    Diff,
    Field,
    FileTouch,
    Parent,
    Progress,
    Question,
    Section,
    ToolCall,
    Turn,
    x_name,
)
from rawko_state.model.frozen import replace
from rawko_state.store.contract import Store
from rawko_state.tasks.live_turn import LiveTurn
from rawko_state.tasks.task import Task

_TEXT = (str,)
_OPTIONAL_TEXT = (str, type(None))
_START = ("title", "agent", "model", "provider", "repo", "branch", "commit", "cwd", "runtime", "user", "by", "source")


class Recorder:
    """Processes the lines of one task."""

    def __init__(
        self,
        store: Store,
        task: Task | None = None,
        *,
        detached: bool = False,
        before: BeforeWrite | None = None,
    ) -> None:
        """With a task, continues it; otherwise the first line starts or resumes one. It is ``detached`` if there is no process
        whose death should end it. ``before`` is passed on to start()."""
        self._store, self._detached, self._before = store, detached, before
        self._task: Task | None = task
        self._live: LiveTurn | None = None
        self._open_tools: dict[str, str] = {}
        self._tools: dict[str, str] = {}
        """The keys of the calls of the live turn, by the ids that the client gave them."""

    def take(self, line: bytes) -> dict[str, Any]:
        """Executes one line durably, and returns the acknowledgement."""
        try:
            data = json.loads(shallow(line))
        except ValueError as error:
            raise InvalidValue(f"Not valid JSON: {error}.") from None
        if not isinstance(data, dict):
            raise InvalidValue("Not a JSON object.")
        return self.do(data.pop("type", None), data)

    def do(self, kind: Any, data: dict[str, Any]) -> dict[str, Any]:
        """Executes one object, given without its type."""
        action = self._ACTIONS.get(kind) if isinstance(kind, str) else None
        if action is None:
            raise InvalidValue(f"Unknown type: {kind!r}. Known: {', '.join(self._ACTIONS)}.")
        answer = action(self, data)
        if data:
            # Report unknown keys: a misspelt one would otherwise be lost silently.
            answer["unknown"] = sorted(data)
        return answer

    def end_turn(self) -> None:
        """Ends an open turn as interrupted."""
        if self._live is not None:
            live, self._live = self._live, None
            live.end("interrupted")

    def close(self) -> None:
        """Call at the end of the input. Ends an open turn as interrupted."""
        try:
            self.end_turn()
        finally:
            if self._task is not None:
                self._task.close()

    @property
    def task(self) -> Task | None:
        """The task that was started or resumed."""
        return self._task

    def _running(self) -> Task:
        if self._task is None:
            raise InvalidValue("No task yet. The first line must have type start or resume.")
        return self._task

    def _start(self, data: dict[str, Any]) -> dict[str, Any]:
        if self._task is not None:
            raise InvalidValue(f"Task {self._task.id} has already started. Use one stream per task.")
        request = _take(data, "request", _TEXT)
        options = {name: _take(data, name, _OPTIONAL_TEXT, None) for name in _START}
        labels = _strings(data, "labels")
        fields = _strings(data, "fields")
        sections = _strings(data, "sections")
        given: dict[str, Any] = {
            **options,
            "id": _take(data, "id", _OPTIONAL_TEXT, None),
            "exact": _take(data, "exact", (bool,), False),
            "labels": labels,
            "fields": fields,
            "sections": sections,
            "parent": _parent(data),
            "created": _time(data, "created"),
            "before": self._before,
        }
        find = _take(data, "find", (bool,), False)
        if find:
            source = given.pop("source")
            if source is None:
                raise InvalidValue("With 'find', a start needs a source.")
            self._task = self._store.open_task(source, request, **given)
        else:
            self._task = self._store.start(request, detached=self._detached, **given)
        started = {"task": self._task.id, "seal": self._task.seal}
        return {**started, "new": self._task.is_new} if find else started

    def _resume(self, data: dict[str, Any]) -> dict[str, Any]:
        if self._task is not None:
            raise InvalidValue(f"Task {self._task.id} is already open. Use one stream per task.")
        self._task = self._store.resume(
            _take(data, "task", _TEXT),
            by=_take(data, "by", _OPTIONAL_TEXT, None),
            message=_take(data, "message", _OPTIONAL_TEXT, None),
            detached=self._detached,
        )
        return {"task": self._task.id, "turn": self._task.state.turns, "seal": self._task.seal}

    def _turn(self, data: dict[str, Any]) -> dict[str, Any]:
        task = self._running()
        agent = _take(data, "agent", _TEXT)
        if _take(data, "open", (bool,), False):
            self._live = task.turn(agent, model=_take(data, "model", _OPTIONAL_TEXT, None), durable=True)
            self._open_tools, self._tools = {}, {}
            return {"task": task.id}
        question = data.pop("question", None)
        turn = Turn(
            number=1,
            agent=agent,
            status=_take(data, "status", _TEXT, "waiting" if question is not None else "complete"),
            duration_ms=_take(data, "duration_ms", (int, type(None)), None),
            started=_time(data, "started"),
            model=_take(data, "model", _OPTIONAL_TEXT, None),
            tokens=_tokens(data),
            cost=_cost(data),
            by=_take(data, "by", _OPTIONAL_TEXT, None),
            reason=_take(data, "reason", _OPTIONAL_TEXT, None),
            thinking=_take(data, "thinking", _OPTIONAL_TEXT, None),
            content=_take(data, "content", _OPTIONAL_TEXT, None),
            diffs=tuple(diff for edit in _take(data, "edits", (list,), []) for diff in _diffs(edit)),
            tools=tuple(_tool(call) for call in _take(data, "tools", (list,), [])),
            progress=tuple(_progress(step) for step in _take(data, "progress", (list,), [])),
            files=tuple(_file(file) for file in _take(data, "files", (list,), [])),
            question=_question(question) if question is not None else None,
            state=data.pop("state", None),
            payload=_take(data, "payload", _OPTIONAL_TEXT, None),
            extra=tuple(Field(x_name(name), text) for name, text in _strings(data, "fields").items()),
            sections=tuple(Section(name, text) for name, text in _strings(data, "sections").items()),
        )
        if turn.tools:
            turn = replace(turn, tool_calls=len(turn.tools))
        expect = _take(data, "expect", _OPTIONAL_TEXT, None)
        return self._told(task.add_turn(turn, expect=expect, snapshot=data.pop("snapshot", None)))

    def _text(self, data: dict[str, Any]) -> dict[str, Any]:
        self._open_turn().say(_take(data, "text", _TEXT))
        return {"task": self._running().id}

    def _tool_line(self, data: dict[str, Any]) -> dict[str, Any]:
        live = self._open_turn()
        key = _take(data, "id", _OPTIONAL_TEXT, None)
        if key is not None and key in self._open_tools:
            result, output = _take(data, "result", _OPTIONAL_TEXT, None), _take(data, "output", _OPTIONAL_TEXT, None)
            live.end_tool(self._open_tools.pop(key), result, output=output, more=data)
        else:
            running = _take(data, "running", (bool,), False)
            call = _tool(data, key)
            if running and key is not None:
                begun = live.begin_tool(call.tool, call.args, time=call.time, more=call.more)
                self._open_tools[key] = self._tools[key] = begun
            else:
                live.tool(call.tool, call.args, call.result, output=call.output, time=call.time, more=call.more)
        data.clear()
        return {"task": self._running().id}

    def _output_line(self, data: dict[str, Any]) -> dict[str, Any]:
        live, key = self._open_turn(), _take(data, "id", _TEXT)
        if key not in self._open_tools:
            raise InvalidValue(f"No tool call is running with the id {key!r}.")
        live.tool_output(self._open_tools[key], _take(data, "text", _TEXT))
        return {"task": self._running().id}

    def _progress_line(self, data: dict[str, Any]) -> dict[str, Any]:
        self._open_turn().progress(_take(data, "text", _TEXT), _take(data, "kind", _TEXT, "progress"))
        return {"task": self._running().id}

    def _thinking_line(self, data: dict[str, Any]) -> dict[str, Any]:
        self._open_turn().think(_take(data, "text", _TEXT))
        return {"task": self._running().id}

    def _edit_line(self, data: dict[str, Any]) -> dict[str, Any]:
        live = self._open_turn()
        key = _take(data, "id", _OPTIONAL_TEXT, None)
        options = {name: _take(data, name, _OPTIONAL_TEXT, None) for name in ("before", "after", "diff")}
        live.edit(_take(data, "path", _TEXT), tool=self._tools.get(key) if key is not None else None, **options)
        return {"task": self._running().id}

    def _file_line(self, data: dict[str, Any]) -> dict[str, Any]:
        self._open_turn().touch(_take(data, "operation", _TEXT), _take(data, "path", _TEXT))
        return {"task": self._running().id}

    def _end(self, data: dict[str, Any]) -> dict[str, Any]:
        live = self._open_turn()
        cost = _cost(data)
        self._live = None  # even if the task turns out to be stopped: the turn is kept
        appended = live.end(
            _take(data, "status", _TEXT, "complete"),
            content=_take(data, "content", _OPTIONAL_TEXT, None),
            tokens=_tokens(data),
            cost=None if cost is None else cost.amount,
            state=data.pop("state", None),
            payload=_take(data, "payload", _OPTIONAL_TEXT, None),
            reason=_take(data, "reason", _OPTIONAL_TEXT, None),
            sections=_strings(data, "sections"),
            snapshot=data.pop("snapshot", None),
        )
        return self._told(appended)

    def _decision(self, data: dict[str, Any]) -> dict[str, Any]:
        names = ("selected", "decision", "reason", "guidance")
        options = {name: _take(data, name, _OPTIONAL_TEXT, None) for name in names}
        return self._told(self._running().decide(agent=_take(data, "agent", _TEXT, "arbiter"), **options))

    def _note(self, data: dict[str, Any]) -> dict[str, Any]:
        appended = self._running().note(
            _take(data, "text", _OPTIONAL_TEXT, None),
            title=_take(data, "title", _OPTIONAL_TEXT, None),
            labels=_strings(data, "labels"),
            unlabel=_texts(data, "unlabel"),
            pinned=_take(data, "pinned", (bool, type(None)), None),
            by=_take(data, "by", _OPTIONAL_TEXT, None),
            kind=_take(data, "kind", _OPTIONAL_TEXT, None),
            data=data.pop("data", None),
            in_context=_take(data, "in_context", (bool, type(None)), None),
        )
        return self._told(appended)

    def _ask(self, data: dict[str, Any]) -> dict[str, Any]:
        agent = _take(data, "agent", _TEXT)
        content = _take(data, "content", _OPTIONAL_TEXT, None)
        return self._told(self._running().ask(agent, _question(data), content=content))

    def _wait(self, data: dict[str, Any]) -> dict[str, Any]:
        timeout = _take(data, "timeout", (int, float, type(None)), None)
        return {"task": self._running().id, "answer": self._running().wait_for_answer(timeout)}

    def _answer(self, data: dict[str, Any]) -> dict[str, Any]:
        by = _take(data, "by", _OPTIONAL_TEXT, None)
        return self._told(self._running().answer(_take(data, "text", _TEXT), by=by))

    def _result(self, data: dict[str, Any]) -> dict[str, Any]:
        task = self._running()
        self.end_turn()
        appended = task.finish(
            _take(data, "status", _TEXT, "success"),
            _take(data, "summary", _OPTIONAL_TEXT, None),
            files=_texts(data, "files"),
            error=_take(data, "error", _OPTIONAL_TEXT, None),
            by=_take(data, "by", _OPTIONAL_TEXT, None),
            output=data.pop("output", None),
            tokens=_tokens(data),
            cost=None if (cost := _cost(data)) is None else cost.amount,
        )
        return self._told(appended)

    _ACTIONS: ClassVar[dict[str, Callable[[Recorder, dict[str, Any]], dict[str, Any]]]] = {
        "start": _start,
        "resume": _resume,
        "turn": _turn,
        "text": _text,
        "tool": _tool_line,
        "output": _output_line,
        "progress": _progress_line,
        "file": _file_line,
        "thinking": _thinking_line,
        "edit": _edit_line,
        "end": _end,
        "decision": _decision,
        "note": _note,
        "ask": _ask,
        "wait": _wait,
        "answer": _answer,
        "result": _result,
    }

    def _open_turn(self) -> LiveTurn:
        self._running()
        if self._live is None:
            raise InvalidValue('No turn is open. Start one with {"type": "turn", "agent": "NAME", "open": true}.')
        return self._live

    def _told(self, appended: Appended) -> dict[str, Any]:
        return {"task": self._running().id, "turn": appended.state.turns, "seal": appended.seal}


TYPES = frozenset(Recorder._ACTIONS)
_MISSING: Any = object()


def _take(data: dict[str, Any], name: str, kinds: tuple[type, ...], default: Any = _MISSING) -> Any:
    """Pops a value of one of these types from the line."""
    value = data.pop(name, default)
    if value is default:
        if value is _MISSING:
            raise InvalidValue(f"{name!r} is required.")
        return value
    wrong_bool = isinstance(value, bool) and bool not in kinds
    if not isinstance(value, kinds) or wrong_bool:
        wanted = " or ".join(
            {"str": "a string", "NoneType": "null", "int": "a whole number"}.get(k.__name__, f"a {k.__name__}")
            for k in kinds
        )
        raise InvalidValue(f"{name!r} must be {wanted}")
    return value


def _texts(data: dict[str, Any], name: str) -> list[str]:
    value = data.pop(name, None) or []
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise InvalidValue(f"{name!r} must be a list of strings")
    return value


def _strings(data: dict[str, Any], name: str) -> dict[str, str]:
    value = data.pop(name, None) or {}
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise InvalidValue(f"{name!r} must be an object of strings")
    return value


def _tokens(data: dict[str, Any]) -> dict[str, int]:
    value = data.pop("tokens", None) or {}
    if not isinstance(value, dict) or not all(type(count) is int and count >= 0 for count in value.values()):
        raise InvalidValue("'tokens' must be an object of integers.")
    if value and read_tokens(write_tokens(value)) != value:
        raise InvalidValue("Names in 'tokens' must be lower-case words such as in, out, cache_read.")
    return value


def _cost(data: dict[str, Any]) -> Any:
    value = data.pop("cost", None)
    if value is None:
        return None
    price = read_money(f"{value} USD") if isinstance(value, (str, int, float)) else None
    if price is None:
        raise InvalidValue("'cost' must be an amount in USD, preferably a string such as \"0.0123\".")
    return price


def _time(data: dict[str, Any], name: str) -> Any:
    value = data.pop(name, None)
    if value is None:
        return None
    time = read_time(value) if isinstance(value, str) else None
    if time is None:
        raise InvalidValue(f"{name!r} must be a time such as 2024-01-15T10:30:00Z.")
    return time


def _parent(data: dict[str, Any]) -> Parent | None:
    value = _take(data, "parent", _OPTIONAL_TEXT, None)
    if value is None:
        return None
    task, at, turn = value.partition("@")
    if not task.isalnum() or (at and not (turn.isdecimal() and len(turn) < 18)):
        raise InvalidValue("'parent' must be a task id, or id@turn.")
    return Parent(task, int(turn) if at else None)


def _tool(data: Any, key: str | None = None) -> ToolCall:
    if not isinstance(data, dict):
        raise InvalidValue("A tool call must be an object.")
    data = dict(data)
    return ToolCall(
        tool=_take(data, "tool", _TEXT),
        args=_take(data, "args", _TEXT, ""),
        result=_take(data, "result", _OPTIONAL_TEXT, None),
        time=_take(data, "time", _OPTIONAL_TEXT, None),
        output=_take(data, "output", _OPTIONAL_TEXT, None),
        more=data if key is None else {"id": key, **data},  # what is left
    )


def _diffs(data: Any) -> tuple[Diff, ...]:
    if not isinstance(data, dict):
        raise InvalidValue("An edit must be an object with a path, and a diff or before and after.")
    path, diff = _take(data, "path", _TEXT), _take(data, "diff", _OPTIONAL_TEXT, None)
    before, after = _take(data, "before", _OPTIONAL_TEXT, None), _take(data, "after", _OPTIONAL_TEXT, None)
    if diff is None:
        return (compared(path, before, after),)
    found = unified(diff, path)
    if not found or before is not None or after is not None:
        raise InvalidValue("An edit needs either a unified diff, or the content before and after it.")
    return found


def _progress(data: Any) -> Progress:
    if not isinstance(data, dict):
        raise InvalidValue("A progress step must be an object.")
    return Progress(
        _take(data, "text", _TEXT), _take(data, "kind", _TEXT, "progress"), _take(data, "time", _OPTIONAL_TEXT, None)
    )


def _file(data: Any) -> FileTouch:
    if not isinstance(data, dict) or data.get("operation") not in ("read", "write", "delete"):
        raise InvalidValue("A file must be an object with 'operation' (read, write or delete) and 'path'.")
    return FileTouch(data["operation"], _take(data, "path", _TEXT))


def _question(data: Any) -> Question:
    if not isinstance(data, dict):
        raise InvalidValue("A question must be an object.")
    choices = _take(data, "choices", (list,), [])
    if not all(isinstance(choice, str) for choice in choices):
        raise InvalidValue("'choices' must be strings")
    return Question(
        _take(data, "text", _TEXT),
        tuple(choices),
        _take(data, "default", _OPTIONAL_TEXT, None),
        _time(data, "deadline"),
        _take(data, "kind", _TEXT, "question"),
    )
