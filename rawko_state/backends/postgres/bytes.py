"""Adapts PostgreSQL to the readers' interface: bytes by offset, drafts by line, rows that are always up to date."""

from __future__ import annotations

import contextlib
import difflib
import errno
import hashlib
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from rawko_state.backends.postgres.rows import PostgresDatabase
from rawko_state.backends.postgres.tables import TaskTables
from rawko_state.errors import AmbiguousTask, RawkoError, StorageError, TaskNotFound
from rawko_state.format.reader import MemoryBytes, TaskBytes, TaskReader
from rawko_state.journal.source import FileBytes
from rawko_state.model.entries import Blob, ToolCall
from rawko_state.model.names import TaskName, parse_name


class PostgresBytes:
    """The bytes of one task as of opening. Later appends are not included."""

    def __init__(self, tasks: TaskTables, task_id: str) -> None:
        self._tasks, self._id = tasks, task_id
        size = tasks.size(task_id)
        if size is None:
            raise StorageError(f"Task {task_id} no longer exists.", task_id, errno.ENOENT)
        self._size = size

    def size(self) -> int:
        return self._size

    def read_at(self, length: int, offset: int) -> bytes:
        return self.fetch(offset, length)

    def fetch(self, offset: int, length: int) -> bytes:
        return self._tasks.fetch(self._id, offset, min(length, self._size - offset))

    def stat(self) -> tuple[int, int]:
        return self.size(), 0

    def close(self) -> None:
        return


@contextlib.contextmanager
def spooled(data: bytes | Iterable[bytes]) -> Iterator[TaskBytes]:
    """Makes bytes a readable source. Streamed data goes to a temporary file, not to memory."""
    if isinstance(data, bytes):
        yield MemoryBytes(data)
        return
    with tempfile.TemporaryFile(prefix="rawko-") as stream:
        for piece in data:
            stream.write(piece)
        stream.flush()
        yield FileBytes(Path("task"), stream.fileno())


def pieces_of(source: TaskBytes) -> Iterator[bytes]:
    at = 0
    while piece := source.fetch(at, 1 << 20):
        yield piece
        at += len(piece)


class PostgresDraft:
    """The draft of a running turn."""

    def __init__(self, tasks: TaskTables, task_id: str) -> None:
        self._tasks, self._id = tasks, task_id

    @contextlib.contextmanager
    def opened(self) -> Iterator[tuple[bytes, Callable[[int], Iterator[bytes]]]]:
        data = self._tasks.draft_from(self._id, 0)
        if not data:
            raise FileNotFoundError(self._id)
        head = data[: data.find(b"\n") + 1]

        def lines(start: int) -> Iterator[bytes]:
            for line in data[start:].splitlines(keepends=True):
                if line.endswith(b"\n"):
                    yield line

        yield head, lines


class PostgresFiles:
    """Access to tasks, drafts and blobs: implements ``TaskFiles``."""

    def __init__(self, tasks: TaskTables) -> None:
        self._tasks = tasks

    def find(self, prefix: str) -> TaskName:
        if not prefix.isascii() or not prefix.isalnum():
            raise TaskNotFound(prefix)
        found = self._tasks.ids_like(prefix)
        exact = [row for row in found if row[0] == prefix]
        if not exact and len(found) > 1:
            raise AmbiguousTask(prefix, [row[0] for row in found])
        if not found:
            near = difflib.get_close_matches(
                prefix, [row[0] for row in self._tasks.ids_like(prefix[:2])], n=3, cutoff=0.5
            )
            raise TaskNotFound(prefix, near)
        name = parse_name((exact or found)[0][1].rpartition("/")[2])
        if name is None:
            raise RawkoError(f"Task {found[0][0]} has an invalid file name: {found[0][1]!r}.")
        return name

    def reader(self, name: TaskName) -> TaskReader:
        return TaskReader(Path(name.filename), PostgresBytes(self._tasks, name.id))

    def reader_at(self, file_path: str) -> TaskReader:
        name = parse_name(file_path.rpartition("/")[2])
        if name is None:
            raise StorageError(f"{file_path} is not a task file.", file_path)
        return self.reader(name)

    def look(self, name: TaskName) -> tuple[int, int, int, int]:
        found = self._tasks.stamp(name.id)
        if found is None:
            raise StorageError(f"Task {name.id} no longer exists.", name.id, errno.ENOENT)
        return 0, *found

    def draft_stamp(self, task_id: str) -> tuple[int, ...] | None:
        return self._tasks.draft_stamp(task_id)

    def draft(self, task_id: str) -> PostgresDraft:
        return PostgresDraft(self._tasks, task_id)

    def alive(self) -> set[str]:
        return self._tasks.alive()

    def marked(self) -> set[str]:
        return self._tasks.drafted()

    def drafted(self) -> set[str]:
        return self._tasks.drafted()

    def holder(self, task_id: str) -> str | None:
        return self._tasks.holder(task_id)

    def output_of(self, call: ToolCall) -> str | None:
        if call.blob is None:
            return call.output
        data = self.blob_bytes(call.blob)
        if data is None:
            raise StorageError(f"The stored output {call.blob.sha256} is missing.", call.blob.sha256)
        return data.decode("utf-8", "surrogatepass")

    def blob_bytes(self, blob: Blob) -> bytes | None:
        data = self._tasks.blob(blob.sha256)
        whole = data is not None and hashlib.sha256(data).hexdigest() == blob.sha256
        return data if whole else None

    def put_blob(self, data: bytes) -> Blob:
        blob = Blob(hashlib.sha256(data).hexdigest(), len(data))
        self._tasks.put_blob(blob.sha256, data)
        return blob

    def disk_use(self) -> dict[str, int]:
        return self._tasks.sizes()


class PostgresSync:
    """Access to the rows: implements ``SyncedIndex``. Rows are written together with the bytes, so they are always current."""

    def __init__(self, rows: PostgresDatabase, files: PostgresFiles) -> None:
        self._rows, self.journal = rows, files

    def index(self) -> PostgresDatabase:
        return self._rows

    def fresh(self, only: str | None = None) -> PostgresDatabase:
        return self._rows

    def guarded(self, ask: Callable[[PostgresDatabase], object]) -> object:
        return ask(self._rows)

    def catch_up(self, name: TaskName, index: PostgresDatabase | None = None, *, grown: bool = False) -> None:
        return

    def close(self) -> None:
        self._rows.postgres.close()
