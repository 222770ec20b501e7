"""Search on PostgreSQL: same words, query language and scores as on files. ``tsvector`` selects the documents to read."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Collection
from typing import Final

from rawko_state.backends.known import IndexedTasks
from rawko_state.backends.postgres.bytes import PostgresSync
from rawko_state.backends.postgres.connection import PostgresDatabase
from rawko_state.backends.postgres.tables import TaskTables, quoted
from rawko_state.backends.postgres.writer import TOOL
from rawko_state.format.values import seconds
from rawko_state.index import queries
from rawko_state.search import engine
from rawko_state.search.documents import Document
from rawko_state.search.finder import Finder, Tail, Warn, terms_of
from rawko_state.search.pages import Filling, TurnRef
from rawko_state.search.query import Field, Query, Text
from rawko_state.search.scoring import PostingSource
from rawko_state.search.turn_text import Documents
from rawko_state.search.words import Counts
from rawko_state.store import Answer, TaskFilter

_MOST: Final = 5_000
"""Documents to read per search. A query of only very common words is answered from the newest ones."""


class PostgresFinder(Finder):
    """Searches the tasks of one workspace."""

    def __init__(self, sync: PostgresSync, tasks: TaskTables, alive: Callable[[], Collection[str]], warn: Warn) -> None:
        super().__init__(sync.journal, warn)
        self._sync, self._alive = sync, alive
        self._tables = tasks

    def _tasks(self, index: PostgresDatabase) -> IndexedTasks:
        return IndexedTasks(index, self._alive())

    def search(self, text: str, wanted: TaskFilter, *, turns: bool = False) -> Answer:
        return self._search(self._tables.rows, text, wanted, turns)

    def _sources(self, index: PostgresDatabase, query: Query, stack: contextlib.ExitStack) -> list[PostingSource]:
        leaves = query.leaves()
        terms, prefixes = terms_of([leaf.sought for leaf in leaves if isinstance(leaf, Text)])
        tools = [leaf.value.lower() for leaf in leaves if isinstance(leaf, Field) and leaf.name == "tool"]
        wanted = [quoted(term) for term in sorted(terms)] + [f"{quoted(prefix)}:*" for prefix in prefixes]
        wanted += [
            f"{quoted(TOOL + tool.rstrip('*')[:200])}{':*' if tool.endswith('*') else ''}" for tool in sorted(tools)
        ]
        filling = Filling(Counts(), terms, prefixes)
        found = self._tables.holding(" | ".join(wanted), _MOST) if wanted else {}
        known = queries.ids(index, TaskFilter(ids=tuple(found)), ()) if found else {}
        paths = index_paths(index, found)
        for task_id, places in found.items():
            if task_id not in known:
                continue
            filling.own(task_id, engine.FRESH, seconds(known[task_id]))
            for offset, length in places:
                document = self._documents.one(task_id, paths[task_id], TurnRef(offset, length, "other", 0))
                if document is not None:
                    filling.add(document)
        return [Tail(filling)]

    def _truth(self, index: PostgresDatabase) -> engine.Truth:
        return _Truth(index, self._documents)

    def _vocabulary(self, index: PostgresDatabase, letters: tuple[str, ...]) -> set[str]:
        return {word for letter in letters for word in self._tables.words_like(letter)}


def index_paths(index: PostgresDatabase, ids: Collection[str]) -> dict[str, str]:
    task = index.tables.tasks
    with index.mapped():
        return dict(task.select(task.id, task.file_path).where(task.id.in_(list(ids))).tuples()) if ids else {}


class _Truth:
    """Current values, which were read from the same database a moment ago."""

    def __init__(self, index: PostgresDatabase, documents: Documents) -> None:
        self._index, self._documents = index, documents
        self._paths: dict[str, str] = {}

    def flushed(self, task_id: str) -> tuple[int, int] | None:
        row = self._index.row(task_id)
        if row is None:
            return None
        self._paths[task_id] = row["file_path"]
        return 0, sys.maxsize

    def document(self, task_id: str, place: TurnRef) -> Document | None:
        return self._documents.one(task_id, self._paths[task_id], place)
