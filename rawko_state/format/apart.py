"""Two versions of one task that have diverged: the second becomes a task of its own, a child of the first, and says so."""

from __future__ import annotations

import hashlib

from rawko_state.format.records import emit_blocks, emit_record, emit_torn, scan_bytes, seal_record
from rawko_state.format.seal import GENESIS
from rawko_state.model.entries import Note, Parent, TaskHeader, Turn
from rawko_state.model.frozen import replace


def child_id(task_id: str, common: int, number: int = 0) -> str:
    """The id of the version that diverges after byte ``common``: the same on every machine."""
    mark = hashlib.sha256(f"{task_id} {common} {number}".encode()).hexdigest()[:6]
    return f"{task_id[:50]}x{mark}"


def common_end(first: bytes, second: bytes) -> int:
    """The end of the last record that two versions share. Ignores the header's copied values."""
    end = 0
    for mine, theirs in zip(scan_bytes(first)[0], scan_bytes(second)[0], strict=False):
        if (mine.kind, mine.seal, mine.length) != (theirs.kind, theirs.seal, theirs.length):
            break
        if mine.kind != "sealed" and first[mine.offset : mine.end] != second[mine.offset : mine.end]:
            break
        end = mine.end
    return end


def as_child(data: bytes, task_id: str, child: str, common: int) -> bytes:
    """A whole version under another id, resealed, with a note that names the task it diverged from."""

    def fetch(offset: int, length: int) -> bytes:
        return data[offset : offset + length]

    records, _ = scan_bytes(data)
    turn = 0
    for record in records:
        if record.end <= common:
            for block in record.blocks:
                entry = block.entry(fetch, head_only=True)
                turn = max(turn, entry.number) if isinstance(entry, Turn) else turn
    note = Note(kind="grown-apart", data={"task": task_id, "after_turn": turn, "at": common}, context="out")
    pieces, seal, noted = [], GENESIS, False
    for record in records:
        if record.end > common and not noted:
            # Here, not at the end, so that a longer version starts with the shorter one.
            made, seal = emit_record([note], seal)
            pieces.append(made)
            noted = True
        if record.kind == "torn":
            span = fetch(record.offset, record.torn)
            made, seal = seal_record(span + emit_torn(len(span)), seal)
            pieces.append(made)
            continue
        blocks = []
        for block in record.blocks if record.kind != "tail" else ():
            entry = block.entry(fetch)
            if isinstance(entry, TaskHeader):
                # Not a fork at a turn, because all its turns are its own: a child that names its parent.
                blocks.append(emit_blocks([replace(entry, id=child, parent=Parent(task_id))]))
            else:
                blocks.append(fetch(block.offset, block.length))
        if blocks:
            made, seal = seal_record(b"".join(blocks), seal)
            pieces.append(made)
    return b"".join(pieces)
