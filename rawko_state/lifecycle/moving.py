"""Copies tasks from one store to another, byte for byte, skipping what is already there.

If one version is a prefix of the other, the longer one is kept. If the two have diverged, the incoming one becomes a separate
task, marked as a fork of the existing one. Nothing is overwritten.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from rawko_state.errors import RawkoError, TaskBusy, TaskNotFound
from rawko_state.format.apart import as_child, child_id
from rawko_state.format.records import scan_bytes
from rawko_state.model.names import TaskName
from rawko_state.store.contract import HostedStore, Store

_PIECE: Final = 1 << 20
_FORKS: Final = 20


@dataclass(slots=True)
class Moved:
    """The result of a move."""

    new: list[str] = field(default_factory=list)
    grown: list[str] = field(default_factory=list)
    forked: dict[str, str] = field(default_factory=dict)
    """Tasks that diverged, with the id of the incoming version in the target."""
    same: int = 0
    behind: int = 0
    """Tasks of which the target has more."""
    failed: dict[str, str] = field(default_factory=dict)


def move(source: Store, target: HostedStore, ids: Iterable[str]) -> Iterator[tuple[str, str, Moved]]:
    """Yields each task's id, its outcome, and the totals so far."""
    moved = Moved()
    for task_id in ids:
        try:
            what = _one(source, target, task_id, moved)
        except RawkoError as error:
            moved.failed[task_id] = str(error)
            what = "failed"
        yield task_id, what, moved


def _one(source: Store, target: HostedStore, task_id: str, moved: Moved) -> str:
    name = source.find(task_id)
    name = TaskName(name.stamp, name.id)
    if task_id in source.alive():
        raise TaskBusy(task_id, "a process; it is moved when that has let go of it")
    try:
        there = target.find(task_id).id == task_id
    except TaskNotFound as error:
        if error.in_trash:
            raise RawkoError(f"Task {task_id} is in the trash on the other side.") from None
        there = False
    if not there:
        target.add_file(name.filename, _pieces(source, task_id), source.blobs_of(task_id).values())
        moved.new.append(task_id)
        return "new"
    common, mine, theirs = _compared(source, target, task_id)
    if common == mine == theirs:
        moved.same += 1
        return "same"
    if common == mine:
        moved.behind += 1
        return "behind"
    if common == theirs:
        seal = _last_seal(target, task_id)
        blobs = source.blobs_of(task_id).values()
        if not target.replace_task(name, _pieces(source, task_id), blobs, theirs, seal):
            raise RawkoError(f"Task {task_id} changed on the other side while it was copied. Run the command again.")
        moved.grown.append(task_id)
        return "grown"
    fork = _forked(source, target, name, common)
    if fork is None:
        moved.same += 1
        return "same"
    moved.forked[task_id] = fork
    return "forked"


def _pieces(store: Store, task_id: str) -> Iterator[bytes]:
    with store.reader(task_id) as reader:
        at = 0
        while piece := reader.fetch(at, _PIECE):
            yield piece
            at += len(piece)


def _compared(one: Store, other: Store, task_id: str) -> tuple[int, int, int]:
    """The end of the records that two versions have in common, and both sizes. Ignores the values copied into the header."""
    with one.reader(task_id) as first, other.reader(task_id) as second:
        common = 0
        for mine, theirs in zip(first.records(), second.records(), strict=False):
            if (mine.kind, mine.seal, mine.length) != (theirs.kind, theirs.seal, theirs.length):
                break
            if mine.kind != "sealed" and first.fetch(mine.offset, mine.length) != second.fetch(
                mine.offset, mine.length
            ):
                break
            common = mine.end
        return common, first.size, second.size


def _last_seal(store: Store, task_id: str) -> str:
    task = store.attach(task_id)
    try:
        return task.seal
    finally:
        task.close()


def _forked(source: Store, target: HostedStore, name: TaskName, common: int) -> str | None:
    """Stores the incoming version, from where the two diverged, as a separate task, which later moves extend. None if all of it
    is already there."""
    with source.reader(name.id) as reader:
        for number in range(_FORKS):
            fork = child_id(name.id, common, number)
            data = as_child(reader.fetch(0, reader.size), name.id, fork, common)
            there = _bytes_of(target, fork)
            mine, theirs = _seals(data), _seals(there or b"")
            if there is not None and mine == theirs:
                return None
            blobs = source.blobs_of(name.id).values()
            if there is None:
                target.add_file(f"{name.stamp}-{fork}.task", data, blobs)
                return fork
            if mine[: len(theirs)] == theirs:
                if target.replace_task(TaskName(name.stamp, fork), [data], blobs, len(there), _last_seal(target, fork)):
                    return fork
                raise RawkoError(f"Task {fork} changed on the other side while it was copied. Run the command again.")
            # That fork was continued in the target, too: try the next one.
    raise RawkoError(f"Task {name.id} has too many conflicting versions on the other side.")


def _seals(data: bytes) -> list[str | None]:
    return [record.seal for record in scan_bytes(data)[0]]


def _bytes_of(store: Store, task_id: str) -> bytes | None:
    try:
        if store.find(task_id).id != task_id:
            return None
    except TaskNotFound:
        return None
    with store.reader(task_id) as reader:
        found: bytes = reader.fetch(0, reader.size)
        return found
