"""What becomes of tasks that are over: packed, put in the trash, brought back, deleted for good.

The files come first and the index follows; a process that dies in between leaves the rest to the next look at the folder.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from rawko_state.backends.catalogue import Catalogue
from rawko_state.backends.intake import file_path
from rawko_state.errors import RawkoError, StorageError, TaskBusy
from rawko_state.index import holding
from rawko_state.index.rows import Rows
from rawko_state.journal import archive, trash
from rawko_state.journal.layout import TaskName, parse_name
from rawko_state.journal.locks import gate
from rawko_state.store import InTrash, Kept

PATIENCE: Final = 60.0
"""Seconds that are waited for others who are at the trash."""
_SOME: Final = 500
"""So many tasks are moved before the index hears of them."""
_AT_LEAST: Final = 2_000
"""So many are deleted, which takes a moment, also if listing the trash took longer: else a large one would never empty."""


def freed(catalogue: Catalogue, task_ids: Sequence[str]) -> dict[str, int]:
    return freed_of(catalogue.index(), task_ids)


def freed_of(index: Rows, task_ids: Sequence[str]) -> dict[str, int]:
    """For each of some tasks that are to go together, the bytes of the long outputs that go with it."""
    owned = holding.blobs_of(index, task_ids)
    going = set(task_ids)
    free = holding.unused(index, {blob for blobs in owned.values() for blob in blobs}, going)
    found: dict[str, int] = {}
    for task_id, blobs in owned.items():
        # What several of them share is counted once.
        found[task_id] = sum(size for blob, size in blobs.items() if blob in free)
        free -= set(blobs)
    return found


def discard(
    catalogue: Catalogue,
    tasks: Iterable[tuple[Kept, str]],
    by: str | None,
    proceed: Callable[[], bool],
    patience: float = PATIENCE,
) -> Iterator[str]:
    """Puts tasks into the trash, each with the rule that took it. Yields the ids of those that went, while ``proceed``."""
    layout = catalogue.journal.layout
    everything = list(tasks)
    gone: list[trash.Leaving] = []
    try:
        for start in range(0, len(everything), _SOME):
            if not proceed():
                return
            some = everything[start : start + _SOME]
            blobs = holding.blobs_of(catalogue.index(), [task.id for task, _ in some])
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
                catalogue.index().forget_all(each.name.id for each in gone)
            put_away(catalogue, {blob for each in gone for blob in each.blobs}, patience)


def put_away(catalogue: Catalogue, blobs: set[str], patience: float = PATIENCE) -> None:
    """Of these blobs, those that no task refers to any more. Nobody may be writing a record that names one, or bringing a task
    back, meanwhile; and if a task file cannot be read, nobody knows what it refers to. They stay where they are then."""
    if not blobs:
        return
    layout = catalogue.journal.layout
    with (
        contextlib.suppress(StorageError),
        trash.locked(layout, patience),
        gate(layout.live / "blobs.lock", timeout=patience),
    ):
        index = catalogue.fresh()
        if catalogue.knows_all():
            trash.put_away(layout, holding.unused(index, blobs))


def restore(catalogue: Catalogue, prefix: str | None) -> list[str]:
    """Brings tasks back, with their blobs; all of them without an id."""
    layout = catalogue.journal.layout
    with trash.locked(layout), gate(layout.live / "blobs.lock"):
        chosen = trash.listed(layout) if prefix is None else [trash.find(layout, prefix)]
        back = trash.restore(layout, chosen) if chosen else []
    if prefix is not None and not back:
        raise RawkoError(f"there is another task {chosen[0].name.id} in the project already")
    return back


def empty(
    catalogue: Catalogue,
    before: datetime | None,
    patience: float = PATIENCE,
    proceed: Callable[[], bool] = lambda: True,
) -> list[InTrash]:
    """Deletes what came into the trash before a time (None: all of it), and the blobs that only that referred to; the oldest
    first, while ``proceed``."""
    layout = catalogue.journal.layout
    first = trash.oldest(layout)
    if before is not None and first is not None and first >= before:
        return []
    if not layout.trash.exists():
        return []
    with trash.locked(layout, patience), gate(layout.live / "blobs.lock", timeout=patience):
        left = trash.listed(layout)
        going: list[trash.Discarded] = []
        while left and (before is None or left[-1].at < before) and (len(going) < _AT_LEAST or proceed()):
            trash.delete(layout, left[-1])
            going.append(left.pop())
        index = catalogue.fresh()
        used = {blob for each in left for blob in each.blobs}
        blobs = ({blob for each in going for blob in each.blobs} - used) | trash.strays(layout, left)
        if blobs and catalogue.knows_all():
            trash.delete_blobs(layout, holding.unused(index, blobs))
        trash.trim_log(layout, left)
    return [in_trash(each) for each in going]


def in_trash(each: trash.Discarded) -> InTrash:
    return InTrash(each.name.id, each.at, each.rule, each.size)


def pack(catalogue: Catalogue, task: Kept) -> TaskName | None:
    """Packs a task that nobody runs. None if it has changed since, or somebody is at it."""
    journal = catalogue.journal
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
        moved(catalogue, packed)
    return packed


def unpack(catalogue: Catalogue, name: TaskName) -> TaskName:
    if not name.packed:
        return name
    plain = archive.unpack(catalogue.journal.layout, name)
    moved(catalogue, plain)
    return plain


def moved(catalogue: Catalogue, name: TaskName) -> None:
    """The same content in another form: its rows stay as they are. If this fails, the file is read anew."""
    with contextlib.suppress(RawkoError), catalogue.journal.reader(name) as reader:
        index = catalogue.index()
        with index.transaction():
            index.moved(name.id, file_path(name), reader.stat())
