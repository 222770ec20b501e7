"""Items that a program has taken back. Reads and exports withhold them; the task file keeps them until the task is erased.

The items of a session of OpenAI's SDK are in notes that add some (``{"add": [...]}``) or pop the newest (``{"pop": 1}``). An item
that was popped is replaced by WITHHELD, so that every other one keeps its place, and an export can be imported and used again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, TypeVar, cast

from rawko_state.format.codec import NOTE
from rawko_state.format.reader import TaskReader
from rawko_state.model.entries import Entry, Note
from rawko_state.model.frozen import replace

KIND: Final = "openai-agents-data"
"""The kind of the notes that add and pop items."""
WITHHELD: Final = {"withheld": True}
_MARKER: Final = NOTE.encode()


_Entry = TypeVar("_Entry", bound=Entry)


class TakenBack:
    """The items of a task that were popped. The task is read for them when there is first a note to leave them out of."""

    def __init__(self, reader: TaskReader) -> None:
        self._reader = reader
        self._popped: Mapping[int, Collection[int]] | None = None
        """By the offset of the note that added them: which of its items."""

    def __bool__(self) -> bool:
        return bool(self.popped)

    @property
    def popped(self) -> Mapping[int, Collection[int]]:
        if self._popped is None:
            self._popped = _popped(self._reader)
        return self._popped

    def left_out(self, entry: _Entry, offset: int) -> _Entry:
        """The entry at an offset, without the items that were popped."""
        added = _added(entry)
        popped = self.popped.get(offset) if added else None
        if not added or not popped:
            return entry
        items = [WITHHELD if at in popped else item for at, item in enumerate(added)]
        return cast("_Entry", replace(cast("Note", entry), data={"add": items}))


def _popped(reader: TaskReader) -> dict[int, set[int]]:
    held: list[tuple[int, int, bool]] = []
    found: dict[int, set[int]] = {}
    for record in reader.scan():
        if record.seal is None:
            break  # an append that did not finish
        for block in record.blocks:
            entry = block.entry(reader.fetch) if block.marker == _MARKER else None
            added = _added(entry)
            if added is not None:
                held += [(block.offset, at, item == WITHHELD) for at, item in enumerate(added)]
            elif held and isinstance(entry, Note) and entry.kind == KIND:
                offset, at, is_withheld = held.pop()
                if not is_withheld:
                    found.setdefault(offset, set()).add(at)
    return found


def _added(entry: Entry | None) -> list[Any] | None:
    if not isinstance(entry, Note) or entry.kind != KIND or not isinstance(entry.data, dict):
        return None
    added = entry.data.get("add")
    return added if isinstance(added, list) else None
