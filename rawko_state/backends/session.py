"""A task that is being worked on: turns, decisions, notes and the result, each durable when its call returns."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import platformdirs

from rawko_state.backends import intake, secrets
from rawko_state.backends.asking import Asking, chosen
from rawko_state.backends.desk import BeforeWrite, Desk, Make, Point
from rawko_state.backends.live import LiveTurn, describe
from rawko_state.errors import IllegalMove, InvalidValue, RawkoError, Stopped
from rawko_state.format import records
from rawko_state.format.seal import GENESIS
from rawko_state.journal import blobs
from rawko_state.journal.draft import Draft, Spoken
from rawko_state.model import status
from rawko_state.model.appended import Appended
from rawko_state.model.entries import Entry, Execution, Json, Note, Request, Result, Resumed, Section, Turn
from rawko_state.model.state import TaskState
from rawko_state.redact.redactor import Redactor

# Not used here, but loaded before anything is written: an import that fails (no descriptor left) must not come between an
# append and its return.
_LOADED = (intake, records, blobs, secrets, platformdirs)
_LOOK_EVERY: Final = 0.05


def _now() -> datetime:
    return datetime.now(timezone.utc)


class Task(Asking):
    """One task, open for writing.

    As a context manager it records how the block ended: an exception is a failed task, KeyboardInterrupt a cancelled one,
    and a block that ends by itself without finish() a success.
    """

    def __init__(self, desk: Desk, redactor: Redactor) -> None:
        self.id = desk.id
        self.redactor = redactor
        self._desk = desk
        self._began = _now()
        self._live: LiveTurn | None = None
        self._look_from: Point | None = None
        """What the task was before others last added to it."""
        self.before_write: BeforeWrite | None = None
        """Told the seal of every record just before it is written: for those who must know afterwards whether it was."""
        self.expected: str | None = None
        """The seal that the next record must follow; ChainMoved, if another one is the last by then."""

    @property
    def state(self) -> TaskState:
        return self._desk.state

    @property
    def root(self) -> Path:
        """The project's folder."""
        return self._desk.root

    @property
    def seal(self) -> str:
        """The last seal: what a conditional append compares with."""
        return self._desk.seal

    def refresh(self) -> TaskState:
        """What the task is now, with what others have added since."""
        return self._desk.refresh()

    def holds(self, seal: str) -> bool:
        """Whether that record is in the file; ask this after OutcomeUnknown, before trying again."""
        return self._desk.holds(seal)

    def decide(
        self,
        *,
        selected: str | None = None,
        decision: str | None = None,
        reason: str | None = None,
        guidance: str | None = None,
        agent: str = "arbiter",
    ) -> Appended:
        """An arbiter's turn: who is next, or what becomes of the task."""
        if selected is None and decision is None:
            raise InvalidValue("a decision says who is selected, or 'complete', 'retry' or 'continue'")
        return self.add_turn(
            Turn(number=1, agent=agent, selected=selected, decision=decision, reason=reason, guidance=guidance)
        )

    def add_turn(self, turn: Turn, *, expect: str | None = None, snapshot: Json = None) -> Appended:
        """A turn that has already happened. Its number is given to it here.

        If somebody has paused or cancelled the task that this process runs, it is kept (as an interrupted turn, where it could
        not stand otherwise), and then Stopped is raised.
        """
        if snapshot is not None:
            turn = replace(turn, sections=(*turn.sections, self._snapshot(snapshot)))
        with self._desk.keeping_blobs(turn):
            return self._add_turn(turn, expect)

    def _add_turn(self, turn: Turn, expect: str | None) -> Appended:
        turn = self._desk.with_blobs(turn, self.redactor.text)
        before = self._desk.point()
        try:
            appended = self._append(lambda state: [replace(turn, number=state.turns + 1)], expect)
        except IllegalMove:
            if not self._desk.is_leased or self.state.status not in (status.PAUSED, status.CANCELLED):
                raise
            kept = replace(turn, status=status.INTERRUPTED, reason=turn.reason or f"the task was {self.state.status}")
            self._append(lambda state: [replace(kept, number=state.turns + 1)], expect)
            self._stopped(before)
            raise
        if self._desk.is_leased and appended.state.status == status.PAUSED:
            self._stopped(before)
        return appended

    def add(self, entries: Sequence[Entry], *, expect: str | None = None) -> Appended:
        """Several entries as one record, for those who bring a conversation in from elsewhere. Turns get their numbers here."""
        with self._desk.keeping_blobs():
            kept = [
                self._desk.with_blobs(entry, self.redactor.text) if isinstance(entry, Turn) else entry
                for entry in entries
            ]

            def make(state: TaskState) -> list[Entry]:
                numbers = itertools.count(state.turns + 1)
                return [replace(each, number=next(numbers)) if isinstance(each, Turn) else each for each in kept]

            return self._append(make, expect)

    def _snapshot(self, wanted: Json) -> Section:
        """What the turn says of the work tree's state."""
        from rawko_state.backends.snapshots import failed, snapshot

        try:
            return Section("Snapshot", snapshot(self.root, self.id, wanted))
        except InvalidValue:
            raise
        except RawkoError as error:
            return Section("Snapshot", failed(str(error)))  # the turn has happened all the same

    def turn(self, agent: str, *, model: str | None = None, durable: bool = False) -> LiveTurn:
        """A turn that is happening: what it says reaches a draft at once, and the file when it ends.

        With ``durable``, every piece is synced as it comes, so that it survives a power cut too.
        """
        if self._live is not None:
            raise RawkoError(f"task {self.id}: the turn of {self._live.agent} has not ended yet")
        if not self._desk.is_leased:
            raise RawkoError(f"task {self.id} is not run by this process: a live turn needs its lease")
        self.check()
        if self.state.status in status.FINISHED:
            raise IllegalMove(self.id, self.state.status, "running by a turn; resume it first")
        self._live = LiveTurn(self, agent, model, durable)
        return self._live

    def check(self) -> None:
        """Raises Stopped if somebody has paused or cancelled the task since. Costs one look at the file's size."""
        if self._desk.has_grown():
            self._look_from = self._desk.point()
            self.refresh()
        if self.state.status in (status.PAUSED, status.CANCELLED):
            self._stopped()

    def _stopped(self, before: Point | None = None) -> None:
        """Raises Stopped, saying who did it and why: after ``before``, unless it was known by then."""
        by = reason = None
        known = before is None or before.status in (status.PAUSED, status.CANCELLED)
        point = self._look_from if known else before
        for entry in self._desk.since(*(point[:2] if point is not None else (0, GENESIS))):
            if isinstance(entry, Note) and entry.status is not None:
                by, reason = entry.by, entry.reason
        raise Stopped(self.id, self.state.status, by, reason)

    def say(self, text: str, *, by: str | None = None) -> Appended:
        """Something that the user says in between."""
        return self._append(
            lambda state: [
                Turn(number=state.turns + 1, agent="user", by=by or "unknown_user", started=_now(), content=text)
            ]
        )

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
        """Title, labels, pin, or any data beside the conversation (``in_context``: as a part of it)."""
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
        return self._append(lambda state: [note])

    def set_status(self, wanted: str, *, by: str | None = None, reason: str | None = None) -> Appended:
        """Pause, cancel, or let go on: from any process."""
        note = Note(at=_now().replace(microsecond=0), by=by, status=wanted, reason=reason)
        return self._append(lambda state: [note])

    def reopen(self, *, by: str | None = None, detached: bool = False, message: str | None = None) -> Appended:
        """RESUMED: the run goes on. A detached one lets go of the lease again.

        With a message, a finished task gets a second run, which begins with it; in another one it is a turn of the user.
        """
        now = _now().replace(microsecond=0)
        entry = Resumed(at=now, by=by, writer="detached" if detached else None)

        def make(state: TaskState) -> list[Entry]:
            if message is None:
                return [entry]
            if state.status in status.FINISHED:
                return [Request(text=message, by=by, at=now), Execution(), entry]
            said = Turn(number=state.turns + 1, agent="user", by=by or "unknown_user", started=now, content=message)
            return [entry, replace(said, answers=state.question) if state.question is not None else said]

        asked = self.question() if message is not None else None
        if asked is not None and message is not None:
            message = chosen(asked, message)
        appended = self._append(make)
        if detached:
            self._desk.let_go()
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
    ) -> Appended:
        """Ends the run with success, failure or cancelled, and lets go of the task."""
        if outcome not in status.RESULT_STATUS:
            raise InvalidValue(f"a result is success, failure or cancelled, not {outcome!r}")
        if self._live is not None:
            with contextlib.suppress(Stopped):  # it is kept, and this is how it ends
                self._live.end("interrupted")
        now = completed or _now()
        since = self.state.created if self.state.runs <= 1 and self.state.created else self._began
        if duration_ms is None:
            duration_ms = max(0, int((now - since).total_seconds() * 1000))
        result = Result(
            status=outcome,
            completed=now.replace(microsecond=0),
            duration_ms=duration_ms,
            summary=summary,
            error=error,
            by=by,
            files_modified=tuple(files),
            output=output,
        )
        appended = self._append(lambda state: [result])
        self.close()
        self._desk.tend()
        return appended

    def close(self) -> None:
        """Lets go of the task without finishing it."""
        if self._live is not None:
            self._live.leave()
        self._desk.close()

    def __enter__(self) -> Task:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            # Somebody may have paused or cancelled it: then that is how it ended.
            if (
                not self._desk.is_leased
                or isinstance(error, Stopped)
                or self._now_is(status.FINISHED | {status.PAUSED})
            ):
                return
            if error is None:
                self.finish("success")
            elif isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit)):
                self.finish("cancelled", error=describe(error))
            else:
                self.finish("failure", error=describe(error))
        except RawkoError:
            if error is None:
                raise  # else the user's own error must not be hidden by ours
        finally:
            self.close()

    def _now_is(self, statuses: Collection[str]) -> bool:
        return self.state.status in statuses or self.refresh().status in statuses

    def _append(self, make: Make, expect: str | None = None) -> Appended:
        """The one way of everything: without its secrets to the desk, which makes it durable."""

        def clean(state: TaskState) -> list[Entry]:
            return [self.redactor.entry(entry) for entry in make(state)]

        done = self._desk.append(clean, expect or self.expected, self.before_write)
        self.expected = None
        return done

    def recover(self) -> bool:
        """Turns what a dead writer left into an interrupted turn; whether there was any. Needs the lease."""
        spoken = self._desk.spoken()
        found = spoken is not None and not self._is_finished(spoken)
        if spoken is not None and found:
            self._keep_spoken(spoken)
        self._desk.drop_draft()
        return found

    def _keep_spoken(self, spoken: Spoken) -> None:
        def make(state: TaskState) -> list[Entry]:
            return [self._desk.with_blobs(spoken.interrupted(state.turns + 1), self.redactor.text)]

        try:
            with self._desk.keeping_blobs(spoken.interrupted(1)):
                self._append(make)
        except InvalidValue:
            # It cannot be a turn (written by another version, or damaged): nothing of it is lost all the same.
            raw = self._desk.draft_text()
            self._append(lambda state: [Note(kind="draft", content=raw)])

    def _is_finished(self, spoken: Spoken) -> bool:
        """Whether the draft's turn was written before its writer died: then it stands after the draft's start."""
        return any(
            isinstance(entry, Turn) and (entry.agent, entry.started) == (spoken.agent, spoken.started)
            for entry in self._desk.since(spoken.since, spoken.seal)
        )

    def _draft(self, agent: str, fields: dict[str, Any], durable: bool) -> Draft:
        return self._desk.draft(agent, self.redactor.value(fields), durable)

    def _ended(self) -> None:
        self._live = None
