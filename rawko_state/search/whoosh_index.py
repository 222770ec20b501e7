"""The Whoosh index on disk: pages in segments, each with its dictionary of terms.

Compatible with Whoosh 2.7.4. Whoosh's files contain pickles, so an index is opened only under a name that no one but this user
can know (see ``WhooshIndex.open``): a folder that came with a cloned repository is never read.
"""

from __future__ import annotations

import contextlib
import errno
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from rawko_state.errors import SearchTrouble
from rawko_state.late import late
from rawko_state.search.pages import TEXT, TOOL, PackedPage, Page, Postings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # 2.7.4 has string escapes that later Pythons warn about
    from whoosh import columns, fields, formats, index, reading
    from whoosh.filedb.filestore import FileStorage

_ATTEMPTS: Final = 5
_PASSING: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT)
"""Errors that say nothing about the index itself."""
_OURS = late(r"_?(v[0-9]{1,3}[0-9a-f]{32})[_.].*")
_MEMORY_MB: Final = 48


class Packed(formats.Format):
    """Posting values are in our own format."""


class Terms(fields.FieldType):
    """The terms of one page. Whoosh passes in the page and gets its terms with their packed postings, which it sorts. They are
    taken out of the page: to free millions of them at once would keep other threads waiting."""

    def __init__(self, name: str) -> None:
        super().__init__(format=Packed(), analyzer=None, scorable=False, stored=False)
        self.name = name

    def index(self, value: PackedPage, **_: Any) -> Iterator[tuple[bytes, int, float, bytes]]:
        terms = value.terms[self.name]
        while terms:
            term, postings = terms.pop()
            yield term, 1, 1.0, postings


def _schema() -> Any:
    column = columns.VarBytesColumn()
    return fields.Schema(
        **{TEXT: Terms(TEXT), TOOL: Terms(TOOL), "page": fields.COLUMN(column), "newest": fields.COLUMN(column)}
    )


class NoSearchIndex(SearchTrouble):
    """There is no index with that name."""


@contextlib.contextmanager
def _mapped(folder: Path) -> Iterator[None]:
    """Maps whatever Whoosh raises on a broken index to our errors."""
    try:
        yield
    except SearchTrouble:
        raise
    except Exception as error:  # unpickling garbage can raise anything
        kind = NoSearchIndex if isinstance(error, index.EmptyIndexError) else SearchTrouble
        trouble = kind(f"Can't use the search index in {folder} ({type(error).__name__}: {error}).")
        trouble.lasting = not (isinstance(error, OSError) and error.errno in _PASSING)
        raise trouble from error


class _NoLock:
    """Whoosh's own lock stays held if its writer fails. The fold's lock is enough, and is released when the process ends."""

    def acquire(self, blocking: bool = False) -> bool:
        return True

    def release(self) -> None:
        pass


class _Folder(FileStorage):
    """Tracks open files, because Whoosh does not close a file that it cannot read."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._opened: list[Any] = []

    def open_file(self, name: str, *arguments: Any, **named: Any) -> Any:
        opened = super().open_file(name, *arguments, **named)
        self._opened.append(opened)
        return opened

    def lock(self, name: str) -> _NoLock:
        return _NoLock()

    def close_all(self) -> None:
        for opened in self._opened:
            with contextlib.suppress(Exception):
                if not opened.is_closed:
                    opened.close()
        self._opened.clear()


class Segment:
    """One segment of the index: some pages and their dictionary."""

    def __init__(self, reader: Any, folder: Path) -> None:
        self._reader, self._folder = reader, folder
        pages, newest = reader.column_reader("page"), reader.column_reader("newest")
        numbers = list(reader.all_doc_ids())
        times = [bytes(newest[number]) for number in numbers]
        if not all(times):
            # Whoosh reads a missing file as an empty column: a fold has dropped the segment in the meantime.
            raise FileNotFoundError("A part of the search index is missing.")
        self.pages = [
            Page.stored(int.from_bytes(time, "little", signed=True), partial(self._page, pages, number))
            for number, time in zip(numbers, times, strict=True)
        ]
        self.name: str = reader.segment().segment_id()

    def _page(self, column: Any, number: int) -> bytes:
        with _mapped(self._folder):
            return bytes(column[number])

    @property
    def documents(self) -> int:
        return sum(len(page) for page in self.pages)

    def postings(self, field: str, term: str) -> Iterator[tuple[Page, Postings]]:
        key = term.encode("utf-8", "replace")
        try:
            matcher = self._reader.postings(field, key)
        except reading.TermNotFound:
            return
        while matcher.is_active():
            yield self.pages[matcher.id()], Postings(matcher.value())
            matcher.next()

    def expand(self, field: str, prefix: str) -> Iterator[str]:
        """The terms with this prefix."""
        key = prefix.encode("utf-8", "replace")
        for name, term in self._reader.terms_from(field, key):
            if name != field or not term.startswith(key):
                return
            yield term.decode("utf-8", "replace")


class WhooshIndex:
    """An open index: a snapshot from when it was opened, unaffected by later writes."""

    def __init__(self, folder: Path, name: str, segments: list[Segment], storage: _Folder) -> None:
        self.folder, self.name, self.segments, self._storage = folder, name, segments, storage

    @classmethod
    def open(cls, folder: Path, name: str) -> WhooshIndex:
        """Raises SearchTrouble if there is no index with that name, or it is broken."""
        for attempt in range(_ATTEMPTS):
            storage = _Folder(folder)
            with _mapped(folder):
                try:
                    reader = index.FileIndex(storage, indexname=name).reader()
                    return cls(folder, name, [Segment(leaf, folder) for leaf, _ in _leaves(reader)], storage)
                except OSError:
                    storage.close_all()
                    if attempt == _ATTEMPTS - 1 or not folder.is_dir():
                        raise
                    # A writer replaced the table of contents between our listing it and our opening it.
                except BaseException:
                    storage.close_all()
                    raise
        raise AssertionError("not reached")

    def close(self) -> None:
        self._storage.close_all()

    def check(self) -> None:
        """Reads every page. Raises SearchTrouble if one is damaged."""
        for segment in self.segments:
            _ = segment.documents

    def postings(self, field: str, term: str) -> Iterator[tuple[Page, Postings]]:
        with _mapped(self.folder):
            for segment in self.segments:
                yield from segment.postings(field, term)

    def expand(self, field: str, prefix: str) -> Iterator[str]:
        with _mapped(self.folder):
            for segment in self.segments:
                yield from segment.expand(field, prefix)

    @property
    def pages(self) -> list[Page]:
        return [page for segment in self.segments for page in segment.pages]


def _leaves(reader: Any) -> Sequence[tuple[Any, int]]:
    return [] if isinstance(reader, reading.EmptyReader) else list(reader.leaf_readers())


def write(folder: Path, name: str, pages: Iterable[PackedPage], drop: frozenset[str] = frozenset()) -> None:
    """Atomically adds a segment with these pages and removes the named segments. The caller holds the lock."""
    with _mapped(folder):
        folder.mkdir(mode=0o700, exist_ok=True)
        before = set(os.listdir(folder))
        storage = _Folder(folder)
        # Pass the schema, so that it is not unpickled.
        try:
            opened = index.FileIndex(storage, schema=_schema(), indexname=name)
        except index.EmptyIndexError:
            opened = index.FileIndex.create(storage, _schema(), name)
        writer = opened.writer(compound=False, limitmb=_MEMORY_MB)
        try:
            for page in pages:
                newest = page.newest.to_bytes(8, "little", signed=True)
                writer.add_document(**{TEXT: page, TOOL: page, "page": page.page, "newest": newest})
            writer.commit(mergetype=lambda _, segments: [each for each in segments if each.segment_id() not in drop])
            _empty(writer)
        except BaseException:
            with contextlib.suppress(Exception):
                writer.cancel()
            raise
        finally:
            storage.close_all()
        _sync(folder, name, before)


def _empty(writer: Any) -> None:
    """Frees what Whoosh keeps of each term, piece by piece: with millions of terms, other threads would wait for all of it."""
    dictionary = getattr(getattr(writer, "fieldwriter", None), "_tindex", None)
    for bucket in getattr(dictionary, "buckets", ()):
        bucket.clear()


def _sync(folder: Path, name: str, before: set[str]) -> None:
    """Syncs the new files, which Whoosh does not do. Acknowledged data is no longer searched for in the task files."""
    for each in sorted(set(os.listdir(folder)) - before):
        if name in each and (path := folder / each).is_file():
            _sync_one(path)
    if os.name != "nt":
        _sync_one(folder)


def _sync_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY if os.name != "nt" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def tidy(folder: Path, keep: str | None) -> None:
    """Removes leftovers of killed folds and of indexes that are no longer in use. The caller holds the lock."""
    import shutil

    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            ours = _OURS.fullmatch(entry.name)
            temporary = entry.is_dir(follow_symlinks=False) and entry.name.endswith(".tmp")
            if ours is None or (ours[1] == keep and not temporary):
                continue
            with contextlib.suppress(OSError):
                shutil.rmtree(entry.path) if entry.is_dir(follow_symlinks=False) else os.unlink(entry.path)
