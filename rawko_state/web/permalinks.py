"""Links to a turn that carry its seal, so that they show whether it is still what was seen."""

from __future__ import annotations

import re
from typing import NamedTuple

from rawko_state.format.reader import TaskReader
from rawko_state.format.seal import GENESIS, SEAL_LENGTH, read_seal
from rawko_state.web.turn_view import read_turn
from rawko_state.web.visits import Visit


class SealCheck(NamedTuple):
    state: str
    """``same``, ``changed``, ``damaged`` or ``unknown``"""
    given: str
    found: str | None


def checked_seal(visit: Visit, task_id: str, number: int) -> SealCheck:
    """Whether a turn is still what a link was made for: the seal is the same, and the record's bytes fit it."""
    given = (visit.get("seal") or "").lower()
    rows = visit.store.turn_page(task_id, after=number - 1, limit=1)
    row = next((each for each in rows if each.turn == number), None)
    if row is None or not re.fullmatch(r"[0-9a-f]{8,16}", given):
        return SealCheck("unknown", given[:16], None)
    with visit.store.reader(task_id) as reader:
        _, seal = read_turn(reader, row)
        if seal is None:
            return SealCheck("unknown", given, None)
        if not seal.startswith(given):
            return SealCheck("changed", given, seal)
        fits = _fits(reader, row.offset)
    if row.damaged or fits is False:
        return SealCheck("damaged", given, seal)
    return SealCheck("same" if fits else "unknown", given, seal)


def _fits(reader: TaskReader, offset: int) -> bool | None:
    """Whether the seal of the record at this place matches its bytes. None if its start is not found."""
    start = _record_start(reader, offset)
    if start is None:
        return None
    for record in reader.scan(start if start[0] else None):
        return record.kind == "sealed"
    return None


def _record_start(reader: TaskReader, offset: int) -> tuple[int, str] | None:
    """The end of the record before this place, and its seal."""
    at = offset
    while at > 0:
        length = min(1 << 16, at)
        data = reader.fetch(at - length, length)
        place = data.rfind(b"\n[End ")
        if place >= 0:
            seal = read_seal(data[place + 1 : place + SEAL_LENGTH])
            return (at - length + place + 1 + SEAL_LENGTH, seal) if seal is not None else None
        at -= length - 64 if length > 64 and at > length else length
        if offset - at > 8 << 20:
            return None
    return 0, GENESIS
