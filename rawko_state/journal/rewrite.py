"""Rewrites a task file with some blocks changed: writes the new file next to the old one, then swaps it in atomically."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from rawko_state.errors import ChainMoved, RawkoError, StorageError
from rawko_state.format.reader import TaskReader
from rawko_state.format.rewriting import Change, ChangeText, Rewriting, with_note
from rawko_state.journal import disk
from rawko_state.journal.archive import drop_leftover, is_in_place
from rawko_state.journal.chain import Chain
from rawko_state.journal.layout import Layout, TaskName
from rawko_state.journal.locks import append_lock
from rawko_state.journal.reader import open_reader
from rawko_state.journal.source import FileBytes, open_source, packed
from rawko_state.model.entries import Note


def rewrite(layout: Layout, name: TaskName, change: Change, text: ChangeText, note: Callable[[int], Note]) -> int:
    """Returns the number of changed blocks. If there are none, the file is left alone. The caller holds the task's lease."""
    path = layout.path(name)
    if not name.packed:
        chain = Chain(path, name.id)
        try:
            chain.check()
            chain.close_tail()  # mark the torn tail, so that it stays separate from what follows
        finally:
            chain.close()
    source = open_source(path, write=not name.packed)
    try:
        with append_lock(source.descriptor, path), open_reader(path) as reader:
            if source.path != path or not is_in_place(source):
                raise ChainMoved(f"{path} changed while it was being rewritten. Try again.")
            drop_leftover(layout, name)
            work = Rewriting(change, text)
            beside = disk.write_temporary(layout.live, with_note(work, reader, note))
            try:
                if not work.changed:
                    return 0
                _check(reader, beside, work)
                if name.packed:
                    beside = packed_copy(layout, beside)
                disk.rename(beside, path)
            finally:
                disk.remove_quietly(beside)
        disk.sync_folder(layout.tasks)
        return work.changed
    finally:
        source.close()


def replaced(layout: Layout, name: TaskName, data: Iterable[bytes], size: int, seal: str) -> bool:
    """Replaces a task's bytes atomically and durably, if it has this size and ends with this seal. The caller holds its
    lease."""
    path = layout.path(name)
    beside = disk.write_temporary(layout.live, data)
    chain = Chain(path, name.id)
    done = False

    def put() -> None:
        nonlocal done
        if chain.seal == seal and chain.stat()[0] == size:
            disk.rename(beside, path)
            done = True

    try:
        chain.alone(put)
    finally:
        chain.close()
        disk.remove_quietly(beside)
    if done:
        disk.sync_folder(layout.tasks)
    return done


def packed_copy(layout: Layout, plain: Path) -> Path:
    """Packs a temporary file and removes the plain one."""
    source = FileBytes(plain, disk.open_regular(plain))
    try:
        return disk.write_temporary(layout.live, packed(source))
    finally:
        source.close()
        disk.remove_quietly(plain)


def _check(reader: TaskReader, beside: Path, work: Rewriting) -> None:
    """Checks that the new file has the same records and the same problems as the old one."""
    with open_reader(beside) as again:
        try:
            before = [record.kind for record in reader.records()]
            after = [record.kind for record in again.records()]
        except RawkoError as error:
            raise StorageError(f"Can't rewrite {reader.path}: {error}.", str(reader.path)) from error
        as_before = len(reader.problems) == len(again.problems)
        if before + ["sealed"] * work.sealed != after or not as_before:
            raise StorageError(
                f"Can't rewrite {reader.path}: the result would differ. Nothing was changed.", str(reader.path)
            )
