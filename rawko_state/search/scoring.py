"""Scores pages against a query: which documents may contain each of its words, and their BM25 scores."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Protocol

from rawko_state.search.pages import LENGTHS, TEXT, TOOL, Page, Postings
from rawko_state.search.query import Leaf, Text
from rawko_state.search.words import Sought, joined

_K1, _B = 2.4, 0.75
"""BM25's parameters. A word that was said has weight 2, so this k1 equals the usual 1.2."""


class PostingSource(Protocol):
    """A source of pages: the index, or data that is not in it yet."""

    @property
    def pages(self) -> Collection[Page]: ...
    def postings(self, field: str, term: str, /) -> Iterable[tuple[Page, Postings]]: ...
    def expand(self, field: str, prefix: str, /) -> Iterable[str]: ...


class Scored:
    """The documents of a page that may match."""

    __slots__ = ("masks", "maybe", "page", "scores")

    def __init__(self, page: Page) -> None:
        self.page = page
        self.masks: dict[int, int] = {}
        """For each document, the leaves that it may contain, as bits."""
        self.maybe: dict[int, int] = {}
        """Those of them that must be checked in the file."""
        self.scores: dict[int, float] = {}
        """The total score of each document."""


class Terms:
    """The postings of each term from all sources, looked up once."""

    def __init__(self, sources: Iterable[PostingSource], total: int, length: float) -> None:
        self._sources = list(sources)
        self.pages = [page for source in self._sources for page in source.pages]
        self._known: dict[tuple[str, str, bool], dict[int, tuple[Page, Postings]]] = {}
        self.total = total
        self.norms = [_K1 * (1 - _B + _B * LENGTHS[size] / max(length, 1.0)) for size in range(256)]

    def postings(self, field_name: str, term: str, prefix: bool = False) -> dict[int, tuple[Page, Postings]]:
        """Postings by the page's id()."""
        key = (field_name, term, prefix)
        if key not in self._known:
            self._known[key] = self._expanded(field_name, term) if prefix else self._exact(field_name, term)
        return self._known[key]

    def _exact(self, field_name: str, term: str) -> dict[int, tuple[Page, Postings]]:
        return {
            id(page): (page, postings)
            for source in self._sources
            for page, postings in source.postings(field_name, term)
        }

    def _expanded(self, field_name: str, prefix: str) -> dict[int, tuple[Page, Postings]]:
        found: dict[int, tuple[Page, list[Postings]]] = {}
        for source in self._sources:
            for term in dict.fromkeys(source.expand(field_name, prefix)):
                for page, postings in source.postings(field_name, term):
                    found.setdefault(id(page), (page, []))[1].append(postings)
        return {key: (page, _together(parts)) for key, (page, parts) in found.items()}

    def weight(self, found: Mapping[int, tuple[Page, Postings]]) -> float:
        """The weight of a term: the rarer, the higher."""
        holders = sum(len(postings[0]) for _, postings in found.values())
        return math.log(1 + (max(self.total, holders) - holders + 0.5) / (holders + 0.5))


def _together(parts: list[Postings]) -> Postings:
    """The postings of several terms as those of one."""
    first, *rest = parts
    if not rest:
        return first
    sums = dict(zip(*first, strict=True))
    for documents, times in rest:
        for document, number in zip(documents, times, strict=True):
            sums[document] = sums.get(document, 0) + number
    documents = sorted(sums)
    return documents, bytes([min(255, sums[document]) for document in documents])


class _Scores(dict[tuple[int, int], float]):
    """The score of a term in a document, by its count there and the document's length. Few pairs differ, so each is worked out
    once."""

    def __init__(self, weight: float, norms: list[float]) -> None:
        self._weight, self._norms = weight, norms

    def __missing__(self, key: tuple[int, int]) -> float:
        number, size = key
        found = self[key] = self._weight * number / (number + self._norms[size])
        return found


def scored_pages(leaves: list[Leaf], bits: Mapping[Leaf, int], terms: Terms) -> list[Scored]:
    """For each page, the documents that may contain each leaf, and their scores."""
    found = {id(page): Scored(page) for page in terms.pages}
    for leaf in leaves:
        bit = bits[leaf]
        if isinstance(leaf, Text):
            holders = _simple(terms, leaf.sought) if leaf.sought.simple else _compound(terms, leaf.sought)
        elif leaf.name == "tool":
            holders = _tools(terms, leaf.value)
        else:
            continue
        in_diffs = isinstance(leaf, Text) and leaf.where
        for page, (sure, scores) in holders:
            _add(found[id(page)], bit, () if in_diffs else sure, scores)
    return [scored for scored in found.values() if scored.masks]


def _add(scored: Scored, bit: int, sure: Collection[int] | None, scores: dict[int, float]) -> None:
    if not scored.masks:
        scored.masks = dict.fromkeys(scores, bit)
        scored.scores = scores
    else:
        masks, sums = scored.masks, scored.scores
        for document, score in scores.items():
            masks[document] = masks.get(document, 0) | bit
            sums[document] = sums.get(document, 0.0) + score
    if sure is not None:
        maybe = scored.maybe
        for document in scores.keys() - sure:
            maybe[document] = maybe.get(document, 0) | bit


_Holders = Iterator[tuple[Page, tuple["Collection[int] | None", "dict[int, float]"]]]
"""For each page, the documents that certainly match (None: all of them), and all that may match, with their scores."""


def _simple(terms: Terms, sought: Sought) -> _Holders:
    found = terms.postings(TEXT, sought.atoms[0], sought.prefix)
    score = _Scores(terms.weight(found) * (_K1 + 1), terms.norms)
    for page, (documents, times) in found.values():
        sizes = map(page.sizes.__getitem__, documents)
        scores = map(score.__getitem__, zip(times, sizes, strict=True))
        yield page, (None, dict(zip(documents, scores, strict=True)))


def _tools(terms: Terms, value: str) -> _Holders:
    """A tool by its name, by the first parts of its name (``shell`` also matches ``shell.exec``), or by ``shell*``."""
    value = value.lower()
    parts = [terms.postings(TOOL, value.rstrip("*"), prefix=True)] if value.endswith("*") else []
    if not parts:
        parts = [terms.postings(TOOL, value), terms.postings(TOOL, f"{value}.", prefix=True)]
    for found in parts:
        for page, (documents, _) in found.values():
            yield page, (None, dict.fromkeys(documents, 0.0))


def _compound(terms: Terms, sought: Sought) -> _Holders:
    """All atoms of each identifier, or the joined identifier. Their order must be checked in the file."""
    last = len(sought.identifiers) - 1
    by_page: list[dict[int, set[int]]] = []
    looked_up: list[dict[int, tuple[Page, Postings]]] = []
    sure: dict[int, set[int]] = {}
    for number, atoms in enumerate(sought.identifiers):
        prefixes = [sought.prefix and number == last and at == len(atoms) - 1 for at in range(len(atoms))]
        found = [terms.postings(TEXT, atom, prefix) for atom, prefix in zip(atoms, prefixes, strict=True)]
        looked_up += found
        holders = _in_all([{key: set(postings[0]) for key, (_, postings) in each.items()} for each in found])
        whole = joined(atoms)
        if whole is not None:
            found_whole = terms.postings(TEXT, whole, prefixes[-1])
            looked_up.append(found_whole)
            for key, (_, postings) in found_whole.items():
                holders.setdefault(key, set()).update(postings[0])
                if last == 0:
                    sure.setdefault(key, set()).update(postings[0])
        by_page.append(holders)
    scores: dict[int, dict[int, float]] = {}
    pages: dict[int, Page] = {}
    candidates = _in_all(by_page)
    for each in looked_up:
        weight = terms.weight(each) * (_K1 + 1)
        for key, (page, (documents, times)) in each.items():
            holding = candidates.get(key)
            if holding:
                pages[key] = page
                sums = scores.setdefault(key, dict.fromkeys(sorted(holding), 0.0))
                for document, number in zip(documents, times, strict=True):
                    if document in holding:
                        sums[document] += weight * number / (number + terms.norms[page.sizes[document]])
    for key, sums in scores.items():
        yield pages[key], (sure.get(key, set()), sums)


def _in_all(groups: list[dict[int, set[int]]]) -> dict[int, set[int]]:
    """The documents that are in every group, by page."""
    first, *rest = groups
    return {
        key: documents
        for key in first
        if all(key in other for other in rest)
        and (documents := first[key].intersection(*(other[key] for other in rest)))
    }
