"""The lines of a unified diff with their numbers, and what changed within a line. For whoever shows one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from rawko_state.format.diffs import POSITION_UNKNOWN
from rawko_state.late import late

_HUNK = late(r"@@ -([0-9]{1,9})(?:,[0-9]{1,9})? \+([0-9]{1,9})(?:,[0-9]{1,9})? @@(.*)", re.DOTALL)
_CHANGED_MOST = 0.7
"""Lines that have less in common than the rest were written anew; what changed within them says nothing."""

_MOST_PAIRED: Final = 1_000
"""Of longer blocks of lines nobody compares each with the one that replaces it."""


class DiffLine(NamedTuple):
    sign: str
    """``+``, ``-``, a space; ``@`` for the head of a hunk; a backslash for the remark that a file has no newline at its end."""
    text: str
    """Without its sign."""
    old: int | None = None
    new: int | None = None
    """Its number in the file, if known."""
    change: tuple[int, int] | None = None
    """From where to where it differs from the line it replaces, or is replaced by."""


def lines_of(hunks: str) -> Iterator[DiffLine]:
    """All lines, in order."""
    old = new = 0
    known = False
    removed: list[DiffLine] = []
    added: list[DiffLine] = []
    for line in hunks.split("\n") if hunks else ():
        head = _HUNK.fullmatch(line)
        sign = line[:1] or " "
        if head is None and sign == "-" and not added:
            removed.append(DiffLine("-", line[1:], old if known else None))
            old += 1
            continue
        if head is None and sign == "+":
            added.append(DiffLine("+", line[1:], None, new if known else None))
            new += 1
            continue
        yield from _paired(removed, added)
        removed, added = [], []
        if head is not None:
            old, new, known = int(head[1]), int(head[2]), POSITION_UNKNOWN not in head[3]
            yield DiffLine("@", line)
        elif sign == "-":
            removed.append(DiffLine("-", line[1:], old if known else None))
            old += 1
        elif sign == "\\":
            yield DiffLine("\\", line)
        else:
            yield DiffLine(" ", line[1:] if sign == " " else line, old if known else None, new if known else None)
            old, new = old + 1, new + 1
    yield from _paired(removed, added)


def _paired(removed: list[DiffLine], added: list[DiffLine]) -> Iterator[DiffLine]:
    """Lines that were replaced by as many others, each with what changed in it."""
    if not removed or len(removed) != len(added) or len(removed) > _MOST_PAIRED:
        yield from removed
        yield from added
        return
    changes = [_change(before.text, after.text) for before, after in zip(removed, added, strict=True)]
    yield from (line._replace(change=change[0]) for line, change in zip(removed, changes, strict=True))
    yield from (line._replace(change=change[1]) for line, change in zip(added, changes, strict=True))


def _change(before: str, after: str) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
    most = min(len(before), len(after))
    first = 0
    while first < most and before[first] == after[first]:
        first += 1
    last = 0
    while last < most - first and before[-1 - last] == after[-1 - last]:
        last += 1
    longest = max(len(before), len(after))
    if not longest or longest - first - last > longest * _CHANGED_MOST:
        return None, None
    one, two = (first, len(before) - last), (first, len(after) - last)
    return (one if one[0] < one[1] else None), (two if two[0] < two[1] else None)
