"""Search over a project's files: combines the Whoosh index and the unindexed tail in one ranking.

A bad index can neither fail a search nor make it wrong. If it is missing, broken or foreign, the search warns once and answers
from the files, and the next flush builds a new one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Final, cast

from rawko_state.backends.files import flush
from rawko_state.backends.files.sync import Sync, Warn
from rawko_state.backends.known import IndexedTasks
from rawko_state.errors import RawkoError, SearchTrouble
from rawko_state.format.values import seconds
from rawko_state.index import flushed
from rawko_state.index.database import Index
from rawko_state.search import engine
from rawko_state.search.documents import Document
from rawko_state.search.finder import Finder, Tail, terms_of
from rawko_state.search.pages import Filling, TurnRef
from rawko_state.search.query import Field, Query, Text
from rawko_state.search.scoring import PostingSource
from rawko_state.search.turn_text import Documents
from rawko_state.search.words import Counts, Sought
from rawko_state.store import Answer, TaskFilter

_LOOKS: Final = 3
"""How often a search restarts because a file appears to be edited. (A constantly growing task looks the same.)"""


class _Edited(Exception):
    """A task's file differs from what the index knows."""


class FileFinder(Finder):
    """Searches the tasks of one project."""

    _sync: Sync

    def __init__(self, sync: Sync, alive: Callable[[], Collection[str]], warn: Warn) -> None:
        super().__init__(sync.journal, warn)
        self._sync, self._alive = sync, alive
        self._use_index = True
        self._check = True
        """Whether to check that files are unchanged before trusting the index."""

    def _tasks(self, index: Index) -> IndexedTasks:
        return IndexedTasks(index, self._alive())

    def search(self, text: str, wanted: TaskFilter, *, turns: bool = False) -> Answer:
        """Searches the tasks that pass the filter, and sorts the hits by ``wanted.sort``."""
        answer = cast("Answer", self._sync.guarded(lambda index: self._ask(index, text, wanted, turns)))
        if self._documents.unread:
            some = ", ".join(sorted(self._documents.unread)[:5])
            self._warn(f"{len(self._documents.unread)} task files could not be read and were not searched: {some}.")
        return answer

    def _ask(self, index: Index, text: str, wanted: TaskFilter, turns: bool) -> Answer:
        self._use_index, looks = True, _LOOKS
        while True:
            salt = flushed.salt(index)
            try:
                self._check = looks > 0
                return self._search(index, text, wanted, turns)
            except _Edited as edited:
                # Its new text is in the tail now, so repeat the whole query.
                looks -= 1
                self._sync.catch_up(self._sync.journal.find(str(edited)), index)
            except SearchTrouble as trouble:
                if flushed.salt(index) != salt:
                    continue  # another process has just replaced the index
                self._warn(f"{trouble}; answering from the task files" + (", and building it anew" * trouble.lasting))
                if trouble.lasting:
                    flushed.start_over(index, salt, None)
                self._use_index = False

    def _sources(self, index: Index, query: Query, stack: contextlib.ExitStack) -> list[PostingSource]:
        """The search index where usable, and the tail."""
        place = flush.place(index, self._sync.journal.layout.root) if self._use_index else None
        if place is not None and place.is_old:
            flushed.start_over(index, flushed.salt(index), None)
        if place is None or place.name is None:
            return [self._tail(flushed.everything(index), query)]
        from rawko_state.search.whoosh_index import NoSearchIndex, WhooshIndex

        # Read the tail first: if a flush moves documents into the index meanwhile, they are seen twice but counted once.
        tail = flushed.pending(index)
        try:
            opened = WhooshIndex.open(place.folder, place.name)
        except NoSearchIndex:
            if flushed.any_flushed(index):
                raise
            return [self._tail(flushed.everything(index), query)]  # the first index is being built right now
        stack.callback(opened.close)
        return [opened, self._tail(tail, query)]

    def _tail(self, stretches: Sequence[flushed.Unflushed], query: Query) -> Tail:
        """Reads the tail. A task that contains no word of the query is not parsed."""
        leaves = query.leaves()
        sought = [leaf.sought for leaf in leaves if isinstance(leaf, Text)]
        tools = [leaf.value.lower().rstrip("*") for leaf in leaves if isinstance(leaf, Field) and leaf.name == "tool"]
        terms, prefixes = terms_of(sought)
        filling = Filling(Counts(), terms, prefixes)
        for each in stretches:
            filling.own(each.id, engine.FRESH, seconds(each.created))
            for document in self._documents.stretch(each, _looks_right(sought, tools)):
                filling.add(document)
        return Tail(filling)

    def _truth(self, index: Index) -> engine.Truth:
        return _Truth(index, self._documents, self._sync.journal.layout.root, self._check)

    def _vocabulary(self, index: Index, letters: tuple[str, ...]) -> set[str]:
        return self._documents.vocabulary(flushed.pending(index), letters)

    # Flushing

    def flush(self, *, step: flush.Step | None = None, wait: bool = False) -> int:
        """Moves the tail into the search index. Returns the number of bytes; also 0 if another process is flushing."""
        index = self._sync.fresh()
        return flush.flush(index, self._sync.journal, step=step, wait=wait)

    def trouble(self) -> str | None:
        """Why an existing search index cannot be used, if so."""
        from rawko_state.search.whoosh_index import WhooshIndex

        index = self._sync.fresh()
        salt = flushed.salt(index)
        place = flush.place(index, self._sync.journal.layout.root)
        if place is None:
            return None if salt is None else "it was made by another user account, or others can write to its folder"
        try:
            if place.name is not None and flushed.any_flushed(index):
                with contextlib.closing(WhooshIndex.open(place.folder, place.name)) as opened:
                    opened.check()
            with flush.locked(index):
                return None
        except RawkoError as trouble:
            return str(trouble)

    def tail_bytes(self) -> int:
        return cast("int", self._sync.guarded(flushed.pending_bytes))


class _Truth:
    """The current state of the files and the task index. With ``check``, raises _Edited if they disagree on a file."""

    def __init__(self, index: Index, documents: Documents, root: Path, check: bool) -> None:
        self._index, self._documents, self._root, self._check = index, documents, str(root), check
        self._paths: dict[str, str] = {}

    def flushed(self, task_id: str) -> tuple[int, int] | None:
        found = flushed.state(self._index, task_id)
        if found is None:
            return None
        self._paths[task_id] = found.file_path
        if self._check:
            with contextlib.suppress(OSError):
                now = os.lstat(f"{self._root}/{found.file_path}")
                if (now.st_size, now.st_mtime_ns) != (found.size, found.mtime_ns):
                    raise _Edited(task_id)
        return found.base, found.end

    def document(self, task_id: str, place: TurnRef) -> Document | None:
        return self._documents.one(task_id, self._paths[task_id], place)

    def data(self, task_id: str, places: Sequence[TurnRef]) -> Sequence[bytes | None]:
        return self._documents.data(self._paths[task_id], places)


def _looks_right(sought: Sequence[Sought], tools: Sequence[str]) -> Callable[[str], bool]:
    """Returns a check for whether a text (lower-case, no underscores) may match: it contains all letters of a sought term."""
    needles = [each.atoms for each in sought] + [(tool.replace("_", ""),) for tool in tools]
    return lambda text: any(all(atom in text for atom in atoms) for atoms in needles)
