"""A turn in progress: its content goes to a draft immediately, and to the task when it ends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from decimal import Decimal
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rawko_state.errors import IllegalMove, InvalidValue, RawkoError, Stopped, StorageError
from rawko_state.format.diffs import compared, unified
from rawko_state.format.lines import emit_progress, emit_tools
from rawko_state.format.records import emit_blocks
from rawko_state.model import status
from rawko_state.model.appended import Appended
from rawko_state.model.entries import Json, Money, Progress, Question, Section, ToolCall, Turn
from rawko_state.model.frozen import replace
from rawko_state.redact.stream import Stream

if TYPE_CHECKING:
    from rawko_state.tasks.task import Task


def describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


class LiveTurn:
    """A turn in progress. As a context manager, an exception ends it as failed and propagates.

    Thread-safe: parallel tool calls may begin and end in any order. If the task has been paused or cancelled, every method first
    keeps its input and then raises Stopped.

    >>> with task.turn("developer") as turn:
    ...     turn.say("Fixed.")
    >>> store.turn(task.id, 1).content
    'Fixed.'
    """

    def __init__(self, task: Task, agent: str, model: str | None, durable: bool) -> None:
        emit_blocks([Turn(number=1, agent=agent)])  # reject an unwritable name now, not at the end
        self._task, self.agent, self._durable = task, agent, durable
        self._model = model
        self._lock = task.lock  # one lock for both, because they call each other
        self._draft = task.start_draft(agent, {"model": model} if model else {}, durable)
        self._said, self._thought = Stream(task.redactor), Stream(task.redactor)
        self._outputs: dict[str, Stream] = {}
        """The streamed outputs of running tool calls, by their keys."""
        self._keys = 0
        self._ended = False

    def say(self, text: str) -> None:
        """Adds a piece of streamed text. A possible start of a secret is held back until it is certain.

        >>> turn.say("The token check ")
        >>> turn.say("ignores clock skew.")
        """
        self._task.check_process()
        with self._lock:
            self._open()
            self._keep_piece("text", self._said.feed(text))
        self._task.check()  # after the text is kept

    def think(self, text: str) -> None:
        """Adds a piece of streamed reasoning. It is kept apart from what the agent says.

        >>> turn.think("Perhaps it is the clock.")
        """
        self._task.check_process()
        with self._lock:
            self._open()
            self._keep_piece("think", self._thought.feed(text))
        self._task.check()  # after the text is kept

    def edit(
        self,
        path: str,
        *,
        before: str | None = None,
        after: str | None = None,
        diff: str | None = None,
        tool: str | None = None,
    ) -> None:
        """Adds a change to a file: the contents before and after it (None: there was, or is, no such file), or a unified diff.
        ``tool`` is the key of the call that made it, from begin_tool().

        >>> turn.edit("a.txt", before="one\\n", after="two\\n")
        """
        if diff is not None and (before is not None or after is not None):
            raise InvalidValue("An edit needs either a diff, or the content before and after it.")
        made = unified(diff, path) if diff is not None else (compared(path, before, after),)
        if not made:
            raise InvalidValue(f"Not a unified diff of {path}: {str(diff)[:100]!r}")
        for each in made:
            event = {"kind": "edit", "old": each.old, "new": each.new, "hunks": each.hunks, "key": tool}
            self._add({**event, "added": each.added, "removed": each.removed})

    def tool(
        self,
        tool: str,
        args: str = "",
        result: str | None = None,
        *,
        output: str | None = None,
        time: str | None = None,
        more: Mapping[str, Json] | None = None,
    ) -> None:
        """Adds a finished tool call. ``more`` holds other known values (``id``, ``input`` …).

        >>> turn.tool("shell", "make test", "exit 0", output="ok")
        """
        event = {"kind": "tool", "tool": tool, "args": args, "result": result, "output": output}
        self._add({**event, "time": time or clock(), "more": _more(more)})

    def begin_tool(
        self, tool: str, args: str = "", *, time: str | None = None, more: Mapping[str, Json] | None = None
    ) -> str:
        """Adds a running tool call. If the process dies before end_tool(), the call is marked 'may have run'.

        >>> key = turn.begin_tool("shell", "make test")
        >>> turn.end_tool(key, "exit 0")
        """
        with self._lock:
            self._keys += 1
            key = str(self._keys)
        event = {"kind": "tool", "open": True, "key": key, "tool": tool, "args": args}
        self._add({**event, "time": time or clock(), "more": _more(more)})
        return key

    def tool_output(self, key: str, text: str) -> None:
        """Adds a piece of the output of a running tool call, as it arrives. ``key`` comes from begin_tool().

        >>> key = turn.begin_tool("shell", "make test")
        >>> turn.tool_output(key, "test_login passed")
        >>> turn.end_tool(key, "exit 0")
        """
        self._task.check_process()
        with self._lock:
            self._open()
            if key not in self._draft.content.running:
                raise InvalidValue(f"No tool call is running with the key {key!r}.")
            stream = self._outputs.setdefault(key, Stream(self._task.redactor))
            self._keep_piece("tool_output", stream.feed(text), key=key)
        self._task.check()  # after the text is kept

    def end_tool(
        self,
        key: str,
        result: str | None = None,
        *,
        output: str | None = None,
        more: Mapping[str, Json] | None = None,
    ) -> None:
        """Ends a running tool call. Its output is what tool_output() was given, unless it is given here.

        >>> turn.end_tool(turn.begin_tool("shell", "ls"), "exit 0", output="a.txt")
        """
        with self._lock:
            streamed = self._outputs.pop(key, None)
            if streamed is not None and not self._ended:
                self._keep_piece("tool_output", streamed.flush(), key=key)
        self._add({"kind": "tool_end", "key": key, "result": result, "output": output, "more": _more(more)})

    def progress(self, text: str, kind: str = "progress") -> None:
        """Adds a step. ``kind`` is one word, such as warning or error.

        >>> turn.progress("3 of 10 files")
        """
        emit_progress([Progress(text, kind)])  # rejects what cannot be written
        self._add({"kind": "progress", "text": text, "of": kind, "time": clock()})

    def touch(self, operation: str, path: str) -> None:
        """Adds a file that was read, written or deleted.

        >>> turn.touch("read", "auth/sso.rs")
        """
        if operation not in ("read", "write", "delete"):
            raise InvalidValue(f"Not a file operation: {operation!r}. Use read, write or delete.")
        self._add({"kind": "file", "operation": operation, "path": path})

    def end(
        self,
        outcome: str = "complete",
        *,
        content: str | None = None,
        tokens: Mapping[str, int] | None = None,
        cost: Decimal | str | None = None,
        state: Json = None,
        payload: str | None = None,
        question: Question | None = None,
        reason: str | None = None,
        sections: Mapping[str, str] | None = None,
        snapshot: Json = None,
    ) -> Appended:
        """Records the turn. ``content`` replaces the streamed text, which is the default.

        ``snapshot`` refers to the state of the work tree after the turn: "git" creates one, and an object (provider, ref, path,
        parent, metadata) names an existing one.

        >>> turn.say("Fixed.")
        >>> turn.end(tokens={"in": 1200, "out": 30}, cost="0.02", state={"step": 2}).state.turns
        1
        """
        if payload is not None and not isinstance(payload, str):
            raise InvalidValue("A payload must be text: the provider's messages, one JSON value per line.")
        with self._lock:
            self._open()
            self._flush()
            draft = self._draft.content
            turn = replace(
                draft.interrupted(1),
                status=status.WAITING if question is not None else outcome,
                duration_ms=int((datetime.now(timezone.utc) - draft.started).total_seconds() * 1000),
                model=self._model,
                tokens=dict(tokens or {}),
                cost=None if cost is None else Money(Decimal(cost)),
                state=state,
                payload=payload,
                question=question,
                reason=reason,
                sections=tuple(Section(name, text) for name, text in (sections or {}).items()),
            )
            if content is not None:
                turn = replace(turn, content=content)
            try:
                appended = self._task.add_turn(turn, snapshot=snapshot)
            except Stopped:
                self._done()  # it was recorded as an interrupted turn
                raise
            except IllegalMove:
                self.leave()  # the task was finished meanwhile: keep the content for whoever resumes it
                raise
            self._done()
            return appended

    def _done(self) -> None:
        """Cleans up once the turn is in the task file."""
        self._ended = True
        self._draft.discard()
        self._task.turn_ended()

    def ask(
        self,
        question: str,
        choices: Iterable[str] = (),
        *,
        default: str | None = None,
        deadline: datetime | None = None,
        kind: str = "question",
        timeout: float | None = None,
    ) -> str:
        """Ends the turn with a question, waits for the answer, which may come from any process, and returns it.

        At the deadline, the default becomes the answer. Without a default, or after ``timeout`` seconds, raises NoAnswer and
        leaves the question pending.

        >>> turn.ask("Go on?", ["yes", "no"], timeout=0)
        Traceback (most recent call last):
        NoAnswer: Task ...: no answer within 0 s.
        """
        asked = Question(question, tuple(choices), default, deadline, kind)
        check_question(asked)
        appended = self.end(question=asked)
        return self._task.wait_for_answer(timeout, number=appended.state.turns)

    def approve(
        self, tool: str, args: str = "", *, deadline: datetime | None = None, timeout: float | None = None
    ) -> bool:
        """Asks to approve a tool call. At the deadline, the answer is no, the safe default.

        >>> turn.approve("shell", "rm -r build", timeout=0)
        Traceback (most recent call last):
        NoAnswer: Task ...: no answer within 0 s.
        """
        words = f"{tool} {args}".rstrip()
        return (
            self.ask(words, ("yes", "no"), default="no", deadline=deadline, kind="approval", timeout=timeout) == "yes"
        )

    def discard(self) -> None:
        """Discards the turn without recording it.

        >>> turn.say("half")
        >>> turn.discard()
        """
        with self._lock:
            if not self._ended:
                self._done()

    def leave(self) -> None:
        """Leaves the draft for the next writer, which turns it into an interrupted turn.

        >>> turn.say("half")
        >>> turn.leave()
        """
        with self._lock:
            if not self._ended:
                self._ended = True
                with contextlib.suppress(StorageError):
                    self._flush()
                self._draft.leave()
                self._task.turn_ended()

    def _open(self) -> None:
        if self._ended:
            raise RawkoError(f"Task {self._task.id}: this turn of {self.agent} has already ended.")

    def _keep_piece(self, kind: str, text: str, **more: str) -> None:
        if text:
            self._draft.add({"kind": kind, "text": text, **more}, durable=self._durable)

    def _flush(self) -> None:
        """Keeps what was held back because it might have been the start of a secret."""
        self._keep_piece("think", self._thought.flush())
        self._keep_piece("text", self._said.flush())
        for key, stream in self._outputs.items():
            self._keep_piece("tool_output", stream.flush(), key=key)

    def _add(self, event: dict[str, Any]) -> None:
        self._task.check_process()
        clean = self._task.redactor.value(event)
        with self._lock:
            self._open()
            if event["kind"] == "tool":
                self._keep_piece("think", self._thought.flush())  # it came before the tool call
                self._keep_piece("text", self._said.flush())
            self._draft.add(clean, durable=self._durable)
        self._task.check()  # after the event is kept

    def __enter__(self) -> LiveTurn:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ended:
            return
        if error is None:
            self.end()
        elif isinstance(error, Stopped):
            self.end("interrupted", reason=str(error))
        elif isinstance(error, Exception):
            self.end("failed", reason=describe(error))
        else:
            self.end("interrupted", reason=describe(error))


def _more(given: Mapping[str, Json] | None) -> dict[str, Json]:
    more = dict(given or {})
    emit_tools([ToolCall("tool", more=more)])  # rejects what cannot be written
    return more


def clock() -> str:
    """The current time in the tool log's format."""
    return datetime.now(timezone.utc).strftime("%H:%M:%S")


def check_question(question: Question) -> None:
    """Rejects a default that is not one of the choices, as it could never be the answer."""
    if question.choices and question.default is not None and question.default not in question.choices:
        raise InvalidValue(
            f"The default {question.default!r} is not one of the choices: {', '.join(question.choices)}."
        )
