"""Records the steps of a running agent as live turns of a task, and those of its sub-agents as tasks of their own."""

from __future__ import annotations

import os
import time
from decimal import Decimal
from itertools import islice
from typing import TYPE_CHECKING, Final

from rawko_state.exchange.forks import forks
from rawko_state.exchange.importing import added, start
from rawko_state.exchange.linking import link, mark_recorded, recorded_until
from rawko_state.exchange.sources import claude_code, session_named, sessions, siblings
from rawko_state.exchange.transcript import Aside, Call, Output, Step, Usage, since, stated
from rawko_state.exchange.turns import Facts, TurnBuilder
from rawko_state.format.diffs import diff_text
from rawko_state.model.entries import Diff, Note, Parent, Section, Turn
from rawko_state.model.frozen import replace
from rawko_state.model.status import INTERRUPTED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rawko_state.exchange.transcript import Session
    from rawko_state.store.contract import Store
    from rawko_state.tasks.live_turn import LiveTurn
    from rawko_state.tasks.task import Task


_NAMELESS: Final = ("codex", "cline")
"""Agents whose streams do not name the model."""
_FEW: Final = 50
"""A session names its model in its first records."""


class Steps:
    """One agent's steps."""

    def __init__(self, store: Store, task: Task, agent: str, source: str | None = None) -> None:
        """``source``: the name of the importer that reads this agent's sessions."""
        self._store, self._task, self._agent, self._source = store, task, agent, source
        self._turn: LiveTurn | None = None
        self._key: str | None = None
        self._has_text = False
        self._raw: list[str] = []
        self._tokens: dict[str, int] = {}
        self._cost: Decimal | None = None
        self._waiting: dict[str, tuple[Call, str]] = {}
        """Calls without output, each with its key in the live turn."""
        self._has_diffs: set[str] = set()
        self._touched: set[tuple[str, str]] = set()
        self._subagents: dict[str, Steps] = {}
        self._left: dict[str, Steps] = {}
        """Sub-agents that have ended."""
        self._unlinked: dict[str, str] = {}
        """The tasks of sub-agents that began before the session was known, by their names in it."""
        self._apart: dict[str, None] = {}
        """The sessions of sub-agents of which the stream only says that they were started."""
        self._early: dict[str, Step] = {}
        """The first steps of sub-agents whose calls are not known yet."""
        self._calls: dict[str, Call] = {}
        self.failed: str | None = None
        """What went wrong, in the agent's own words."""
        self.aborted = False
        self._is_failed, self._said = False, ""
        """Whether the current turn failed, and what was said last in it."""
        self.has_turns = False
        self.cut_off = False
        """Whether the last turn ended while a tool was running."""
        self.used = Usage()
        self._spent = Usage()
        """What the session had used before. Newer versions of Claude Code count on from there."""
        self.session: str | None = None
        self._model: str | None = None
        """What the agent's own session names, if the stream does not."""
        self._own: str | None = None
        """Of a sub-agent: the name of its own session in that of its parent."""
        self._earlier: str | None = None
        self._read_until = 0
        self._told: list[Diff] = []
        """Diffs in the agent's own session whose call has not ended in the stream."""

    def take(self, step: Step) -> None:
        if step.inside is not None:
            self._take_inside(step.inside, step)
            return
        self._learn(step)
        if step.prompt is not None:
            self.end()
            if step.prompt.strip() != (self._store.summary(self._task.id).request or "").strip():
                self._task.say(step.prompt)
        if step.turn is not None and step.turn != self._key:
            self.end()
        if step.raw:
            self._raw.append(step.raw)
        if step.aside is not None:
            self._note(step.aside)
        if step.turn is not None and self._turn is None:
            self._turn, self._key = self._task.turn(step.agent or self._agent, model=self._model_of(step)), step.turn
            self.has_turns = True
        if self._turn is not None:
            self._add(self._turn, step)

    def _model_of(self, step: Step) -> str | None:
        """The model of an answer. Some streams name it once; others do not, but the agent's own session does."""
        if step.model is None and self._model is None and self._source in _NAMELESS and self.session is not None:
            session = session_named(self._source, self.session)
            begin = islice(session.steps(0, []), _FEW) if session is not None else ()
            self._model = next((each.facts["model"] for _, each in begin if "model" in each.facts), None)
        return step.model or self._model

    def _take_inside(self, call_id: str, step: Step) -> None:
        """Gives a step to the sub-agent that it belongs to. A command in the background is none, nor is one that has ended."""
        owner = self._owner(call_id)
        if owner is None and step.prompt is not None:
            self._early[call_id] = (
                step  # some versions tell that a sub-agent has started before they tell who called it
            )
            return
        owner = owner or self
        first = self._early.pop(call_id, None)
        if first is not None:
            owner._subagent(call_id, first).take(_of_its_own(first))
        if call_id in owner._left or (step.outcome is not None and call_id not in owner._subagents):
            self._raw.append(step.raw)
        elif step.outcome is None:
            owner._subagent(call_id, step).take(_of_its_own(step))
        else:
            owner._leave(call_id, step.outcome, step.failed)
            self._raw.append(step.raw)

    def _owner(self, call_id: str) -> Steps | None:
        """Whose call this is: this agent's, or one of its sub-agents'."""
        if call_id in self._calls or call_id in self._subagents:
            return self
        found = (subagent._owner(call_id) for subagent in (*self._subagents.values(), *self._left.values()))
        return next((owner for owner in found if owner is not None), None)

    def _leave(self, call_id: str, outcome: str, failed: str | None = None) -> None:
        subagent = self._left[call_id] = self._subagents.pop(call_id)
        subagent.finish(outcome, failed)

    def _learn(self, step: Step) -> None:
        self.failed = step.failed or (None if step.turn is not None or step.prompt is not None else self.failed)
        self.aborted = self.aborted if step.aborted is None else step.aborted
        self.used = self._since(step.used) if step.used is not None else self.used
        self._model = step.facts.get("model") or self._model
        self._apart.update(dict.fromkeys(step.facts.get("subagents", "").split()))
        session = step.facts.get("session")
        if session and self.session is None and self._source is not None:
            self.session = session
            self._earlier = link(self._store, self._task, f"{self._source}:{session}")
            named = session_named(self._source, session) if self._source == "claude-code" else None
            for _, told in named.steps(0, []) if named is not None else ():
                self._spent = told.spent or self._spent

    def _since(self, used: Usage) -> Usage:
        """What this run used, of what a stream tells at its end."""
        named = self.session if self._source == "claude-code" else None
        session = session_named("claude-code", named) if named is not None and self._spent.cost is None else None
        if session is not None and self._is_forked(session):
            fork = forks(siblings(session), [session]).get(session.key)
            self._spent = (fork.spent if fork is not None else None) or self._spent
        return since(self._spent, used)

    def _is_forked(self, session: Session) -> bool:
        """Whether the session of this run begins with what was said before."""
        first = next((step.at for _, step in session.steps(0, []) if step.prompt is not None), None)
        began = self._task.state.created
        return first is not None and began is not None and first < began

    def _subagent(self, call_id: str, first: Step) -> Steps:
        """The steps of the sub-agent that a call started; its first step says what it was asked."""
        found = self._subagents.get(call_id)
        if found is None:
            call = self._calls.get(call_id)
            title = call.args if call is not None else None
            name = first.facts.get("subagent") or "agent"
            own = first.facts.get("sub_session")
            task = self._store.start(
                first.prompt or title or "(a sub-agent)",
                title=title,
                agent=name,
                parent=Parent(self._task.id),
                cwd=os.getcwd(),
                source=f"{self._source}:{self.session}/{own}" if own and self.session else None,
                fields={"Parent-Call": call_id},
            )
            found = self._subagents[call_id] = Steps(self._store, task, name, self._source)
            if own and not self.session:
                self._unlinked[own] = task.id
            found.session, found._own = self.session, own
        return found

    def _note(self, aside: Aside) -> None:
        self.end()
        payload = Section("Payload", "\n".join(self._raw))
        self._raw = []
        self._task.add([Note(kind=aside.kind, context="out", content=aside.text, sections=(payload,))])

    def _add(self, turn: LiveTurn, step: Step) -> None:
        # Some streams tell only at their end that the last words were those of an error.
        self._is_failed = self._is_failed or (
            step.failed is not None and (step.turn is not None or step.failed == self._said)
        )
        if step.thinking is not None:
            turn.think(step.thinking)
        if step.text is not None:
            turn.say(f"\n\n{step.text}" if self._has_text and not step.continued else step.text)
            self._has_text, self._said = True, step.text
        for name, count in step.tokens.items():
            before = self._tokens.get(name, 0)
            self._tokens[name] = max(before, count) if step.turn is not None else before + count
        if step.cost is not None:
            self._cost = step.cost if step.turn is not None else (self._cost or 0) + step.cost
        for call in step.calls:
            self._calls[call.id] = call
            self._waiting[call.id] = call, turn.begin_tool(call.tool, call.args, more={"id": call.id})
        if step.diffs:
            by = step.by_call if step.by_call in self._waiting else next(reversed(self._waiting), None)
            self._edit(turn, by, step.diffs)
        for output in step.outputs:
            self._output(turn, output)
        for operation, path in step.touches:
            self._touch(turn, operation, self._inside(path))

    def _output(self, turn: LiveTurn, output: Output) -> None:
        size = len(output.text.encode("utf-8", "surrogatepass"))
        result = "error" if output.failed else f"{size} bytes" if size else "done"
        call, key = self._waiting.get(output.id, (None, None))
        if key is None or call is None:
            turn.tool("result", output.id, result, output=output.text)
            return
        if not output.failed:
            is_told = output.id in self._has_diffs or output.is_unchanged
            diffs = output.diffs or (() if is_told else call.diffs or self._written(call))
            moved = {diff.old for diff in diffs if diff.new not in (None, diff.old)}
            for operation, path in call.touches:
                if path not in moved:  # the diff says where it went
                    self._touch(turn, operation, self._inside(path))
            self._edit(turn, output.id, diffs)
        turn.end_tool(key, result, output=output.text or None)
        del self._waiting[output.id]
        if output.id in self._subagents and not output.goes_on:
            said_nothing = not self._subagents[output.id].has_turns
            self._leave(output.id, "failure" if output.failed else "unknown" if said_nothing else "success")

    def _written(self, call: Call) -> list[Diff]:
        """What a call wrote, from the agent's own session: the stream of Codex names only the files. The session is written
        first, but perhaps by another thread."""
        paths = {path for operation, path in call.touches if operation != "read"}
        if self._source != "codex" or self.session is None or not paths:
            return []
        for wait in (0, 0.05, 0.1, 0.2):
            time.sleep(wait)
            session = session_named(self._source, self.session)
            for place, step in session.steps(self._read_until, []) if session is not None else ():
                self._read_until = place
                self._told += step.diffs
            found = [diff for diff in self._told if diff.old in paths or diff.new in paths]
            if len(found) >= len(paths):
                self._told = [diff for diff in self._told if diff not in found]
                return found
        return []

    def _edit(self, turn: LiveTurn, call_id: str | None, diffs: Sequence[Diff]) -> None:
        key = self._waiting[call_id][1] if call_id is not None else None
        if call_id is not None and diffs:
            self._has_diffs.add(call_id)
        for diff in diffs:
            old, new = (None if path is None else self._inside(path) for path in (diff.old, diff.new))
            text = diff_text(Diff(old, new, diff.hunks))
            turn.edit(new or old or "", diff=text, tool=key)
            self._touch(turn, "delete" if new is None else "write", new or old or "")
            if old is not None and new not in (None, old):  # moved
                self._touch(turn, "delete", old)

    def _touch(self, turn: LiveTurn, operation: str, path: str) -> None:
        if (operation, path) not in self._touched:
            self._touched.add((operation, path))
            turn.touch(operation, path)

    def _inside(self, path: str) -> str:
        root = str(self._task.root)
        return os.path.relpath(path, root) if path.startswith(root + os.sep) else path

    def end(self) -> None:
        """Ends the current turn, if any. Its payload has the original records."""
        if self._turn is None:
            return
        turn, self._turn, self._key, self._has_text = self._turn, None, None, False
        raw, self._raw = self._raw, []
        tokens, self._tokens = self._tokens, {}
        cost, self._cost = self._cost, None
        self.cut_off = bool(self._waiting)
        outcome = "failed" if self._is_failed else INTERRUPTED if self.cut_off else "complete"
        self._is_failed, self._said = False, ""
        self._waiting, self._has_diffs, self._touched = {}, set(), set()
        turn.end(outcome, payload="\n".join(raw), tokens=tokens, cost=stated(cost, tokens))

    def leave(self) -> None:
        """Ends the current turn, and adds what came after it, or without any turn, as a note."""
        self.end()
        for call_id, first in self._early.items():
            self._subagent(call_id, first).take(_of_its_own(first))
        self._early = {}
        if self._raw:
            payload = Section("Payload", "\n".join(self._raw))
            self._task.add([Note(kind="imported-before", context="out", sections=(payload,))])
            self._raw = []
        for call_id in tuple(self._subagents):
            self._leave(call_id, "interrupted")

    def finish(self, outcome: str, failed: str | None = None) -> None:
        """Finishes the task of a sub-agent, with what only its own session has: older versions leave its last words out."""
        self.leave()
        session = self._own_session()
        place = recorded_until(self._store, self._task.id, session) if session is not None else 0
        if session is not None:
            for record in TurnBuilder(session, place, (str(self._store.root),), []).turns():
                # What the whole run used, with its sub-agents, is told at its end.
                added(self._task, [replace(each, tokens={}) if isinstance(each, Turn) else each for each in record])
        self._task.finish(outcome, error=failed)
        if session is not None:
            mark_recorded(self._store, self._task.id, session)

    def _own_session(self) -> Session | None:
        """A sub-agent's own session, once its end is written. Another thread of the agent may do that a little later."""
        if self._source != "claude-code" or self.session is None or self._own is None:
            return None
        parent = session_named(self._source, self.session)
        for wait in (0, 0.05, 0.1, 0.2):
            time.sleep(wait)
            session = claude_code.subagent(parent, self._own) if parent is not None else None
            facts = Facts()
            for _, step in session.steps(0, []) if session is not None else ():
                facts.take(step)
            if facts.outcome != "interrupted":
                break
        return session

    def whole(self) -> Usage:
        """What the run used and its turns do not state. The stream of Copilot does not tell; the agent's own session does."""
        if self._source != "copilot" or self.session is None or self.used.tokens:
            return self.used
        session, began, tokens = session_named(self._source, self.session), self._task.state.created, dict[str, int]()
        for each in sessions(self._source, [session.path], self._store.root, []) if session is not None else ():
            for _, step in each.steps(0, []):
                is_ours = step.at is not None and began is not None and step.at >= began
                for name, count in step.tokens.items() if is_ours else ():
                    tokens[name] = tokens.get(name, 0) + count
        return Usage(tokens)

    def settle(self) -> None:
        """Notes up to where the agent's own session is recorded, once the agent has ended, so that it is not imported again."""
        if self.session is None or self._source is None:
            return
        session = session_named(self._source, self.session)
        if session is not None:
            mark_recorded(self._store, self._task.id, session)
            if self._earlier is not None:
                mark_recorded(self._store, self._earlier, session)
            for each in sessions(self._source, [session.path], self._store.root, []) if self._unlinked else ():
                sub_agent = self._unlinked.get(each.key.removeprefix(f"{self.session}/"))
                if sub_agent is not None:
                    mark_recorded(self._store, sub_agent, each)
        for key in self._apart:
            self._record_apart(self._source, key)

    def _record_apart(self, source: str, key: str) -> None:
        session = session_named(source, key)
        if session is not None and not self._store.by_source(f"{source}:{key}"):
            start(self._store, session, [], ended=True, parent=self._task.id)


def _of_its_own(step: Step) -> Step:
    """A sub-agent's step, as if it had a stream of its own. Its prompt is its task's request."""
    return Step(
        step.raw, step.at, step.turn, None, None, step.text, step.thinking, step.model, step.tokens,
        calls=step.calls, outputs=step.outputs, touches=step.touches, diffs=step.diffs, by_call=step.by_call,
    )  # fmt: skip
