"""Packs old tasks, moves them to the trash, restores them, and deletes them permanently.

Files change first, then the index. If a process dies in between, the next sweep of the folder does the rest.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Final

from rawko_state.backends.files.sync import Sync
from rawko_state.errors import RawkoError, StorageError, TaskBusy, TaskExists
from rawko_state.index import retention
from rawko_state.journal import archive, trash
from rawko_state.journal.layout import TaskName, parse_name
from rawko_state.journal.locks import gate
from rawko_state.store import InTrash, RetentionRow

PATIENCE: Final = 60.0
"""Seconds to wait for another process that is using the trash."""
_SOME: Final = 500
"""Number of tasks to move between index updates."""
_AT_LEAST: Final = 2_000
"""Delete at least this many, which is quick, even if listing the trash took too long. Otherwise a large one would never empty."""


def move_to_trash(
    sync: Sync,
    tasks: Iterable[tuple[RetentionRow, str]],
    by: str | None,
    proceed: Callable[[], bool],
    patience: float = PATIENCE,
) -> Iterator[str]:
    """Moves tasks to the trash, each with the rule that selected it, while ``proceed``. Yields the ids of the tasks moved."""
    layout = sync.journal.layout
    everything = list(tasks)
    gone: list[trash.Leaving] = []
    try:
        for start in range(0, len(everything), _SOME):
            if not proceed():
                return
            some = everything[start : start + _SOME]
            blobs = retention.blobs_of(sync.index(), [task.id for task, _ in some])
            leaving = [
                trash.Leaving(name, rule, (task.size, task.mtime_ns), tuple(blobs.get(task.id, ())))
                for task, rule in some
                if (name := parse_name(task.file.rpartition("/")[2])) is not None
            ]
            with trash.locked(layout, patience):
                moved = trash.throw(layout, leaving, by)
            gone += moved
            yield from (each.name.id for each in moved)
    finally:
        if gone:
            # The next sweep of the folder would notice too, but this is faster.
            with contextlib.suppress(RawkoError):
                sync.index().forget_all(each.name.id for each in gone)
            put_away(sync, {blob for each in gone for blob in each.blobs}, patience)


def put_away(sync: Sync, blobs: set[str], patience: float = PATIENCE) -> None:
    """Moves the given blobs to the trash, except those that a task still refers to. Meanwhile nobody may write a record that
    names one, or restore a task. If any task file cannot be read, its references are unknown, so all blobs stay."""
    if not blobs:
        return
    layout = sync.journal.layout
    with (
        contextlib.suppress(StorageError),
        trash.locked(layout, patience),
        gate(layout.live / "blobs.lock", timeout=patience),
    ):
        index = sync.fresh()
        if sync.knows_all():
            trash.put_away(layout, retention.unused(index, blobs))


def restore(sync: Sync, prefix: str | None) -> list[str]:
    """Restores tasks with their blobs; without an id, all of them."""
    layout = sync.journal.layout
    with trash.locked(layout), gate(layout.live / "blobs.lock"):
        chosen = trash.listed(layout) if prefix is None else [trash.find(layout, prefix)]
        back = trash.restore(layout, chosen) if chosen else []
    if prefix is not None and not back:
        raise TaskExists(chosen[0].name.id, " in the project")
    return back


def empty(
    sync: Sync,
    before: datetime | None,
    only: str | None = None,
    patience: float = PATIENCE,
    proceed: Callable[[], bool] = lambda: True,
) -> list[InTrash]:
    """Permanently deletes tasks trashed before a time (None: all of them), or ``only`` one task, along with the blobs that only
    they referred to. Oldest first, while ``proceed`` returns true."""
    layout = sync.journal.layout
    first = trash.oldest(layout)
    if before is not None and first is not None and first >= before:
        return []
    if not layout.trash.exists():
        return []
    with trash.locked(layout, patience), gate(layout.live / "blobs.lock", timeout=patience):
        left = trash.listed(layout)
        going: list[trash.Discarded] = []
        for each in reversed(left):
            if only is not None and each.name.id != only:
                continue
            if (before is not None and each.at >= before) or not (len(going) < _AT_LEAST or proceed()):
                break
            trash.delete(layout, each)
            going.append(each)
        left = [each for each in left if each not in going]
        index = sync.fresh()
        used = {blob for each in left for blob in each.blobs}
        blobs = ({blob for each in going for blob in each.blobs} - used) | trash.strays(layout, left)
        if blobs and sync.knows_all():
            trash.delete_blobs(layout, retention.unused(index, blobs))
        trash.trim_log(layout, left)
    return [in_trash(each) for each in going]


def in_trash(each: trash.Discarded) -> InTrash:
    return InTrash(each.name.id, each.at, each.rule, each.size)


def pack(sync: Sync, task: RetentionRow) -> TaskName | None:
    """Packs a task that nobody is running. None if it has changed, or another process holds it."""
    journal = sync.journal
    name = parse_name(Path(task.file).name)
    if name is None or name.packed or task.id in journal.marked():
        return None
    try:
        lease = journal.lease(task.id)
    except TaskBusy:
        return None
    try:
        packed = archive.pack(journal.layout, name, (task.size, task.mtime_ns))
    except StorageError:
        return None
    finally:
        lease.release()
    if packed is not None:
        moved(sync, packed)
    return packed


def unpack(sync: Sync, name: TaskName) -> TaskName:
    if not name.packed:
        return name
    plain = archive.unpack(sync.journal.layout, name)
    moved(sync, plain)
    return plain


def moved(sync: Sync, name: TaskName) -> None:
    """Updates the file of a task whose content is unchanged. Its rows stay. If this fails, the file is read again."""
    with contextlib.suppress(RawkoError), sync.journal.reader(name) as reader:
        index = sync.index()
        with index.transaction():
            index.moved(name.id, name.file_path, reader.stat())
