"""What following a task needs of the place where it is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rawko_state.format.reader import TaskReader
    from rawko_state.model.names import TaskName


class DraftLines(Protocol):
    """The draft of a running turn."""

    def opened(self) -> AbstractContextManager[tuple[bytes, Callable[[int], Iterator[bytes]]]]:
        """Its head, and a function that gives its whole lines from a byte on. OSError when there is none."""


class EventSource(Protocol):
    """Where a task and its draft can be looked at."""

    def look(self, name: TaskName) -> tuple[int, int, int, int]:
        """Two numbers that say which file it is, its size, and the time of its last change. StorageError when it is gone."""

    def reader(self, name: TaskName) -> TaskReader: ...

    def draft_stamp(self, task_id: str) -> tuple[int, ...] | None:
        """Changes whenever a draft does; None when there is none."""

    def draft(self, task_id: str) -> DraftLines: ...
