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
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple

from rawko_state.errors import SearchTrouble
from rawko_state.search.documents import KINDS, Document
from rawko_state.search.words import Counts, bare, normal

VERSION: Final = "v2"
"""The form of pages and postings. An index of another version is built anew."""
FULL: Final = 8_192
"""Documents per page; a document's number in the page fits in 16 bits."""
TEXT, TOOL = "text", "tool"

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

    __slots__ = (
        "_load",
        "bases",
        "created",
        "firsts",
        "kinds",
        "lengths",
        "newest",
        "offsets",
        "sizes",
        "tasks",
        "turns",
    )

    _load: Callable[[], bytes]

    def __init__(self) -> None:
        self.newest = 0
        """When the newest of its tasks was created."""
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
    def stored(cls, newest: int, load: Callable[[], bytes]) -> Page:
        """A page that is read when one of its columns is needed: a search looks at few pages."""
        page = cls.__new__(cls)
        page.newest, page._load = newest, load
        return page

    def __getattr__(self, name: str) -> Any:
        """A column of a page that was not read yet."""
        if name not in _LOADED:
            raise AttributeError(name)
        self._read(self._load())
        return getattr(self, name)

    def _read(self, data: bytes) -> None:
        check, data = int.from_bytes(data[:4], "little"), data[4:]
        if len(data) < 12 or zlib.crc32(data) != check:
            raise damaged()
        names, tasks, count = (int.from_bytes(data[at : at + 4], "little") for at in (0, 4, 8))
        at = 12 + names
        self.tasks = data[12:at].decode().split("\n") if tasks else []
        for name, per_task in _COLUMNS:
            length = 8 * (tasks if per_task else count)
            # Most pages are asked for a few documents, so their columns are not copied.
            column = memoryview(data)[at : at + length]
            setattr(self, name, from_little("q", bytes(column)) if _BIG_ENDIAN else column.cast("q"))
            at += length
        self.kinds, self.sizes = data[at : at + count], data[at + count :]


def damaged() -> SearchTrouble:
    trouble = SearchTrouble("The search index is damaged.")
    trouble.lasting = True
    return trouble


_COLUMNS: Final = (
    ("bases", True),
    ("created", True),
    ("firsts", True),
    ("offsets", False),
    ("lengths", False),
    ("turns", False),
)
"""Each column of numbers: its name, and whether it has one per task or one per document."""
_LOADED: Final = frozenset(("tasks", "kinds", "sizes", *(name for name, _ in _COLUMNS)))


class Postings:
    """The documents of a page that contain a term, in order, and the weighted count (up to 255) in each. Packed, as most are
    never looked at.

    First the gaps between the documents, 16 bits each, then the counts, 8 bits each. Of many, what is best follows: pairs of a
    count and a document's length that no other document beats in both, and the number of pairs. There are so many pairs, the last
    one repeated, that the length of it all divided by 3 leaves 1.
    """

    __slots__ = ("_data", "count")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.count = (len(data) - 1 - 2 * data[-1] if len(data) % 3 == 1 else len(data)) // 3

    @classmethod
    def of(cls, documents: Sequence[int], times: bytes, sizes: Sequence[int]) -> Postings:
        return cls(pack(documents, times, sizes))

    @property
    def best(self) -> Iterable[tuple[int, int]]:
        """Pairs of a count and a length: in no document is the count as high, or the length as small, as in none of them."""
        pairs = self._data[3 * self.count : -1]
        if not pairs:
            return ((max(self._data[2 * self.count :], default=0), 0),)
        return zip(pairs[::2], pairs[1::2], strict=True)

    def lists(self, page: Page) -> tuple[list[int], bytes]:
        count = self.count
        documents = list(accumulate(from_little("H", self._data[: 2 * count])))
        times = self._data[2 * count : 3 * count]
        if count < 1 or len(times) != count or documents[-1] >= len(page):
            raise damaged()
        return documents, times


_MANY: Final = 64


def pack(documents: Sequence[int], times: bytes, sizes: Sequence[int]) -> bytes:
    """Packs postings; ``sizes``: the lengths of the page's documents."""
    steps = array("H", [now - before for before, now in zip((0, *documents), documents, strict=False)])
    data = _little(steps) + times
    if len(documents) < _MANY:
        return data
    pairs = list(_unbeaten(set(zip(times, map(sizes.__getitem__, documents), strict=True))))
    pairs += [pairs[-1]] * (-len(pairs) % 3)
    return data + bytes([number for pair in pairs for number in pair]) + bytes([len(pairs)])


def _unbeaten(pairs: Iterable[tuple[int, int]]) -> Iterable[tuple[int, int]]:
    smallest = 256
    for times, size in sorted(pairs, key=lambda pair: (-pair[0], pair[1])):
        if size < smallest:
            smallest = size
            yield times, size


_append: Final = array.append
_exhaust: Final = deque[None](maxlen=0).extend


class _Entries(dict[str, "array[int]"]):
    """For each term, its documents with their counts: the number of the document, and the count in the lowest 8 bits."""

    def __missing__(self, term: str) -> array[int]:
        found = self[term] = array("I")
        return found


class Filling:
    """Builds a page. With ``only``, counts only these terms and those that start with one of ``prefixes``."""

    def __init__(self, counts: Counts, only: Iterable[str] | None = None, prefixes: tuple[str, ...] = ()) -> None:
        self._counts = counts
        self._only = None if only is None else frozenset(only)
        self._prefixes = prefixes
        self.page = Page()
        self._kinds, self._sizes = bytearray(), bytearray()
        self._terms: dict[str, dict[str, array[int]]] = {TEXT: _Entries(), TOOL: _Entries()}

    def __len__(self) -> int:
        return len(self._sizes)

    def own(self, task_id: str, base: int, created: int) -> None:
        """Documents added from now on belong to this task."""
        page = self.page
        if page.tasks and page.firsts[-1] == len(self):
            for column in (page.tasks, page.bases, page.created, page.firsts):
                column.pop()  # it has no documents
        page.tasks.append(task_id)
        page.newest = max(page.newest, created)
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
        counts = self._counts.of(document.parts) if self._may_hold(document) else {}
        self._sizes.append(min(255, round(_STEPS * math.log2(1 + sum(counts.values())))))
        self._put(TEXT, number, counts if self._only is None else self._wanted(counts))
        self._put(TOOL, number, dict.fromkeys(document.tools, 1))

    def _may_hold(self, document: Document) -> bool:
        """Whether a document may have one of the terms. The length of one that has none is never asked for."""
        if self._only is None:
            return True
        sought = (*self._only, *self._prefixes)
        texts = [bare(normal(text)) for _, text in document.parts]
        return any(term in text for text in texts for term in sought)

    def _wanted(self, counts: dict[str, int]) -> dict[str, int]:
        assert self._only is not None
        found = {term: counts[term] for term in self._only & counts.keys()}
        if self._prefixes:
            found.update((term, number) for term, number in counts.items() if term.startswith(self._prefixes))
        return found

    def _put(self, field: str, number: int, counts: dict[str, int]) -> None:
        shifted = number << 8
        entries = [shifted | times if times < 256 else shifted | 255 for times in counts.values()]
        # Without a loop of our own: this is done for every word of a history.
        _exhaust(map(_append, map(self._terms[field].__getitem__, counts), entries))

    def done(self) -> Page:
        self.page.kinds, self.page.sizes = bytes(self._kinds), bytes(self._sizes)
        return self.page

    def postings(self, field: str, term: str) -> Postings | None:
        entries = self._terms[field].get(term)
        return None if entries is None else Postings(self._pack(entries))

    def terms(self, field: str) -> Iterable[str]:
        return self._terms[field].keys()

    def packed(self) -> PackedPage:
        return PackedPage(
            self.done().to_bytes(),
            self.page.newest,
            {
                field: [(term.encode("utf-8", "replace"), self._pack(entries)) for term, entries in terms.items()]
                for field, terms in self._terms.items()
            },
        )

    def _pack(self, entries: array[int]) -> bytes:
        # Of the four bytes of each entry, the first is the count and the next two are the document.
        raw = _little(entries)
        numbers = bytearray(2 * len(entries))
        numbers[::2], numbers[1::2] = raw[1::4], raw[2::4]
        return pack(from_little("H", numbers), raw[::4], self._sizes)


class PackedPage(NamedTuple):
    """A page as it is written; cheap to send between processes."""

    page: bytes
    newest: int
    terms: dict[str, list[tuple[bytes, bytes]]]
    """For each field, its terms with their postings."""


def _little(column: array[int]) -> bytes:
    if _BIG_ENDIAN:
        column = column[:]
        column.byteswap()
    return column.tobytes()


def from_little(code: str, data: bytes | bytearray) -> array[int]:
    column: array[int] = array(code)
    column.frombytes(data)
    if _BIG_ENDIAN:
        column.byteswap()
    return column
