"""What following a task requires of a backend."""

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
        """Its head, and a function that yields its complete lines from an offset on. Raises OSError if there is no draft."""


class EventSource(Protocol):
    """Where to read a task and its draft."""

    def look(self, name: TaskName) -> tuple[int, int, int, int]:
        """Two numbers that identify the file, its size, and the time of its last change. Raises StorageError if it is gone."""

    def reader(self, name: TaskName) -> TaskReader: ...

    def draft_stamp(self, task_id: str) -> tuple[int, ...] | None:
        """A value that changes whenever the draft does. None if there is no draft."""

    def draft(self, task_id: str) -> DraftLines: ...
