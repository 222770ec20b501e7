"""Runs a query and ranks the documents.

The pages, folded or not, say which documents may match and how well. That is fast, and its only errors are false positives: a
page does not know the order of words, or whether a file was edited since. So tasks are taken best first, and each is settled
(checked against the current file) before it is yielded. A query for twenty tasks settles twenty plus the few that fail, however
many may match, and looks at little more than the best few of each page.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from operator import itemgetter, or_
from typing import Final, NamedTuple, Protocol, TypeAlias

from rawko_state.format.text import decode
from rawko_state.model.frozen import Frozen
from rawko_state.search.documents import Document
from rawko_state.search.pages import TurnRef
from rawko_state.search.query import And, Field, Leaf, Node, Not, Query, Text
from rawko_state.search.scoring import PostingSource, Scored, Terms, scored_pages
from rawko_state.search.turn_text import document_of
from rawko_state.search.words import bare, may_occur, normal, occurs

FRESH: Final = -1
"""The base of documents that were just read from the file."""
_HALF_LIFE_DAYS: Final = 60
_COVERED: Final = 1_000_000.0
"""Matching one more word of the query outweighs any score."""
_FEW: Final = 32
"""How many documents of a page are sorted at first."""
_LATEST: Final = 1 << 62
"""After every offset of a file."""


class Truth(Protocol):
    """The current state of the task files and their index."""

    def flushed(self, task_id: str) -> tuple[int, int] | None:
        """The base that a task's folded documents must have, and the offset they must precede. None: no such task."""

    def document(self, task_id: str, place: TurnRef) -> Document | None: ...

    def data(self, task_id: str, places: Sequence[TurnRef]) -> Sequence[bytes | None]:
        """The bytes of documents; None for one that is long or can't be read."""


class Wanted(Frozen):
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


class _Task:
    __slots__ = ("best", "created", "id", "mask", "settling", "where")

    def __init__(self, task_id: str, created: int) -> None:
        self.id = task_id
        self.created = created
        self.mask = 0
        self.best = 0.0
        self.where: list[tuple[Scored, int]] = []
        """The scored pages that contain it, and its owner number in each."""
        self.settling: _Settling | None = None


def search(wanted: Wanted, sources: Iterable[PostingSource], truth: Truth, *, turns: bool = False) -> Iterator[Found]:
    """The results, best first: one document per task, or with ``turns`` every one. Evaluated lazily."""
    query = wanted.query
    if query.root is None:
        return
    leaves = query.leaves()
    bits = {leaf: 1 << number for number, leaf in enumerate(leaves)}
    scored = scored_pages(leaves, bits, Terms(sources, wanted.documents, wanted.length))
    if _may_hold(query.root, bits, reduce(or_, (each.leaves for each in scored), 0), None) is False:
        return  # a word that it needs is nowhere
    line = _Line(wanted, bits, scored)
    settler = _Settler(wanted, truth, leaves, bits)
    # Without NOT, a document that matches settles its task, whatever the other documents contain.
    by_best = not turns and not wanted.by_time and not _has_not(query.root)
    for task, found in line:
        if found is not None:
            yield found
        elif by_best:
            step = settler.step(task)
            if step is not None:
                line.add(task, *step)
        else:
            documents = settler.documents(task)
            for hit in documents if turns else documents[:1]:
                line.add(task, _rank(hit.words, hit.score), hit)


def _rank(words: int, score: float) -> float:
    return score + _COVERED * words


def _has_not(node: Node) -> bool:
    return isinstance(node, Not) or (not isinstance(node, (Text, Field)) and any(map(_has_not, node.parts)))


_Entry: TypeAlias = "tuple[float, int, str, int, _Task | Iterator[_Upcoming] | None, Found | None]"
"""Sorts in output order, which is fully deterministic. With nothing in it: a page that was not looked at yet."""
_Upcoming: TypeAlias = "tuple[float, int, int]"
"""An owner in a page: the best score that it and all later ones can reach, its creation time, its number."""


class _Line:
    """The tasks that may match and the hits found in them, in output order. A common word is in most tasks, and few are asked
    for. So a page waits in the line as its best task could, unread. When its turn comes it is read, and then waits as its best
    task does; the next of its tasks is looked at when its turn comes."""

    def __init__(self, wanted: Wanted, bits: Mapping[Leaf, int], scored: list[Scored]) -> None:
        self._wanted, self._scored = wanted, scored
        self._may_hold = _judge(wanted, bits)
        root = wanted.query.root
        without_words = root is not None and _may_hold(root, {}, 0, None) is not False
        self._where = _places(scored, None if without_words else _in_several(scored))
        self._seen: set[str] = set()
        self._heap: list[_Entry] = []
        for number, each in enumerate(scored):
            words, most = each.most
            best = 0.0 if wanted.by_time else -_rank(words, most * _recency(each.page.newest, wanted.now))
            heapq.heappush(self._heap, (best, -each.page.newest, "", number, None, None))
        if without_words:
            for task_id, created in wanted.universe():
                self._look_at(task_id, created, ())

    def __iter__(self) -> Iterator[tuple[_Task, Found | None]]:
        while self._heap:
            first, second, _, number, what, found = heapq.heappop(self._heap)
            if isinstance(what, _Task):
                yield what, found
            else:
                self._advance(number, self._upcoming(number) if what is None else what, (first, second))

    def _upcoming(self, number: int) -> Iterator[_Upcoming]:
        scored = self._scored[number]
        return _by_time(scored) if self._wanted.by_time else _by_score(scored, self._wanted.now)

    def add(self, task: _Task, best: float, found: Found | None = None) -> None:
        offset = found.place.offset if found is not None and found.place is not None else -1
        heapq.heappush(
            self._heap, (0.0 if self._wanted.by_time else -best, -task.created, task.id, offset, task, found)
        )

    def _advance(self, number: int, upcoming: Iterator[_Upcoming], after: tuple[float, int]) -> None:
        """Takes the page's next tasks into the line, up to the first one that stands further back than ``after``."""
        scored = self._scored[number]
        page = scored.page
        for best, created, owner in upcoming:
            if self._look_at(page.tasks[owner], created, ((scored, owner),)):
                place = (0.0, -created) if self._wanted.by_time else (-best, -page.newest)
                if place > after:
                    # Before all tasks that are as good and as new: no id is empty.
                    heapq.heappush(self._heap, (*place, "", number, upcoming, None))
                    return

    def _look_at(self, task_id: str, created: int, where: Sequence[tuple[Scored, int]]) -> bool:
        """Takes a task into the line. Returns whether it may match and is new there."""
        allowed = self._wanted.allowed
        if task_id in self._seen or (allowed is not None and task_id not in allowed):
            return False
        self._seen.add(task_id)
        task = _Task(task_id, created)
        for each, number in self._where.get(task_id, where):
            _count(task, each, number, self._wanted.now)
        if self._may_hold(task) is False:
            return False
        self.add(task, task.best)
        return True


def _places(scored: list[Scored], only: Collection[str] | None) -> dict[str, list[tuple[Scored, int]]]:
    """For each of these tasks (None: of all), the pages that contain it, and its owner number in each."""
    found: dict[str, list[tuple[Scored, int]]] = {}
    if only is None or only:
        for each in scored:
            for number, task_id in enumerate(each.page.tasks):
                if only is None or task_id in only:
                    found.setdefault(task_id, []).append((each, number))
    return found


def _in_several(scored: list[Scored]) -> set[str]:
    """The tasks that are in several pages. Most are in one."""
    several: set[str] = set()
    known: set[str] = set()
    for each in scored:
        tasks = set(each.page.tasks)
        several |= known & tasks if len(tasks) == len(each.page.tasks) else tasks
        known |= tasks
    return several


def _count(task: _Task, scored: Scored, number: int, now: float) -> None:
    """Counts in what a page holds of a task."""
    page, masks, scores = scored.page, scored.masks, scored.scores
    own = [document for document in page.documents_of(number) if document in masks]
    if not own:
        return
    created = page.created[number]
    if not task.where:
        task.created = created
    task.where.append((scored, number))
    recent = _recency(created, now)
    for document in own:
        mask = masks[document]
        task.mask |= mask
        best = _rank(mask.bit_count(), scores[document] * recent)
        if best > task.best:
            task.best = best


def _by_score(scored: Scored, now: float) -> Iterator[_Upcoming]:
    """The owners in a page, best first, as if all of them were as recent as the newest."""
    page, masks, scores = scored.page, scored.masks, scored.scores
    recent = _recency(page.newest, now)
    kinds = set(masks.values())
    seen: set[int] = set()
    # Those with more words come first, whatever their scores.
    for words in sorted({mask.bit_count() for mask in kinds}, reverse=True):
        some = {mask for mask in kinds if mask.bit_count() == words}
        documents = masks if some == kinds else [document for document, mask in masks.items() if mask in some]
        for document in _largest(documents, scores.__getitem__):
            number = bisect_right(page.firsts, document) - 1
            if number not in seen:
                seen.add(number)
                yield _rank(words, scores[document] * recent), page.created[number], number


def _largest(documents: Collection[int], by: Callable[[int], float]) -> Iterator[int]:
    """Sorted from the largest down; all of them only if more than a few are asked for."""
    yield from heapq.nlargest(_FEW, documents, key=by)
    if len(documents) > _FEW:
        yield from sorted(documents, key=by, reverse=True)[_FEW:]


def _by_time(scored: Scored) -> Iterator[_Upcoming]:
    """The owners in a page, newest first."""
    page = scored.page
    owners = {bisect_right(page.firsts, document) - 1 for document in scored.masks}
    for number in sorted(owners, key=lambda number: (-page.created[number], number)):
        yield 0.0, page.created[number], number


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


class _Candidate(NamedTuple):
    """A document that may match. They sort from the worst to the best."""

    words: int
    score: float
    before: int
    """Its offset, negative: of two that are as good, the first one counts."""
    mask: int
    number: int
    """Its number in the page."""
    scored: Scored

    @property
    def rank(self) -> float:
        return _rank(self.words, self.score)

    @property
    def place(self) -> TurnRef:
        return self.scored.page.place(self.number)


_order = itemgetter(0, 1, 2)


class _Settling:
    """What is known so far of a task."""

    __slots__ = ("at_once", "best", "left", "mask")

    def __init__(self, left: list[_Candidate]) -> None:
        self.left = left
        """The documents that were not checked yet, the best one last."""
        self.at_once = 1
        self.mask = 0
        """The leaves that its documents contain."""
        self.best: _Candidate | None = None


class _Settler:
    """Checks tasks one by one against their current files."""

    def __init__(self, wanted: Wanted, truth: Truth, leaves: list[Leaf], bits: Mapping[Leaf, int]) -> None:
        self._wanted, self._truth, self._bits = wanted, truth, bits
        self._texts = [(bits[leaf], leaf) for leaf in leaves if isinstance(leaf, Text)]

    def step(self, task: _Task) -> tuple[float, Found | None] | None:
        """Checks the best of a task's documents that were not checked yet. Returns the task's rank and hit; the highest rank that
        it can still reach, without a hit; or None if the task does not match."""
        now = task.settling
        if now is None:
            candidates = self._candidates(task)
            if candidates is None:
                return None
            now = task.settling = _Settling(sorted(candidates, key=_order))
        some = [now.left.pop() for _ in range(min(now.at_once, len(now.left)))]
        now.at_once *= 2  # one by one would be slow if none of many matches
        for found in self._confirmed(task.id, some):
            now.mask |= found.mask
            if now.best is None or _order(found) > _order(now.best):
                now.best = found
        reached = 0.0 if now.best is None else now.best.rank
        ahead = now.left[-1].rank if now.left else 0.0
        if reached >= ahead and (now.best is not None or not now.left):
            hit = self._hit(task, now.best, now.mask)
            if hit is not None:
                return reached, hit
        return (max(reached, ahead), None) if now.left else None

    def documents(self, task: _Task) -> list[Found]:
        """The documents of a task that really match, best first; empty if the task does not match."""
        candidates = self._candidates(task)
        if candidates is None:
            return []
        found = {each.before: each for each in self._confirmed(task.id, candidates)}
        whole = 0
        for each in found.values():
            whole |= each.mask
        best_first: list[_Candidate | None] = [*sorted(found.values(), key=_order, reverse=True)]
        hits = [self._hit(task, each, whole) for each in best_first or [None]]
        return [hit for hit in hits if hit is not None]

    def _hit(self, task: _Task, found: _Candidate | None, whole: int) -> Found | None:
        """A document as its task's hit. ``whole``: the leaves that the task contains. None if the task does not match."""
        root = self._wanted.query.root
        if root is None or not self._holds(root, whole, task.id):
            return None
        if found is None:
            return Found(task.id, None, 0.0, 0)
        return Found(task.id, found.place, found.score, found.words)

    def _candidates(self, task: _Task) -> list[_Candidate] | None:
        """The documents of a task that may match; None if there is no such task."""
        state = self._truth.flushed(task.id)
        if state is None:
            return None
        base, end = state
        candidates: list[_Candidate] = []
        for scored, number in task.where:
            page, masks, scores = scored.page, scored.masks, scored.scores
            owner = page.owner(number)
            if owner.base != FRESH and owner.base != base:
                continue  # read before the file was edited
            last = _LATEST if owner.base == FRESH else end
            recent = _recency(owner.created, self._wanted.now)
            for document in page.documents_of(number):
                mask = masks.get(document)
                offset = page.offsets[document]
                if mask is not None and offset < last:
                    score = scores[document] * recent
                    candidates.append(_Candidate(mask.bit_count(), score, -offset, mask, document, scored))
        return candidates

    def _confirmed(self, task_id: str, candidates: Sequence[_Candidate]) -> Iterator[_Candidate]:
        """The documents that contain a leaf, each with those that it contains."""
        unsure = {each.place: maybe for each in candidates if (maybe := each.scored.maybe.get(each.number, 0))}
        refuted = self._refuted(task_id, unsure)
        for each in candidates:
            mask = each.mask & ~refuted.get(each.place, 0) if unsure else each.mask
            if mask:
                yield each._replace(mask=mask, words=mask.bit_count())

    def _refuted(self, task_id: str, maybe: Mapping[TurnRef, int]) -> dict[TurnRef, int]:
        """Of the leaves that each document may contain, those that it does not."""
        if not maybe:
            return {}
        places = list(maybe)
        data = self._truth.data(task_id, places)
        return {
            place: self._wrong(task_id, place, maybe[place], each) for place, each in zip(places, data, strict=True)
        }

    def _wrong(self, task_id: str, place: TurnRef, maybe: int, data: bytes | None) -> int:
        leaves = [(bit, leaf) for bit, leaf in self._texts if bit & maybe]
        if data is not None:
            # Most documents with the words of a phrase do not hold the phrase, and need not be parsed.
            text = bare(normal(decode(data)))
            if not any(may_occur(leaf.sought, text) for _, leaf in leaves):
                return maybe
            document = document_of(data, place.offset)
        else:
            document = self._truth.document(task_id, place)
        if document is None:
            return maybe
        return sum(bit for bit, leaf in leaves if not occurs(leaf.sought, document.texts(leaf.where)))

    def _holds(self, node: Node, mask: int, task_id: str) -> bool:
        if isinstance(node, Not):
            return not self._holds(node.part, mask, task_id)
        if isinstance(node, (Text, Field)):
            if isinstance(node, Field) and node.name != "tool":
                return task_id in self._wanted.fields[node]
            return bool(mask & self._bits[node])
        parts = (self._holds(part, mask, task_id) for part in node.parts)
        return all(parts) if isinstance(node, And) else any(parts)
