"""Removes secrets from task files recorded before their format was known, or by a version without redaction."""

from __future__ import annotations

import os
from pathlib import Path

from rawko_state.backends.files.sync import Sync
from rawko_state.backends.redaction import Counting, Found, count_draft, noted
from rawko_state.format.reader import TaskReader
from rawko_state.format.rewriting import Rewriting, with_note
from rawko_state.index import retention
from rawko_state.journal import disk, trash
from rawko_state.journal.drafts import draft_lines
from rawko_state.journal.locks import gate
from rawko_state.journal.rewrite import packed_copy, rewrite
from rawko_state.journal.source import open_source_as
from rawko_state.model.entries import Blob
from rawko_state.model.names import TaskName
from rawko_state.redact.redactor import Redactor


def look(sync: Sync, redactor: Redactor, name: TaskName) -> Found:
    """Counts the secrets in a task without changing it."""
    found = Found(name.id)
    counting = Counting(sync.journal, redactor, found, write=False)
    with sync.journal.reader(name) as reader:
        for _ in Rewriting(counting.entry, counting.text).pieces(reader):
            pass
    count_draft(draft_lines(sync.journal.layout.draft(name.id)), counting)
    return found


def redact(sync: Sync, redactor: Redactor, name: TaskName, by: str | None) -> Found:
    """Rewrites a task's file without its secrets, if it has any. The caller holds its lease."""
    found = Found(name.id)
    counting = Counting(sync.journal, redactor, found, write=True)

    with sync.journal.keeping_blobs():
        found.changed = rewrite(
            sync.journal.layout, name, counting.entry, counting.text, lambda changed: noted(found, changed, by)
        )
    if counting.replaced:
        _drop(sync, counting.replaced)
    return found


def redact_trash(sync: Sync, redactor: Redactor, by: str | None, *, dry_run: bool) -> list[Found]:
    """Removes secrets from the task files in the trash, which keep their names."""
    layout, results = sync.journal.layout, []
    if not layout.trash.exists():
        return []
    replaced: set[str] = set()
    with trash.locked(layout):
        for discarded in trash.listed(layout):
            found = Found(discarded.name.id)
            results.append(found)
            counting = Counting(_Trashed(sync), redactor, found, write=not dry_run)
            work = Rewriting(counting.entry, counting.text)
            source = open_source_as(discarded.path, packed=discarded.name.packed)
            with TaskReader(discarded.path, source) as reader:
                if dry_run:
                    for _ in work.pieces(reader):
                        pass
                    continue
                new = with_note(work, reader, lambda changed, found=found: noted(found, changed, by))  # type: ignore[misc]
                beside = disk.write_temporary(layout.live, new)
                try:
                    if work.changed:
                        if discarded.name.packed:
                            beside = packed_copy(layout, beside)
                        disk.rename(beside, discarded.path)
                        trash.renamed_blobs(layout, discarded, counting.renamed, by)
                finally:
                    disk.remove_quietly(beside)
            found.changed = work.changed
            replaced |= counting.replaced
        if replaced:
            disk.sync_folder(layout.trash)
    if replaced:
        _drop(sync, replaced)
    return results


class _Trashed:
    """The blobs of tasks in the trash: some are there, others still in their place."""

    def __init__(self, sync: Sync) -> None:
        self._journal = sync.journal

    def blob_bytes(self, blob: Blob) -> bytes | None:
        try:
            return (self._journal.layout.trash / "blobs" / blob.sha256).read_bytes()
        except OSError:
            return self._journal.blob_bytes(blob)

    def put_blob(self, data: bytes) -> Blob:
        return self._journal.put_blob(data)


def so_far(sync: Sync) -> Path:
    """The file that says which tasks a running redaction has finished."""
    return sync.journal.layout.live / "redacted.so-far"


def redacted_so_far(sync: Sync, redactor: Redactor) -> set[str]:
    try:
        first, *lines = so_far(sync).read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, ValueError):
        return set()
    if first != redactor.fingerprint:
        return set()
    now = {_stamp(sync, name) for name in sync.journal.layout.names()}
    return {line.partition(" ")[0] for line in lines if line in now}


def mark_redacted(sync: Sync, redactor: Redactor, name: TaskName) -> None:
    path, mine = so_far(sync), f"{redactor.fingerprint}\n".encode()
    descriptor = disk.open_or_create(path)
    try:
        if disk.read_at(descriptor, len(mine), 0) != mine:
            os.ftruncate(descriptor, 0)
            disk.write_at(descriptor, mine, 0, path)
        disk.write_at(descriptor, f"{_stamp(sync, name)}\n".encode(), os.fstat(descriptor).st_size, path)
    finally:
        os.close(descriptor)


def _stamp(sync: Sync, name: TaskName) -> str:
    try:
        found = os.stat(sync.journal.layout.path(name))
    except OSError:
        return ""
    return f"{name.id} {found.st_size} {found.st_mtime_ns}"


def finish(sync: Sync, redactor: Redactor) -> None:
    """Finishes a redaction that was killed: deletes old blobs with secrets whose tasks already refer to the new ones."""
    layout = sync.journal.layout
    places = (layout.blobs, layout.trash / "blobs")
    found = (path for place in places if place.is_dir() for path in place.iterdir())
    left = {path.name for path in found if len(path.name) == 64 and _has_secret(redactor, path)}
    if left:
        _drop(sync, left)


def forget_broken(sync: Sync) -> None:
    """Deletes broken indexes that were moved aside: they hold words of the tasks, too."""
    for path in sync.journal.layout.live.parent.glob("index.db.broken-*"):
        disk.remove_quietly(path)


def _has_secret(redactor: Redactor, path: Path) -> bool:
    try:
        data = path.read_bytes()
    except OSError:
        return False
    return bool(redactor.spans(data.decode("utf-8", "surrogateescape")))


def _drop(sync: Sync, replaced: set[str]) -> None:
    """Deletes the old blobs, except those that another task, or one in the trash, refers to."""
    layout = sync.journal.layout
    with trash.locked(layout), gate(layout.live / "blobs.lock"):
        index = sync.fresh()
        if sync.knows_all():
            free = retention.unused(index, replaced) - {blob for each in trash.listed(layout) for blob in each.blobs}
            trash.delete_blobs(layout, free)
