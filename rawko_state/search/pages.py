"""Pages: a few thousand documents as an inverted index, from terms to documents.

The Whoosh index stores each page as one of its documents; a term's posting value is the packed list of the turns that contain it.
Whoosh then works once per term and page instead of once per term and turn, which makes building and searching several times as
fast, and the packed numbers take a third of the space. Data that is not indexed yet becomes a page of the same form, so the same
code searches both.
"""

from __future__ import annotations

import math
import sys
import zlib
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final, NamedTuple, TypeAlias

from rawko_state.search.documents import KINDS, Document
from rawko_state.search.words import Counts

FULL: Final = 8_192
"""Documents per page; a document's number in the page fits in 16 bits."""
TEXT, TOOL = "text", "tool"
Postings: TypeAlias = tuple[Sequence[int], bytes]
"""The documents that contain a term, in order, and the weighted count (up to 255) in each."""

_STEPS: Final = 12  # per octave
LENGTHS: Final = tuple(2 ** (step / _STEPS) - 1 for step in range(256))
"""Decodes a document's length, which is stored as one byte."""
_BIG_ENDIAN: Final = sys.byteorder == "big"


def _numbers() -> array[int]:
    return array("q")


class Owner(NamedTuple):
    """The task that a run of documents in a page belongs to."""

    id: str
    base: int
    """Which reading of its file they come from. An edited file is reread, and its old documents no longer count."""
    created: int
    """Seconds since 1970; 0 if unknown."""
    first: int
    """Its first document in the page. Its last is the one before the next task's first."""


class TurnRef(NamedTuple):
    """The position of a document in its task's file."""

    offset: int
    length: int
    kind: str
    turn: int


class Page:
    """The documents of a page, without their terms."""

    __slots__ = ("bases", "created", "firsts", "kinds", "lengths", "offsets", "sizes", "tasks", "turns")

    def __init__(self) -> None:
        self.tasks: list[str] = []
        self.bases, self.created = _numbers(), _numbers()
        self.firsts = _numbers()
        """Each task's first document."""
        self.offsets, self.lengths, self.turns = _numbers(), _numbers(), _numbers()
        self.kinds = b""
        self.sizes = b""

    def __len__(self) -> int:
        return len(self.sizes)

    def owner(self, number: int) -> Owner:
        return Owner(self.tasks[number], self.bases[number], self.created[number], self.firsts[number])

    def documents_of(self, owner: int) -> range:
        return range(self.firsts[owner], self.firsts[owner + 1] if owner + 1 < len(self.firsts) else len(self))

    def place(self, document: int) -> TurnRef:
        return TurnRef(
            self.offsets[document], self.lengths[document], KINDS[self.kinds[document]], self.turns[document]
        )

    def to_bytes(self) -> bytes:
        """A checksum; the lengths of the names, tasks and documents; the names; the columns."""
        names = "\n".join(self.tasks).encode()
        head = b"".join(len(each).to_bytes(4, "little") for each in (names, self.tasks, self.sizes))
        columns = (getattr(self, name) for name, _ in _COLUMNS)
        whole = b"".join((head, names, *map(_little, columns), self.kinds, self.sizes))
        return zlib.crc32(whole).to_bytes(4, "little") + whole

    @classmethod
    def from_bytes(cls, data: bytes) -> Page:
        """Raises ValueError if the bytes are damaged."""
        check, data = int.from_bytes(data[:4], "little"), data[4:]
        if len(data) < 12 or zlib.crc32(data) != check:
            raise ValueError("The search index is damaged.")
        names, tasks, count = (int.from_bytes(data[at : at + 4], "little") for at in (0, 4, 8))
        at = 12 + names
        page = cls()
        page.tasks = data[12:at].decode().split("\n") if tasks else []
        for name, per_task in _COLUMNS:
            length = 8 * (tasks if per_task else count)
            # Most pages are asked for a few documents, so their columns are not copied.
            column = memoryview(data)[at : at + length]
            setattr(page, name, _from_little("q", bytes(column)) if _BIG_ENDIAN else column.cast("q"))
            at += length
        page.kinds, page.sizes = data[at : at + count], data[at + count :]
        return page


_COLUMNS: Final = (
    ("bases", True),
    ("created", True),
    ("firsts", True),
    ("offsets", False),
    ("lengths", False),
    ("turns", False),
)
"""Each column of numbers: its name, and whether it has one per task or one per document."""


class Filling:
    """Builds a page. With ``only``, counts only these terms and those that start with one of ``prefixes``."""

    def __init__(self, counts: Counts, only: Iterable[str] | None = None, prefixes: tuple[str, ...] = ()) -> None:
        self._counts = counts
        self._only = None if only is None else frozenset(only)
        self._prefixes = prefixes
        self.page = Page()
        self._kinds, self._sizes = bytearray(), bytearray()
        self._terms: dict[str, dict[str, array[int]]] = {TEXT: {}, TOOL: {}}

    def __len__(self) -> int:
        return len(self._sizes)

    def own(self, task_id: str, base: int, created: int) -> None:
        """Documents added from now on belong to this task."""
        page = self.page
        if page.tasks and page.firsts[-1] == len(self):
            for column in (page.tasks, page.bases, page.created, page.firsts):
                column.pop()  # it has no documents
        page.tasks.append(task_id)
        page.bases.append(base)
        page.created.append(created)
        page.firsts.append(len(self))

    def add(self, document: Document) -> None:
        number = len(self._sizes)
        page = self.page
        page.offsets.append(document.offset)
        page.lengths.append(document.length)
        page.turns.append(document.turn)
        self._kinds.append(KINDS.index(document.kind))
        counts = self._counts.of(document.parts)
        self._sizes.append(min(255, round(_STEPS * math.log2(1 + sum(counts.values())))))
        self._put(TEXT, number, counts if self._only is None else self._wanted(counts))
        self._put(TOOL, number, dict.fromkeys(document.tools, 1))

    def _wanted(self, counts: dict[str, int]) -> dict[str, int]:
        assert self._only is not None
        found = {term: counts[term] for term in self._only & counts.keys()}
        if self._prefixes:
            found.update((term, number) for term, number in counts.items() if term.startswith(self._prefixes))
        return found

    def _put(self, field: str, number: int, counts: dict[str, int]) -> None:
        terms = self._terms[field]
        shifted = number << 8
        for term, times in counts.items():
            entry = shifted | times if times < 256 else shifted | 255
            try:
                terms[term].append(entry)
            except KeyError:
                terms[term] = array("I", (entry,))

    def done(self) -> Page:
        self.page.kinds, self.page.sizes = bytes(self._kinds), bytes(self._sizes)
        return self.page

    def postings(self, field: str, term: str) -> Postings | None:
        entries = self._terms[field].get(term)
        return None if entries is None else _apart(entries)

    def terms(self, field: str) -> Iterable[str]:
        return self._terms[field].keys()

    def packed(self) -> PackedPage:
        return PackedPage(
            self.done().to_bytes(),
            {
                field: [(term.encode("utf-8", "replace"), pack(*_apart(entries))) for term, entries in terms.items()]
                for field, terms in self._terms.items()
            },
        )


class PackedPage(NamedTuple):
    """A page as it is written; cheap to send between processes."""

    page: bytes
    terms: dict[str, list[tuple[bytes, bytes]]]
    """For each field, its terms with their postings."""


def _apart(entries: array[int]) -> Postings:
    return [entry >> 8 for entry in entries], bytes([entry & 255 for entry in entries])


def pack(documents: Sequence[int], times: bytes) -> bytes:
    """The gaps between documents, 16 bits each, then the counts, 8 bits each."""
    steps = array("H", [now - before for before, now in zip((0, *documents), documents, strict=False)])
    return _little(steps) + times


def unpack(data: bytes) -> Postings:
    count = len(data) // 3
    return list(accumulate(_from_little("H", data[: 2 * count]))), data[2 * count :]


def _little(column: array[int]) -> bytes:
    if _BIG_ENDIAN:
        column = column[:]
        column.byteswap()
    return column.tobytes()


def _from_little(code: str, data: bytes) -> array[int]:
    column: array[int] = array(code)
    column.frombytes(data)
    if _BIG_ENDIAN:
        column.byteswap()
    return column
