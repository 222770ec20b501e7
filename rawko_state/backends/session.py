"""A task that is being worked on: turns, decisions, notes and the result, each durable when its call returns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from decimal import Decimal
from types import TracebackType
from typing import Any

from rawko_state.backends import intake
from rawko_state.backends.catalogue import Catalogue
from rawko_state.errors import InvalidValue, RawkoError
from rawko_state.format import records
from rawko_state.format.blocks import emit_block
from rawko_state.format.codec import encode
from rawko_state.format.lines import emit_tools
from rawko_state.index.projection import Projector
from rawko_state.journal import blobs
from rawko_state.journal.chain import Appended, Chain
from rawko_state.journal.draft import Draft
from rawko_state.journal.journal import Journal
from rawko_state.journal.layout import TaskName
from rawko_state.journal.locks import Lease, Mark
from rawko_state.model import status
from rawko_state.model.entries import Entry, Json, Money, Note, Question, Result, Resumed, Section, ToolCall, Turn
from rawko_state.model.state import TaskState

# Not used here, but loaded before anything is written: an import that fails (no descriptor left) must not come between an
# append and its return.
_LOADED = (intake, records, blobs)


def _now() -> datetime:
    return datetime.now(timezone.utc)


class Task:
    """One task, open for writing.

    As a context manager it records how the block ended: an exception is a failed task, KeyboardInterrupt a cancelled one,
    and a block that ends by itself without finish() a success.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        name: TaskName,
        chain: Chain,
        lease: Lease | None,
        projector: Projector | None = None,
    ) -> None:
        self.id = name.id
        self._catalogue, self._journal = catalogue, catalogue.journal
        self._name, self._chain, self._lease, self._projector = name, chain, lease, projector
        self._mark: Mark | None = None
        self._began = _now()
        self._live: LiveTurn | None = None

    @property
    def state(self) -> TaskState:
        return self._chain.state

    @property
    def seal(self) -> str:
        """The last seal: what a conditional append compares with."""
        return self._chain.seal

    def refresh(self) -> TaskState:
        """What the task is now, with what others have added since."""
        return self._chain.refresh()

    def holds(self, seal: str) -> bool:
        """Whether that record is in the file; ask this after OutcomeUnknown, before trying again."""
        return self._chain.holds(seal)

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

    def add_turn(self, turn: Turn, *, expect: str | None = None) -> Appended:
        """A turn that has already happened. Its number is given to it here."""
        turn = self._journal.with_blobs(turn)
        return self._append(lambda state: [replace(turn, number=state.turns + 1)], expect)

    def turn(self, agent: str, *, model: str | None = None, durable: bool = False) -> LiveTurn:
        """A turn that is happening: what it says reaches a draft at once, and the file when it ends.

        With ``durable``, every piece is synced as it comes, so that it survives a power cut too.
        """
        if self._live is not None:
            raise RawkoError(f"task {self.id}: the turn of {self._live.agent} has not ended yet")
        if self._lease is None:
            raise RawkoError(f"task {self.id} is not run by this process: a live turn needs its lease")
        self._live = LiveTurn(self, self._journal, agent, model, durable)
        return self._live

    def ask(self, agent: str, question: Question, *, content: str | None = None) -> Appended:
        """A turn that ends in a question; the task waits for its answer."""
        return self.add_turn(Turn(number=1, agent=agent, status=status.WAITING, content=content, question=question))

    def answer(self, text: str, *, by: str | None = None) -> Appended:
        """A person's answer to the open question."""

        def make(state: TaskState) -> list[Entry]:
            if state.question is None:
                raise RawkoError(f"task {self.id} asks nothing")
            return [
                Turn(
                    number=state.turns + 1,
                    agent="user",
                    by=by or "unknown_user",
                    answers=state.question,
                    content=text,
                )
            ]

        return self._append(make)

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

    def reopen(self, *, by: str | None = None, detached: bool = False) -> Appended:
        """RESUMED: the run goes on. A detached one lets go of the lease again."""
        entry = Resumed(at=_now().replace(microsecond=0), by=by, writer="detached" if detached else None)
        appended = self._append(lambda state: [entry])
        if detached and self._lease is not None:
            self._lease.release()
            self._lease = None
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
        self._catalogue.tend()
        return appended

    def close(self) -> None:
        """Lets go of the task without finishing it."""
        if self._live is not None:
            self._live.leave()
        self._chain.close()
        self._catalogue.settle(self._mark, current=self._projector is not None)
        self._mark = None
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    def __enter__(self) -> Task:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._lease is None or self.state.status in status.FINISHED:
                return
            if error is None:
                self.finish("success")
            elif isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit)):
                self.finish("cancelled", error=_describe(error))
            else:
                self.finish("failure", error=_describe(error))
        finally:
            self.close()

    def _append(self, make: Any, expect: str | None = None) -> Appended:
        """The one way of everything: into the file, durably; then into the index, which may fail without harm."""
        if self._mark is None:
            self._mark = self._catalogue.mark(self.id)
        done = self._chain.append(make, expect=expect)
        self._projector = self._catalogue.appended(self._name, self._chain, done, self._projector)
        return done

    def recover(self) -> None:
        """Turns what a dead writer left into an interrupted turn. Needs the lease."""
        self._journal.recover_draft(self._append, self._chain, self.id)

    def _draft(self, agent: str, fields: dict[str, Any], durable: bool) -> Draft:
        self._journal.layout.make()
        point = self._chain.checkpoint()
        return Draft(self._journal.layout.draft(self.id), agent, point.end, point.seal, fields, durable)

    def _ended(self) -> None:
        self._live = None


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


class LiveTurn:
    """A turn while it happens. As a context manager, an exception ends it as failed and goes on."""

    def __init__(self, task: Task, journal: Journal, agent: str, model: str | None, durable: bool) -> None:
        emit_block(
            encode(Turn(number=1, agent=agent))
        )  # a name that could not be written is refused now, not at the end
        self._task, self._journal, self.agent, self._durable = task, journal, agent, durable
        self._model = model
        self._draft = task._draft(agent, {"model": model} if model else {}, durable)
        self._keys = 0
        self._ended = False

    def say(self, text: str) -> None:
        """A piece of the turn's text, as it is streamed."""
        self._add({"kind": "text", "text": text})

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
        """A tool call that has been made. ``more``: what else is known of it (``id``, ``input`` …)."""
        event = {"kind": "tool", "tool": tool, "args": args, "result": result, "output": output}
        self._add({**event, "time": time or clock(), "more": _more(more)})

    def begin_tool(
        self, tool: str, args: str = "", *, time: str | None = None, more: Mapping[str, Json] | None = None
    ) -> str:
        """A tool call that is being made. If the process dies before end_tool(), it is marked 'may have run'."""
        self._keys += 1
        event = {"kind": "tool", "open": True, "key": str(self._keys), "tool": tool, "args": args}
        self._add({**event, "time": time or clock(), "more": _more(more)})
        return str(self._keys)

    def end_tool(
        self,
        key: str,
        result: str | None = None,
        *,
        output: str | None = None,
        more: Mapping[str, Json] | None = None,
    ) -> None:
        self._add({"kind": "tool_end", "key": key, "result": result, "output": output, "more": _more(more)})

    def progress(self, text: str, kind: str = "progress") -> None:
        self._add({"kind": "progress", "text": text, "of": kind, "time": clock()})

    def touch(self, operation: str, path: str) -> None:
        """A file that was read, written or deleted."""
        if operation not in ("read", "write", "delete"):
            raise InvalidValue(f"a file is read, written or deleted, not {operation!r}")
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
    ) -> Appended:
        """The turn as one record. ``content`` replaces what was streamed; without it, that is the content."""
        if self._ended:
            raise RawkoError(f"task {self._task.id}: this turn of {self.agent} has ended already")
        spoken = self._draft.spoken
        turn = replace(
            spoken.interrupted(1),
            status=status.WAITING if question is not None else outcome,
            duration_ms=int((_now() - spoken.started).total_seconds() * 1000),
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
        appended = self._task.add_turn(turn)
        self._ended = True
        self._draft.discard()
        self._task._ended()
        return appended

    def leave(self) -> None:
        """Leaves the draft to the next writer, who makes it an interrupted turn."""
        if not self._ended:
            self._ended = True
            self._draft.leave()
            self._task._ended()

    def _add(self, event: dict[str, Any]) -> None:
        if self._ended:
            raise RawkoError(f"task {self._task.id}: this turn of {self.agent} has ended already")
        self._draft.add(event, durable=self._durable)

    def __enter__(self) -> LiveTurn:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ended:
            return
        if error is None:
            self.end()
        elif isinstance(error, Exception):
            self.end("failed", reason=_describe(error))
        else:
            self.end("interrupted", reason=_describe(error))


def _more(given: Mapping[str, Json] | None) -> dict[str, Json]:
    more = dict(given or {})
    emit_tools([ToolCall("tool", more=more)])  # refuses what could not be written
    return more


def clock() -> str:
    """Now, as the tool log writes it."""
    return _now().strftime("%H:%M:%S")
