"""Reads the searchable text of tasks: one turn by its position, or all turns in a range."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from typing import Final, Protocol

from rawko_state.errors import RawkoError
from rawko_state.format.reader import TaskReader
from rawko_state.format.scan import Scan
from rawko_state.format.seal import GENESIS, SEAL_LENGTH, read_seal
from rawko_state.format.text import decode
from rawko_state.search.documents import Document, document, documents
from rawko_state.search.pages import TurnRef
from rawko_state.search.words import bare, normal, terms_of

WHOLE: Final = 32 << 20
"""A range up to this size is scanned for the words before it is parsed."""
_VOCABULARY: Final = 8 << 20
_SHORT: Final = 1 << 20
"""A document up to this size is read whole."""


class Opener(Protocol):
    """Opens tasks by the path in their row."""

    def reader_at(self, file_path: str) -> TaskReader: ...


class Stretch(Protocol):
    """A range of a task that is not in the search index yet."""

    @property
    def id(self) -> str: ...
    @property
    def file_path(self) -> str: ...
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...


class Documents:
    """Reads the documents that search needs from the files of a project."""

    def __init__(self, tasks: Opener) -> None:
        self._tasks = tasks
        self._last: tuple[tuple[str, TurnRef], Document | None] | None = None
        self.unread: set[str] = set()
        """The tasks whose files could not be read."""

    def one(self, task_id: str, file_path: str, place: TurnRef) -> Document | None:
        """The document at a position; None if the file is gone or has changed."""
        key = (task_id, place)
        if self._last is None or self._last[0] != key:
            self._last = (key, self._one(file_path, place))
        return self._last[1]

    def _one(self, file_path: str, place: TurnRef) -> Document | None:
        try:
            with self._tasks.reader_at(file_path) as reader:
                return document_at(reader, place.offset, place.length)
        except RawkoError:
            return None

    def data(self, file_path: str, places: Sequence[TurnRef]) -> list[bytes | None]:
        """The bytes of documents of one task; None for one that is long or can't be read."""
        if not any(place.length <= _SHORT for place in places):
            return [None] * len(places)
        try:
            with self._tasks.reader_at(file_path) as reader:
                return [reader.fetch(each.offset, each.length) if each.length <= _SHORT else None for each in places]
        except RawkoError:
            return [None] * len(places)

    def stretch(self, each: Stretch, wanted: Callable[[str], bool] | None = None) -> Iterator[Document]:
        """The documents of a range; none if ``wanted`` rejects its lower-case text."""
        try:
            with self._tasks.reader_at(each.file_path) as reader:
                yield from stretch_of(reader, each.start, each.end, wanted)
        except RawkoError:
            self.unread.add(each.id)

    def vocabulary(self, tail: Sequence[Stretch], first: tuple[str, ...]) -> set[str]:
        """Words of the tail that start with one of these. Of a very long tail, only the start is read."""
        found: set[str] = set()
        size = 0
        for each in tail:
            size += each.end - each.start
            if size > _VOCABULARY:
                break
            for each_document in self.stretch(each):
                for _, text in each_document.parts:
                    found.update(
                        term for chunk in set(text.split()) for term in terms_of(chunk) if term.startswith(first)
                    )
        return found


def document_at(reader: TaskReader, offset: int, length: int) -> Document | None:
    for record in Scan(reader.reading(offset, offset + length), start=offset):
        for block in record.blocks:
            return document(block, reader.fetch)
    return None


def document_of(data: bytes, offset: int) -> Document | None:
    """The document whose bytes these are, at an offset of its task."""
    for record in Scan(BytesIO(data).read, start=offset):
        for block in record.blocks:
            return document(block, lambda at, length: data[at - offset : at - offset + length])
    return None


def stretch_of(
    reader: TaskReader, start: int, end: int, wanted: Callable[[str], bool] | None = None
) -> Iterator[Document]:
    """The documents between two offsets, both of them ends of records."""
    if wanted is not None and end - start <= WHOLE:
        whole = reader.fetch(start, end - start)
        # Escaped characters can hide any word.
        if b"\\u" not in whole and not wanted(bare(normal(decode(whole)))):
            return
        read: Callable[[int], bytes] = BytesIO(whole).read
    else:
        read = reader.reading(start, end)
    scan = Scan(read, start=start, parent=_seal_before(reader, start)) if start else Scan(read)
    yield from documents(scan, reader.fetch)


def _seal_before(reader: TaskReader, offset: int) -> str:
    line = reader.fetch(max(0, offset - SEAL_LENGTH), SEAL_LENGTH).strip()
    return read_seal(line) or GENESIS
