"""The task files of one project: creating, finding, opening and recovering them."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from rawko_state.errors import AmbiguousTask, RawkoError, StorageError, TaskExists, TaskNotFound
from rawko_state.journal import disk
from rawko_state.journal.drafts import DraftView
from rawko_state.journal.layout import Layout, TaskName, name_for, new_id
from rawko_state.journal.locks import Holder, Lease, append_lock, gate, holder_of, is_abandoned
from rawko_state.lazy import lazy
from rawko_state.model.frozen import Frozen, replace

if TYPE_CHECKING:
    from rawko_state.format import records
    from rawko_state.format.reader import TaskReader
    from rawko_state.journal import archive, blobs, source
    from rawko_state.journal import chain as chains
    from rawko_state.journal import reader as readers
    from rawko_state.journal.chain import Chain, Checkpoint
    from rawko_state.model import long_texts
    from rawko_state.model.appended import BeforeWrite
    from rawko_state.model.entries import Blob, Entry, TaskHeader, ToolCall, Turn
else:
    # A query that finds nothing new reads no task file.
    records = lazy("rawko_state.format.records")
    archive = lazy("rawko_state.journal.archive")
    blobs = lazy("rawko_state.journal.blobs")
    source = lazy("rawko_state.journal.source")
    chains = lazy("rawko_state.journal.chain")
    readers = lazy("rawko_state.journal.reader")
    long_texts = lazy("rawko_state.model.long_texts")


class Created(Frozen):
    """A newly created task."""

    name: TaskName
    chain: Chain
    lease: Lease | None
    stamps: tuple[str, str]
    """The tasks folder's stamp just before and just after the file was added."""


class Journal:
    """The task files of one project."""

    def __init__(self, root: Path) -> None:
        self.layout = Layout(root)
        self._ids: set[str] = set()
        self._ids_stamp = ""

    def create(
        self,
        header: TaskHeader,
        entries: Sequence[Entry],
        *,
        lease: bool = True,
        taken: Callable[[str], bool] | None = None,
        before: BeforeWrite | None = None,
    ) -> Created:
        """Creates a task file with its first record. The id is chosen here unless the header has one.

        ``taken`` says whether an id is in use; without it, all file names are checked. ``before`` is called with the
        first record just before the file is created.
        """
        self.layout.make()
        created = header.created or datetime.now(timezone.utc).replace(microsecond=0)
        wanted = header.id
        while True:
            task_id = wanted or new_id()
            header = replace(header, id=task_id, created=created)
            # Take the lease first: nobody must see the file and think that its writer is dead.
            held = Lease(self.layout.lease(task_id), task_id) if lease else None
            try:
                record = records.first_record(header, entries)
                if before is not None:
                    before(record.appended())
                stamps = self._into_place(name_for(created, task_id), record.data, record.seal, taken or self._is_taken)
                if stamps is not None:
                    break
            except BaseException:
                if held:
                    held.release()
                raise
            if held:
                held.release()
            if wanted:
                raise TaskExists(wanted)
        name = name_for(created, task_id)
        return Created(name, chains.Chain(self.layout.path(name), task_id), held, stamps)

    def add_file(self, name: TaskName, data: bytes | Iterable[bytes]) -> bool:
        """Adds a complete file from elsewhere. False if the same bytes already exist; raises TaskExists if they differ."""
        self.layout.make()
        beside = disk.write_temporary(self.layout.live, data)
        try:
            try:
                there = self.layout.find(name.id)
            except (TaskNotFound, AmbiguousTask):
                there = None
            if there is not None and there.id == name.id:
                with self.reader(there) as reader:
                    if _is_same(reader, beside):
                        return False
                raise TaskExists(name.id, f", in {there.filename}")
            if self.publish(beside, name, self._is_taken) is None:
                raise TaskExists(name.id)
            return True
        finally:
            disk.remove_quietly(beside)

    def _into_place(
        self, name: TaskName, data: bytes, seal: str, taken: Callable[[str], bool]
    ) -> tuple[str, str] | None:
        """Creates the file atomically and durably. Returns the folder's stamps before and after, or None if the id is taken."""
        return self.publish(disk.write_temporary(self.layout.live, data, seal), name, taken, seal)

    def publish(
        self, temporary: Path, name: TaskName, taken: Callable[[str], bool], seal: str = ""
    ) -> tuple[str, str] | None:
        """Renames a temporary file into place."""
        gate = self.layout.live / "create.lock"
        descriptor = disk.open_or_create(gate)
        try:
            with append_lock(descriptor, gate):
                if taken(name.id):
                    return None
                before = self.layout.stamp()
                disk.rename(temporary, self.layout.path(name))
                after = self.layout.stamp()
                if self._ids_stamp == before:
                    self._ids.add(name.id)
                    self._ids_stamp = after
        finally:
            os.close(descriptor)
            disk.remove_quietly(temporary)
        disk.sync_folder(self.layout.tasks, seal)
        return before, after

    def _is_taken(self, task_id: str) -> bool:
        """Checks all file names. Reads them again only when the folder has changed."""
        stamp = self.layout.stamp()
        if self._ids_stamp != stamp:
            self._ids = {name.id for name in self.layout.names()}
            self._ids_stamp = stamp
        return task_id in self._ids

    def find(self, prefix: str) -> TaskName:
        """The task whose id is, or uniquely starts with, ``prefix``."""
        name = self.layout.find(prefix)
        same = [each for each in self.layout.names() if each.id == name.id]
        return self.chosen(same) if len({each.stamp for each in same}) > 1 else name

    def names(self) -> dict[str, TaskName]:
        """All tasks by id."""
        found: dict[str, list[TaskName]] = {}
        for name in self.layout.names():
            found.setdefault(name.id, []).append(name)
        return {task_id: names[0] if len(names) == 1 else self.chosen(names) for task_id, names in found.items()}

    def chosen(self, names: Sequence[TaskName]) -> TaskName:
        """Of several files with the same id, the one that counts: the one whose creation time matches its name; otherwise the one
        with the longer chain; otherwise the first by name. Of a plain and a packed file, the plain one."""
        first = {name.stamp: name for name in sorted(names, reverse=True)}  # the plain form sorts before the packed one
        if len(first) == 1:
            return next(iter(first.values()))
        return min(first.values(), key=lambda name: (*self._claim(name), name))

    def _claim(self, name: TaskName) -> tuple[bool, int]:
        """Sort key: smaller is better."""
        try:
            with self.reader(name) as reader:
                scan = reader.scan()
                created = None
                for record in scan:
                    if record.offset == 0 and record.blocks:
                        created = getattr(record.blocks[0].entry(reader.fetch, head_only=True), "created", None)
                return created is None or name_for(created, name.id).stamp != name.stamp, -scan.tail_offset
        except RawkoError:
            return True, 0

    def open(self, name: TaskName, checkpoint: Checkpoint | None = None, *, read_only: bool = False) -> Chain:
        """Opens a task for appending, unless ``read_only``."""
        self.layout.check()
        chain = chains.Chain(self.layout.path(name), name.id, checkpoint, read_only=read_only)
        if not read_only and self.layout.path(replace(name, packed=True)).exists():
            chain.alone(lambda: archive.drop_leftover(self.layout, name))
        return chain

    def reader(self, name: TaskName) -> TaskReader:
        self.layout.check()
        return readers.open_reader(self.layout.path(name))

    def reader_at(self, file_path: str) -> TaskReader:
        """A reader of the file named in the index."""
        return readers.open_reader(self.layout.root / file_path)

    def look(self, name: TaskName) -> tuple[int, int, int, int]:
        """Device, inode, size and mtime of a task's file, plain or packed."""
        path = self.layout.path(name)
        for each in (path, source.other(path)):
            try:
                found = os.stat(each)
            except OSError:
                continue
            return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
        raise StorageError(f"{path} no longer exists.", str(path), errno.ENOENT)

    def draft_stamp(self, task_id: str) -> tuple[int, ...] | None:
        """A value that changes whenever the draft does. None if there is no draft."""
        try:
            found = os.stat(self.layout.draft(task_id))
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def draft(self, task_id: str) -> DraftView:
        return DraftView(self.layout.draft(task_id))

    def alive(self) -> set[str]:
        """Tasks that a process is running now."""
        names = (path.name.removesuffix(".lease") for path in self.layout.leases())
        return {task_id for task_id in names if self.holder(task_id) is not None}

    def lease(self, task_id: str, wait: float = 0.0) -> Lease:
        self.layout.make()
        return Lease(self.layout.lease(task_id), task_id, wait)

    def abandoned(self) -> list[str]:
        """Tasks that a process on this machine was running when it died or released them in the middle of a turn."""
        try:
            names = os.listdir(self.layout.live)
        except OSError:
            return []
        leases = {name.rpartition(".")[0] for name in names if name.endswith(".lease")}
        drafts = {name.rpartition(".")[0] for name in names if name.endswith(".draft")}
        dead = {task_id for task_id in leases if is_abandoned(self.layout.lease(task_id))}
        # A draft without a lease was left by a process that released its task.
        return sorted(dead | {task_id for task_id in drafts - leases if not self.layout.lease(task_id).exists()})

    def clear_leftovers(self) -> None:
        """Removes temporary files that killed processes never renamed into place."""
        with contextlib.suppress(OSError):
            for name in os.listdir(self.layout.live):
                pid = name.split("-")[1] if name.startswith("new-") and name.count("-") == 2 else ""
                if pid.isdigit() and not disk.is_running(int(pid)):
                    disk.remove_quietly(self.layout.live / name)

    def drafted(self) -> set[str]:
        """Tasks with an unfinished turn, whether its writer is alive or not."""
        try:
            return {name.removesuffix(".draft") for name in os.listdir(self.layout.live) if name.endswith(".draft")}
        except OSError:
            return set()

    def keeping_blobs(self, turn: Turn | None = None) -> contextlib.AbstractContextManager[None]:
        """Prevents cleanups from deleting blobs that no record names yet. No-op for a turn without long outputs."""
        if turn is not None and not long_texts.has_long_text(turn):
            return contextlib.nullcontext()
        self.layout.make()
        return gate(self.layout.live / "blobs.lock", shared=True)

    def marked(self) -> set[str]:
        """Tasks that have grown, or are growing, beyond what the index reliably knows."""
        try:
            return {name.split(".")[0] for name in os.listdir(self.layout.live) if name.endswith(".mark")}
        except OSError:
            return set()

    def holder(self, task_id: str) -> Holder | None:
        return holder_of(self.layout.lease(task_id))

    def disk_use(self, tasks: int | None = None) -> dict[str, int]:
        """Bytes in the state folders and in the index. ``tasks``: the size of the task files, if it is known."""
        layout = self.layout
        found = {"tasks": _size_of(layout.tasks) if tasks is None else tasks, "blobs": _size_of(layout.blobs)}
        found["index"] = sum(p.stat().st_size for p in layout.state.glob("index.db*") if p.is_file())
        found["search"] = _size_of(layout.state / "search")
        return found

    def with_blobs(self, turn: Turn, redact: Callable[[str], str]) -> Turn:
        """The turn with its long texts redacted and moved to blobs, which are durable on return."""
        return long_texts.apart(turn, lambda text: blobs.put(self.layout, redact(text)))

    def output_of(self, call: ToolCall) -> str | None:
        """The output of a tool call, wherever it is kept."""
        return blobs.get(self.layout, call.blob) if call.blob is not None else call.output

    def blob_bytes(self, blob: Blob) -> bytes | None:
        """The content of a blob. None if it is missing or changed."""
        try:
            return blobs.get_bytes(self.layout, blob)
        except RawkoError:
            return None

    def put_blob(self, data: bytes) -> Blob:
        self.layout.make()
        return blobs.put_bytes(self.layout, data)


def _is_same(reader: TaskReader, path: Path) -> bool:
    """Whether a task has the same bytes as a file."""
    if reader.size != path.stat().st_size:
        return False
    with open(path, "rb") as stream:
        at = 0
        while piece := stream.read(1 << 20):
            if reader.fetch(at, len(piece)) != piece:
                return False
            at += len(piece)
    return True


def _size_of(folder: Path) -> int:
    try:
        with os.scandir(folder) as entries:
            return sum(entry.stat(follow_symlinks=False).st_size for entry in entries)
    except OSError:
        return 0
