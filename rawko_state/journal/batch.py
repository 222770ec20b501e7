"""New task files and blobs that become durable together: one sync for the content of all, then their names.

An import writes thousands of files, and a sync for each would cost more than the rest of the work. Nothing of a batch is in
place, or may be called recorded, before commit() returns.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from rawko_state.errors import StorageError
from rawko_state.journal import blobs, disk
from rawko_state.journal.layout import Layout
from rawko_state.journal.locks import append_lock, gate
from rawko_state.journal.rewrite import packed_copy
from rawko_state.model.entries import Blob
from rawko_state.model.frozen import replace
from rawko_state.model.names import TaskName

_OPEN: Final = 128
"""At most this many files are open and not synced. A session may have thousands of long outputs."""


class Batch:
    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._unsynced: list[tuple[int, Path]] = []
        self._tasks: list[tuple[Path, TaskName]] = []
        self._blobs: dict[Blob, Path] = {}
        self._names_blobs = False
        self._held = contextlib.ExitStack()
        self._lost: StorageError | None = None
        """The error of a sync. Another sync would succeed without what was lost, so nothing of this batch counts."""

    def __len__(self) -> int:
        return len(self._tasks)

    def add(
        self,
        name: TaskName,
        pieces: Iterable[bytes],
        finish: Callable[[int, Path], None],
        *,
        pack: bool = False,
    ) -> tuple[int, int]:
        """Writes a new task under a temporary name. Returns its size and mtime. With ``pack``, writes a .task.gz."""
        self._keep_blobs()
        descriptor, path = disk.write_unsynced(self._layout.live, pieces, finish)
        if pack:
            os.close(descriptor)
            path, name = packed_copy(self._layout, path), replace(name, packed=True)
            found = os.stat(path)
            self._tasks.append((path, name))
        else:
            found = os.fstat(descriptor)
            self._tasks.append((path, name))
            self._wait_for(descriptor, path)
        return found.st_size, found.st_mtime_ns

    def put_blob(self, content: str) -> Blob:
        """Stores a long text that a task of this batch names."""
        self._keep_blobs()
        data = content.encode("utf-8", "surrogatepass")
        blob = Blob(hashlib.sha256(data).hexdigest(), len(data))
        self._names_blobs = True  # even of one that is there: its writer may not have synced the folder yet
        if blob not in self._blobs and not blobs.is_whole(self._layout, blob):
            descriptor, self._blobs[blob] = disk.write_unsynced(self._layout.live, [data])
            self._wait_for(descriptor, self._blobs[blob])
        return blob

    def commit(self) -> set[str]:
        """Puts everything in place, durably. Returns the ids that were taken: their tasks are not written."""
        try:
            self._sync()
            for blob, path in self._blobs.items():
                disk.rename(path, blobs.blob_path(self._layout, blob))
            if self._names_blobs:
                disk.sync_folder(self._layout.blobs)
            taken = self._publish()
            disk.sync_folder(self._layout.tasks)
            return taken
        finally:
            self.discard()

    def discard(self) -> None:
        """Removes what is not in place."""
        for descriptor, _ in self._unsynced:
            os.close(descriptor)
        for path in (*(path for path, _ in self._tasks), *self._blobs.values()):
            disk.remove_quietly(path)
        self._unsynced, self._tasks, self._blobs, self._names_blobs, self._lost = [], [], {}, False, None
        self._held.close()

    def _keep_blobs(self) -> None:
        """Until this batch is in place, no cleanup may delete the blobs that it names."""
        if not self._tasks and not self._names_blobs:
            self._held.close()
            self._layout.make()
            self._held.enter_context(gate(self._layout.live / "blobs.lock", shared=True))

    def _publish(self) -> set[str]:
        """Renames the tasks into place."""
        path, taken = self._layout.live / "create.lock", set()
        descriptor = disk.open_or_create(path)
        try:
            with append_lock(descriptor, path):
                for temporary, name in self._tasks:
                    forms = (self._layout.path(replace(name, packed=packed)) for packed in (False, True))
                    if any(os.path.lexists(form) for form in forms):
                        taken.add(name.id)
                    else:
                        disk.rename(temporary, self._layout.path(name))
        finally:
            os.close(descriptor)
        return taken

    def _wait_for(self, descriptor: int, path: Path) -> None:
        self._unsynced.append((descriptor, path))
        if len(self._unsynced) >= _OPEN:
            self._sync()

    def _sync(self) -> None:
        if self._lost is not None:
            raise self._lost
        try:
            disk.sync_many(self._unsynced)
        except StorageError as error:
            self._lost = error
            raise
        for descriptor, _ in self._unsynced:
            os.close(descriptor)
        self._unsynced = []
