"""Blobs: long tool outputs in files named by the SHA-256 of their content, written before the record that names them."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from rawko_state.errors import StorageError
from rawko_state.journal import disk
from rawko_state.journal.layout import Layout
from rawko_state.late import late
from rawko_state.model.entries import Blob

_NAME = late(r"[0-9a-f]{64}")


def blob_path(layout: Layout, blob: Blob) -> Path:
    return layout.blobs / blob.sha256


def names(layout: Layout) -> list[str]:
    """Names of all blobs, whether a task refers to them or not."""
    try:
        return [name for name in os.listdir(layout.blobs) if _NAME.fullmatch(name)]
    except FileNotFoundError:
        return []


def put(layout: Layout, content: str) -> Blob:
    return put_bytes(layout, content.encode("utf-8", "surrogatepass"))


def put_bytes(layout: Layout, data: bytes) -> Blob:
    """Stores a blob. Its content and name are durable on return."""
    blob = Blob(hashlib.sha256(data).hexdigest(), len(data))
    path = blob_path(layout, blob)
    if is_whole(layout, blob):
        # Its writer may not have synced the folder yet.
        disk.sync_folder(layout.blobs)
        return blob
    disk.rename(disk.write_temporary(layout.live, data), path)
    disk.sync_folder(layout.blobs)
    return blob


def get(layout: Layout, blob: Blob) -> str:
    return get_bytes(layout, blob).decode("utf-8", "surrogatepass")


def get_bytes(layout: Layout, blob: Blob) -> bytes:
    path = blob_path(layout, blob)
    descriptor = disk.open_regular(path)
    try:
        data = disk.read_range(descriptor, 0, blob.size)
    finally:
        os.close(descriptor)
    if hashlib.sha256(data).hexdigest() != blob.sha256:
        raise StorageError(f"{path} was changed: its content does not match its name.", str(path))
    return data


def is_whole(layout: Layout, blob: Blob) -> bool:
    """Whether the blob exists with the right content. Uses bounded memory."""
    path = blob_path(layout, blob)
    if not path.is_file():
        return False
    digest = hashlib.sha256()
    descriptor = disk.open_regular(path)
    try:
        offset = 0
        while piece := disk.read_at(descriptor, 1 << 20, offset):
            digest.update(piece)
            offset += len(piece)
    finally:
        os.close(descriptor)
    return offset == blob.size and digest.hexdigest() == blob.sha256
