"""What becomes of tasks that are over: packed, put in the trash, brought back, deleted for good.

The files come first and the index follows; a process that dies in between leaves the rest to the next look at the folder.
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
"""Seconds that are waited for others who are at the trash."""
_SOME: Final = 500
"""So many tasks are moved before the index hears of them."""
_AT_LEAST: Final = 2_000
"""So many are deleted, which takes a moment, also if listing the trash took longer: else a large one would never empty."""


def move_to_trash(
    sync: Sync,
    tasks: Iterable[tuple[RetentionRow, str]],
    by: str | None,
    proceed: Callable[[], bool],
    patience: float = PATIENCE,
) -> Iterator[str]:
    """Puts tasks into the trash, each with the rule that took it. Yields the ids of those that went, while ``proceed``."""
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
            # The next look at the folder would notice; this is quicker.
            with contextlib.suppress(RawkoError):
                sync.index().forget_all(each.name.id for each in gone)
            put_away(sync, {blob for each in gone for blob in each.blobs}, patience)


def put_away(sync: Sync, blobs: set[str], patience: float = PATIENCE) -> None:
    """Of these blobs, those that no task refers to any more. Nobody may be writing a record that names one, or bringing a task
    back, meanwhile; and if a task file cannot be read, nobody knows what it refers to. They stay where they are then."""
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
    """Brings tasks back, with their blobs; all of them without an id."""
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
    """Deletes what came into the trash before a time (None: all of it), or ``only`` one task, and the blobs that only that
    referred to; the oldest first, while ``proceed``."""
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
    """Packs a task that nobody runs. None if it has changed since, or somebody is at it."""
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
    """The same content in another form: its rows stay as they are. If this fails, the file is read anew."""
    with contextlib.suppress(RawkoError), sync.journal.reader(name) as reader:
        index = sync.index()
        with index.transaction():
            index.moved(name.id, name.file_path, reader.stat())
