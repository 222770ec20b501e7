"""What reading a project needs of where its bytes are, and of where its rows are: a folder and SQLite, or PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

# Nothing of it is needed to run, and it costs time to import.
if TYPE_CHECKING:
    from rawko_state.index.rows import Rows
    from rawko_state.journal.reader import TaskReader
    from rawko_state.model.entries import Blob, ToolCall
    from rawko_state.model.names import TaskName


class DraftLines(Protocol):
    """The draft of a turn that is running."""

    def opened(self) -> AbstractContextManager[tuple[bytes, Callable[[int], Iterator[bytes]]]]:
        """Its head, and a function that gives its whole lines from a byte on. OSError when there is none."""


class Bytes(Protocol):
    """Where tasks, drafts and long outputs are."""

    def reader(self, name: TaskName) -> TaskReader: ...

    def reader_at(self, file_path: str) -> TaskReader:
        """Of the file that a row names."""

    def find(self, prefix: str) -> TaskName: ...

    def look(self, name: TaskName) -> tuple[int, int, int, int]:
        """Two numbers that say which file it is, its size, and the time of its last change. StorageError when it is gone."""

    def draft_stamp(self, task_id: str) -> tuple[int, ...] | None:
        """Changes whenever a draft does; None when there is none."""

    def draft(self, task_id: str) -> DraftLines: ...

    def alive(self) -> set[str]:
        """The tasks that somebody runs now."""

    def marked(self) -> set[str]:
        """The tasks that somebody has open."""

    def holder(self, task_id: str) -> object | None:
        """Who runs a task."""

    def output_of(self, call: ToolCall) -> str | None: ...

    def blob_bytes(self, blob: Blob) -> bytes | None: ...

    def disk_use(self) -> dict[str, int]: ...


class Known(Protocol):
    """Where the rows are, as fresh as the bytes."""

    @property
    def journal(self) -> Bytes: ...

    def index(self) -> Rows: ...

    def fresh(self) -> Rows: ...

    def guarded(self, ask: Callable[[Any], object]) -> object:
        """Asks the fresh rows; once more, if they turn out to be broken and can be made again."""

    def catch_up(self, name: TaskName, index: Any = None, *, grown: bool = False) -> None: ...

    def close(self) -> None: ...
