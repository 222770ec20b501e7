"""The retention queries on the index: tasks as retention sees them, and the long outputs that they refer to."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from rawko_state.index.rows import TaskDatabase
from rawko_state.model import status as words
from rawko_state.store import RetentionRow

_SOME = 500


def rows(
    index: TaskDatabase, alive: Collection[str], exempt: Collection[str], only: str | None = None
) -> list[RetentionRow]:
    """Every task, or one. ``alive``: tasks that a process runs. ``exempt``: tasks that were restored from the trash."""
    with index.mapped():
        rows = index.connection.execute(
            "SELECT id, updated_at, status, pinned, parent_id, file_path, file_size, file_mtime_ns, detached, damaged"
            f" FROM {index.at('tasks')}" + (f" WHERE id = {index.mark}" if only is not None else ""),
            (only,) if only is not None else (),
        ).fetchall()
    found = []
    for task_id, last, status, pinned, parent, path, size, mtime, detached, damaged in rows:
        if status == words.RUNNING and not detached and task_id not in alive:
            status = words.INTERRUPTED
        found.append(
            RetentionRow(
                task_id,
                last,
                status or words.PENDING,
                bool(pinned),
                task_id in exempt,
                parent,
                path,
                size,
                mtime,
                bool(damaged),
            )
        )
    return found


def blobs_of(index: TaskDatabase, task_ids: Iterable[str]) -> dict[str, dict[str, int]]:
    """The long outputs that tasks refer to, and their sizes."""
    found: dict[str, dict[str, int]] = {}
    ids = list(task_ids)
    with index.mapped():
        for start in range(0, len(ids), _SOME):
            some = ids[start : start + _SOME]
            marks = ", ".join(index.mark for _ in some)
            query = f"SELECT task_id, sha256, size FROM {index.at('task_blobs')} WHERE task_id IN ({marks})"
            for task_id, sha256, size in index.connection.execute(query, some):
                found.setdefault(task_id, {})[sha256] = size
    return found


def unused(index: TaskDatabase, blobs: Collection[str], without: Collection[str] = ()) -> set[str]:
    """The blobs that no task refers to, not counting the tasks in ``without``."""
    found = set()
    with index.mapped():
        for blob in blobs:
            query = f"SELECT task_id FROM {index.at('task_blobs')} WHERE sha256 = {index.mark}"
            users = index.connection.execute(query, (blob,))
            if all(row[0] in without for row in users):
                found.add(blob)
    return found


def freed(index: TaskDatabase, task_ids: Sequence[str]) -> dict[str, int]:
    """How many bytes of long outputs each task frees, if these tasks are deleted together."""
    owned = blobs_of(index, task_ids)
    going = set(task_ids)
    free = unused(index, {blob for blobs in owned.values() for blob in blobs}, going)
    found: dict[str, int] = {}
    for task_id, blobs in owned.items():
        # Count shared outputs once.
        found[task_id] = sum(size for blob, size in blobs.items() if blob in free)
        free -= set(blobs)
    return found
