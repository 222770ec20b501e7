"""What queries need: access to the bytes and to the rows. Either a folder and SQLite, or PostgreSQL."""

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
    """Access to tasks, drafts and blobs."""

    def reader_at(self, file_path: str) -> TaskReader:
        """A reader of the file named in a row."""

    def find(self, prefix: str) -> TaskName: ...

    def alive(self) -> set[str]:
        """Tasks that a process is running now."""

    def marked(self) -> set[str]:
        """Tasks that a process has open."""

    def holder(self, task_id: str) -> object | None:
        """Who is running a task."""

    def output_of(self, call: ToolCall) -> str | None: ...

    def blob_bytes(self, blob: Blob) -> bytes | None: ...

    def put_blob(self, data: bytes) -> Blob: ...

    def drafted(self) -> set[str]:
        """Tasks with an unfinished live turn."""

    def disk_use(self) -> dict[str, int]: ...


class SyncedIndex(Protocol):
    """Access to the rows, kept in sync with the bytes."""

    @property
    def journal(self) -> TaskFiles: ...

    def index(self) -> TaskDatabase: ...

    def fresh(self, only: str | None = None) -> TaskDatabase:
        """The rows, up to date; with ``only``, at least those of that task."""

    def guarded(self, ask: Callable[[Any], object]) -> object:
        """Queries the up-to-date index. If it turns out to be broken, rebuilds it where possible and retries once."""

    def catch_up(self, name: TaskName, index: Any = None, *, grown: bool = False) -> None: ...

    def close(self) -> None: ...
