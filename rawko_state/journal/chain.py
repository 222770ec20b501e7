"""A task file opened for appending: the chain of its records, and the only way to extend it.

Every append goes through Chain.append. Under the append lock it checks that the file is still the same one, reads what others
appended meanwhile, closes a torn tail, writes once, and syncs once.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rawko_state.errors import ChainMoved, NewerFormat, NotATask, StorageError
from rawko_state.format.codec import FORMAT_VERSION
from rawko_state.format.records import HeaderCopy, build_record, emit_torn, header_copies
from rawko_state.format.scan import Problem, Scan, bounded
from rawko_state.format.seal import (
    GENESIS,
    HEADER_LIMIT,
    LARGEST_TAIL,
    SEAL_LENGTH,
    HeaderShape,
    has_seal_with_cr,
    header_shape,
    seal_line,
    start_problem,
)
from rawko_state.journal import disk
from rawko_state.journal.locks import append_lock
from rawko_state.journal.source import open_source
from rawko_state.lazy import lazy
from rawko_state.model.appended import Appended, BeforeWrite
from rawko_state.model.entries import Entry
from rawko_state.model.frozen import Frozen
from rawko_state.model.state import TaskState

if TYPE_CHECKING:
    from rawko_state.format import conflict
else:
    conflict = lazy("rawko_state.format.conflict")  # few files are suspect

_PIECE: Final = 1 << 20
# The kernel writes pages in groups. When a group fails, previously synced bytes next to the failed record can be lost with it.
_NEIGHBOURS: Final = 1 << 16


class Checkpoint(Frozen):
    """A position that a reader of this file reached, so that the next one need not start from the beginning."""

    end: int
    seal: str
    last_offset: int
    state: TaskState


class Chain:
    def __init__(
        self, path: Path, task_id: str, checkpoint: Checkpoint | None = None, *, read_only: bool = False
    ) -> None:
        """``read_only`` also works where nothing can be written."""
        self.problems: list[Problem] = []
        self._source = open_source(path, write=not read_only)
        self._descriptor = self._source.descriptor
        self.path = self._source.path
        self._state = TaskState(id=task_id)
        self._end = 0
        self._last_offset = 0
        self._seal = GENESIS
        self._sealed = False
        self._unterminated = False
        self._is_merged = False
        self._size = 0
        # The writer of the last record may have failed to sync it; see format.md, section 9.
        self._rewrite_last = True
        try:
            start = self.fetch(0, HEADER_LIMIT)
            self._shape, self._wrong_start = header_shape(start), start_problem(start)
            if checkpoint is not None and self._is_seal_at(checkpoint.end, checkpoint.seal):
                self._state, self._end = checkpoint.state, checkpoint.end
                self._seal, self._last_offset, self._sealed = checkpoint.seal, checkpoint.last_offset, True
            self._take_in(self._source.size())
        except BaseException:
            self._source.close()
            raise

    @property
    def state(self) -> TaskState:
        return self._state

    @property
    def seal(self) -> str:
        """The last matching seal."""
        return self._seal

    @property
    def torn(self) -> int:
        """Bytes at the end of the file from an unfinished append."""
        return self._size - self._end if self._sealed else 0

    @property
    def shape(self) -> HeaderShape:
        return self._shape

    @property
    def end(self) -> int:
        """The end of the last record with a matching seal."""
        return self._end

    def checkpoint(self) -> Checkpoint:
        return Checkpoint(self._end, self._seal, self._last_offset, self._state)

    def stat(self) -> tuple[int, int]:
        """The file's size and mtime, to detect later changes by others."""
        found = os.fstat(self._descriptor)
        return found.st_size, found.st_mtime_ns

    @property
    def is_closed(self) -> bool:
        return self._descriptor < 0

    def close(self) -> None:
        self._source.close()
        self._descriptor = -1

    def has_grown(self) -> bool:
        """Whether others may have appended since. Takes no lock, so an append in progress counts too."""
        return self._descriptor >= 0 and self._source.size() != self._size

    def refresh(self) -> TaskState:
        """Reads what others have appended since."""
        if self._descriptor < 0:
            raise ChainMoved(f"Task file {self.path} is closed.")
        with append_lock(self._descriptor, self.path):
            self._catch_up()
        return self._state

    def alone(self, work: Callable[[], None]) -> None:
        """Calls ``work`` while nobody can append."""
        with append_lock(self._descriptor, self.path):
            self._catch_up()
            work()

    def holds(self, seal: str) -> bool:
        """Whether the file has a record with this seal. Check this after OutcomeUnknown."""
        with append_lock(self._descriptor, self.path):
            return any(record.seal == seal and record.counts for record in self.scan_again())

    def append(
        self,
        make: Callable[[TaskState], Iterable[Entry]],
        *,
        expect: str | None = None,
        before: BeforeWrite | None = None,
    ) -> Appended:
        """Appends one record, and returns when it is durable.

        ``make`` is called under the lock with the state, and returns what to write, so that a turn's number is right whoever else
        appends. With ``expect``, raises ChainMoved unless that is the last seal. ``before`` is called with the record
        just before it is written.
        """
        if self._descriptor < 0:
            raise ChainMoved(f"Task file {self.path} is closed.")
        with append_lock(self._descriptor, self.path):
            self._catch_up()
            if expect is not None and expect != self._seal:
                raise ChainMoved(
                    f"{self.path} has changed: its last seal is {self._seal}, not {expect}. Read it again before you "
                    "append.",
                    last=self._seal,
                )
            self._check()
            if self._shape.format is not None and self._shape.format > FORMAT_VERSION:
                raise NewerFormat(
                    f"{self.path} has format {self._shape.format}; this rawko writes {FORMAT_VERSION}. Update rawko."
                )
            closing, parent = self._closing() or (b"", self._seal)
            first = b"\n" * self._unterminated + closing
            record = build_record(list(make(self._state)), self._state, parent, self._size + len(first))
            done = record.appended(alone=not closing)
            if before is not None:
                before(done)
            self._write(first + record.data, record.seal)
            state = record.state
            changed = (state.status, state.duration_ms) != (self._state.status, self._state.duration_ms)
            self._end, self._last_offset = record.end, record.offset
            self._seal, self._state, self._sealed, self._unterminated = record.seal, state, True, False
            if changed:
                self._write_copies()
            return done

    def fetch(self, offset: int, length: int) -> bytes:
        return self._source.fetch(offset, length)

    def scan_again(self) -> Scan:
        """Scans all current records from the beginning."""
        return self._scan(0, GENESIS)

    def check(self) -> None:
        """NotATask if nothing may be appended to the file as it is."""
        with append_lock(self._descriptor, self.path):
            self._catch_up()
            self._check()

    def _check(self) -> None:
        wrong = self._wrong()
        if wrong is not None:
            raise NotATask(f"{self.path} {wrong}: nothing was appended. Run: rawko verify")

    def close_tail(self) -> int:
        """Marks a torn tail without appending anything else. Returns its length."""
        with append_lock(self._descriptor, self.path):
            self._catch_up()
            length = self.torn
            closing = self._closing() if length else None
            if closing:
                data, seal = closing
                self._last_offset = self._end
                self._write(data, seal)
                self._end, self._seal = self._size, seal
            return length

    def look_again(self) -> tuple[int, bool]:
        """Returns the length of a torn tail, and whether the header's copies are stale. Holds the lock, so that an append in
        progress is not mistaken for either."""
        with append_lock(self._descriptor, self.path):
            self._catch_up()
            return self.torn, self.stale_copies()

    def stale_copies(self) -> bool:
        """Whether the header's copies differ from what the records say."""
        return bool(self._copies())

    def repair_copies(self) -> bool:
        """Rewrites the copies. False if they do not fit."""
        with append_lock(self._descriptor, self.path):
            self._catch_up()
            self._write_copies()
        return not self.stale_copies()

    def _catch_up(self) -> None:
        """Checks that the file is the one that was opened, with its known content intact, and reads what was added."""
        mine = os.fstat(self._descriptor)
        try:
            there = os.lstat(self.path)
        except OSError as error:
            raise ChainMoved(f"{self.path} no longer exists: {error.strerror}.") from None
        if (there.st_dev, there.st_ino) != (mine.st_dev, mine.st_ino):
            raise ChainMoved(f"{self.path} was replaced by another file. Open the task again.")
        size = self._source.size(mine)
        if size < self._end:
            raise ChainMoved(f"{self.path} was cut to {size} bytes. Run: rawko verify")
        if self._sealed and self._end and not self._unterminated and not self._is_seal_at(self._end, self._seal):
            raise ChainMoved(f"{self.path} was changed before byte {self._end}. Run: rawko verify")
        if self._unterminated and size > self._end:
            # Another writer has added the LF that the last seal lacked.
            self._end, self._unterminated = self._end + 1, False
        if size != self._size:
            self._rewrite_last = True
            self._take_in(size)

    def _is_seal_at(self, end: int, seal: str) -> bool:
        return self.fetch(max(0, end - SEAL_LENGTH), SEAL_LENGTH) == seal_line(seal)

    def _scan(self, start: int, parent: str) -> Scan:
        at = start

        def read(length: int) -> bytes:
            nonlocal at
            piece = self._source.read_at(length, at)
            at += len(piece)
            return piece

        return Scan(read, start=start, parent=parent)

    def _take_in(self, size: int) -> None:
        """Reads the records after the last known seal, or all of them if the file has none."""
        if not self._sealed:
            self._state = TaskState(id=self._state.id)
            self._end, self._seal = 0, GENESIS
        scan = self._scan(self._end, self._seal)
        fetch = bounded(self.fetch)
        doubtful = False
        for record in scan:
            if record.kind in ("damaged", "tail", "unsealed") and size <= conflict.LARGEST:
                doubtful = doubtful or conflict.may_be_conflict(self.fetch(record.offset, record.length))
            if record.counts:
                self._state = self._state.apply_all(block.entry(fetch, head_only=True) for block in record.blocks)
            elif record.kind == "damaged":
                for block in record.blocks:
                    self._state = self._state.apply_damaged(block.entry(fetch, head_only=True))
            if record.kind in ("sealed", "torn"):
                self._last_offset, self._unterminated = record.offset, record.unterminated
        self._is_merged = doubtful and conflict.conflict_in(self.fetch(0, size)) is not None
        self.problems = scan.problems
        self._end, self._seal, self._size = scan.tail_offset, scan.tail_seal, size
        self._sealed = scan.sealed

    def _wrong(self) -> str | None:
        """Why nothing may be appended, if so: the existing content would be buried under a TORN marker."""
        if self._wrong_start is not None:
            return self._wrong_start
        if not self._state.runs and not self._is_merged:
            return "ends before its request"
        if self._is_merged:
            return "holds two writings that git has merged (<<<<<<< … >>>>>>>)"
        if self.torn and has_seal_with_cr(self.fetch(self._end, min(self.torn, LARGEST_TAIL))):
            return "has the line ends of another system (CRLF) at its end"
        return None

    def _closing(self) -> tuple[bytes, str] | None:
        """The closing record that must precede the next one, and its seal. It covers a torn tail or a whole unsealed file."""
        if self._sealed and self.torn:
            marker = emit_torn(self.torn)
        elif not self._sealed:
            ending = disk.read_range(self._descriptor, max(0, self._size - 2), 2)
            marker = b"\n" * (2 - (len(ending) - len(ending.rstrip(b"\n"))))
        else:
            return None
        digest = hashlib.sha256(self._seal.encode())
        # From offset 0, leave out the header's copies, as a reader of this record will.
        holes = self._shape.holes if self._end == 0 else ()
        at = self._end
        for hole, end in (*holes, (self._size, self._size)):
            while at < hole and (piece := disk.read_at(self._descriptor, min(_PIECE, hole - at), at)):
                digest.update(piece)
                at += len(piece)
            at = max(at, end)
        digest.update(marker)
        seal = digest.hexdigest()[:16]
        return marker + seal_line(seal), seal

    def _write(self, data: bytes, seal: str) -> None:
        if self._rewrite_last:
            self._write_again(max(0, min(self._last_offset, self._size - _NEIGHBOURS)), self._size)
        # If anything fails from here on, the next append must re-examine the file.
        start, self._size = self._size, -1
        self._rewrite_last = True
        disk.write_at(self._descriptor, data, start, self.path)
        disk.sync(self._descriptor, self.path, seal)
        self._size, self._rewrite_last = start + len(data), False

    def _write_again(self, first: int, last: int) -> None:
        """Rewrites the same bytes in place, so that pages forgotten after a failed sync become dirty again."""
        while first < last:
            piece = disk.read_range(self._descriptor, first, min(_PIECE, last - first))
            if not piece:
                break
            disk.write_at(self._descriptor, piece, first, self.path)
            first += len(piece)

    def _copies(self) -> list[HeaderCopy]:
        return header_copies(self._shape, self.fetch, self._state)

    def _write_copies(self) -> None:
        """The record is already durable, so an error here must not fail the append."""
        try:
            for copy in self._copies():
                if copy.data is not None:
                    disk.write_at(self._descriptor, copy.data, copy.offset, self.path)
            disk.sync(self._descriptor, self.path, self._seal)
        except StorageError:
            self._rewrite_last = True
