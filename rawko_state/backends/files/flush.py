"""Flushing: moves the tail into the search index, in bulk.

A kill at any point leaves a usable index. Whoosh's commit puts the new segment in place with one rename, and the rows are
acknowledged only after that. Documents that were committed but not acknowledged are not counted, and are flushed again next time.
Only one flush runs at a time; its lock is released when its process ends.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from rawko_state.backends.files.workers import cores, on_all_cores
from rawko_state.config.secret import keyed, user_key
from rawko_state.errors import RawkoError, SearchTrouble, TaskBusy
from rawko_state.format.values import seconds
from rawko_state.index import flushed
from rawko_state.index.database import Index
from rawko_state.index.flushed import Unflushed
from rawko_state.journal.journal import Journal
from rawko_state.journal.locks import Lease, holder_of
from rawko_state.journal.reader import open_reader
from rawko_state.lazy import lazy
from rawko_state.search.documents import Document
from rawko_state.search.pages import FULL, VERSION, Filling, PackedPage
from rawko_state.search.turn_text import document_at, stretch_of
from rawko_state.search.words import Counts

if TYPE_CHECKING:
    from rawko_state.search import whoosh_index
else:
    # A short tail is not flushed, so Whoosh need not be loaded.
    whoosh_index = lazy("rawko_state.search.whoosh_index")

Step: TypeAlias = Callable[[int, int], None]
"""Bytes done, and bytes in total."""

CHEAP: Final = 4 << 20
"""A tail up to this size is flushed inline; a longer one in the background."""
WORTH_IT: Final = 1 << 20
"""Scanning a shorter tail is faster than flushing it."""
_AT_ONCE: Final = 256 << 20
"""Bytes of text per segment. Progress is acknowledged after each one."""
_FOR_ONE_WORKER: Final = 16 << 20
_WORTH_A_POOL: Final = 16 << 20
_SMALL_SEGMENT: Final = FULL
_FEW_SEGMENTS: Final = 8
"""Number of small segments to tolerate. Beyond that, their documents are read again from the files and merged."""


def is_off(root: Path) -> bool:
    """Whether automatic flushing is disabled."""
    from rawko_state.config.settings import load

    return bool(load(root)["search.fold"] == "off")


def flush_if_cheap(index: Index, journal: Journal) -> None:
    """Flushes the tail if it is long enough to be worth it and short enough to be cheap."""
    if WORTH_IT <= flushed.pending_bytes(index) <= CHEAP and not is_off(journal.layout.root):
        flush(index, journal)


class SearchIndexPath(NamedTuple):
    """The folder and the name of the search index; the name is None before there is one of this version."""

    folder: Path
    name: str | None
    is_old: bool = False
    """Whether there is one of another version."""


def place(index: Index, root: Path) -> SearchIndexPath | None:
    """None if no search index can be kept: the task index is in memory, or there is no secret to name it with.

    Whoosh's files contain pickles, and anyone who can make us load a pickle can run code as this user. So the index name is
    derived from a secret of the user. Files from a cloned repository, or from anyone else, cannot have that name.
    """
    if index.path is None:
        return None
    folder = index.path.parent / "search"
    with contextlib.suppress(OSError):
        found = os.lstat(folder)
        if os.name != "nt" and (found.st_uid != os.geteuid() or found.st_mode & 0o022 or not folder.is_dir()):
            return None
    key = user_key()
    if key is None:
        return None
    salt = flushed.salt(index)
    if salt is None:
        return SearchIndexPath(folder, None)
    _, owner, *version = salt.split(" ")
    if owner != _fingerprint(key):
        return None  # it belongs to another home directory: leave it alone
    is_old = version != [VERSION]
    return SearchIndexPath(folder, None if is_old else _name(key, salt, root), is_old)


def new_salt() -> str | None:
    """A salt for the name of a new search index, with the fingerprint of its owner's key and its version."""
    key = user_key()
    return None if key is None else f"{os.urandom(16).hex()} {_fingerprint(key)} {VERSION}"


def _fingerprint(key: bytes) -> str:
    return keyed("fingerprint", "", key)[:16]


def is_busy(index: Index, journal: Journal) -> bool:
    """Whether a flush is running, or none is possible."""
    where = place(index, journal.layout.root)
    return where is None or holder_of(where.folder / "fold.lock") is not None


def _name(key: bytes, salt: str, root: Path) -> str:
    return VERSION + keyed("search", f"{salt}\n{root}", key)[:32]


@contextlib.contextmanager
def locked(index: Index, *, wait: bool = False) -> Iterator[bool]:
    """The write lock of the search index. False if another process holds it, or no search index can be kept."""
    if index.path is None or user_key() is None:
        yield False
        return
    folder = index.path.parent / "search"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        lock = Lease(folder / "fold.lock", "the search index", 3600.0 if wait else 0.0)
    except TaskBusy:
        yield False
        return
    except OSError as error:
        raise SearchTrouble(f"Can't write the search index in {folder}: {error.strerror}.") from error
    try:
        yield True
    finally:
        lock.release()


def flush(index: Index, journal: Journal, *, step: Step | None = None, wait: bool = False) -> int:
    """Flushes the tail. Returns the number of bytes flushed; also 0 if another process is flushing, or no search index can be
    kept."""
    where = place(index, journal.layout.root)
    if where is None:
        return 0
    with locked(index, wait=wait) as mine:
        if not mine:
            return 0
        scattered = _scattered(index, where)
        if scattered is None:
            flushed.start_over(index, flushed.salt(index), new_salt())
        where = place(index, journal.layout.root)
        if where is None or where.name is None:
            return 0
        whoosh_index.tidy(where.folder, where.name)
        return _fold(index, journal, where, step, *(scattered or ([], frozenset())))


def flush_anew(index: Index, journal: Journal, step: Step | None = None) -> None:
    """Flushes everything into a new search index next to the current one. The caller must hold the lock until the index that
    refers to it is in place."""
    flushed.start_over(index, flushed.salt(index), new_salt())
    where = place(index, journal.layout.root)
    if where is not None and where.name is not None:
        _fold(index, journal, where, step, [], frozenset())


def clear_away(index: Index, root: Path) -> None:
    """Removes search indexes that are no longer used. The caller holds the lock."""
    where = place(index, root)
    if where is not None:
        whoosh_index.tidy(where.folder, where.name)


def _fold(
    index: Index,
    journal: Journal,
    where: SearchIndexPath,
    step: Step | None,
    again: Sequence[Again],
    dropped: frozenset[str],
) -> int:
    assert where.name is not None
    root = journal.layout.root
    first: list[PackedPage] = []
    if again:
        moved = _built(_Job(str(root), (), tuple(again), 0))
        # Documents that cannot be read now stay in their current segment.
        first, dropped = ([], frozenset()) if moved.unread else (moved.pages, dropped)
    stretches = flushed.claim(index)
    total = sum(each.end - each.start for each in stretches)
    done = taken = 0
    for some in _batches(stretches):
        unread: set[str] = set()

        def advance(part: int, before: int = done) -> None:
            if step is not None:
                step(before + part, total)

        whoosh_index.write(where.folder, where.name, chain(first, _pages(root, some, advance, unread)), dropped)
        read = [each for each in some if each.id not in unread]
        flushed.acknowledge(index, read)
        first, dropped = [], frozenset()
        done += sum(each.end - each.start for each in some)
        taken += sum(each.end - each.start for each in read)
    return taken


def _batches(stretches: Sequence[Unflushed]) -> Iterator[list[Unflushed]]:
    some: list[Unflushed] = []
    size = 0
    for each in stretches:
        some.append(each)
        size += each.end - each.start
        if size >= _AT_ONCE:
            yield some
            some, size = [], 0
    if some:
        yield some


class Again(NamedTuple):
    """A task whose documents in small segments are read again, to be merged into a larger one."""

    id: str
    file_path: str
    base: int
    created: int
    offsets: tuple[int, ...]
    lengths: tuple[int, ...]


def _scattered(index: Index, where: SearchIndexPath) -> tuple[list[Again], frozenset[str]] | None:
    """Documents in small segments and those segments' names, if there are too many. None if there is no usable index."""
    if where.name is None:
        return None
    try:
        with contextlib.closing(whoosh_index.WhooshIndex.open(where.folder, where.name)) as opened:
            return _scattered_in(index, opened)
    except SearchTrouble as trouble:
        if not trouble.lasting:
            raise  # such as no descriptors left: that says nothing about the index
        return None


def _scattered_in(index: Index, opened: whoosh_index.WhooshIndex) -> tuple[list[Again], frozenset[str]]:
    small = [segment for segment in opened.segments if segment.documents < _SMALL_SEGMENT]
    if len(small) < _FEW_SEGMENTS:
        return [], frozenset()
    documents: dict[tuple[str, int, int], dict[int, int]] = {}
    for page in (page for segment in small for page in segment.pages):
        for number, task_id in enumerate(page.tasks):
            owner = page.owner(number)
            known = documents.setdefault((task_id, owner.base, owner.created), {})
            known.update((page.offsets[each], page.lengths[each]) for each in page.documents_of(number))
    return _still_counting(index, documents), frozenset(segment.name for segment in small)


def _still_counting(index: Index, documents: dict[tuple[str, int, int], dict[int, int]]) -> list[Again]:
    found = []
    for (task_id, base, created), places in sorted(documents.items()):
        now = flushed.state(index, task_id)
        if now is None or now.base != base:
            continue
        kept = sorted((offset, length) for offset, length in places.items() if offset < now.end)
        if kept:
            offsets, lengths = zip(*kept, strict=True)
            found.append(Again(task_id, now.file_path, base, created, offsets, lengths))
    return found


# Build pages from files, on all cores if there is a lot to do.


class _Job(NamedTuple):
    root: str
    stretches: tuple[Unflushed, ...]
    again: tuple[Again, ...]
    size: int


class _Built(NamedTuple):
    pages: list[PackedPage]
    unread: set[str]
    """Tasks whose files could not be read: their documents must not count."""


def _pages(
    root: Path, stretches: Sequence[Unflushed], advance: Callable[[int], None], unread: set[str]
) -> Iterator[PackedPage]:
    """Yields the pages of some stretches, adding to ``unread`` along the way."""
    jobs = _jobs(root, stretches)
    done = 0
    for job, built in zip(jobs, _all_built(jobs), strict=True):
        unread |= built.unread
        yield from built.pages
        done += job.size
        advance(done)


def _all_built(jobs: Sequence[_Job]) -> Iterator[_Built]:
    if sum(job.size for job in jobs) < _WORTH_A_POOL or cores() < 2:
        yield from map(_built, jobs)
        return
    yield from on_all_cores(_built, jobs)


def _jobs(root: Path, stretches: Sequence[Unflushed]) -> list[_Job]:
    jobs: list[_Job] = []
    some: list[Unflushed] = []
    size = 0
    for number, each in enumerate(stretches):
        some.append(each)
        size += each.end - each.start
        if size >= _FOR_ONE_WORKER or number == len(stretches) - 1:
            jobs.append(_Job(str(root), tuple(some), (), size))
            some, size = [], 0
    return jobs


def _built(job: _Job) -> _Built:
    built = _Built([], set())
    counts = Counts()
    filling = Filling(counts)
    for task_id, base, created, documents in _owned(job):
        filling.own(task_id, base, created)
        try:
            for each in documents:
                if len(filling) == FULL:
                    built.pages.append(filling.packed())
                    filling = Filling(counts)
                    filling.own(task_id, base, created)
                filling.add(each)
        except RawkoError:
            built.unread.add(task_id)
    if len(filling):
        built.pages.append(filling.packed())
    return built


def _owned(job: _Job) -> Iterator[tuple[str, int, int, Iterable[Document]]]:
    root = Path(job.root)
    for each in job.again:
        yield each.id, each.base, each.created, _read_again(root, each)
    for stretch in job.stretches:
        yield stretch.id, stretch.base, seconds(stretch.created), _read(root, stretch)


def _read(root: Path, stretch: Unflushed) -> Iterator[Document]:
    with open_reader(root / stretch.file_path) as reader:
        yield from stretch_of(reader, stretch.start, stretch.end)


def _read_again(root: Path, again: Again) -> Iterator[Document]:
    with open_reader(root / again.file_path) as reader:
        for offset, length in zip(again.offsets, again.lengths, strict=True):
            found = document_at(reader, offset, length)
            if found is not None:
                yield found
