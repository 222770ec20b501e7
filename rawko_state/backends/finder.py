"""Full-text search over a project: what the search index knows, and what it does not know yet, in one ranking.

Nothing here can make a search fail or wrong: an index that is missing, broken or foreign is told of once, the answer comes from
the files, and the next fold makes a new one.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Final, cast

from rawko_state.backends import folding
from rawko_state.backends.catalogue import Catalogue, Warn
from rawko_state.backends.reading import Documents
from rawko_state.errors import RawkoError, SearchTrouble
from rawko_state.format.when import WHEN_HELP, parse_when
from rawko_state.index import folding as folds
from rawko_state.index import queries
from rawko_state.index.database import Index
from rawko_state.model import status as words
from rawko_state.search import engine
from rawko_state.search.documents import Document
from rawko_state.search.excerpt import excerpt
from rawko_state.search.pages import Filling, Page, Place, Postings
from rawko_state.search.query import And, Field, Node, Or, Query, Text, parse, replaced, shown
from rawko_state.search.scoring import Source
from rawko_state.search.words import Counts, Sought, joined
from rawko_state.store import RELEVANCE, TIME, Answer, Hit, TaskFilter, TaskSummary

_SIMILAR: Final = 0.7
_SHOWN: Final = 32
"""Different words that are looked for in an excerpt."""
_TRIED: Final = 3
"""Unknown words for which a nearer one is looked for."""
_LOOKS: Final = 3
"""How often a search begins anew because a file turns out to have been edited. (A task that grows all the time looks so too.)"""
_BYTES_A_TERM: Final = 4
_LABEL = re.compile(r"[A-Za-z0-9_.-]+")


class Tail:
    """What the index has not taken in, as a page of its own; only what the query asks for is counted."""

    def __init__(self, filling: Filling) -> None:
        self._filling = filling
        self._page = filling.done()

    @property
    def pages(self) -> Collection[Page]:
        return (self._page,) if len(self._page) else ()

    def postings(self, field: str, term: str) -> Iterable[tuple[Page, Postings]]:
        found = self._filling.postings(field, term)
        return () if found is None else ((self._page, found),)

    def expand(self, field: str, prefix: str) -> Iterable[str]:
        return [term for term in self._filling.terms(field) if term.startswith(prefix)]


class _Edited(Exception):
    """A task's file is not what the index knows of it."""


class Finder:
    """Searches the tasks of one project."""

    def __init__(self, catalogue: Catalogue, alive: Callable[[], Collection[str]], warn: Warn) -> None:
        self._catalogue, self._alive, self._warn = catalogue, alive, warn
        self._documents = Documents(catalogue.journal)

    def search(self, text: str, wanted: TaskFilter, *, turns: bool = False) -> Answer:
        """What a query finds among the tasks that the filter lets through, in the order of ``wanted.sort``."""
        answer = cast("Answer", self._catalogue.guarded(lambda index: self._ask(index, text, wanted, turns)))
        if self._documents.unread:
            some = ", ".join(sorted(self._documents.unread)[:5])
            self._warn(f"{len(self._documents.unread)} task files could not be read, and were not searched: {some}")
        return answer

    def _ask(self, index: Index, text: str, wanted: TaskFilter, turns: bool) -> Answer:
        use_index, looks = True, _LOOKS
        while True:
            salt = folds.salt(index)
            try:
                return self._search(index, text, wanted, turns, use_index, check=looks > 0)
            except _Edited as edited:
                # Its new text is in the tail now, so all is asked again.
                looks -= 1
                self._catalogue.catch_up(self._catalogue.journal.find(str(edited)), index)
            except SearchTrouble as trouble:
                if folds.salt(index) != salt:
                    continue  # another one has just taken its place
                self._warn(f"{trouble}; answering from the task files" + (", and building it anew" * trouble.lasting))
                if trouble.lasting:
                    folds.start_over(index, salt, None)
                use_index = False

    def _search(self, index: Index, text: str, wanted: TaskFilter, turns: bool, use_index: bool, check: bool) -> Answer:
        query = parse(text, check_field)
        alive = self._alive()
        with contextlib.ExitStack() as stack:
            sources = self._sources(index, query, stack, use_index)
            asked = self._asked(index, query, wanted, alive)
            everything = wanted.reverse or wanted.sort not in (RELEVANCE, TIME)
            truth = _Truth(index, self._documents, self._catalogue.journal.layout.root, check)
            found = list(
                islice(engine.search(asked, sources, truth, turns=turns), None if everything else wanted.limit)
            )
            if not found and query.root is not None:
                return Answer((), query.hint, self._suggestion(index, query, asked, sources))
            # An excerpt is read from the file, so only what will be shown gets one.
            summaries = self._summaries(index, found, wanted, alive)
            return Answer(tuple(self._hits(query, _sorted(found, summaries, wanted), summaries)), query.hint)

    def _asked(self, index: Index, query: Query, wanted: TaskFilter, alive: Collection[str]) -> engine.Wanted:
        fields = {
            leaf: queries.ids(index, filter_of(leaf), alive)
            for leaf in query.leaves()
            if isinstance(leaf, Field) and leaf.name != "tool"
        }
        plain = replace(wanted, sort="created", reverse=False, limit=None)
        allowed = None if plain == TaskFilter() else queries.ids(index, plain, alive)
        documents, size = folds.totals(index)

        def universe() -> Iterator[tuple[str, int]]:
            everything = queries.ids(index, TaskFilter(), alive) if allowed is None else allowed
            return ((task_id, folding.seconds(created)) for task_id, created in everything.items())

        return engine.Wanted(
            query,
            fields,
            universe,
            allowed,
            time.time(),
            by_time=wanted.sort == TIME,
            documents=documents,
            length=size / max(1, documents) / _BYTES_A_TERM,
        )

    def _sources(self, index: Index, query: Query, stack: contextlib.ExitStack, use_index: bool) -> list[Source]:
        """The index as far as it can be used, and the tail."""
        place = folding.place(index, self._catalogue.journal.layout.root) if use_index else None
        if place is None or place.name is None:
            return [self._tail(folds.everything(index), query)]
        from rawko_state.search.shelf import NoShelf, Shelf

        # In this order: what a fold moves from the one to the other meanwhile is seen twice, and counted once.
        tail = folds.tail(index)
        try:
            shelf = Shelf.open(place.folder, place.name)
        except NoShelf:
            if folds.any_folded(index):
                raise
            return [self._tail(folds.everything(index), query)]  # the first one is being made just now
        stack.callback(shelf.close)
        return [shelf, self._tail(tail, query)]

    def _tail(self, stretches: Sequence[folds.Unfolded], query: Query) -> Tail:
        """Reads what is not folded; of a task in which no word of the query stands anywhere, just that."""
        leaves = query.leaves()
        sought = [leaf.sought for leaf in leaves if isinstance(leaf, Text)]
        tools = [leaf.value.lower().rstrip("*") for leaf in leaves if isinstance(leaf, Field) and leaf.name == "tool"]
        terms, prefixes = _terms_of(sought)
        filling = Filling(Counts(), terms, prefixes)
        for each in stretches:
            filling.own(each.id, engine.FRESH, folding.seconds(each.created))
            for document in self._documents.stretch(each, _looks_right(sought, tools)):
                filling.add(document)
        return Tail(filling)

    def _summaries(
        self, index: Index, found: list[engine.Found], wanted: TaskFilter, alive: Collection[str]
    ) -> dict[str, TaskSummary]:
        ids = tuple(dict.fromkeys(each.task for each in found))
        summaries: dict[str, TaskSummary] = {}
        for start in range(0, len(ids), 500):
            some = TaskFilter(ids=ids[start : start + 500], file=wanted.file)
            summaries.update((summary.id, summary) for summary in queries.history(index, some, alive))
        return summaries

    def _hits(self, query: Query, found: list[engine.Found], summaries: dict[str, TaskSummary]) -> list[Hit]:
        sought = [leaf.sought for leaf in _positive(query.root) if isinstance(leaf, Text)] if query.root else []
        shown_in = list(dict.fromkeys(sought))[:_SHOWN]
        return [self._hit(summaries[each.task], each, shown_in) for each in found]

    def _hit(self, summary: TaskSummary, found: engine.Found, sought: Sequence[Sought]) -> Hit:
        place = found.place
        if place is None:
            return Hit(summary, "", None, None, None, None, 0.0, 0, "", ())
        document = self._documents.one(summary.id, summary.file, place)
        text, marks = excerpt(document, sought) if document is not None else ("", ())
        turn = place.turn if place.kind == "turn" else None
        agent = document.agent if document is not None and document.agent else None
        score = round(found.score, 6)
        return Hit(summary, place.kind, turn, agent, place.offset, place.length, score, found.words, text, marks)

    def _suggestion(self, index: Index, query: Query, asked: engine.Wanted, sources: Sequence[Source]) -> str | None:
        """The query with the nearest word that would find something in place of one that finds nothing."""
        import difflib

        root = query.root
        simple = [leaf for leaf in query.leaves() if isinstance(leaf, Text) and leaf.sought.simple]
        unknown = [
            leaf
            for leaf in simple
            if not leaf.sought.prefix
            and not any(True for source in sources for _ in source.postings("text", leaf.sought.atoms[0]))
        ][:_TRIED]
        if not unknown or root is None:
            return None
        letters = tuple({leaf.sought.atoms[0][:1] for leaf in unknown})
        known = {term for source in sources for letter in letters for term in source.expand("text", letter)}
        known |= self._documents.vocabulary(folds.tail(index), letters)
        for leaf in unknown:
            word = leaf.sought.atoms[0]
            near = sorted(term for term in known if term[0] == word[0] and abs(len(term) - len(word)) <= 2)
            for candidate in difflib.get_close_matches(word, near, n=2, cutoff=_SIMILAR):
                better = Text(Sought(((candidate,),)), candidate)
                other = asked._replace(query=Query(replaced(root, leaf, better)))
                with contextlib.ExitStack() as stack:
                    again = self._sources(index, other.query, stack, use_index=True)
                    truth = _Truth(index, self._documents, self._catalogue.journal.layout.root, check=False)
                    if any(True for _ in engine.search(other, again, truth)):
                        return shown(other.query.root)
        return None

    # Folding

    def fold(self, *, step: folding.Step | None = None, wait: bool = False) -> int:
        """Takes the tail into the search index. Returns how many bytes; 0 also when another process is at it."""
        index = self._catalogue.fresh()
        return folding.fold(index, self._catalogue.journal, step=step, wait=wait)

    def trouble(self) -> str | None:
        """Why the search index cannot be used, if there is one and it cannot."""
        from rawko_state.search.shelf import Shelf

        index = self._catalogue.fresh()
        salt = folds.salt(index)
        place = folding.place(index, self._catalogue.journal.layout.root)
        if place is None:
            return None if salt is None else "it belongs to another home, or its folder is open to others"
        try:
            if place.name is not None and folds.any_folded(index):
                Shelf.open(place.folder, place.name).close()
            with folding.locked(index):
                return None
        except RawkoError as trouble:
            return str(trouble)

    def tail_bytes(self) -> int:
        return cast("int", self._catalogue.guarded(folds.tail_bytes))


class _Truth:
    """What the files and the index of tasks say. With ``check``, _Edited is raised for a file that is not as that knows it."""

    def __init__(self, index: Index, documents: Documents, root: Path, check: bool) -> None:
        self._index, self._documents, self._root, self._check = index, documents, root, check
        self._paths: dict[str, str] = {}

    def folded(self, task_id: str) -> tuple[int, int] | None:
        found = folds.state(self._index, task_id)
        if found is None:
            return None
        self._paths[task_id] = found.file_path
        if self._check:
            with contextlib.suppress(OSError):
                now = os.lstat(self._root / found.file_path)
                if (now.st_size, now.st_mtime_ns) != (found.size, found.mtime_ns):
                    raise _Edited(task_id)
        return found.base, found.end

    def document(self, task_id: str, place: Place) -> Document | None:
        return self._documents.one(task_id, self._paths[task_id], place)


def check_field(field: Field) -> str | None:
    """What is wrong with the value of a field in a query."""
    if not field.value.isprintable():
        return f"{field.name}: holds what cannot be printed"
    if field.name == "label" and not _LABEL.fullmatch(field.value.partition("=")[0]):
        return f"{field.value.partition('=')[0]!r} is no name of a label"
    if field.name in ("after", "before", "since", "until") and parse_when(field.value) is None:
        return f"{field.value!r} is no time ({WHEN_HELP})"
    if field.name == "status" and words.canonical(field.value) not in words.STATUSES:
        return f"no status {field.value!r}"
    if field.name == "is" and field.value != "pinned" and words.canonical(field.value) not in words.STATUSES:
        return f"{field.value!r} is nothing that a task can be"
    return None


def filter_of(field: Field) -> TaskFilter:
    """The tasks that a field of a query asks for."""
    name, value = field.name, field.value
    if name == "is" and value != "pinned":
        name = "status"
    if name == "label":
        label, equals, wanted = value.partition("=")
        return TaskFilter(labels=((label, wanted if equals else None),))
    return {
        "agent": lambda: TaskFilter(agent=value),
        "file": lambda: TaskFilter(file=value),
        "status": lambda: TaskFilter(status=(words.canonical(value),)),
        "is": lambda: TaskFilter(pinned=True),
        "model": lambda: TaskFilter(model=value),
        "branch": lambda: TaskFilter(branch=value),
        "id": lambda: TaskFilter(ids=(value,)),
        "after": lambda: TaskFilter(since=parse_when(value)),
        "since": lambda: TaskFilter(since=parse_when(value)),
        "before": lambda: TaskFilter(until=parse_when(value)),
        "until": lambda: TaskFilter(until=parse_when(value)),
    }[name]()


def _terms_of(sought: Sequence[Sought]) -> tuple[set[str], tuple[str, ...]]:
    """All terms that a page is asked for, and the beginnings of such."""
    terms: set[str] = set()
    prefixes: set[str] = set()
    for each in sought:
        for atoms in each.identifiers:
            terms.update(atoms)
            whole = joined(atoms)
            if whole is not None:
                terms.add(whole)
        if each.prefix:
            last = each.identifiers[-1]
            prefixes.add(last[-1])
            prefixes.add(joined(last) or last[-1])
    return terms, tuple(sorted(prefixes))


def _looks_right(sought: Sequence[Sought], tools: Sequence[str]) -> Callable[[str], bool]:
    """Whether a text, in small letters and without underscores, may hold any of what is sought: it has all its letters."""
    needles = [each.atoms for each in sought] + [(tool.replace("_", ""),) for tool in tools]
    return lambda text: any(all(atom in text for atom in atoms) for atoms in needles)


def _positive(node: Node) -> Iterator[Node]:
    """The leaves that speak for a task."""
    if isinstance(node, (Text, Field)):
        yield node
    elif isinstance(node, (And, Or)):
        for part in node.parts:
            yield from _positive(part)


def _sorted(found: list[engine.Found], summaries: dict[str, TaskSummary], wanted: TaskFilter) -> list[engine.Found]:
    found = [each for each in found if each.task in summaries]
    if wanted.sort in (RELEVANCE, TIME):
        return (found[::-1] if wanted.reverse else found)[: wanted.limit]
    value: dict[str, Callable[[TaskSummary], Any]] = {
        "created": lambda task: task.created or "",
        "completed": lambda task: task.completed or "",
        "duration": lambda task: -1 if task.duration_ms is None else task.duration_ms,
        "turns": lambda task: task.turns,
        "tokens": lambda task: (task.tokens_in or 0) + (task.tokens_out or 0),
    }
    by = value[wanted.sort]
    found.sort(key=lambda each: (by(summaries[each.task]), each.task), reverse=not wanted.reverse)
    return found[: wanted.limit]
