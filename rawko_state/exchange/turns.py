"""Converts the steps of another agent's session to the records of a task.

The user's first message is the request; later ones are turns of the user. One answer of the agent, with its tool calls and their
output, is a turn of the agent. Every step, understood or not, is kept unchanged and in order in the ``[Payload]`` of its turn;
steps before the first turn are kept in a note.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Final

from rawko_state.exchange.transcript import Call, Output, Session, Step, Usage, since, stated
from rawko_state.format.values import read_time, write_time
from rawko_state.model.entries import (
    UNKNOWN_USER,
    Diff,
    Entry,
    Execution,
    Field,
    FileTouch,
    Json,
    Money,
    Note,
    Parent,
    Request,
    Result,
    Resumed,
    Section,
    TaskHeader,
    ToolCall,
    Turn,
)
from rawko_state.model.frozen import replace

IMPORTED: Final = "imported"
"""The kind of the note that says how far a session has been imported."""
_PREFACE: Final = 5_000
_FEW: Final = 20
_FLAGS: Final = ("aborted", "unanswered", "working", "spoken", "unsure")
_NO_PROMPT: Final = "(a session without a prompt)"


@dataclass(slots=True)
class Facts:
    """What is known about a session as a whole."""

    values: dict[str, str] = field(default_factory=dict)
    first: datetime | None = None
    last: datetime | None = None
    model: str | None = None
    title: str | None = None
    aborted: bool = False
    said: str | None = None
    unknown: Counter[str] = field(default_factory=Counter)
    steps: int = 0
    place: int = 0
    """After the last step that has been written."""
    unanswered: bool = False
    """The last prompt has not been answered."""
    failed: str | None = None
    working: bool = False
    spoken: bool = False
    unsure: bool = False
    running: set[str] = field(default_factory=set)
    """Tool calls without output so far, since the last prompt."""
    used: Usage = field(default_factory=Usage)
    """Tokens and cost that no turn states."""
    totals: list[Usage] = field(default_factory=list)
    """What the whole session had used, each time that it was told."""
    is_told: bool = False
    """Whether the last total has all turns in it."""
    tokens: int = 0
    """All tokens that were told of, in any way."""

    def take(self, step: Step) -> None:
        self.steps += 1
        if step.at is not None:
            self.first = self.first or step.at
            self.last = max(self.last, step.at) if self.last else step.at
        for name, value in step.facts.items():
            self.values.setdefault(name, value)
        self.model = self.model or step.model
        self.title = step.title or self.title
        self.said = step.text or self.said
        if step.aborted is not None:
            self.aborted = step.aborted
        elif step.turn is not None:
            self.aborted = False
        if step.unknown is not None:
            self.unknown[step.unknown] += 1
        if step.prompt is not None or step.turn is not None:
            self.unanswered = step.prompt is not None
            self.unsure = step.unsure
            self.failed = None  # it was asked again, or answered after all
            self.spoken = True
        self.failed = step.failed or self.failed
        self.working = self.working if step.working is None else step.working
        self.spoken = self.spoken or step.working is False
        if step.prompt is not None:
            self.running = set()  # what was cut off before does not matter to how this ends
        self.running |= {call.id for call in step.calls}
        self.running -= {output.id for output in step.outputs if not output.goes_on}
        if step.outcome is not None:
            self.running.discard(step.inside or "")
        self.used = step.used or self.used
        self.is_told = self.is_told and step.turn is None
        if step.spent is not None:
            self.totals.append(step.spent)
            self.is_told = True
        self.tokens += sum(step.tokens.values()) + (sum(step.used.tokens.values()) if step.used else 0)

    def standing(self) -> dict[str, Json]:
        """How the conversation stands, for a run that goes on later."""
        flags = {name: True for name in _FLAGS if getattr(self, name)}
        failed = {} if self.failed is None else {"failed": self.failed}
        return {**flags, **failed, **({"running": sorted(self.running)} if self.running else {})}

    def stand(self, data: Mapping[str, Json]) -> None:
        """Restores what standing() returned."""
        for name in _FLAGS:
            setattr(self, name, data.get(name) is True)
        failed, running = data.get("failed"), data.get("running")
        self.failed = failed if isinstance(failed, str) else None
        self.running = {str(call) for call in running} if isinstance(running, list) else set()

    @property
    def outcome(self) -> str:
        """How the session ended. It was interrupted if the last prompt or a tool call has no answer."""
        if self.aborted:
            return "cancelled"
        if self.failed is not None:
            return "failure"
        if self.unanswered or self.running or self.working:
            return "interrupted"
        return "success" if self.spoken and not self.unsure else "unknown"


class TurnBuilder:
    """The records of one session, from a place on. ``facts`` is complete once all records have been read."""

    def __init__(
        self,
        session: Session,
        start: int,
        roots: Sequence[str],
        wrong: list[str],
        *,
        ended: bool = True,
        is_alive: bool = False,
        before: Mapping[str, Json] | None = None,
        beside: Mapping[str, Json] | None = None,
        asked: str | None = None,
        loose: Sequence[Step] = (),
        spent: Usage | None = None,
    ) -> None:
        """``ended``: no more is expected for now. Otherwise the last turn is left for next time, and the run stays open.
        ``is_alive``: the agent still runs, so a session that seems to be cut off has only not been written to its end.
        ``before``: the data of the last IMPORTED note. ``beside``: more data for the next ones. ``asked``: what a person asked
        for, if the first prompt says more than that. ``loose``: earlier steps that belong to no turn. ``spent``: what a session
        had used when it was forked."""
        self._start, self._spent = start, spent
        self.session, self.facts, self._beside = session, Facts(place=start), beside or {}
        begun = (before or {}).get("since")
        self.since = read_time(begun) if isinstance(begun, str) else None
        """When the run began that goes on."""
        if before and isinstance(before.get("standing"), dict):
            self.facts.stand(before["standing"])
        self.roots, self._no_more, self._is_alive = tuple(roots), ended, is_alive
        """The folders that count as the project, including its previous locations."""
        self._steps = session.steps(start, wrong)
        self._ahead: list[tuple[int, Step]] = []
        """Steps read to learn about the session before anything is written."""
        self._stays_interrupted = False
        """It is known to have been cut off, and no record says anything else."""
        self.prompt: str | None = None
        for step in loose:
            self.facts.take(step)
            self._ahead.append((start, step))
        for place, step in self._steps:
            self.facts.take(step)
            self._ahead.append((place, step))
            if step.prompt is not None:
                self.prompt = asked or step.prompt
                self._ahead[-1] = (place, replace(step, prompt=self.prompt))
            if step.prompt is not None or step.turn is not None or len(self._ahead) > _PREFACE + len(loose):
                break
        self._peeked = list(self._peek()) if self.facts.model is None else []

    def _peek(self) -> Iterator[tuple[int, Step]]:
        """A few more steps, to find the model for the header."""
        for place, step in itertools.islice(self._steps, _FEW):
            self.facts.model = step.model
            yield place, step
            if step.model is not None:
                return

    @property
    def _ended(self) -> bool:
        """Whether the run has ended, as far as its records have been read."""
        return self._no_more and not (self._is_alive and self.facts.outcome == "interrupted")

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to record: no step, or only those of a task that was handed over."""
        handed_over = "continues" in self.facts.values
        return not self._ahead or (handed_over and not any(step.happened for _, step in self._ahead))

    def header(self, task_id: str, parent: Parent | None, created: datetime) -> TaskHeader:
        values = self.facts.values
        extra = (("X-Agent-Version", values.get("version")), ("X-Parent-Call", values.get("call")))
        return TaskHeader(
            id=task_id,
            created=created.replace(microsecond=0),
            status="running",
            title=_one_line(values.get("title")),
            parent=parent,
            agent=self.session.agent or None,
            model=self.facts.model or values.get("model"),
            provider=values.get("provider"),
            repo=values.get("repo"),
            branch=values.get("branch"),
            commit=values.get("commit"),
            cwd=values.get("cwd"),
            writer="detached",
            source=f"{self.session.source}:{self.session.key}",
            extra=tuple(Field(name, text) for name, text in extra if text),
        )

    def new(self, header: TaskHeader) -> Iterator[Sequence[Entry]]:
        """All records of a new task."""
        preface, rest = self._preface()
        request = self.prompt if self.prompt is not None else self.facts.title or _NO_PROMPT
        yield [header, Request(text=request, at=self.facts.first), Execution(), *preface]
        yield from self._turns(rest)
        yield self._end(None)

    def turns(self) -> Iterator[Sequence[Entry]]:
        """The records with turns, without those that begin and end a run."""
        _, rest = self._preface()
        return self._turns(rest)

    def more(
        self, at: datetime, *, running: bool, interrupted: bool = False, requested: str | None = None
    ) -> Iterator[Sequence[Entry]]:
        """The new records for an existing task; ``running``: its run has not ended. An ``interrupted`` task takes no new
        request: it goes on, and what the user says is a turn, unless the run was begun with it (``requested``)."""
        is_request = requested is not None and (self.prompt or "").strip()[: len(requested)] == requested.strip()
        self._stays_interrupted = interrupted and not any(step.happened for _, step in self._ahead)
        preface, rest = self._preface(asked=(running or interrupted) and not is_request)
        again = Resumed(at=at.replace(microsecond=0), writer="detached", reason="its session has grown")
        if running:
            if preface:
                yield [*preface, self._how_far()]
        elif self.prompt is not None and not interrupted and not is_request:
            asked = Request(text=self.prompt, at=self.facts.first)
            yield [asked, Execution(), again, *preface, self._how_far(standing=self.facts.standing())]
        elif not any(step.happened for _, step in self._ahead):
            if preface:
                yield [*preface, self._how_far()]
            return
        elif not self.is_empty:
            yield [again, *preface, self._how_far()]
        for record in self._turns(rest):
            # Progress is in the same record, so that an import stopped after it continues from here.
            yield [*record, self._how_far(standing=self.facts.standing())]
        yield self._end(self.since if running and self.since is not None else self.facts.first)

    def _how_far(self, title: str | None = None, **more: Json) -> Note:
        """Up to where the session has been imported, and when that was written, as the source says. Unless the run has ended,
        also how it stands, so that the next import knows."""
        at = self.facts.last.replace(microsecond=0) if self.facts.last is not None else None
        place = {"place": self.facts.place, **self.session.marked(self.facts.place)}
        since = self.since or self.facts.first
        begun = {} if since is None else {"since": write_time(since)}
        return Note(at=at, title=title, kind=IMPORTED, context="out", data={**place, **begun, **more, **self._beside})

    def _preface(self, *, asked: bool = False) -> tuple[list[Entry], list[tuple[int, Step]]]:
        """A note with what came before the first turn, and the steps that belong to turns. The note includes the first prompt,
        unless that is a turn (``asked``)."""
        ahead, rest = self._ahead, self._ahead[:0]
        if ahead and (asked or ahead[-1][1].prompt is None) and (ahead[-1][1].turn or ahead[-1][1].prompt) is not None:
            ahead, rest = ahead[:-1], ahead[-1:]
        if not ahead:
            return [], rest
        self.facts.place = ahead[-1][0]
        return [_passed_on([step for _, step in ahead])], rest

    def _turns(self, rest: list[tuple[int, Step]]) -> Iterator[Sequence[Entry]]:
        current: OpenTurn | None = None
        loose: list[Step] = []
        """Steps outside any turn, to be added to the next one."""
        before = self.facts.place
        went_wrong: Step | None = None
        """An error that nothing has followed so far. If nothing does, the result tells it."""
        for place, step in self._following(rest):
            begins = step.prompt is not None or (
                step.turn is not None and (current is None or step.turn != current.key)
            )
            if step.aside is not None:
                if current is not None:
                    self.facts.place = before
                    yield [current.turn()]
                    current = None
                self.facts.place = place
                yield [_noted(step)]
                before = place
                continue
            if begins:
                told = [] if went_wrong is None else [_error(went_wrong)]
                went_wrong = None
                if current is not None:
                    self.facts.place = before
                    yield [current.turn(), *told]
                elif told:
                    yield told
                current = OpenTurn(step, self.session.agent, self._relative)
                for each in loose:  # what went wrong before it does not concern it
                    current.add(replace(each, failed=None, aborted=None))
                loose = []
            if current is None:
                loose.append(step)
            else:
                current.add(step)
            if step.failed is not None and not step.text:
                went_wrong = step
            before = place
        if current is not None and (self._ended or current.is_whole):
            self.facts.place = before
            yield [current.turn(is_last=True)]
        elif loose and self._ended:
            self.facts.place = before
            yield [_passed_on(loose)]

    def _following(self, rest: list[tuple[int, Step]]) -> Iterator[tuple[int, Step]]:
        yield from rest
        for place, step in itertools.chain(self._peeked, self._steps):
            self.facts.take(step)
            yield place, step

    def _end(self, since: datetime | None) -> Sequence[Entry]:
        facts = self.facts
        if not self._ended:
            return [self._how_far(title=self._title, standing=facts.standing())]
        since = since or facts.first
        spent = int((facts.last - since).total_seconds() * 1000) if since and facts.last else None
        more: dict[str, Json] = {"steps": facts.steps}
        if facts.unknown:
            more["unknown"] = dict(facts.unknown)
        cost = stated(facts.used.cost if facts.used.cost is not None else self._cost(), {"out": facts.tokens})
        is_cut_off = facts.outcome == "unknown" and self._stays_interrupted
        said = (facts.said or "").strip().split("\n")[0][:200] or None
        return [
            Result(
                status="interrupted" if is_cut_off else facts.outcome,
                error=facts.failed if facts.outcome == "failure" else None,
                completed=facts.last.replace(microsecond=0) if facts.last else None,
                duration_ms=max(0, spent) if spent is not None else None,
                summary=said,
                tokens=dict(facts.used.tokens),
                cost=None if cost is None else Money(cost),
            ),
            self._how_far(title=self._title, **more),
        ]

    def _cost(self) -> Decimal | None:
        """What was spent from the place on, if the totals of the session tell. They go on over its runs; a smaller one has begun
        anew."""
        if not self.facts.is_told:
            return None
        before = self._spent or (told_until(self.session, self._start) if self._start else Usage({}, Decimal(0)))
        if before is None:
            return None
        cost = Decimal(0)
        for total in self.facts.totals:
            cost += since(before, total).cost or 0
            before = total
        return cost

    @property
    def _title(self) -> str | None:
        """A task keeps the title of its first session."""
        return None if self._beside else _one_line(self.facts.title)

    def _relative(self, path: str) -> str:
        """A path relative to the project; paths outside it are unchanged."""
        cwd = self.facts.values.get("cwd")
        given = PurePosixPath(path.replace("\\", "/") if "\\" in path else path)
        whole = given if given.is_absolute() or cwd is None else PurePosixPath(cwd) / given
        for root in sorted(self.roots, key=len, reverse=True):
            if whole.is_relative_to(root):
                return str(whole.relative_to(root))
        return path


def told_until(session: Session, place: int) -> Usage | None:
    """What a session had used up to a place in it, if its records tell that for all turns before."""
    facts = Facts()
    for at, step in session.steps(0, []):
        if at > place:
            break
        facts.take(step)
    # A session that another agent's work was handed over to has used nothing by itself.
    return facts.totals[-1] if facts.is_told else None if facts.spoken else Usage({}, Decimal(0))


def _passed_on(steps: list[Step]) -> Note:
    """A note with steps that belong to no turn."""
    payload = Section("Payload", "\n".join(step.raw for step in steps))
    at = next((step.at for step in steps if step.at is not None), None)
    return Note(at=at, kind=f"{IMPORTED}-before", context="out", sections=(payload,))


def _noted(step: Step) -> Note:
    """A note about something that belongs to no turn."""
    assert step.aside is not None
    raw = Section("Payload", step.raw)
    return Note(at=step.at, kind=step.aside.kind, context="out", content=step.aside.text, sections=(raw,))


def _error(step: Step) -> Note:
    """A note about what went wrong before the agent went on. The record itself is in the turn before."""
    return Note(at=step.at, kind="error", context="out", content=step.failed)


class OpenTurn:
    """A turn that is being built."""

    def __init__(self, step: Step, agent: str, relative: Callable[[str], str]) -> None:
        self.key = step.turn
        self._agent = "user" if step.prompt is not None else step.agent or agent or "agent"
        self._relative = relative
        self._started = self._last = step.at
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._raw: list[str] = []
        self._tools: list[ToolCall] = []
        self._called: dict[str, int] = {}
        self._touched: dict[FileTouch, None] = {}
        self._tokens: dict[str, int] = {}
        self._model: str | None = None
        self._aborted = False
        self._failed = False
        self._unsure = False
        self._cost: Decimal | None = None
        self._waiting: dict[str, Call] = {}
        """Calls without output: what they do to files counts once their results say that they did it."""
        self._diffs: list[Diff] = []
        self._own: dict[str, list[int]] = {}
        """The numbers of the diffs of each call."""

    def add(self, step: Step) -> None:
        self._raw.append(step.raw)
        is_own = step.turn is not None or step.outputs or not step.working
        if step.happened and is_own:  # what the agent noted for itself, or began next, may be much later
            self._last = step.at or self._last
        self._started = self._started or step.at
        self._model = step.model or self._model
        self._aborted = self._aborted or bool(step.aborted)
        self._failed = self._failed or step.failed is not None
        self._unsure = step.unsure if step.turn is not None else self._unsure
        for text, where in ((step.prompt, self._texts), (step.text, self._texts), (step.thinking, self._thoughts)):
            if text is not None:
                where.append(text)
        for name, count in step.tokens.items():
            # Records of one answer repeat growing totals; other records give increments.
            before = self._tokens.get(name, 0)
            self._tokens[name] = max(before, count) if step.turn is not None else before + count
        if step.cost is not None:
            self._cost = step.cost if step.turn is not None else (self._cost or 0) + step.cost
        for call in step.calls:
            self._call(call, step)
        if step.diffs:
            self._edit(step.by_call if step.by_call in self._called else next(reversed(self._waiting), ""), step.diffs)
        for output in step.outputs:
            self._output(output, step)
        self._touch(step.touches)

    def _call(self, call: Call, step: Step) -> None:
        self._called[call.id] = len(self._tools)
        self._tools.append(ToolCall(call.tool, call.args, None, _clock(step.at), more={"id": call.id}))
        self._waiting[call.id] = call

    def _output(self, output: Output, step: Step) -> None:
        size = len(output.text.encode("utf-8", "surrogatepass"))
        result = "error" if output.failed else f"{size} bytes" if size else "done"
        asked = self._waiting.pop(output.id, None)
        if not output.failed:
            self._touch(asked.touches if asked is not None else ())
            is_told = output.id in self._own or output.is_unchanged
            self._edit(output.id, output.diffs or (() if asked is None or is_told else asked.diffs))
        at = self._called.get(output.id)
        if at is None:
            self._tools.append(ToolCall("result", output.id, result, _clock(step.at), output.text or None))
            return
        call = self._tools[at]
        exited = {} if output.exit_code is None else {"exit_code": output.exit_code}
        self._tools[at] = replace(call, result=result, output=output.text or None, more={**call.more, **exited})

    def _edit(self, call: str, diffs: Sequence[Diff]) -> None:
        for diff in diffs:
            old, new = (None if path is None else self._relative(path) for path in (diff.old, diff.new))
            self._diffs.append(replace(diff, old=old, new=new))
            self._own.setdefault(call, []).append(len(self._diffs))
            self._touch([("delete" if diff.new is None else "write", diff.path or "")])
            if diff.old is not None and diff.new not in (None, diff.old):  # moved
                self._touch([("delete", diff.old)])
        at = self._called.get(call)
        if diffs and at is not None:
            own = self._own[call]
            more = {**self._tools[at].more, "diff": own[0] if len(own) == 1 else list(own)}
            self._tools[at] = replace(self._tools[at], more=more)

    def _touch(self, touches: Sequence[tuple[str, str]]) -> None:
        for operation, path in touches:
            self._touched[FileTouch(operation, self._relative(path))] = None

    @property
    def is_whole(self) -> bool:
        """Whether it is known to be complete: every tool call has a result, and it is told what it used, which may come last."""
        is_told = bool(self._tokens) and bool(self._tools) and all(call.result is not None for call in self._tools)
        return self._agent == "user" or is_told

    def _status(self) -> str:
        if self._failed:
            return "failed"
        cut_off = self._aborted or any(call.result is None for call in self._tools)
        return "interrupted" if cut_off else "complete"

    def turn(self, *, is_last: bool = False) -> Turn:
        """``is_last``: nothing follows it so far."""
        status = None if is_last and self._unsure else self._status()
        # One time alone says nothing about how long it took.
        told = self._last is not None and self._started is not None and self._last != self._started
        spent = int((self._last - self._started).total_seconds() * 1000) if told else None  # type: ignore[operator]
        person = self._agent == "user"
        cost = stated(self._cost, self._tokens)
        return Turn(
            number=1,
            agent=_one_line(self._agent) or "agent",
            by=UNKNOWN_USER if person else None,
            status=None if person else status,
            duration_ms=max(0, spent) if spent is not None and not person else None,
            tool_calls=len(self._tools) or None,
            started=self._started,
            model=_one_line(self._model),
            tokens=self._tokens,
            cost=None if cost is None else Money(cost),
            thinking="\n\n".join(self._thoughts) if self._thoughts else None,
            content="\n\n".join(self._texts) if self._texts else None,
            tools=tuple(self._tools),
            diffs=tuple(self._diffs),
            files=tuple(self._touched),
            payload="\n".join(self._raw),
        )


def _clock(at: datetime | None) -> str | None:
    return at.astimezone(timezone.utc).isoformat()[11:19] if at is not None else None


def _one_line(text: str | None) -> str | None:
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:300] or None if text else None
