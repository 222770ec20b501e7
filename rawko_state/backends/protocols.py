"""What answering questions needs: where the bytes are, and where the rows are. A folder and SQLite, or PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from rawko_state.tasks.source import EventSource

if TYPE_CHECKING:
    from rawko_state.format.reader import TaskReader
    from rawko_state.index.rows import TaskDatabase
    from rawko_state.model.entries import Blob, ToolCall
    from rawko_state.model.names import TaskName


class TaskFiles(EventSource, Protocol):
    """Where tasks, drafts and long outputs are."""

    def reader_at(self, file_path: str) -> TaskReader:
        """Of the file that a row names."""

    def find(self, prefix: str) -> TaskName: ...

    def alive(self) -> set[str]:
        """The tasks that somebody runs now."""

    def marked(self) -> set[str]:
        """The tasks that somebody has open."""

    def holder(self, task_id: str) -> object | None:
        """Who runs a task."""

    def output_of(self, call: ToolCall) -> str | None: ...

    def blob_bytes(self, blob: Blob) -> bytes | None: ...

    def put_blob(self, data: bytes) -> Blob: ...

    def drafted(self) -> set[str]:
        """The tasks with a live turn that has not ended."""

    def disk_use(self) -> dict[str, int]: ...


class SyncedIndex(Protocol):
    """Where the rows are, as fresh as the bytes."""

    @property
    def journal(self) -> TaskFiles: ...

    def index(self) -> TaskDatabase: ...

    def fresh(self) -> TaskDatabase: ...

    def guarded(self, ask: Callable[[Any], object]) -> object:
        """Asks the fresh rows; once more, if they turn out to be broken and can be made again."""

    def catch_up(self, name: TaskName, index: Any = None, *, grown: bool = False) -> None: ...

    def close(self) -> None: ...
