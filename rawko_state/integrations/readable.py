"""What an adapter's data says to people: the turns that the records of a session come to, written beside them.

Data is kept for the program, exactly. In the same record stand turns for whoever reads, searches or exports the task: redacted
like all that people and agents say. A tool call is told with its result, however much later that comes.
"""

from __future__ import annotations

import copy
import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from rawko_state.exchange.transcript import Call, Step
from rawko_state.exchange.turns import OpenTurn
from rawko_state.model.entries import Note, Turn
from rawko_state.model.frozen import replace

if TYPE_CHECKING:
    from pathlib import Path

_REMEMBERED: Final = 1_000
"""Calls without a result."""


class Teller:
    """Tells one session in turns. Remembers the calls whose results have not come yet. Not thread-safe."""

    def __init__(self, agent: str, root: Path | None) -> None:
        """``root``: paths are shown relative to it."""
        self._agent, self._root = agent, f"{root}{os.sep}"
        self._waiting: OrderedDict[str, tuple[Call, str | None]] = OrderedDict()
        self._key: str | None = None

    def copied(self) -> Teller:
        """The same, to try what may have to be told again."""
        other = copy.copy(self)
        other._waiting = self._waiting.copy()
        return other

    def entries(self, steps: Iterable[Step]) -> list[Turn | Note]:
        """The turns of the next steps, and the title if they give the session one."""
        whole = list(self._with_calls(list(steps)))
        titles = [step.title for step in whole if step.title]
        told: list[Turn | Note] = [turn for turn in self._turns(whole) if turn.content or turn.thinking or turn.tools]
        return [*told, *titled(titles[-1] if titles else None)]

    def knows(self, call: Call, agent: str | None = None) -> None:
        """A call whose result is still to come."""
        self._waiting[call.id] = (call, agent)
        while len(self._waiting) > _REMEMBERED:
            self._waiting.popitem(last=False)

    def _with_calls(self, steps: Sequence[Step]) -> Iterator[Step]:
        """The steps with each call where its result is: a call without one waits, and comes again with it."""
        done = {output.id for step in steps for output in step.outputs}
        here = {call.id for step in steps for call in step.calls}
        for step in steps:
            for call in step.calls:
                if call.id not in done:
                    self.knows(call, step.agent)
            late = [self._waiting.pop(output.id) for output in step.outputs if output.id in self._waiting]
            if any(output.id not in here for output in step.outputs):
                agent = next((agent for _, agent in late if agent is not None), step.agent)
                calls = tuple(call for call, _ in late)
                yield Step("", step.at, turn=f"results of {step.outputs[0].id}", agent=agent, calls=calls)
            yield replace(step, raw="", calls=tuple(call for call in step.calls if call.id in done))

    def _turns(self, steps: Sequence[Step]) -> Iterator[Turn]:
        current: OpenTurn | None = None
        for step in steps:
            if step.prompt is not None or (step.turn is not None and (current is None or step.turn != current.key)):
                if current is not None:
                    yield replace(current.turn(), payload=None)
                current = OpenTurn(step, self._agent, self._relative)
            if current is not None:
                # One answer may come in two parts, each with the tokens of all of it.
                current.add(replace(step, tokens={}) if step.turn is not None and step.turn == self._key else step)
        if current is not None:
            self._key = current.key
            yield replace(current.turn(), payload=None)

    def _relative(self, path: str) -> str:
        return path[len(self._root) :] if path.startswith(self._root) else path


def titled(text: str | None) -> list[Note]:
    """A note that gives the task a title."""
    title = " ".join((text or "").split())[:300]
    return [Note(title=title)] if title else []
