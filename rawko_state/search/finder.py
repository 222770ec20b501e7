"""Full-text search: from a query, through the sources of possible matches, to ranked hits with excerpts."""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, Protocol

from rawko_state.format.values import seconds
from rawko_state.format.when import WHEN_HELP, parse_when
from rawko_state.late import late
from rawko_state.model import status as words
from rawko_state.model.frozen import replace
from rawko_state.search import engine
from rawko_state.search.excerpt import excerpt
from rawko_state.search.pages import Filling, Page, Postings
from rawko_state.search.query import And, Field, Node, Or, Query, Text, parse, replaced, shown, with_known_fields
from rawko_state.search.scoring import PostingSource
from rawko_state.search.turn_text import Documents, Opener
from rawko_state.search.words import Sought, joined
from rawko_state.store import RELEVANCE, TIME, Answer, Hit, TaskFilter, TaskSummary
from rawko_state.store.values import nearest

Warn = Callable[[str], None]
_SIMILAR: Final = 0.7
_SHOWN: Final = 32
"""How many different words an excerpt may highlight."""
_TRIED: Final = 3
"""How many unknown words get a suggestion."""
_BYTES_A_TERM: Final = 4
_LABEL = late(r"[A-Za-z0-9_.-]+")


class Tail:
    """The data that is not indexed yet, as a page of its own; only terms of the query are counted."""

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


class KnownTasks(Protocol):
    """What a search needs from the index."""

    def ids(self, wanted: TaskFilter) -> dict[str, str | None]:
        """The tasks that match, with their creation times."""

    def summaries(self, wanted: TaskFilter) -> list[TaskSummary]: ...

    def totals(self) -> tuple[int, int]:
        """The number of documents, and of their bytes."""


class Finder(ABC):
    """Searches the tasks of one project or workspace."""

    def __init__(self, opener: Opener, warn: Warn) -> None:
        self._warn = warn
        self._documents = Documents(opener)

    @abstractmethod
    def _tasks(self, index: Any) -> KnownTasks: ...

    @abstractmethod
    def search(self, text: str, wanted: TaskFilter, *, turns: bool = False) -> Answer:
        """The results of a query among the tasks that pass the filter, in the order of ``wanted.sort``."""

    @abstractmethod
    def _sources(self, index: Any, query: Query, stack: contextlib.ExitStack) -> list[PostingSource]:
        """The sources of documents that may match; open until the stack is closed."""

    @abstractmethod
    def _truth(self, index: Any) -> engine.Truth:
        """The current state, to check results against."""

    @abstractmethod
    def _vocabulary(self, index: Any, letters: tuple[str, ...]) -> set[str]:
        """Words with one of these initial letters that are not in the sources."""

    def _search(self, index: Any, text: str, wanted: TaskFilter, turns: bool) -> Answer:
        query = parse(text, check_field)
        tasks = self._tasks(index)
        with contextlib.ExitStack() as stack:
            sources = self._sources(index, query, stack)
            asked = self._asked(tasks, query, wanted)
            everything = wanted.reverse or wanted.sort not in (RELEVANCE, TIME)
            truth = self._truth(index)
            found = list(
                islice(engine.search(asked, sources, truth, turns=turns), None if everything else wanted.limit)
            )
            if not found and query.root is not None:
                meant = with_known_fields(text) or self._suggestion(index, query, asked, sources)
                return Answer((), query.hint, meant)
            # Excerpts are read from the files, so only hits that will be shown get one.
            summaries = self._summaries(tasks, found, wanted)
            return Answer(tuple(self._hits(query, _sorted(found, summaries, wanted), summaries)), query.hint)

    def _asked(self, tasks: KnownTasks, query: Query, wanted: TaskFilter) -> engine.Wanted:
        fields = {
            leaf: tasks.ids(filter_of(leaf))
            for leaf in query.leaves()
            if isinstance(leaf, Field) and leaf.name != "tool"
        }
        plain = replace(wanted, reverse=False, limit=None)
        allowed = None if replace(plain, sort=TaskFilter().sort) == TaskFilter() else tasks.ids(plain)
        documents, size = tasks.totals()

        def universe() -> Iterator[tuple[str, int]]:
            everything = tasks.ids(TaskFilter()) if allowed is None else allowed
            return ((task_id, seconds(created)) for task_id, created in everything.items())

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

    def _summaries(self, tasks: KnownTasks, found: list[engine.Found], wanted: TaskFilter) -> dict[str, TaskSummary]:
        ids = tuple(dict.fromkeys(each.task for each in found))
        summaries: dict[str, TaskSummary] = {}
        for start in range(0, len(ids), 500):
            some = TaskFilter(ids=ids[start : start + 500], file=wanted.file)
            summaries.update((summary.id, summary) for summary in tasks.summaries(some))
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

    def _suggestion(
        self, index: Any, query: Query, asked: engine.Wanted, sources: Sequence[PostingSource]
    ) -> str | None:
        """The query with one unknown word replaced by the closest word that finds something."""
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
        known |= self._vocabulary(index, letters)
        for leaf in unknown:
            word = leaf.sought.atoms[0]
            near = sorted(term for term in known if term[0] == word[0] and abs(len(term) - len(word)) <= 2)
            for candidate in difflib.get_close_matches(word, near, n=2, cutoff=_SIMILAR):
                better = Text(Sought(((candidate,),)), candidate)
                other = replace(asked, query=Query(replaced(root, leaf, better)))
                with contextlib.ExitStack() as stack:
                    again = self._sources(index, other.query, stack)
                    if any(True for _ in engine.search(other, again, self._truth(index))):
                        return shown(other.query.root)
        return None


def check_field(field: Field) -> str | None:
    """What is wrong with the value of a query field; None if it is valid."""
    if not field.value.isprintable():
        return f"{field.name}: contains control characters"
    if field.name == "label" and not _LABEL.fullmatch(field.value.partition("=")[0]):
        return f"Not a label name: {field.value.partition('=')[0]!r}"
    if field.name in ("after", "before", "since", "until") and parse_when(field.value) is None:
        return f"Not a date or time: {field.value!r}. {WHEN_HELP}"
    if field.name == "status" and words.canonical(field.value) not in words.STATUSES:
        return f"Unknown status: {field.value!r}.{nearest(field.value, words.STATUSES, words.SYNONYMS)}"
    if field.name == "is" and field.value != "pinned" and words.canonical(field.value) not in words.STATUSES:
        return f"Unknown filter: is:{field.value!r}. Use a status or 'pinned'"
    return None


def filter_of(field: Field) -> TaskFilter:
    """The filter for a query field."""
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
        "after": lambda: TaskFilter(since=parse_when(value), sort="created"),
        "since": lambda: TaskFilter(since=parse_when(value), sort="created"),
        "before": lambda: TaskFilter(until=parse_when(value), sort="created"),
        "until": lambda: TaskFilter(until=parse_when(value), sort="created"),
    }[name]()


def terms_of(sought: Sequence[Sought]) -> tuple[set[str], tuple[str, ...]]:
    """All terms, and all term prefixes, to look up in a page."""
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


def _positive(node: Node) -> Iterator[Node]:
    """The leaves that are not negated."""
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
        "updated": lambda task: task.updated or "",
        "created": lambda task: task.created or "",
        "completed": lambda task: task.completed or "",
        "duration": lambda task: -1 if task.duration_ms is None else task.duration_ms,
        "turns": lambda task: task.turns,
        "tokens": lambda task: (task.tokens_in or 0) + (task.tokens_out or 0),
    }
    by = value[wanted.sort]
    found.sort(key=lambda each: (by(summaries[each.task]), each.task), reverse=not wanted.reverse)
    return found[: wanted.limit]
