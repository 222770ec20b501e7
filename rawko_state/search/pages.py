"""Pages: some thousand documents turned inside out, from document to terms into term to documents.

A page is what the Whoosh index keeps as one of its documents, with the numbers of the turns that hold a term as that term's
posting value. Whoosh's work is then done once a term and page instead of once a term and turn, which makes building and asking
several times as fast, and the packed numbers are a third of the size. A page of what is not in the index yet has the same form,
so one piece of code asks both.
"""

from __future__ import annotations

import math
import sys
import zlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final, NamedTuple, TypeAlias

from rawko_state.search.documents import KINDS, Document
from rawko_state.search.words import Counts

FULL: Final = 8_192
"""Documents in a page; a document's number in it fits 16 bits."""
TEXT, TOOL = "text", "tool"
Postings: TypeAlias = tuple[Sequence[int], bytes]
"""The documents that hold a term, in order, and how often (weighted, up to 255) each does."""

_STEPS: Final = 12  # to the octave
LENGTHS: Final = tuple(2 ** (step / _STEPS) - 1 for step in range(256))
"""What the one byte that is kept of a document's length stands for."""
_BIG_ENDIAN: Final = sys.byteorder == "big"


def _numbers() -> array[int]:
    return array("q")


class Owner(NamedTuple):
    """The task that some documents of a page belong to."""

    id: str
    base: int
    """Which reading of its file they are from: an edited file is read anew, and its old documents no longer count."""
    created: int
    """Seconds since 1970; 0 when not known."""
    first: int
    """Its first document in the page; the last is before the next task's first."""


class TurnRef(NamedTuple):
    """Where a document stands in its task's file."""

    offset: int
    length: int
    kind: str
    turn: int


@dataclass(slots=True, eq=False)
class Page:
    """The documents of a page, without the terms."""

    tasks: list[str] = field(default_factory=list)
    bases: array[int] = field(default_factory=_numbers)
    created: array[int] = field(default_factory=_numbers)
    firsts: array[int] = field(default_factory=_numbers)
    """Each task's first document."""
    offsets: array[int] = field(default_factory=_numbers)
    lengths: array[int] = field(default_factory=_numbers)
    turns: array[int] = field(default_factory=_numbers)
    kinds: bytes = b""
    sizes: bytes = b""

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
        """The numbers of names, tasks and documents; the names; the columns."""
        names = "\n".join(self.tasks).encode()
        head = b"".join(len(each).to_bytes(4, "little") for each in (names, self.tasks, self.sizes))
        columns = (getattr(self, name) for name, _ in _COLUMNS)
        whole = b"".join((head, names, *map(_little, columns), self.kinds, self.sizes))
        return zlib.crc32(whole).to_bytes(4, "little") + whole

    @classmethod
    def from_bytes(cls, data: bytes) -> Page:
        """Raises ValueError if these are not the bytes that were written."""
        check, data = int.from_bytes(data[:4], "little"), data[4:]
        if len(data) < 12 or zlib.crc32(data) != check:
            raise ValueError("a page is damaged")
        names, tasks, count = (int.from_bytes(data[at : at + 4], "little") for at in (0, 4, 8))
        at = 12 + names
        page = cls(data[12:at].decode().split("\n") if tasks else [])
        for name, per_task in _COLUMNS:
            length = 8 * (tasks if per_task else count)
            setattr(page, name, _from_little("q", data[at : at + length]))
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
"""Each column of numbers: its name, and whether it has one a task, else one a document."""


class Filling:
    """A page being made. With ``only``, just these terms are counted, and ``prefixes`` of them."""

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
        """What is added from now on belongs to this task."""
        page = self.page
        if page.tasks and page.firsts[-1] == len(self):
            for column in (page.tasks, page.bases, page.created, page.firsts):
                column.pop()  # it had nothing to say
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
    """A page as it is written, light enough to be sent from one process to another."""

    page: bytes
    terms: dict[str, list[tuple[bytes, bytes]]]
    """For each field its terms, with their postings."""


def _apart(entries: array[int]) -> Postings:
    return [entry >> 8 for entry in entries], bytes([entry & 255 for entry in entries])


def pack(documents: Sequence[int], times: bytes) -> bytes:
    """The distances from one document to the next, 16 bits each, then the numbers of times, 8 bits each."""
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
