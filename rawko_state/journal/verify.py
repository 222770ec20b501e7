"""Walking a task file's chain: what is wrong with it, and what can be mended without losing a byte."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from rawko_state.errors import RawkoError
from rawko_state.format.codec import FORMAT_VERSION
from rawko_state.format.scan import Record, Scan, bounded
from rawko_state.format.seal import HEADER_LIMIT, start_problem
from rawko_state.journal import blobs
from rawko_state.journal.chain import Chain
from rawko_state.journal.layout import Layout, TaskName
from rawko_state.model.entries import Blob, TaskHeader, ToolCall, Turn


@dataclass(slots=True)
class Verdict:
    """What was found in one file. ``faults`` is empty when all is well."""

    name: TaskName
    unsealed: bool = False
    records: int = 0
    turns: int = 0
    torn: int = 0
    """Bytes of marked torn spans: kept, and no fault."""
    faults: list[str] = field(default_factory=list)
    """The first one is the first bad record of the file."""
    repaired: list[str] = field(default_factory=list)
    can_repair: bool = False


def verify(layout: Layout, name: TaskName, *, repair: bool = False) -> Verdict:
    """Reads the whole file in bounded memory. With ``repair``, mends what can be mended."""
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
            chain = Chain(path, name.id)
            _repair(chain, verdict)
            chain.close()
        except RawkoError as error:
            verdict.faults.append(str(error))
    return verdict


class Walkable(Protocol):
    """A chain, wherever its bytes are."""

    def scan_again(self) -> Scan: ...
    def look_again(self) -> tuple[int, bool]: ...
    def fetch(self, offset: int, length: int) -> bytes: ...


def walk(chain: Walkable, verdict: Verdict, is_whole: Callable[[Blob], bool]) -> None:
    """Without the append lock, as it may take long; what looks unfinished is looked at again under it."""
    scan = chain.scan_again()
    for record in scan:
        _look_at(record, chain, verdict, is_whole)
    torn, stale = chain.look_again()
    verdict.unsealed = scan.header.format is None
    chain_faults = []
    for problem in scan.problems:
        tail = problem.code == "torn"
        on_its_way = tail and not torn
        if on_its_way or (verdict.unsealed and not tail and problem.code != "seal"):
            continue
        chain_faults.append(str(problem))
        verdict.can_repair |= tail
    wrong = start_problem(chain.fetch(0, HEADER_LIMIT))
    if wrong is not None:
        chain_faults.insert(0, f"the file {wrong}")
    verdict.faults[:0] = chain_faults
    if scan.header.format is not None and scan.header.format > FORMAT_VERSION:
        verdict.faults.append(f"format {scan.header.format} is newer than this rawko understands")
    elif stale:
        verdict.faults.append("the header's Status or Duration differs from what the records say")
        verdict.can_repair = True


def _look_at(record: Record, chain: Walkable, verdict: Verdict, is_whole: Callable[[Blob], bool]) -> None:
    verdict.records += 1
    if record.kind == "torn":
        verdict.torn += record.torn
    for block in record.blocks:
        is_turn = block.marker.startswith(b"--- Turn ")
        if not record.counts or not (is_turn or block.offset == 0):
            continue
        entry = block.entry(bounded(chain.fetch))
        if isinstance(entry, Turn):
            verdict.turns += 1
            for call in entry.tools:
                if isinstance(call, ToolCall) and call.blob and not is_whole(call.blob):
                    verdict.faults.append(f"turn {entry.number}: blob {call.blob.sha256} is missing or changed")
        elif isinstance(entry, TaskHeader) and entry.id != verdict.name.id:
            verdict.faults.append(f"the header says task {entry.id}; the file name counts")


def _repair(chain: Chain, verdict: Verdict) -> None:
    length = chain.close_tail()
    if length:
        verdict.repaired.append(f"marked a torn tail of {length} bytes")
    if chain.stale_copies() and chain.repair_copies():
        verdict.repaired.append("wrote the header's Status and Duration again")
