"""A task that is open for writing: turns, decisions, questions, notes and the result, each durable when its call returns."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from rawko_state.errors import IllegalMove, InvalidValue, NoAnswer, RawkoError, Stopped
from rawko_state.format.seal import GENESIS
from rawko_state.model import status
from rawko_state.model.appended import Appended, Position
from rawko_state.model.entries import (
    MEMORY,
    UNKNOWN_USER,
    Entry,
    Execution,
    Json,
    Money,
    Note,
    Question,
    Request,
    Result,
    Resumed,
    Section,
    Turn,
)
from rawko_state.model.frozen import replace
from rawko_state.model.state import TaskState
from rawko_state.redact.redactor import Redactor
from rawko_state.tasks.draft import Draft, DraftContent
from rawko_state.tasks.live_turn import LiveTurn, check_question, describe
from rawko_state.tasks.writer import BeforeWrite, Writer

LOOK_EVERY: Final = 0.05
"""Seconds between two looks for an answer."""


def _now() -> datetime:
    return datetime.now(timezone.utc)


class Task:
    """One task, open for writing. Thread-safe: concurrent calls are serialised.

    As a context manager it records how the block ended: an exception fails the task, KeyboardInterrupt cancels it, and a block
    that ends normally without finish() is a success.

    >>> with store.start("Fix it") as task:
    ...     _ = task.add_turn(Turn(agent="developer", content="Fixed."))
    >>> store.status(task.id)
    'completed'
    """

    def __init__(self, writer: Writer, redactor: Redactor, *, is_new: bool = False) -> None:
        self.id = writer.id
        self.is_new = is_new
        """Whether the call that opened the task also made it."""
        self.redactor = redactor
        self._writer = writer
        # The append lock belongs to the open file, which the threads of a Task share, so it does not keep them from interleaving.
        self.lock = threading.RLock()
        self._process = os.getpid()
        self._began = _now()
        self._live: LiveTurn | None = None
        self._seen: Position | None = None
        """The position before others last appended."""
        self.before_write: BeforeWrite | None = None
        """Called with each record just before it is written, for callers that write something with it."""
        self.expected: str | None = None
        """The seal that the next record must follow. If it is no longer the last one, ChainMoved is raised."""
        self._clean_kinds: tuple[str | None, ...] = ()
        """Kinds of notes in which there is no secret."""

    # Current state

    @property
    def state(self) -> TaskState:
        """The state as last read or written here."""
        return self._writer.position().state

    @property
    def root(self) -> Path:
        """The project's folder."""
        return self._writer.root

    @property
    def seal(self) -> str:
        """The last seal, which conditional appends compare with."""
        return self._writer.position().seal

    @property
    def end(self) -> int:
        """Where the last record ends."""
        return self._writer.position().end

    def refresh(self) -> TaskState:
        """The task's current state, including what other processes have appended.

        >>> task.refresh().status
        'running'
        """
        with self.lock:
            return self._writer.refresh()

    def holds(self, seal: str) -> bool:
        """Whether the task has a record with this seal. Check this after OutcomeUnknown, before retrying.

        >>> task.holds(task.seal), task.holds("0123456789abcdef")
        (True, False)
        """
        with self.lock:
            return self._writer.holds(seal)

    def check(self) -> None:
        """Raises Stopped if the task was paused or cancelled. Costs one check of its size.

        >>> task.check()
        """
        with self.lock:
            if self._writer.has_grown():
                self._seen = self._writer.position()
                self._writer.refresh()
            if self.state.status in (status.PAUSED, status.CANCELLED):
                self._stop()

    def _stop(self, before: Position | None = None) -> None:
        """Raises Stopped with who stopped the task and why. Searches after ``before``, unless it was already stopped by then."""
        by = reason = None
        known = before is None or before.state.status in (status.PAUSED, status.CANCELLED)
        since = self._seen if known else before
        for entry in self._writer.entries_since(*((since.end, since.seal) if since is not None else (0, GENESIS))):
            if isinstance(entry, (Note, Result)) and entry.status is not None:
                by, reason = entry.by, entry.reason
        raise Stopped(self.id, self.state.status, by, reason)

    # Turns

    def turn(self, agent: str, *, model: str | None = None, durable: bool = False) -> LiveTurn:
        """Starts a live turn: its content goes to a draft immediately, and to the task file when it ends.

        With ``durable``, every piece is synced as it arrives, so it survives a power cut too.

        >>> with task.turn("developer", model="m-1") as turn:
        ...     turn.say("Working on it.")
        """
        with self.lock:
            if self._live is not None:
                raise RawkoError(f"Task {self.id}: end the turn of {self._live.agent} first.")
            if not self._writer.is_leased:
                raise RawkoError(
                    f"This process does not run task {self.id}, so it can't open a live turn. Resume the task first."
                )
            self.check()
            if self.state.is_finished:
                advice = f"Reopen it first: rawko resume --open {self.id}"
                raise IllegalMove(self.id, self.state.status, status.RUNNING, advice=advice)
            self._live = LiveTurn(self, agent, model, durable)
            return self._live

    def add_turn(self, turn: Turn, *, expect: str | None = None, snapshot: Json = None) -> Appended:
        """Adds a turn that has already happened. Its number is assigned here.

        If the task that this process runs was paused or cancelled, the turn is kept (as interrupted, if it would otherwise be
        rejected), and then Stopped is raised.

        >>> task.add_turn(Turn(agent="developer", content="Done.", tokens={"in": 12, "out": 3})).state.turns
        1
        """
        self.check_process()
        if turn.status is not None and (word := status.turn_status(turn.status)) != turn.status:
            turn = replace(turn, status=word)
        if snapshot is not None:
            turn = replace(turn, sections=(*turn.sections, self._snapshot(snapshot)))
        with self.lock, self._writer.keeping_blobs(turn):
            turn = self._cleaned_turn(_timed(turn))
            before = self._writer.position()
            try:
                appended = self._append_clean(_numbered([turn]), expect)
            except IllegalMove:
                if not self._writer.is_leased or self.state.status not in (status.PAUSED, status.CANCELLED):
                    raise
                reason = turn.reason or f"the task was {self.state.status}"
                self._append_clean(_numbered([replace(turn, status=status.INTERRUPTED, reason=reason)]), expect)
                self._stop(before)
                raise
            if self._writer.is_leased and appended.state.status == status.PAUSED:
                self._stop(before)
            return appended

    def add(self, entries: Sequence[Entry], *, expect: str | None = None) -> Appended:
        """Adds several entries as one record, for importers. Turn numbers are assigned here.

        >>> task.add([Turn(agent="developer", content="One."), Turn(agent="developer", content="Two.")]).state.turns
        2
        """
        keeping = (
            self._writer.keeping_blobs()
            if any(isinstance(each, Turn) for each in entries)
            else contextlib.nullcontext()
        )
        with self.lock, keeping:
            clean = [self._cleaned_turn(each) if isinstance(each, Turn) else self._cleaned(each) for each in entries]
            return self._append_clean(_numbered(clean), expect)

    def decide(
        self,
        *,
        selected: str | None = None,
        decision: str | None = None,
        reason: str | None = None,
        guidance: str | None = None,
        agent: str = "arbiter",
    ) -> Appended:
        """Adds an arbiter's turn: who is next, or what happens to the task.

        >>> task.decide(selected="reviewer", reason="the change is ready").state.selected
        'reviewer'
        """
        if selected is None and decision is None:
            raise InvalidValue("A decision needs 'selected', or one of complete, retry, continue.")
        return self.add_turn(Turn(agent=agent, selected=selected, decision=decision, reason=reason, guidance=guidance))

    def say(self, text: str, *, by: str | None = None) -> Appended:
        """Adds a message from the user.

        >>> _ = task.say("Please hurry.", by="Ann")
        >>> store.turn(task.id, 1).agent
        'user'
        """
        return self._append([Turn(agent="user", by=by or UNKNOWN_USER, started=_now(), content=text)])

    def _snapshot(self, wanted: Json) -> Section:
        """The section that describes the state of the work tree."""
        from rawko_state.tasks.snapshots import failed, snapshot  # rarely used, and it imports subprocess

        try:
            return Section("Snapshot", snapshot(self.root, self.id, wanted))
        except InvalidValue:
            raise
        except RawkoError as error:
            return Section("Snapshot", failed(str(error)))  # the turn happened anyway

    # Questions

    def ask(self, agent: str, question: Question, *, content: str | None = None) -> Appended:
        """Adds a turn that ends with a question. The task then waits for the answer.

        >>> task.ask("developer", Question("Which one?", ("first", "second"))).state.status
        'waiting'
        """
        check_question(question)
        return self.add_turn(Turn(agent=agent, status=status.WAITING, content=content, question=question))

    def question(self) -> Question | None:
        """The pending question.

        >>> task.question() is None
        True
        """
        with self.lock:
            number = self._writer.refresh().question
            return None if number is None else self._turn_at(number).question

    def wait_for_answer(self, timeout: float | None = None, *, number: int | None = None) -> str:
        """Waits until the pending question, or that of turn ``number``, is answered by any process. Returns the answer.

        At the question's deadline its default becomes the answer. Without a default, or after ``timeout`` seconds, raises
        NoAnswer. Raises Stopped if the task is paused or cancelled instead.

        >>> _ = task.ask("developer", Question("Go on?"))
        >>> task.wait_for_answer(timeout=0)
        Traceback (most recent call last):
        NoAnswer: Task ...: no answer within 0 s.
        """
        look = self.looking_for_answer(timeout, number=number)
        while (found := look()) is None:
            time.sleep(LOOK_EVERY)
        return found

    def looking_for_answer(
        self, timeout: float | None = None, *, number: int | None = None
    ) -> Callable[[], str | None]:
        """wait_for_answer() for callers that do the waiting themselves: call it every LOOK_EVERY seconds until it answers."""
        with self.lock:
            wanted = self._writer.refresh().question if number is None else number
            if wanted is None:
                raise NoAnswer(f"Task {self.id} is not waiting for an answer.")
            asked = self._turn_at(wanted).question
        until = None if timeout is None else time.monotonic() + timeout
        return lambda: self._look_for_answer(wanted, asked, until, timeout or 0.0)

    def _look_for_answer(self, number: int, asked: Question | None, until: float | None, timeout: float) -> str | None:
        with self.lock:
            self.check()
            if self.state.question != number:
                return self._answer_to(number)
        if asked is not None and asked.deadline is not None and _now() >= asked.deadline:
            if asked.default is None:
                raise NoAnswer(f"Task {self.id}: no answer by {asked.deadline:%Y-%m-%d %H:%M:%S}.")
            with contextlib.suppress(NoAnswer):  # somebody may have been faster
                self.answer(asked.default, by="deadline")
            return self._answer_to(number)
        if until is not None and time.monotonic() >= until:
            raise NoAnswer(f"Task {self.id}: no answer within {timeout:g} s.")
        return None

    def answer(self, text: str, *, by: str | None = None) -> Appended:
        """Answers the pending question. If it offers choices, the answer must be one of them: its text or its number.

        >>> _ = task.ask("developer", Question("Which one?", ("first", "second")))
        >>> task.answer("2", by="Ann").state.status
        'running'
        """
        with self.lock:
            asked = self.question()
            if asked is None:
                raise NoAnswer(f"Task {self.id} is not waiting for an answer.")
            said = Turn(agent="user", by=by or UNKNOWN_USER, started=_now(), content=chosen(asked, text))
            answer = self._cleaned(said)

            def make(state: TaskState) -> list[Entry]:
                if state.question is None:
                    raise NoAnswer(f"Task {self.id} is no longer waiting: someone else has answered.")
                return [replace(answer, number=state.turns + 1, answers=state.question)]

            return self._append_clean(make)

    def _turn_at(self, number: int) -> Turn:
        for turn in self._writer.last_turns():
            if turn.number == number:
                return turn
        raise RawkoError(f"Task {self.id} has no turn {number}.")

    def _answer_to(self, number: int) -> str:
        for turn in self._writer.last_turns():
            if turn.answers == number:
                return turn.content or ""
        raise RawkoError(f"Task {self.id}: turn {number} has no answer.")

    # Notes and status

    def note(
        self,
        text: str | None = None,
        *,
        title: str | None = None,
        labels: Mapping[str, str] | None = None,
        unlabel: Sequence[str] = (),
        pinned: bool | None = None,
        by: str | None = None,
        kind: str | None = None,
        data: Json = None,
        in_context: bool | None = None,
    ) -> Appended:
        """Adds a title, labels, a pin, or any data outside the conversation (``in_context``: as part of it).

        >>> task.note("Reviewed", title="Login", labels={"team": "auth"}, kind="review", data={"ok": True}).state.title
        'Login'
        """
        note = Note(
            at=_now().replace(microsecond=0),
            by=by,
            title=title,
            labels=dict(labels or {}),
            unlabel=tuple(unlabel),
            pinned=pinned,
            kind=kind,
            context=None if in_context is None else ("in" if in_context else "out"),
            content=text,
            data=data,
        )
        return self._append([note])

    def remember(self, *, by: str | None = None, **what: Json) -> Appended:
        """Stores values to remember from now on: ``system_prompt``, ``preferences``, ``context``, ``summary`` or
        ``important_steps``. Each replaces the previous value of its kind. Store.memory() reads them.

        >>> _ = task.remember(preferences={"style": "short"})
        >>> store.memory(task.id)
        {'preferences': {'style': 'short'}}
        """
        unknown = [name for name in what if name not in MEMORY]
        if unknown or not what:
            raise InvalidValue(f"A task remembers {', '.join(MEMORY)}, not {', '.join(unknown) or 'nothing'}.")
        now = _now().replace(microsecond=0)
        return self._append([Note(at=now, by=by, kind=name, context="out", data=value) for name, value in what.items()])

    def set_status(self, wanted: str, *, by: str | None = None, reason: str | None = None) -> Appended:
        """Pauses, cancels or continues the task, from any process. Cancelling ends the run, so it is recorded as a result.

        >>> task.set_status("paused", by="Ann", reason="lunch").state.status
        'paused'
        """
        with self.lock:
            note = self._cleaned(Note(at=_now().replace(microsecond=0), by=by, status=wanted, reason=reason))
            result = replace(self._result("cancelled"), by=note.by, reason=note.reason)
            return self._append_clean(lambda state: [result if wanted == status.CANCELLED != state.status else note])

    def reopen(self, *, by: str | None = None, detached: bool = False, message: str | None = None) -> Appended:
        """Continues the run (RESUMED). A detached task releases its lease again.

        With a message, a finished task gets another run that begins with it; otherwise the message is a turn of the user.

        >>> _ = task.set_status("paused")
        >>> task.reopen().state.status
        'running'
        """
        now = _now().replace(microsecond=0)
        with self.lock:
            asked = self.question() if message is not None else None
            if asked is not None and message is not None:
                message = chosen(asked, message)
            resumed = self._cleaned(Resumed(at=now, by=by, writer="detached" if detached else None))
            request = self._cleaned(Request(text=message or "", by=by, at=now))
            said = self._cleaned(Turn(agent="user", by=by or UNKNOWN_USER, started=now, content=message))

            def make(state: TaskState) -> list[Entry]:
                if message is None:
                    return [resumed]
                if state.is_finished:
                    return [request, Execution(), resumed]
                return [resumed, replace(said, number=state.turns + 1, answers=state.question)]

            appended = self._append_clean(make)
            if detached:
                self._writer.release_lease()
            return appended

    def finish(
        self,
        outcome: str = "success",
        summary: str | None = None,
        *,
        files: Iterable[str] = (),
        error: str | None = None,
        by: str | None = None,
        output: Json = None,
        duration_ms: int | None = None,
        completed: datetime | None = None,
        tokens: Mapping[str, int] | None = None,
        cost: Decimal | str | None = None,
    ) -> Appended:
        """Ends the run with success, failure or cancelled, and closes the task. ``tokens`` and ``cost`` (US dollars) are what the
        run used and its turns do not state.

        >>> task.finish("failure", "No luck", error="the tests fail").state.status
        'failed'
        """
        outcome = status.outcome_of(outcome)
        with self.lock:
            if self._live is not None:
                with contextlib.suppress(Stopped):  # the turn is kept, and the task ends this way
                    self._live.end("interrupted")
            result = replace(
                self._result(outcome, completed, duration_ms),
                summary=summary,
                error=error,
                by=by,
                files_modified=tuple(files),
                output=output,
                tokens=dict(tokens or {}),
                cost=None if cost is None else Money(Decimal(cost)),
            )
            appended = self._append([result])
            self.close()
            self._writer.finished()
            return appended

    def _result(self, outcome: str, completed: datetime | None = None, duration_ms: int | None = None) -> Result:
        """The result of the run, with its duration since the task was created, or since its latest run began."""
        now = completed or _now()
        if duration_ms is None:
            # A task that was finished once has counted the time until then.
            first = self.state.runs <= 1 and self.state.duration_ms is None
            since = self.state.created if first and self.state.created else self._began
            # The time of creation is in whole seconds. Whoever made the task has a better one, also if making it took a while.
            near = timedelta(seconds=10 if self.is_new else 1)
            if timedelta(0) <= self._began - since < near:
                since = self._began
            duration_ms = max(0, int((now - since).total_seconds() * 1000))
        return Result(status=outcome, completed=now.replace(microsecond=0), duration_ms=duration_ms)

    # Closing

    def close(self) -> None:
        """Releases the task without finishing it.

        >>> task.close()
        >>> store.status(task.id)
        'interrupted'
        """
        with self.lock:
            if self._live is not None:
                self._live.leave()
            self._writer.close()

    def __enter__(self) -> Task:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            # If the task was paused or cancelled, it has already ended that way.
            if (
                not self._writer.is_leased
                or isinstance(error, Stopped)
                or self._is_now(status.FINISHED | {status.PAUSED})
            ):
                return
            if error is None:
                self.finish("success")
            elif isinstance(error, Exception):
                self.finish("failure", error=describe(error))
            else:
                # KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError
                self.finish("cancelled", error=describe(error))
        except RawkoError:
            if error is None:
                raise  # otherwise our error must not hide the user's own
        finally:
            self.close()

    def _is_now(self, statuses: Collection[str]) -> bool:
        return self.state.status in statuses or self.refresh().status in statuses

    # Recovery

    def recover(self) -> bool:
        """Turns a dead writer's draft into an interrupted turn. Returns whether there was one. Requires the lease."""
        with self.lock:
            draft = self._writer.left_draft()
            found = draft is not None and not self._has_ended(draft)
            if draft is not None and found:
                self._keep(draft)
            self._writer.drop_draft()
            return found

    def _keep(self, draft: DraftContent) -> None:
        turn = draft.interrupted(1)
        try:
            with self._writer.keeping_blobs(turn):
                self._append_clean(_numbered([self._cleaned_turn(turn)]))
        except InvalidValue:
            # It is not a valid turn (from another version, or damaged). Keep its content anyway.
            self._append([Note(at=_now(), kind="draft", content=self._writer.draft_text())])

    def _has_ended(self, draft: DraftContent) -> bool:
        """Whether the draft's turn was written before its writer died. If so, it comes after the draft's start."""
        return any(
            isinstance(entry, Turn) and (entry.agent, entry.started) == (draft.agent, draft.started)
            for entry in self._writer.entries_since(draft.since, draft.seal)
        )

    # Writing

    def _append(self, entries: Sequence[Entry], expect: str | None = None) -> Appended:
        self.check_process()
        with self.lock:
            return self._append_clean(_numbered([self._cleaned(entry) for entry in entries]), expect)

    def _append_clean(self, make: Callable[[TaskState], list[Entry]], expect: str | None = None) -> Appended:
        """The only way to append: passes redacted entries to the writer, which makes them durable."""
        self.check_process()
        with self.lock:
            done = self._writer.append(make, expect or self.expected, self.before_write)
            self.expected = None
            return done

    def _cleaned(self, entry: Any) -> Any:
        """Redacts an entry. In a task with exact values, what programs keep for themselves stays as it is."""
        if not self.state.exact:
            return self.redactor.entry(entry)
        if isinstance(entry, Turn) and (entry.state is not None or entry.payload is not None):
            clean = self.redactor.entry(replace(entry, state=None, payload=None))
            return replace(clean, state=entry.state, payload=entry.payload)
        if isinstance(entry, Note) and entry.data is not None and entry.kind not in MEMORY:
            if entry.is_data and entry.kind in self._clean_kinds:
                return entry  # nothing else in it is text
            clean = replace(self.redactor.entry(replace(entry, data=None)), data=entry.data)
            self._clean_kinds = (*self._clean_kinds[-9:], clean.kind)
            return clean
        return self.redactor.entry(entry)

    def _cleaned_turn(self, turn: Turn) -> Turn:
        """Redacts a turn and moves long outputs to blobs. Runs before the append lock: it is most of an append's work."""
        clean: Turn = self._cleaned(self._writer.with_blobs(turn, self.redactor.text))
        return clean

    # For the live turn

    def check_process(self) -> None:
        """Rejects use after a fork: the append lock belongs to the open file, which the child shares with its parent."""
        if os.getpid() != self._process:
            raise RawkoError(f"Task {self.id} was opened by the parent of this process. Open it again here.")

    def start_draft(self, agent: str, fields: dict[str, Any], durable: bool) -> Draft:
        return self._writer.draft(agent, self.redactor.value(fields), durable)

    def turn_ended(self) -> None:
        self._live = None


def _numbered(entries: Sequence[Entry]) -> Callable[[TaskState], list[Entry]]:
    """Numbers turns while the append lock is held."""

    def make(state: TaskState) -> list[Entry]:
        numbers = itertools.count(state.turns + 1)
        return [replace(each, number=next(numbers)) if isinstance(each, Turn) else each for each in entries]

    return make


def _timed(turn: Turn) -> Turn:
    """Sets a missing start time, assuming that the turn has just ended."""
    if turn.started is not None:
        return turn
    return replace(turn, started=_now() - timedelta(milliseconds=turn.duration_ms or 0))


def chosen(question: Question, text: str) -> str:
    """Resolves an answer to one of the choices, by its words in any case or by its number. Without choices, it is the text."""
    if not question.choices:
        return text
    small = text.strip().lower()
    for choice in question.choices:
        if small == choice.lower():
            return choice
    if small.isdecimal() and 1 <= int(small[:9]) <= len(question.choices):
        return question.choices[int(small[:9]) - 1]
    short = [choice for choice in question.choices if small and choice.lower().startswith(small)]
    if len(short) == 1:
        return short[0]
    raise InvalidValue(f"{text!r} is not one of the choices: {', '.join(question.choices)}.")
