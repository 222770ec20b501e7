"""A task as a log of data: adapters append values to it, and fold what anybody appended into a state of their own.

Each value is the data of a note, kept exactly. Turns and notes among the values are for people, and written as they are. A log
remembers how far it has read, so that a value is read once, also if several processes append to the same task.
"""

from __future__ import annotations

import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from rawko_state.errors import ChainMoved, TaskNotFound
from rawko_state.format.seal import GENESIS
from rawko_state.integrations.fair_lock import FairLock
from rawko_state.model.entries import Note, Turn

if TYPE_CHECKING:
    from rawko_state.store.contract import Store
    from rawko_state.tasks.task import Task

_OPEN: Final = 64
"""Tasks that are kept open, with what was read of them in memory: about the size of their files."""
_LOOK_EVERY: Final = 1.0
"""Seconds between two looks for the task with a source."""


class TaskLog:
    """The values of one task. ``take`` is called with each of them once, in order; ``forget`` when the task was deleted, by
    anybody, so that what was taken no longer counts. Thread-safe."""

    def __init__(
        self,
        store: Store,
        source: str,
        request: str,
        agent: str,
        take: Callable[[Any], None],
        forget: Callable[[], None],
    ) -> None:
        self._store, self._source, self._agent, self._take, self._forget = store, source, agent, take, forget
        self._unnamed = self._request = request
        """The request of the task, if it is made here."""
        self.lock = FairLock()
        self._task: Task | None = None
        self._asked: str | None = None
        """The request of a task that was made here, until the first turn of the user has come."""
        self._end, self._seal = 0, GENESIS
        self._looked = 0.0
        self._id: str | None = None
        """The task that was read up to there."""

    def asks(self, text: str | None) -> None:
        """What the task is about, if it is made with what is appended next."""
        self._request = text if text is not None and text.strip() else self._unnamed

    def append(self, values: Sequence[Any]) -> None:
        """Appends values as one record, durable when this returns, and takes them."""
        with self.lock:
            try:
                self._append(values, None)
            except (ChainMoved, TaskNotFound):
                self._start_over()  # somebody has deleted the task, so this begins a new one; or rewritten it
                self._append(values, None)

    def append_next(self, make: Callable[[], Sequence[Any]]) -> None:
        """Appends values that depend on all that was appended before. ``make`` is called again if somebody was faster."""
        with self.lock:
            # What is known is taken for all there is: if it is not, the append is refused.
            known = self._task is not None and self._end > 0 and not self._is_look_due()
            while True:
                if not known:
                    self.catch_up()
                values = make()
                if not values and not known:
                    return
                try:
                    if values:
                        self._append(values, self._seal if self._end else None)
                        return
                except ChainMoved:
                    pass
                except TaskNotFound:
                    if not known:
                        raise
                known = False

    def _append(self, values: Sequence[Any], expect: str | None) -> None:
        if self._task is None:
            self._task = self._opened()
        now = datetime.now(timezone.utc)
        told = [value for value in values if isinstance(value, (Turn, Note))]
        data = [value for value in values if not isinstance(value, (Turn, Note))]
        notes = [Note(at=now, kind=self.kind, context="out", data=value) for value in data]
        first = next((each for each in told if isinstance(each, Turn) and each.agent == "user"), None)
        if first is not None and (first.content or "").strip() == self._asked:
            told.remove(first)  # it is the request of the task
        written = self._task.add([*told, *notes], expect=expect)
        if first is not None:
            self._asked = None
        if written.offset == self._end and written.alone:
            self._end, self._seal = written.end, written.seal
            for value in data:
                self._take(value)
        else:
            self.catch_up()

    @property
    def kind(self) -> str:
        """The kind of its notes."""
        return f"{self._agent}-data"

    def catch_up(self) -> bool:
        """Takes what was appended since. False if there is no such task."""
        with self.lock:
            try:
                return self._is_there() and self._catch_up()
            except (ChainMoved, TaskNotFound):
                self._start_over()  # somebody has deleted or rewritten the task
                return self._is_there() and self._catch_up()

    def _is_there(self) -> bool:
        """Whether there is such a task. One that is open tells by itself that it was deleted."""
        if self._task is not None and not self._is_look_due():
            return True
        found = self._store.find_source(self._source)
        if found != self._id or found is None:
            self._start_over()
        self._looked = time.monotonic()
        return found is not None

    def _is_look_due(self) -> bool:
        """Whether to look up the source again: an older task that has the same may have been restored."""
        return time.monotonic() - self._looked > _LOOK_EVERY

    def _catch_up(self) -> bool:
        if self._task is None:
            self._task = self._opened()
        self._task.refresh()
        if self._task.end != self._end:
            for value in self._fresh(self._task.id):
                self._take(value)
        return True

    def delete(self) -> None:
        """Moves the task to the trash, from where it can be restored."""
        with self.lock:
            task_id = self._store.find_source(self._source)
            self._start_over()
            if task_id is not None:
                with contextlib.suppress(TaskNotFound):
                    self._store.delete(task_id, by=self._agent)

    def delete_emptied(self) -> None:
        """The same, for a task in which nothing counts any more. If somebody has appended to it just now, it stays."""
        with self.lock:
            task_id, end = self._id, self._end
            self._start_over()
            if task_id is None:
                return
            with contextlib.suppress(TaskNotFound):
                self._store.delete(task_id, by=self._agent)
                if any(each.id == task_id and each.size != end for each in self._store.trash()):
                    self._store.restore(task_id)

    def close(self) -> None:
        """Lets go of the task. It is opened again when it is needed."""
        with self.lock:
            if self._task is not None:
                self._task.close()
            self._task = None

    def _start_over(self) -> None:
        self.close()
        if self._id is not None:
            self._forget()
        self._end, self._seal, self._id = 0, GENESIS, None

    def _opened(self) -> Task:
        task = self._store.open_task(self._source, self._request, agent=self._agent, exact=True)
        if task.id != self._id:
            self._start_over()
        self._id, self._looked = task.id, time.monotonic()
        self._asked = self._request.strip() if task.is_new else None
        return task

    def _fresh(self, task_id: str) -> Iterator[Any]:
        with self._store.reader(task_id) as reader:
            for record in reader.scan((self._end, self._seal) if self._end else None):
                if record.seal is None:
                    return  # an append that did not finish
                self._end, self._seal = record.end, record.seal
                for block in record.blocks:
                    entry = block.entry(reader.fetch)
                    if isinstance(entry, Note) and entry.kind == self.kind and entry.data is not None:
                        yield entry.data


class Folded(Protocol):
    """What the values of a task come to."""

    def take(self, value: Any, /) -> None: ...

    def forget(self) -> None: ...


State = TypeVar("State", bound=Folded)


class TaskLogs(Generic[State]):
    """The logs of an adapter, by their names, each with its state. The least used are closed when there are many."""

    def __init__(self, store: Store, prefix: str, agent: str, make: Callable[[], State]) -> None:
        self._store, self._prefix, self._agent, self._make = store, prefix, agent, make
        self._open: OrderedDict[str, tuple[TaskLog, State]] = OrderedDict()
        self.lock = FairLock()

    def log(self, name: str, take: Callable[[Any], None], forget: Callable[[], None]) -> TaskLog:
        """A log that is not kept open."""
        return TaskLog(self._store, self._prefix + name, f"{self._agent} {name}", self._agent, take, forget)

    def of(self, name: str) -> tuple[TaskLog, State]:
        with self.lock:
            if name not in self._open:
                state = self._make()
                self._open[name] = (self.log(name, state.take, state.forget), state)
                while len(self._open) > _OPEN:
                    self._open.popitem(last=False)[1][0].close()
            self._open.move_to_end(name)
            return self._open[name]

    def read(self, name: str) -> State | None:
        """The state with all that was appended until now; None if there is no such task."""
        log, state = self.of(name)
        return state if log.catch_up() else None

    def names(self) -> dict[str, str]:
        """The names that have a task, and its id."""
        return {source[len(self._prefix) :]: task_id for source, task_id in self._store.by_source(self._prefix).items()}

    def delete(self, name: str) -> None:
        self.of(name)[0].delete()

    def close(self) -> None:
        with self.lock:
            while self._open:
                self._open.popitem()[1][0].close()
