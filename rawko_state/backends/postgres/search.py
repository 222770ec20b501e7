"""Search on PostgreSQL: same words, query language and scores as on files. ``tsvector`` selects the documents to read."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Collection, Sequence

from rawko_state.backends.known import IndexedTasks
from rawko_state.backends.postgres.bytes import PostgresSync
from rawko_state.backends.postgres.rows import PostgresDatabase
from rawko_state.backends.postgres.tables import Matching, TaskTables, quoted
from rawko_state.backends.postgres.writer import TOOL
from rawko_state.format.values import seconds
from rawko_state.search import engine
from rawko_state.search.documents import Document
from rawko_state.search.finder import Finder, Tail, Warn, terms_of
from rawko_state.search.pages import Filling, TurnRef
from rawko_state.search.query import Field, Query, Text
from rawko_state.search.scoring import PostingSource
from rawko_state.search.turn_text import Documents, document_of
from rawko_state.search.words import Counts
from rawko_state.store import Answer, TaskFilter


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
        last, split = "", []
        for each in self._tables.holding(" | ".join(wanted)) if wanted else ():
            if len(each.data) != each.length:
                split.append(each)  # its bytes are in several rows; read them when this statement is done
                continue
            if each.task != last:
                last = each.task
                filling.own(last, engine.FRESH, seconds(each.created))
            document = document_of(each.data, each.offset)
            if document is not None:
                filling.add(document)
        for each in split:
            filling.own(each.task, engine.FRESH, seconds(each.created))
            document = self._split_document(each)
            if document is not None:
                filling.add(document)
        return [Tail(filling)]

    def _split_document(self, each: Matching) -> Document | None:
        """None if the task was deleted meanwhile."""
        return document_of(self._tables.fetch(each.task, each.offset, each.length), each.offset)

    def _truth(self, index: PostgresDatabase) -> engine.Truth:
        return _Truth(index, self._documents)

    def _vocabulary(self, index: PostgresDatabase, letters: tuple[str, ...]) -> set[str]:
        return {word for letter in letters for word in self._tables.words_like(letter)}


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
        path = self._paths.get(task_id)
        return None if path is None else self._documents.one(task_id, path, place)

    def data(self, task_id: str, places: Sequence[TurnRef]) -> Sequence[bytes | None]:
        path = self._paths.get(task_id)
        return [None] * len(places) if path is None else self._documents.data(path, places)
