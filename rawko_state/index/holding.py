"""What the index is asked about keeping: all tasks as retention sees them, and which long outputs they refer to."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from rawko_state.index.database import Index, mapped
from rawko_state.model import status as words
from rawko_state.store import Kept

_SOME = 500


def kept(index: Index, alive: Collection[str], exempt: Collection[str], only: str | None = None) -> list[Kept]:
    """Every task, or one. ``alive`` are those that a process runs, ``exempt`` those that were brought back from the trash."""
    with mapped(index.name):
        rows = index.connection.execute(
            "SELECT id, created_at, completed_at, status, pinned, parent_id, file_path, file_size, file_mtime_ns, detached"
            " FROM tasks" + (" WHERE id = ?" if only is not None else ""),
            (only,) if only is not None else (),
        ).fetchall()
    found = []
    for task_id, created, completed, status, pinned, parent, path, size, mtime, detached in rows:
        if status == words.RUNNING and not detached and task_id not in alive:
            status = words.INTERRUPTED
        last = max(created or "", completed or "") or None
        found.append(
            Kept(task_id, last, status or words.PENDING, bool(pinned), task_id in exempt, parent, path, size, mtime)
        )
    return found


def blobs_of(index: Index, task_ids: Iterable[str]) -> dict[str, dict[str, int]]:
    """The long outputs that some tasks refer to, and their sizes."""
    found: dict[str, dict[str, int]] = {}
    ids = list(task_ids)
    with mapped(index.name):
        for start in range(0, len(ids), _SOME):
            some = ids[start : start + _SOME]
            marks = ", ".join("?" for _ in some)
            query = f"SELECT task_id, sha256, size FROM task_blobs WHERE task_id IN ({marks})"
            for task_id, sha256, size in index.connection.execute(query, some):
                found.setdefault(task_id, {})[sha256] = size
    return found


def unused(index: Index, blobs: Collection[str], without: Collection[str] = ()) -> set[str]:
    """Those that no task refers to; ``without`` some tasks."""
    found = set()
    with mapped(index.name):
        for blob in blobs:
            users = index.connection.execute("SELECT task_id FROM task_blobs WHERE sha256 = ?", (blob,))
            if all(row[0] in without for row in users):
                found.add(blob)
    return found
