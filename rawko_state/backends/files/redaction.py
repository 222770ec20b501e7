"""Removes secrets from task files recorded before their format was known, or by a version without redaction."""

from __future__ import annotations

from rawko_state.backends.files.sync import Sync
from rawko_state.backends.redaction import Counting, Found, noted
from rawko_state.errors import RawkoError
from rawko_state.index import retention
from rawko_state.journal import blobs, trash
from rawko_state.journal.layout import Layout
from rawko_state.journal.locks import gate
from rawko_state.journal.rewrite import Rewriting, rewrite
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


def finish(sync: Sync, redactor: Redactor) -> None:
    """Finishes a redaction that was killed: deletes old blobs with secrets whose tasks already refer to the new ones."""
    layout = sync.journal.layout
    left = {name for name in blobs.names(layout) if _has_secret(layout, redactor, name)}
    if left:
        _drop(sync, left)


def _has_secret(layout: Layout, redactor: Redactor, name: str) -> bool:
    try:
        data = blobs.get_bytes(layout, Blob(name, (layout.blobs / name).stat().st_size))
    except (RawkoError, OSError):
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
