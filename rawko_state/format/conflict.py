"""Two versions of one task in one file, as git leaves them if both sides have appended.

A turn may quote a conflict. So markers count only outside records whose seal matches, and the two sides must be whole task files.
An unfinished append is not a conflict, whatever it quotes: it contains no seal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from rawko_state.format.records import scan_bytes
from rawko_state.format.scan import Record
from rawko_state.late import late

LARGEST: Final = 16 << 20
"""Longer files are not checked."""
_MARKER = late(rb"^(?:(<{7})|(\|{7})|(={7})|(>{7}))(?: [^\n]*)?\r?(?:\n|\Z)", re.MULTILINE)
_SEALED_END = late(rb"\[End [0-9a-f]{16}\]\r?\n\Z")
_OURS, _BASE, _THEIRS, _DONE = 1, 2, 3, 4


class Conflict(NamedTuple):
    ours: bytes
    theirs: bytes
    is_whole: bool
    """Whether both are task files in which every seal matches."""


class _Hunk(NamedTuple):
    first: int
    ours: tuple[int, int]
    theirs: tuple[int, int]
    last: int


def may_be_conflict(span: bytes) -> bool:
    """A quick check of bytes that no matching seal covers."""
    return b">>>>>>>" in span


def conflict_in(data: bytes) -> Conflict | None:
    """The two versions in a file, if it contains a conflict."""
    records, _ = scan_bytes(data)
    hunks = list(_hunks(data, [record for record in records if record.kind in ("sealed", "torn")]))
    if not hunks:
        return None
    found = Conflict(_side(data, hunks, "ours"), _side(data, hunks, "theirs"), is_whole=False)
    if reads_well(found.ours) and reads_well(found.theirs):
        return found._replace(is_whole=True)
    # Only a merge leaves a conflict in the header, or a side that ends in a seal.
    first = records[0]
    whole_side = any(_SEALED_END.search(data[max(0, hunk.theirs[1] - 32) : hunk.theirs[1]]) for hunk in hunks)
    above = not first.blocks or hunks[0].first < (first.blocks[1].offset if len(first.blocks) > 1 else first.end)
    return found if whole_side or (above and first.kind != "sealed") else None


def reads_well(data: bytes) -> bool:
    """Whether the bytes are a task file in which every seal matches."""
    records, problems = scan_bytes(data)
    return bool(records) and not problems and {record.kind for record in records} <= {"sealed", "torn"}


def _side(data: bytes, hunks: Sequence[_Hunk], side: str) -> bytes:
    pieces, at = [], 0
    for hunk in hunks:
        pieces += [data[at : hunk.first], data[slice(*getattr(hunk, side))]]
        at = hunk.last
    return b"".join([*pieces, data[at:]])


def _hunks(data: bytes, matched: Sequence[Record]) -> Iterator[_Hunk]:
    """Complete conflicts: <<<<<<<, optionally |||||||, =======, >>>>>>>. One quoted inside another is plain text."""
    depth, seen, first, ours, theirs = 0, 0, 0, (0, 0), 0
    for marker in _markers(data, matched):
        kind = marker.lastindex
        if kind == _OURS:
            depth += 1
            if depth == 1:
                seen, first, ours = _OURS, marker.start(), (marker.end(), 0)
        elif kind == _DONE and depth:
            depth -= 1
            if depth == 0 and seen == _THEIRS:
                yield _Hunk(first, ours, (theirs, marker.start()), marker.end())
        elif depth == 1 and ((kind == _BASE and seen == _OURS) or (kind == _THEIRS and seen in (_OURS, _BASE))):
            ours = ours if ours[1] else (ours[0], marker.start())
            seen, theirs = kind or 0, marker.end()


def _markers(data: bytes, matched: Sequence[Record]) -> Iterator[re.Match[bytes]]:
    """The markers outside the records that match."""
    at = 0
    for found in _MARKER.finditer(data):
        while at < len(matched) and matched[at].end <= found.start():
            at += 1
        if at == len(matched) or found.start() < matched[at].offset:
            yield found
