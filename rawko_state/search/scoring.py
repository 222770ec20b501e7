"""Scores pages against a query: which documents may contain each of its words, and their BM25 scores."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain, compress, repeat
from operator import add
from typing import Final, Protocol

from rawko_state.search.pages import LENGTHS, TEXT, TOOL, Page, Postings, from_little
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


_Found = dict[Page, Postings]
"""The postings of one term."""


class Terms:
    """The postings of each term from all sources, looked up once."""

    def __init__(self, sources: Iterable[PostingSource], total: int, length: float) -> None:
        self._sources = list(sources)
        self._known: dict[tuple[str, str, bool], _Found] = {}
        self.total = total
        self.norms = [_K1 * (1 - _B + _B * LENGTHS[size] / max(length, 1.0)) for size in range(256)]

    def postings(self, field_name: str, term: str, prefix: bool = False) -> _Found:
        key = (field_name, term, prefix)
        if key not in self._known:
            self._known[key] = self._expanded(field_name, term) if prefix else self._exact(field_name, term)
        return self._known[key]

    def _exact(self, field_name: str, term: str) -> _Found:
        return {page: postings for source in self._sources for page, postings in source.postings(field_name, term)}

    def _expanded(self, field_name: str, prefix: str) -> _Found:
        found: dict[Page, list[Postings]] = {}
        for source in self._sources:
            for term in dict.fromkeys(source.expand(field_name, prefix)):
                for page, postings in source.postings(field_name, term):
                    found.setdefault(page, []).append(postings)
        return {page: _together(page, parts) for page, parts in found.items()}

    def weight(self, found: _Found) -> float:
        """The weight of a term: the rarer, the higher."""
        holders = sum(postings.count for postings in found.values())
        return math.log(1 + (max(self.total, holders) - holders + 0.5) / (holders + 0.5))


def _together(page: Page, parts: list[Postings]) -> Postings:
    """The postings of several terms as those of one."""
    first, *rest = parts
    if not rest:
        return first
    sums = dict(zip(*first.lists(page), strict=True))
    for each in rest:
        for document, number in zip(*each.lists(page), strict=True):
            sums[document] = sums.get(document, 0) + number
    documents = sorted(sums)
    return Postings.of(documents, bytes([min(255, sums[document]) for document in documents]), page.sizes)


class _Scores(dict[int, float]):
    """The score of a term in a document, by its count there and the document's length, each a byte of the key. Few pairs differ,
    so each is worked out once."""

    def __init__(self, weight: float, norms: list[float]) -> None:
        self._weight, self._norms = weight, norms

    def __missing__(self, key: int) -> float:
        number, size = key >> 8, key & 255
        found = self[key] = self._weight * number / (number + self._norms[size])
        return found

    def most(self, postings: Postings) -> float:
        """No document of the postings has a higher score."""
        return max([self[number << 8 | size] for number, size in postings.best])

    def of(self, times: bytes, sizes: bytes) -> Iterable[float]:
        """The score in each document, given its counts and lengths."""
        keys = bytearray(2 * len(sizes))
        keys[::2], keys[1::2] = sizes, times
        return map(self.__getitem__, from_little("H", keys))


class _Part(Protocol):
    """A leaf of the query."""

    @property
    def pages(self) -> Iterable[Page]:
        """Where it may be."""

    def most(self, page: Page) -> float:
        """A score that no document of the page exceeds."""

    def holders(self, page: Page) -> tuple[Collection[int] | None, dict[int, float]]:
        """The documents that certainly match (None: all of them), and all that may match, with their scores."""


class _Word:
    def __init__(self, terms: Terms, sought: Sought) -> None:
        self._found = terms.postings(TEXT, sought.atoms[0], sought.prefix)
        self._scores = _Scores(terms.weight(self._found) * (_K1 + 1), terms.norms)
        self.pages = self._found.keys()

    def most(self, page: Page) -> float:
        return self._scores.most(self._found[page])

    def holders(self, page: Page) -> tuple[None, dict[int, float]]:
        documents, times = self._found[page].lists(page)
        sizes = bytes(map(page.sizes.__getitem__, documents))
        return None, dict(zip(documents, self._scores.of(times, sizes), strict=True))


class _Tool:
    """A tool by its name, by the first parts of its name (``shell`` also matches ``shell.exec``), or by ``shell*``."""

    def __init__(self, terms: Terms, value: str) -> None:
        value = value.lower()
        self._found = [terms.postings(TOOL, value.rstrip("*"), prefix=True)] if value.endswith("*") else []
        if not self._found:
            self._found = [terms.postings(TOOL, value), terms.postings(TOOL, f"{value}.", prefix=True)]
        self.pages = dict.fromkeys(page for found in self._found for page in found)

    def most(self, page: Page) -> float:
        return 0.0

    def holders(self, page: Page) -> tuple[None, dict[int, float]]:
        found = [each[page].lists(page)[0] for each in self._found if page in each]
        return None, dict.fromkeys(chain.from_iterable(found), 0.0)


class _Phrase:
    """All atoms of each identifier, or the identifier in one piece. Their order must be checked in the file."""

    def __init__(self, terms: Terms, sought: Sought) -> None:
        self._identifiers: list[tuple[list[_Found], _Found]] = []
        """For each identifier, its atoms, and all of it in one piece."""
        last = len(sought.identifiers) - 1
        for number, atoms in enumerate(sought.identifiers):
            prefixes = [sought.prefix and number == last and at == len(atoms) - 1 for at in range(len(atoms))]
            apart = [terms.postings(TEXT, atom, prefix) for atom, prefix in zip(atoms, prefixes, strict=True)]
            whole = joined(atoms)
            self._identifiers.append((apart, {} if whole is None else terms.postings(TEXT, whole, prefixes[-1])))
        self._scored = [
            (found, _Scores(terms.weight(found) * (_K1 + 1), terms.norms))
            for apart, whole in self._identifiers
            for found in (*apart, whole)
            if found
        ]
        pages = [set.intersection(*map(set, apart)).union(whole) for apart, whole in self._identifiers]
        self.pages = set.intersection(*pages)

    def most(self, page: Page) -> float:
        return sum(scores.most(found[page]) for found, scores in self._scored if page in found)

    def holders(self, page: Page) -> tuple[Collection[int], dict[int, float]]:
        lists = {id(found): found[page].lists(page) for found, _ in self._scored if page in found}

        def documents(found: _Found) -> Sequence[int]:
            return lists[id(found)][0] if page in found else ()

        parts = []
        for apart, whole in self._identifiers:
            # From the rarest on: only that one becomes a set.
            rarest, *others = sorted(map(documents, apart), key=len)
            parts.append(set(rarest).intersection(*others).union(documents(whole)))
        common = set.intersection(*parts)
        own = sorted(common)
        sizes = bytes(map(page.sizes.__getitem__, own))
        sums: Iterable[float] = repeat(0.0, len(own))
        for found, scores in self._scored:
            if page in found:
                sums = map(add, sums, scores.of(_times(own, common, *lists[id(found)]), sizes))
        return set(documents(self._identifiers[0][1])) if len(parts) == 1 else (), dict(zip(own, sums, strict=True))


def _times(own: Sequence[int], common: set[int], documents: list[int], times: bytes) -> bytes:
    """How often a term is in each of some documents (``common``: the same as a set), given all documents that it is in. All are
    sorted."""
    if own == documents:
        return times
    if len(own) * _MANY_STEPS < len(documents):
        places = [bisect_left(documents, each) for each in own]
        last = len(documents) - 1
        return bytes(
            [times[at] if at <= last and documents[at] == each else 0 for at, each in zip(places, own, strict=True)]
        )
    taken = bytes(compress(times, map(common.__contains__, documents)))
    if len(taken) == len(own):
        return taken  # the term is in all of them
    known = dict(zip(documents, times, strict=True))
    return bytes([known.get(each, 0) for each in own])


_MANY_STEPS: Final = 16
"""Looking for a document among the sorted ones costs as much as taking this many into a mapping."""


class Scored:
    """A page that may hold matching documents. They are looked at when they are needed."""

    def __init__(self, page: Page, parts: Sequence[tuple[int, bool, _Part]]) -> None:
        """``parts``: the leaves that may be in the page, each with its bit and whether it is sought in diffs alone."""
        self.page, self._parts = page, parts

    @property
    def leaves(self) -> int:
        """The leaves that may be in the page, as bits."""
        return sum({bit for bit, _, _ in self._parts})

    @cached_property
    def most(self) -> tuple[int, float]:
        """No document contains more leaves, or has a higher score."""
        return len(self._parts), sum(part.most(self.page) for _, _, part in self._parts)

    @property
    def masks(self) -> dict[int, int]:
        """For each document, the leaves that it may contain, as bits."""
        return self._documents[0]

    @property
    def maybe(self) -> dict[int, int]:
        """Those of them that must be checked in the file."""
        return self._documents[1]

    @property
    def scores(self) -> dict[int, float]:
        """The total score of each document."""
        return self._documents[2]

    @cached_property
    def _documents(self) -> tuple[dict[int, int], dict[int, int], dict[int, float]]:
        masks: dict[int, int] = {}
        maybe: dict[int, int] = {}
        sums: dict[int, float] = {}
        for bit, in_diffs, part in self._parts:
            sure, scores = part.holders(self.page)
            if in_diffs:
                sure = ()
            if not masks:
                masks, sums = dict.fromkeys(scores, bit), scores
            else:
                for document, score in scores.items():
                    masks[document] = masks.get(document, 0) | bit
                    sums[document] = sums.get(document, 0.0) + score
            if sure is not None:
                unsure = scores.keys() - sure
                if maybe:
                    maybe.update([(document, maybe.get(document, 0) | bit) for document in unsure])
                else:
                    maybe = dict.fromkeys(unsure, bit)
        return masks, maybe, sums


def scored_pages(leaves: Iterable[Leaf], bits: Mapping[Leaf, int], terms: Terms) -> list[Scored]:
    """The pages that may hold one of the leaves."""
    found: dict[Page, list[tuple[int, bool, _Part]]] = {}
    for leaf in leaves:
        if isinstance(leaf, Text):
            part: _Part = (_Word if leaf.sought.simple else _Phrase)(terms, leaf.sought)
        elif leaf.name == "tool":
            part = _Tool(terms, leaf.value)
        else:
            continue
        for page in part.pages:
            found.setdefault(page, []).append((bits[leaf], isinstance(leaf, Text) and bool(leaf.where), part))
    return [Scored(page, parts) for page, parts in found.items()]
