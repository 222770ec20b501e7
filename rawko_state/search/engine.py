"""Runs a query and ranks the documents.

The pages, folded or not, say which documents may match and how well. That is fast, and its only errors are false positives: a
page does not know the order of words, or whether a file was edited since. So tasks are taken best first, and each is settled
(checked against the current file) before it is yielded. A query for twenty tasks settles twenty plus the few that fail, however
many may match.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, TypeAlias

from rawko_state.search.documents import Document
from rawko_state.search.pages import Page, TurnRef
from rawko_state.search.query import And, Field, Leaf, Node, Not, Query, Text
from rawko_state.search.scoring import PostingSource, Scored, Terms, scored_pages
from rawko_state.search.words import occurs

FRESH: Final = -1
"""The base of documents that were just read from the file."""
_HALF_LIFE_DAYS: Final = 60
_COVERED: Final = 1_000_000.0
"""Matching one more word of the query outweighs any score."""


class Truth(Protocol):
    """The current state of the task files and their index."""

    def flushed(self, task_id: str) -> tuple[int, int] | None:
        """The base that a task's folded documents must have, and the offset they must precede. None: no such task."""

    def document(self, task_id: str, place: TurnRef) -> Document | None: ...


class Wanted(NamedTuple):
    """A query, the tasks that match each of its field leaves, and the tasks that are allowed at all."""

    query: Query
    fields: Mapping[Field, Collection[str]]
    universe: Callable[[], Iterable[tuple[str, int]]]
    """Every task that could match, with its creation time."""
    allowed: Collection[str] | None = None
    now: float = 0.0
    by_time: bool = False
    documents: int = 1
    """The approximate number of documents; ``length`` is their average length. Both come from the index of tasks, so that scores
    do not depend on which part is folded."""
    length: float = 1.0


class Found(NamedTuple):
    """A task, and the matching document in it; None if the task matches by something other than text."""

    task: str
    place: TurnRef | None
    score: float
    words: int
    """How many of the query's words and phrases the document contains."""


@dataclass(slots=True, eq=False, repr=False)
class _Task:
    id: str
    created: int
    mask: int = 0
    best: float = 0.0
    where: list[tuple[Scored, int]] = field(default_factory=list)
    """The scored pages that contain it, and its owner number in each."""


def search(wanted: Wanted, sources: Iterable[PostingSource], truth: Truth, *, turns: bool = False) -> Iterator[Found]:
    """The results, best first: one document per task, or with ``turns`` every one. Evaluated lazily."""
    query = wanted.query
    if query.root is None:
        return
    leaves = query.leaves()
    bits = {leaf: 1 << number for number, leaf in enumerate(leaves)}
    scored = scored_pages(leaves, bits, Terms(sources, wanted.documents, wanted.length))
    tasks = _tasks(wanted, scored)
    may_hold = _judge(wanted, bits)
    heap = [_place_in_line(wanted, task, task.best) for task in tasks.values() if may_hold(task) is not False]
    heapq.heapify(heap)
    settler = _Settler(wanted, truth, leaves, bits)
    while heap:
        *_, task, found = heapq.heappop(heap)
        if found is not None:
            yield found
            continue
        documents = settler.documents(task)
        for hit in documents if turns else documents[:1]:
            heapq.heappush(heap, _place_in_line(wanted, task, hit.score + _COVERED * hit.words, hit))


_Entry: TypeAlias = "tuple[float, int, str, int, _Task, Found | None]"
"""Sorts in output order, which is fully deterministic."""


def _place_in_line(wanted: Wanted, task: _Task, best: float, found: Found | None = None) -> _Entry:
    offset = found.place.offset if found is not None and found.place is not None else -1
    return (0.0 if wanted.by_time else -best, -task.created, task.id, offset, task, found)


def _judge(wanted: Wanted, bits: Mapping[Leaf, int]) -> Callable[[_Task], bool | None]:
    """Whether a task may match the query. Most tasks contain the same few sets of leaves, so each set is evaluated once."""
    root, fields = wanted.query.root, [(field, wanted.fields[field]) for field in wanted.fields]
    known: dict[tuple[int, tuple[bool, ...]], bool | None] = {}

    def judge(task: _Task) -> bool | None:
        key = (task.mask, tuple([task.id in ids for _, ids in fields]))
        if key not in known:
            holding = {field: holds for (field, _), holds in zip(fields, key[1], strict=True)}
            known[key] = None if root is None else _may_hold(root, bits, task.mask, holding)
        return known[key]

    return judge


def _tasks(wanted: Wanted, scored: list[Scored]) -> dict[str, _Task]:
    """The tasks with a document that may match, each with the best score it can reach. If the query can match without any word,
    also the others."""
    tasks: dict[str, _Task] = {}
    allowed = wanted.allowed
    for each in scored:
        page, masks, scores = each.page, each.masks, each.scores
        covered = {mask: _COVERED * mask.bit_count() for mask in set(masks.values())}
        end, task, recent = -1, None, 1.0
        for document in sorted(masks):
            if document >= end:
                number = bisect_right(page.firsts, document) - 1
                end = page.documents_of(number).stop
                task = _task_of(tasks, page, number, allowed)
                if task is not None:
                    task.where.append((each, number))
                    recent = _recency(task.created, wanted.now)
            if task is not None:
                mask = masks[document]
                task.mask |= mask
                key = scores[document] * recent + covered[mask]
                if key > task.best:
                    task.best = key
    root = wanted.query.root
    if root is not None and _may_hold(root, {}, 0, None) is not False:
        for task_id, created in wanted.universe():
            if task_id not in tasks and (allowed is None or task_id in allowed):
                tasks[task_id] = _Task(task_id, created)
    return tasks


def _task_of(tasks: dict[str, _Task], page: Page, number: int, allowed: Collection[str] | None) -> _Task | None:
    task_id = page.tasks[number]
    if allowed is not None and task_id not in allowed:
        return None
    task = tasks.get(task_id)
    if task is None:
        task = tasks[task_id] = _Task(task_id, page.created[number])
    return task


def _recency(created: int, now: float) -> float:
    """A factor between 1 and 1.5: recent tasks are searched for more often."""
    days = max(0.0, now - created) / 86_400
    return 1.0 + 0.5 * float(2 ** (-days / _HALF_LIFE_DAYS))


def _may_hold(node: Node, bits: Mapping[Leaf, int], mask: int, fields: Mapping[Field, bool] | None) -> bool | None:
    """Whether a query matches a task whose documents may contain the leaves in the mask. None: perhaps. Without ``fields``,
    field leaves are unknown."""
    if isinstance(node, Not):
        part = _may_hold(node.part, bits, mask, fields)
        return None if part is None else not part
    if isinstance(node, (Text, Field)):
        if isinstance(node, Field) and node.name != "tool":
            return None if fields is None else fields[node]
        return None if mask & bits.get(node, 0) else False
    parts = [_may_hold(part, bits, mask, fields) for part in node.parts]
    if isinstance(node, And):
        return False if False in parts else None if None in parts else True
    return True if True in parts else None if None in parts else False


class _Settler:
    """Checks tasks one by one against their current files."""

    def __init__(self, wanted: Wanted, truth: Truth, leaves: list[Leaf], bits: Mapping[Leaf, int]) -> None:
        self._wanted, self._truth, self._bits = wanted, truth, bits
        self._texts = [(bits[leaf], leaf) for leaf in leaves if isinstance(leaf, Text)]

    def documents(self, task: _Task) -> list[Found]:
        """The documents of a task that really match, best first; empty if the task does not match."""
        state = self._truth.flushed(task.id)
        if state is None:
            return []
        base, before = state
        found: dict[int, tuple[TurnRef, int, float]] = {}
        for scored, number in task.where:
            page = scored.page
            owner = page.owner(number)
            for document in page.documents_of(number):
                mask = scored.masks.get(document)
                if mask is None or (owner.base != FRESH and owner.base != base):
                    continue
                place = page.place(document)
                if owner.base != FRESH and place.offset >= before:
                    continue
                mask &= ~self._refuted(task.id, place, scored.maybe.get(document, 0))
                if mask:
                    score = scored.scores[document] * _recency(owner.created, self._wanted.now)
                    found[place.offset] = (place, mask, score)
        whole = 0
        for _, mask, _ in found.values():
            whole |= mask
        root = self._wanted.query.root
        if root is None or not self._holds(root, whole, task.id):
            return []
        if not found:
            return [Found(task.id, None, 0.0, 0)]
        hits = [Found(task.id, place, score, mask.bit_count()) for place, mask, score in found.values()]
        return sorted(hits, key=lambda hit: (-hit.words, -hit.score, hit.place.offset if hit.place else 0))

    def _refuted(self, task_id: str, place: TurnRef, maybe: int) -> int:
        """Of the leaves that a document may contain, those that it does not."""
        if not maybe:
            return 0
        document = self._truth.document(task_id, place)
        if document is None:
            return maybe
        return sum(
            bit for bit, leaf in self._texts if bit & maybe and not occurs(leaf.sought, document.texts(leaf.where))
        )

    def _holds(self, node: Node, mask: int, task_id: str) -> bool:
        if isinstance(node, Not):
            return not self._holds(node.part, mask, task_id)
        if isinstance(node, (Text, Field)):
            if isinstance(node, Field) and node.name != "tool":
                return task_id in self._wanted.fields[node]
            return bool(mask & self._bits[node])
        parts = (self._holds(part, mask, task_id) for part in node.parts)
        return all(parts) if isinstance(node, And) else any(parts)
