"""Questions of a task and their answers: asked in one process, answered in any other."""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from datetime import datetime, timezone
from typing import Final

from rawko_state.backends.desk import Desk, Make
from rawko_state.backends.live import check_question
from rawko_state.errors import InvalidValue, NoAnswer, RawkoError
from rawko_state.model import status
from rawko_state.model.appended import Appended
from rawko_state.model.entries import Entry, Json, Question, Turn
from rawko_state.model.state import TaskState

_LOOK_EVERY: Final = 0.05


class Asking(ABC):
    """A part of Task."""

    id: str
    _desk: Desk

    @property
    @abstractmethod
    def state(self) -> TaskState: ...

    @abstractmethod
    def refresh(self) -> TaskState: ...

    @abstractmethod
    def check(self) -> None: ...

    @abstractmethod
    def add_turn(self, turn: Turn, *, expect: str | None = None, snapshot: Json = None) -> Appended: ...

    @abstractmethod
    def _append(self, make: Make, expect: str | None = None) -> Appended: ...

    def ask(self, agent: str, question: Question, *, content: str | None = None) -> Appended:
        """A turn that ends in a question; the task waits for its answer."""
        check_question(question)
        return self.add_turn(Turn(number=1, agent=agent, status=status.WAITING, content=content, question=question))

    def question(self) -> Question | None:
        """What the task waits for an answer to."""
        number = self.refresh().question
        return None if number is None else self._turn_at(number).question

    def wait_for_answer(self, timeout: float | None = None, *, number: int | None = None) -> str:
        """Waits until the open question, or that of turn ``number``, is answered, by whom- and wherever, and returns the answer.

        At the question's deadline its default becomes the answer; without one, and after ``timeout`` seconds, NoAnswer is raised.
        Stopped is raised when the task is paused or cancelled instead.
        """
        number = self.refresh().question if number is None else number
        if number is None:
            raise NoAnswer(f"task {self.id} asks nothing")
        asked = self._turn_at(number).question
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            self.check()
            if self.state.question != number:
                return self._answer_to(number)
            if asked is not None and asked.deadline is not None and datetime.now(timezone.utc) >= asked.deadline:
                if asked.default is None:
                    raise NoAnswer(f"task {self.id}: nobody has answered by {asked.deadline:%Y-%m-%d %H:%M:%S}")
                with contextlib.suppress(NoAnswer):  # somebody may be faster
                    self.answer(asked.default, by="deadline")
            elif until is not None and time.monotonic() >= until:
                raise NoAnswer(f"task {self.id}: nobody has answered in {timeout:g} s")
            else:
                time.sleep(_LOOK_EVERY)

    def _turn_at(self, number: int) -> Turn:
        for turn in self._desk.last_turns():
            if turn.number == number:
                return turn
        raise RawkoError(f"task {self.id} has no turn {number}")

    def _answer_to(self, number: int) -> str:
        for turn in self._desk.last_turns():
            if turn.answers == number:
                return turn.content or ""
        raise RawkoError(f"task {self.id}: turn {number} has no answer")

    def answer(self, text: str, *, by: str | None = None) -> Appended:
        """A person's answer to the open question. One that offers choices takes one of them, by its words or its number."""
        asked = self.question()
        if asked is None:
            raise NoAnswer(f"task {self.id} asks nothing")
        text = chosen(asked, text)

        def make(state: TaskState) -> list[Entry]:
            if state.question is None:
                raise NoAnswer(f"task {self.id} asks nothing any more: somebody was faster")
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


def chosen(question: Question, text: str) -> str:
    """The answer that a text stands for: one of the choices, by its words in any case or by its number; or the text."""
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
    raise InvalidValue(f"{text!r} is none of the choices: {', '.join(question.choices)}")
