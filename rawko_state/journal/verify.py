"""Verifies a task file's chain: what is wrong with it, and what can be repaired without losing a byte."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from rawko_state.errors import RawkoError
from rawko_state.format.codec import FORMAT_VERSION
from rawko_state.format.conflict import LARGEST, conflict_in, may_be_conflict
from rawko_state.format.scan import Record, Scan, bounded
from rawko_state.format.seal import HEADER_LIMIT, LARGEST_TAIL, has_seal_with_cr, start_problem
from rawko_state.journal import blobs, repair
from rawko_state.journal.chain import Chain
from rawko_state.journal.layout import Layout, TaskName
from rawko_state.model.entries import Blob, Entry, Note, TaskHeader, Turn, blobs_of
from rawko_state.model.state import TaskState
from rawko_state.model.status import FINISHED

LINE_ENDS, CONFLICT, NO_FORMAT = "line ends", "conflict", "no format"
"""Problems that are repaired by rewriting the file."""


@dataclass(slots=True)
class Verdict:
    """The findings for one file. ``faults`` is empty if all is well."""

    name: TaskName
    unsealed: bool = False
    records: int = 0
    turns: int = 0
    torn: int = 0
    """Bytes of marked torn spans. They are kept, and are not a fault."""
    faults: list[str] = field(default_factory=list)
    """The first one is the file's first bad record."""
    warnings: list[str] = field(default_factory=list)
    """Content that may be missing, although what is there is intact."""
    incomplete: bool = False
    """Whether a warning is about something that the file once had."""
    repaired: list[str] = field(default_factory=list)
    can_repair: bool = False
    mendable: set[str] = field(default_factory=set)
    """The faults that can be mended where they are."""
    to_rewrite: set[str] = field(default_factory=set)


def verify(layout: Layout, name: TaskName, *, repair: bool = False) -> Verdict:
    """Reads the whole file in bounded memory. With ``repair``, repairs what it can."""
    verdict = Verdict(name)
    path = layout.path(name)
    try:
        chain = Chain(path, name.id, read_only=True)
    except RawkoError as error:
        verdict.faults.append(str(error))
        return verdict
    try:
        walk(chain, verdict, lambda blob: blobs.is_whole(layout, blob))
    except RawkoError as error:
        verdict.faults.append(str(error))
    finally:
        chain.close()
    if repair and verdict.can_repair:
        try:
            if _rewrite(layout, name, verdict) and not name.packed:
                chain = Chain(path, name.id)
                try:
                    _repair(chain, verdict)
                finally:
                    chain.close()
        except RawkoError as error:
            verdict.faults.append(str(error))
    return verdict


_STALE: Final = "Status or Duration in the header differs from the records"


class Walkable(Protocol):
    """A chain, wherever its bytes are."""

    def scan_again(self) -> Scan: ...
    def look_again(self) -> tuple[int, bool]: ...
    def fetch(self, offset: int, length: int) -> bytes: ...


@dataclass(slots=True)
class _Walk:
    """Data collected while walking through a file."""

    state: TaskState
    header: TaskHeader | None = None
    statuses: set[str] = field(default_factory=set)
    """Every status that the records gave the task."""
    imported: bool = False
    sealed: bool = False
    unmatched: list[tuple[int, int]] = field(default_factory=list)
    """Spans that no matching seal covers."""
    end: int = 0


def walk(chain: Walkable, verdict: Verdict, is_whole: Callable[[Blob], bool]) -> None:
    """Walks without the append lock, as it may take long. Anything that looks unfinished is checked again under the lock."""
    scan = chain.scan_again()
    found = _Walk(TaskState(id=verdict.name.id))
    for record in scan:
        _look_at(record, chain, verdict, found, is_whole)
    torn, stale = chain.look_again()
    verdict.unsealed = scan.header.format is None
    _chain_faults(scan, torn, verdict)
    if _is_merged(chain, found):
        verdict.faults.insert(0, "git has left two writings in it (<<<<<<< … >>>>>>>)")
        verdict.to_rewrite.add(CONFLICT)
    else:
        _start_faults(chain, verdict, found)
        _line_end_faults(chain, verdict, found)
    if scan.header.format is not None and scan.header.format > FORMAT_VERSION:
        verdict.faults.append(f"the file has format {scan.header.format}, which is newer than this rawko")
    elif stale and found.state.runs and not verdict.to_rewrite:
        verdict.can_repair = True
        copied = found.header.status if found.header is not None else None
        if copied in FINISHED and copied not in found.statuses:
            verdict.warnings.append(f"the header says {copied}, and no record does: the end of the file is missing")
            verdict.incomplete = True
        else:
            verdict.faults.append(_STALE)
            verdict.mendable.add(_STALE)
    if verdict.unsealed and found.sealed and found.imported and found.header is not None and found.header.source:
        verdict.warnings.append("an earlier version imported it without Format, and with a Status that is not kept")
        verdict.to_rewrite.add(NO_FORMAT)
    verdict.can_repair |= bool(verdict.to_rewrite)


def _chain_faults(scan: Scan, torn: int, verdict: Verdict) -> None:
    faults = []
    for problem in scan.problems:
        tail = problem.code == "torn"
        on_its_way = tail and not torn
        if on_its_way or (verdict.unsealed and not tail and problem.code != "seal"):
            continue
        faults.append(str(problem))
        if tail:
            verdict.can_repair = True
            verdict.mendable.add(str(problem))
    verdict.faults[:0] = faults


def _line_end_faults(chain: Walkable, verdict: Verdict, found: _Walk) -> None:
    """Records at the end whose line ends were changed: to mark them as torn would bury them."""
    offset, length = found.unmatched[-1] if found.unmatched else (0, 0)
    if offset + length == found.end and has_seal_with_cr(chain.fetch(offset, min(length, LARGEST_TAIL))):
        verdict.faults.insert(0, "the end of the file has the line ends of another system (CRLF)")
        verdict.to_rewrite.add(LINE_ENDS)


def _start_faults(chain: Walkable, verdict: Verdict, found: _Walk) -> None:
    start = chain.fetch(0, HEADER_LIMIT)
    wrong = start_problem(start)
    if wrong is not None:
        verdict.faults.insert(0, f"the file {wrong}")
        if b"\r\n" in start[: start.find(b"\n") + 1]:
            verdict.to_rewrite.add(LINE_ENDS)
    elif not found.state.runs:
        verdict.faults.insert(0, "the file ends before its request")
    if wrong is not None or not found.state.runs:
        verdict.can_repair = False  # marking the rest as torn would bury it


def _is_merged(chain: Walkable, found: _Walk) -> bool:
    if found.end > LARGEST or not any(may_be_conflict(chain.fetch(*span)) for span in found.unmatched):
        return False
    return conflict_in(chain.fetch(0, found.end)) is not None


def _look_at(record: Record, chain: Walkable, verdict: Verdict, found: _Walk, is_whole: Callable[[Blob], bool]) -> None:
    verdict.records += 1
    found.sealed |= record.kind == "sealed"
    if record.kind == "torn":
        verdict.torn += record.torn
    found.end = record.end
    if record.kind in ("damaged", "tail", "unsealed"):
        found.unmatched.append((record.offset, record.length))
    fetch = bounded(chain.fetch)
    for block in record.blocks:
        is_turn = block.marker.startswith(b"--- Turn ")
        if not record.counts:
            if record.kind == "damaged":
                found.state = found.state.apply_damaged(block.entry(fetch, head_only=True))
            continue
        entry = block.entry(fetch, head_only=not is_turn)
        found.state = found.state.apply(entry)
        if isinstance(entry, Turn):
            verdict.turns += 1
            for blob in blobs_of(entry):
                if not is_whole(blob):
                    verdict.faults.append(f"turn {entry.number}: blob {blob.sha256} is missing or changed")
        elif block.offset == 0 and isinstance(entry, TaskHeader):
            found.header = entry
            if entry.id != verdict.name.id:
                verdict.faults.append(f"the header names task {entry.id}; the file name wins")
        else:
            found.imported |= _is_import_note(entry)
    if record.counts:
        found.statuses.add(found.state.status)


def _is_import_note(entry: Entry) -> bool:
    return isinstance(entry, Note) and entry.kind == "imported"


def _rewrite(layout: Layout, name: TaskName, verdict: Verdict) -> bool:
    """Makes the repairs that rewrite the file, one by one. Returns whether other repairs may follow."""
    if LINE_ENDS in verdict.to_rewrite:
        if not repair.line_ends(layout, name):
            return False
        verdict.repaired.append("gave it back its line ends")
    if CONFLICT in verdict.to_rewrite:
        child = repair.conflict(layout, name)
        if child is None:
            return False
        verdict.repaired.append(
            f"kept both writings: the second one is task {child}" if child else "kept the one writing"
        )
    if NO_FORMAT in verdict.to_rewrite and repair.header(layout, name):
        verdict.repaired.append("wrote a full header, and sealed it anew")
    return True


def _repair(chain: Chain, verdict: Verdict) -> None:
    length = chain.close_tail()
    if length:
        verdict.repaired.append(f"marked an unfinished write of {length} bytes")
    # What the header says of a damaged task may be the last trace of how it ended.
    if verdict.mendable.issuperset(verdict.faults) and chain.stale_copies() and chain.repair_copies():
        verdict.repaired.append("corrected Status and Duration in the header")
