"""Repairs a task file by rewriting it. Recorded content stays byte for byte the same, and all seals of the result must match.

The caller holds the task's lease.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

from rawko_state.errors import ChainMoved, StorageError
from rawko_state.format.apart import as_child, child_id, common_end
from rawko_state.format.codec import FORMAT_VERSION
from rawko_state.format.conflict import conflict_in
from rawko_state.format.reader import TaskReader
from rawko_state.format.records import header_copies, scan_bytes
from rawko_state.format.rewriting import Rewriting, with_note
from rawko_state.format.scan import bounded
from rawko_state.format.seal import HEADER_LIMIT, header_shape, start_problem
from rawko_state.journal import disk
from rawko_state.journal.archive import is_in_place
from rawko_state.journal.layout import Layout, TaskName
from rawko_state.journal.locks import append_lock
from rawko_state.journal.reader import open_reader
from rawko_state.journal.rewrite import packed_copy
from rawko_state.journal.source import open_source
from rawko_state.model.entries import Entry, Note, TaskHeader
from rawko_state.model.frozen import replace
from rawko_state.model.state import TaskState

_PIECE: Final = 1 << 20
_MOST_CHILDREN: Final = 1_000


def line_ends(layout: Layout, name: TaskName) -> bool:
    """Changes CRLF (from git or an editor on another system) back to LF, provided that all seals match then."""
    return _in_place(layout, name, _without_cr, _is_whole)


def conflict(layout: Layout, name: TaskName) -> str | None:
    """Splits a merge conflict: one side stays the task, the other becomes its child. Returns the child's id, or "" if the other
    side contains nothing more. Returns None and changes nothing if the sides are not two complete files."""
    with open_reader(layout.path(name)) as reader:
        data = reader.fetch(0, reader.size)
    found = conflict_in(data)
    if found is None or not found.is_whole:
        return None
    ours, theirs, _ = found
    common = common_end(ours, theirs)
    if common == len(ours):
        ours, theirs = theirs, ours  # one side is a prefix of the other
    child = "" if common == len(theirs) else _placed(layout, name, theirs, common)
    done = _in_place(layout, name, lambda reader: [ours] if reader.fetch(0, reader.size) == data else [], _is_whole)
    return child if done else None


def _placed(layout: Layout, name: TaskName, theirs: bytes, common: int) -> str:
    """Writes the second side as a child of the task, before the first side takes the task's place. Returns its id: a free one,
    or that of a child that begins with the same records already."""
    for number in range(_MOST_CHILDREN):
        child = replace(name, id=child_id(name.id, common, number), packed=False)
        data = as_child(theirs, name.id, child.id, common)
        there = [each for each in layout.names() if each.id == child.id]
        if there:
            with open_reader(layout.path(there[0])) as reader:
                seals = [record.seal for record in reader.records()]
            mine = [record.seal for record in scan_bytes(data)[0]]
            if seals[: len(mine)] == mine:
                return child.id  # from an earlier repair; somebody may have gone on with it
            continue
        copy = disk.write_temporary(layout.live, data, finish=_copies(child.id))
        try:
            disk.rename(copy, layout.path(child))
        finally:
            disk.remove_quietly(copy)
        disk.sync_folder(layout.tasks)
        return child.id
    raise StorageError(f"Task {name.id} has too many conflicting versions.", str(layout.path(name)))


def header(layout: Layout, name: TaskName) -> bool:
    """Completes the header of a task that an earlier version imported."""
    work = Rewriting(_with_format, lambda text: text)

    def note(changed: int) -> Note:
        now = datetime.now(timezone.utc).replace(microsecond=0)
        return Note(
            at=now, kind="repaired", context="out", content="The header was completed, and the file sealed anew."
        )

    return _in_place(layout, name, lambda reader: with_note(work, reader, note), _is_whole)


def _with_format(entry: Entry) -> Entry:
    if isinstance(entry, TaskHeader) and entry.format is None:
        return replace(entry, format=FORMAT_VERSION)
    return entry


def _without_cr(reader: TaskReader) -> Iterator[bytes]:
    at, held = 0, b""
    while piece := reader.fetch(at, _PIECE):
        at += len(piece)
        piece = held + piece
        held = b"\r" if piece.endswith(b"\r") else b""
        yield piece[: len(piece) - len(held)].replace(b"\r\n", b"\n")
    yield held


def _in_place(
    layout: Layout,
    name: TaskName,
    pieces: Callable[[TaskReader], Iterable[bytes]],
    accept: Callable[[TaskReader], bool],
) -> bool:
    """Replaces a task's bytes atomically and durably, if ``accept`` approves them."""
    path = layout.path(name)
    source = open_source(path, write=not name.packed)
    try:
        with append_lock(source.descriptor, path), open_reader(path) as reader:
            if source.path != path or not is_in_place(source):
                raise ChainMoved(f"{path} changed while it was being rewritten. Try again.")
            beside = disk.write_temporary(layout.live, pieces(reader), finish=_copies(name.id))
            try:
                with open_reader(beside) as again:
                    if not accept(again):
                        return False
                if name.packed:
                    beside = packed_copy(layout, beside)
                disk.rename(beside, path)
            finally:
                disk.remove_quietly(beside)
        disk.sync_folder(layout.tasks)
        return True
    finally:
        source.close()


def _copies(task_id: str) -> Callable[[int, Path], None]:
    """Makes the header's copies match the records."""

    def finish(descriptor: int, path: Path) -> None:
        def fetch(offset: int, length: int) -> bytes:
            return disk.read_range(descriptor, offset, length)

        with open_reader(path) as reader:
            state = TaskState(id=task_id)
            for record in reader.records():
                for block in record.blocks if record.counts else ():
                    state = state.apply(block.entry(bounded(reader.fetch), head_only=True))
        for copy in header_copies(header_shape(fetch(0, HEADER_LIMIT)), fetch, state):
            if copy.data is not None:
                disk.write_at(descriptor, copy.data, copy.offset, path)

    return finish


def _is_whole(reader: TaskReader) -> bool:
    """Whether the file starts like a task file and every seal matches."""
    kinds = {record.kind for record in reader.records()}
    return start_problem(reader.fetch(0, HEADER_LIMIT)) is None and not reader.problems and kinds <= {"sealed", "torn"}
