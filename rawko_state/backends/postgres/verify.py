"""Verifies and repairs tasks in PostgreSQL the same way as files."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from rawko_state.errors import RawkoError, TaskNotFound
from rawko_state.format.records import header_copies
from rawko_state.format.scan import Scan
from rawko_state.format.seal import HEADER_LIMIT, header_shape
from rawko_state.index.projection import Projector
from rawko_state.journal.layout import Layout
from rawko_state.journal.verify import Verdict, verify, walk
from rawko_state.model.names import TaskName

if TYPE_CHECKING:
    from rawko_state.backends.postgres.store import PostgresStore


class _Walked:
    """A chain in PostgreSQL, for verify to walk."""

    def __init__(self, store: PostgresStore, name: TaskName) -> None:
        self._store, self._id = store, name.id
        self._reader = store.reader(name.id)

    def scan_again(self) -> Scan:
        return self._reader.scan()

    def fetch(self, offset: int, length: int) -> bytes:
        return self._reader.fetch(offset, length)

    def look_again(self) -> tuple[int, bool]:
        row = self._store.tasks.rows.row(self._id)
        if row is None:
            raise TaskNotFound(self._id)
        torn = row["file_size"] - row["indexed_end"] if row["tail_seal"] is not None else 0
        state = Projector(self._id, row["file_path"], row).state
        return torn, bool(header_copies(header_shape(self.fetch(0, HEADER_LIMIT)), self.fetch, state))


def verdict_of(store: PostgresStore, name: TaskName) -> Verdict:
    verdict = Verdict(name)
    try:
        walk(_Walked(store, name), verdict, lambda blob: store.journal.blob_bytes(blob) is not None)
    except RawkoError as error:
        verdict.faults.append(str(error))
    return verdict


def repaired(store: PostgresStore, name: TaskName, verdict: Verdict) -> Verdict:
    """Repairs a task like a file: marks a torn end and rewrites the header's copies."""
    with store.postgres.transaction(), tempfile.TemporaryDirectory(prefix="rawko-") as folder:
        store.tasks.rows.row(name.id, lock=True)
        size = store.tasks.size(name.id) or 0
        layout = Layout(Path(folder))
        layout.make()
        path = layout.path(name)
        path.write_bytes(store.tasks.fetch(name.id, 0, size))
        mended = verify(layout, name, repair=True)
        store.rewrite(name, path.read_bytes())
        for other in sorted(layout.tasks.iterdir()):
            if other != path:  # the other version of a task that had diverged
                store.add_file(other.name, other.read_bytes())
    verdict.repaired = mended.repaired
    return verdict
