"""Keeps task files and their index in sync without a daemon.

A writer creates a *mark* in ``live/`` before its first append, and removes it once the index has everything, durably. A query
checks the marks and the stamp of the tasks folder (which changes whenever a file is added, removed or replaced), and reads only
the files that these point to. So the check costs the same whatever the size of the history.

Nothing here can fail an append: a problem with the index causes one warning, and the mark stays for the next query.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rawko_state.config import folders
from rawko_state.errors import (
    IndexCorrupt,
    IndexNewer,
    IndexTrouble,
    RawkoError,
    StorageError,
    TaskNotFound,
    UnsafePath,
)
from rawko_state.forking import renew_after_fork
from rawko_state.index import queries
from rawko_state.index.database import Index, companions, remove
from rawko_state.journal import disk
from rawko_state.journal.journal import Journal
from rawko_state.journal.layout import TaskName, parse_name
from rawko_state.journal.locks import Mark
from rawko_state.late import late
from rawko_state.lazy import lazy

if TYPE_CHECKING:
    from rawko_state.backends.files import flush, ingest
    from rawko_state.index.projection import Projector
    from rawko_state.journal.chain import Chain, Checkpoint
    from rawko_state.model.appended import Appended
else:
    # A query that finds nothing new reads no task file.
    flush = lazy("rawko_state.backends.files.flush")
    ingest = lazy("rawko_state.backends.files.ingest")

Warn = Callable[[str], None]
Step = Callable[[int, int], None]
_RELEASE: Final = late(r"(\d+)\.(\d+)")
_TICK_NS: Final = 20_000_000


def _fine_stamps() -> bool:
    """Whether two changes of a folder have different times if it was read in between. (Linux since 6.13, macOS.)"""
    if sys.platform == "darwin":
        return True
    match = _RELEASE.match(os.uname().release) if sys.platform == "linux" else None
    return match is not None and (int(match[1]), int(match[2])) >= (6, 13)


class Sync:
    def __init__(self, journal: Journal, warn: Warn) -> None:
        self.journal, self._warn_user = journal, warn
        self.path = journal.layout.state / "index.db"
        self._index: Index | None = None
        self._aside = False
        """The index is elsewhere, because the project is not writable."""
        self._pinned = False
        """The index stays in memory, because no file is usable."""
        self._where = self.path
        """The file that was last opened or tried."""
        self._warned: set[str] = set()
        self._lock = threading.RLock()
        self.unread: set[str] = set()
        """The tasks whose files could not be read at the last look at all of them."""
        self._mine: set[str] = set()
        """Marks of this process's writers that the index is up to date with."""
        self._behind: dict[str, int] = {}
        """How many appends of this process's writers the index was not given, by their marks."""
        self._keeping = threading.Lock()
        renew_after_fork(self)

    def after_fork(self) -> None:
        self._lock, self._keeping = threading.RLock(), threading.Lock()

    # Opening

    def index(self) -> Index:
        """The open index, for any thread: each has its own connection. A broken index is moved aside and replaced by an empty
        one, which fresh() fills."""
        with self._lock:
            index = self._index
            if index is not None:
                # The state folder may have been created since the in-memory index was opened, unless memory is the last resort.
                begun = index.path is None and self.path.parent.exists() and not self._pinned
                if index.is_current and not begun:
                    return index
                self.close()
            try:
                index = self._opened()
            except IndexCorrupt as error:
                self._move_aside(error, None)
                index = self._opened()
            self._index = index
            return index

    def _opened(self) -> Index:
        self._where = self.path
        place = self._place()
        self._where = place or self.path
        return Index(place)

    def close(self) -> None:
        """Other threads may continue: they reopen it."""
        with self._lock:
            if self._index is not None:
                self._index.close()
                self._index = None

    def _drop(self, index: Index | None) -> None:
        """Closes an unusable index, unless another thread has already replaced it."""
        with self._lock:
            if index is None or index is self._index:
                self.close()

    def _place(self) -> Path | None:
        """Where to keep the index: next to the tasks, otherwise in the user's cache folder, otherwise in memory."""
        state = self.path.parent
        if os.path.lexists(self.path) and (self.path.is_symlink() or not self.path.is_file()):
            raise IndexCorrupt(f"{self.path} is not a file.")
        if os.access(state, os.W_OK) and (not self.path.exists() or os.access(self.path, os.W_OK)):
            self._aside = False
            return self.path
        if not state.exists() and os.access(_existing(state), os.W_OK):
            # Nothing has been recorded here, and a query must not create folders.
            self._aside = True
            return None
        self._aside = True
        import hashlib  # takes 2 ms, and most projects are written to

        key = hashlib.sha256(str(self.journal.layout.root).encode()).hexdigest()[:16]
        try:
            folder = folders.user_cache() / "projects" / key
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            return None
        return folder / "index.db"

    def _move_aside(self, error: IndexCorrupt, broken: Index | None) -> None:
        """Moves a broken index aside, unless another thread already has. ``broken`` is None if it could not be opened."""
        with self._lock:
            if broken is not None and broken is not self._index:
                return
            path = self._where
            self.close()
            stamp = time.strftime("%Y%m%dT%H%M%S")
            target = path.with_name(f"{path.name}.broken-{stamp}-{os.getpid()}")
            try:
                with contextlib.suppress(FileNotFoundError):  # another process was faster
                    os.rename(path, target)
                for companion in list(companions(path))[1:]:
                    with contextlib.suppress(FileNotFoundError):
                        os.rename(companion, target.with_name(target.name + companion.name[len(path.name) :]))
            except OSError as trouble:
                raise StorageError(
                    f"Can't move {path} aside: {trouble.strerror}.", str(path), trouble.errno
                ) from trouble
        self._warn(f"{error} It was set aside as {target.name}; rebuilding it from the task files.")

    def _warn(self, message: str) -> None:
        """Warns once per message."""
        if message not in self._warned:
            self._warned.add(message)
            self._warn_user(message)

    # Writing

    def mark(self, task_id: str) -> Mark | None:
        """Marks a task as about to grow. None if the mark cannot be written; the append goes ahead anyway."""
        try:
            mark = Mark(self.journal.layout.live, task_id)
        except RawkoError as error:
            self._warn(f"warning: Can't update the index now; it will catch up later: {error}")
            return None
        self._mine.add(mark.path.name)
        return mark

    def keeps_up(self, mark: Mark | None, *, current: bool) -> None:
        """Records whether the index has the last append of a writer in this process. If so, queries here can skip its mark."""
        if mark is None:
            return
        name = mark.path.name
        with self._keeping:
            if current and not self._aside:
                self._mine.add(name)
            else:
                self._mine.discard(name)
                self._behind[name] = self._behind.get(name, 0) + 1

    def checkpoint(self, name: TaskName) -> Checkpoint | None:
        """How far the index knows this file, so that a writer need not read it from the start."""
        try:
            row = self.index().row(name.id)
        except RawkoError:
            return None
        return None if row is None else ingest.checkpoint_of(name, row)

    def created(self, name: TaskName, stamps: tuple[str, str]) -> Projector | None:
        """Indexes a new file, and updates the folder's stamp if nobody else changed the folder meanwhile."""
        try:
            index = self.index()
            with index.transaction(), self.journal.reader(name) as reader:
                projector = ingest.new_file(index, name, reader)
                if index.meta("tasks_stamp") == stamps[0] and _fine_stamps():
                    index.set_meta("tasks_stamp", stamps[1])
        except Exception as error:  # any error: the record is durable, so its append must return
            self._warn(f"the index falls behind, and will catch up: {error}")
            return None
        return projector

    def appended(
        self, name: TaskName, chain: Chain, done: Sequence[Appended], projector: Projector | None
    ) -> Projector | None:
        """Indexes appends that follow one another. Returns the projector for the next one, or None after an error."""
        try:
            index = self.index()
            with index.transaction():
                return ingest.appended(self.journal, index, name, done, chain.stat(), projector)
        except Exception as error:
            if isinstance(error, StorageError) and error.errno == errno.ENOENT:
                return None  # somebody has moved it to the trash meanwhile
            # Any error: the record is durable, so its append must return.
            self._warn(f"the index falls behind, and will catch up: {error}")
            return None

    def settle(self, mark: Mark | None, *, current: bool) -> None:
        """Removes a closing writer's mark once the index has everything durably. ``current``: it has the last append."""
        if mark is None:
            return
        with self._keeping:
            self._mine.discard(mark.path.name)
            self._behind.pop(mark.path.name, None)
        try:
            index = self.index()
            if not current or self._aside:
                mark.leave()  # for the next query; or the index that others query is a different one
                return
            index.settle()
            mark.remove()
        except RawkoError:
            mark.leave()

    def finished(self) -> None:
        """Flushes a medium-sized tail into the search index: a good time, as a task has just finished. Nothing depends on it."""
        try:
            flush.flush_if_cheap(self.index(), self.journal)
        except Exception as error:  # any error: the task is finished, and searches read the files
            self._warn(f"warning: Can't update the search index now; it will catch up later: {error}")

    # Reading

    def fresh(self, only: str | None = None) -> Index:
        """The index, brought up to date with the files. With ``only``, what others are writing to that task is enough."""
        for attempt in range(_ATTEMPTS):
            index = None
            try:
                index = self.index()
                self._look(index, only)
                return index
            except IndexNewer:
                raise
            except IndexCorrupt as error:
                if attempt == _ATTEMPTS - 1:
                    return self._in_memory(error)
                self._move_aside(error, index)
            except (IndexTrouble, StorageError) as error:
                self._drop(index)
                if attempt == _ATTEMPTS - 1:
                    return self._in_memory(error)
                time.sleep(0.05 * (attempt + 1))  # another process may be moving it aside right now
        raise IndexTrouble(f"{self.path} is still broken after rebuilding it.")

    def fresh_to_every_file(self) -> Index:
        """Like fresh(), but also checks the size and time of every file, in case one was changed in place."""
        index = self.fresh()
        self._sweep(index, self.journal.layout.stamp())
        return index

    def _in_memory(self, error: RawkoError) -> Index:
        """The last resort: answer from the files, with an index in memory."""
        self._warn(f"{error} Reading the task files instead.")
        with self._lock:
            self.close()
            self._aside = self._pinned = True
            index = self._index = Index(None)
        self._look(index)
        return index

    def guarded(self, ask: Callable[[Index], object]) -> object:
        """Queries the up-to-date index. If it turns out to be broken, rebuilds it and retries."""
        index = self.fresh()
        try:
            return ask(index)
        except IndexCorrupt as error:
            self._move_aside(error, index)
            return ask(self.fresh())

    def _look(self, index: Index, only: str | None = None) -> None:
        for mark in self._marks():
            if only is not None and not mark.startswith(f"{only}."):
                continue
            if mark not in self._mine or index is not self._index:
                self._catch_up_marked(index, mark)
        stamp = self.journal.layout.stamp()
        if index.meta("tasks_stamp") != stamp:
            self._sweep(index, stamp)

    def _marks(self) -> list[str]:
        try:
            return [name for name in os.listdir(self.journal.layout.live) if name.endswith(".mark")]
        except OSError:
            return []

    def _catch_up_marked(self, index: Index, filename: str) -> None:
        task_id = filename.split(".")[0]
        path = self.journal.layout.live / filename
        behind = self._behind.get(filename)
        dead = Mark.of_dead_writer(path)
        row = index.row(task_id)
        name = parse_name(Path(row["file_path"]).name) if row else None
        caught_up = True
        try:
            if name is None:
                name = self.journal.find(task_id)
            if name.id == task_id:
                self.catch_up(name, index, grown=True)
                with self._keeping:
                    # Until its next append, queries here need not look at it again.
                    if (
                        behind is not None
                        and behind == self._behind.get(filename)
                        and index is self._index
                        and not self._aside
                    ):
                        self._mine.add(filename)
        except TaskNotFound:
            pass  # its file was never created, or is gone: the sweep handles that
        except RawkoError as error:
            caught_up = False
            self._warn(f"warning: Task {task_id} could not be read; what is shown may be out of date: {error}")
        if dead is not None:
            if caught_up and not self._aside:
                index.settle()
                dead.remove()
            else:
                dead.leave()

    def catch_up(self, name: TaskName, index: Index | None = None, *, grown: bool = False) -> None:
        """Indexes one changed file: only the new records if a writer's mark says it has ``grown``, otherwise all of it."""
        index = index or self.index()
        row = index.row(name.id)
        if row is not None and row["file_path"] == name.file_path:
            try:
                found = os.lstat(self.journal.layout.path(name))
            except OSError:
                found = None
            if found is not None and (found.st_size, found.st_mtime_ns) == (row["file_size"], row["file_mtime_ns"]):
                return
        # For a task being written right now, reading the new records is enough. An edited file is read in full.
        grown = grown or any(mark.startswith(f"{name.id}.") for mark in self._marks())
        with index.transaction():
            ingest.one_file(self.journal, index, name, grown=grown)

    def read_again(self, name: TaskName) -> None:
        """Reads one file from its beginning, whatever the index knows of it."""
        index = self.index()
        with index.transaction():
            ingest.one_file(self.journal, index, name, grown=False)

    def last_turns(self, name: TaskName) -> Iterator[tuple[int, int]]:
        """Positions of a task's turns, last one first. Reads the file if there is no usable index."""
        try:
            self.catch_up(name, grown=True)
            places = queries.turn_places(self.index(), name.id)
        except RawkoError:
            with self.journal.reader(name) as reader:
                blocks = [block for record in reader.records() if record.counts for block in record.blocks]
            places = iter([(block.offset, block.length) for block in reversed(blocks)])
        yield from places

    def _sweep(self, index: Index, stamp: str) -> None:
        """Checks the size and time of every file after the folder has changed, and reads the files that differ."""

        racy = not _fine_stamps() and time.time_ns() - int(stamp.split()[0]) < _TICK_NS
        names = self.names()
        known = index.known_files()
        changed: list[TaskName] = []
        for task_id, name in names.items():
            before = known.pop(task_id, None)
            try:
                found = os.lstat(self.journal.layout.path(name))
            except OSError:
                continue
            if before != (name.file_path, found.st_size, found.st_mtime_ns):
                changed.append(name)
        unread = self._read_all(index, changed, known) if changed or known else []
        self.unread = set(unread)
        if unread:
            self._warn(f"warning: {len(unread)} task files could not be read: {', '.join(unread[:5])}.")
        with index.transaction():
            # If a file was not read, the next query checks again.
            index.set_meta("tasks_stamp", "" if racy or unread else stamp)

    def _read_all(self, index: Index, changed: list[TaskName], gone: Iterable[str]) -> list[str]:
        """Indexes changed files and removes deleted ones. Returns the ids of files that could not be read."""
        unread: list[str] = []

        with index.transaction():
            for task_id in gone:
                index.forget(task_id)
            for name in changed if len(changed) < _MANY else ():
                try:
                    ingest.one_file(self.journal, index, name, grown=False)
                except (StorageError, UnsafePath):
                    unread.append(name.id)
        if len(changed) >= _MANY:
            for _, problems in ingest.many_files(self.journal, index, changed):
                unread += [task_id for task_id, _ in problems if index.position(task_id) is None]
        return unread

    def knows_all(self) -> bool:
        """Whether every task file had been read at the last check. If not, what they refer to is unknown."""
        return self.index().meta("tasks_stamp") == self.journal.layout.stamp()

    def names(self) -> dict[str, TaskName]:
        """All tasks by id."""
        return self.journal.names()

    # Content that the index knew and the files have lost

    def missing(self, task_id: str) -> str | None:
        """Describes what a file has lost."""
        found = self.index().meta(f"{ingest.MISSING}{task_id}")
        if found is None:
            return None
        import json

        turns = json.loads(found)["turns"]
        return (
            f"{turns} turns that the index knew are missing"
            if turns
            else "its last record, which the index knew, is missing"
        )

    def all_missing(self) -> list[str]:
        """Tasks whose files have lost something."""
        return [key.removeprefix(ingest.MISSING) for key in self.index().meta_like(ingest.MISSING)]

    def accept(self, task_id: str) -> bool:
        """Accepts the file as it is. Returns whether anything was missing."""
        index = self.index()
        with index.transaction():
            return index.drop_meta(f"{ingest.MISSING}{task_id}")

    # Rebuilding

    def reindex(self, step: Step | None = None, then: Callable[[Index], None] | None = None) -> list[tuple[str, str]]:
        """Rebuilds the index next to the old one and swaps it in. ``then`` is called with the new one before that. Returns the
        files that could not be fully read."""
        self.journal.layout.make()
        target = self.path.with_name(f"index.db.new-{os.getpid()}")
        self._clear_leftovers()
        remove(target)
        stamp = self.journal.layout.stamp()
        names = sorted(self.names().values())
        problems: list[tuple[str, str]] = []
        beside = Index(target)
        try:
            done = 0
            with beside.filling():
                for count, unread in ingest.many_files(self.journal, beside, names):
                    problems += unread
                    done += count
                    if step:
                        step(done, len(names))
            with beside.transaction():
                beside.set_meta("tasks_stamp", stamp)
            with beside.transaction(), contextlib.suppress(IndexTrouble):  # the old one may be broken
                for task_id in self.all_missing():
                    key = f"{ingest.MISSING}{task_id}"
                    beside.set_meta(key, self.index().meta(key) or "")
            # Bring the new index up to date with recent changes before it replaces the old one.
            self._look(beside)
            if then is not None:
                then(beside)
            # Writers may append and remove their marks before the swap, so the next check must go through all files.
            with beside.transaction():
                beside.set_meta("tasks_stamp", "")
            index = self.index()
            try:
                index.replace_with(beside)
            except IndexCorrupt as error:
                self._move_aside(error, index)
                index = self.index()
                index.replace_with(beside)
        finally:
            beside.close()
            remove(target)
        self.fresh()
        return problems

    def _clear_leftovers(self) -> None:
        """Removes files left by a reindex that was killed."""
        for path in self.path.parent.glob("index.db.new-*"):
            pid = path.name.split("-")[1]
            if pid.isdigit() and not disk.is_running(int(pid)):
                with contextlib.suppress(OSError):
                    path.unlink()


_MANY: Final = 500
_ATTEMPTS: Final = 3


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path
