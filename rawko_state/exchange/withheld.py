"""The bytes of a task for an exact export. What a program has taken back is left out; the seals are then new ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rawko_state.format.reader import TaskReader
from rawko_state.format.records import emit_blocks
from rawko_state.format.rewriting import Rewriting, with_note
from rawko_state.format.scan import RawBlock
from rawko_state.format.taken_back import TakenBack
from rawko_state.model.entries import Note

_PIECE: Final = 1 << 20


class _Withholding(Rewriting):
    def __init__(self, taken: TakenBack) -> None:
        super().__init__(lambda entry: entry, lambda text: text)
        self._taken = taken

    def block(self, reader: TaskReader, block: RawBlock) -> bytes:
        entry = block.entry(reader.fetch)
        left = self._taken.left_out(entry, block.offset)
        if left is entry:
            return super().block(reader, block)
        self.changed += 1
        return emit_blocks([left])


def note_of(taken: TakenBack) -> Note:
    """What an export says at its end if it withholds something."""
    count = sum(map(len, taken.popped.values()))
    return Note(kind="withheld", context="out", content=f"Items that were popped, and are not in this export: {count}.")


def pieces_of(reader: TaskReader) -> Iterator[bytes]:
    """The bytes of a task; where items were popped, without them."""
    taken = TakenBack(reader)
    if taken:
        yield from with_note(_Withholding(taken), reader, lambda changed: note_of(taken))
        return
    offset = 0
    while piece := reader.fetch(offset, _PIECE):
        yield piece
        offset += len(piece)
