"""Splits text about code into words.

Text is split at white space into *chunks* (``auth/sso.rs``, ``getUserById()``), a chunk into *identifiers* (runs of letters,
digits and underscores), and an identifier into *atoms*: its lower-case parts, split at underscores and camel-case humps. Every
ideograph is an atom of its own. So ``getUserById`` is ``get user by id``, and ``tokenValidation``, ``token_validation`` and
``--token-validation`` are the same two atoms in a row.

The *terms* of a document are all its atoms, plus each identifier of several atoms in one piece (``getuserbyid``).
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import chain
from typing import Final, NamedTuple, TypeAlias

from rawko_state.late import late
from rawko_state.model.frozen import Frozen

Atoms: TypeAlias = tuple[str, ...]

_PIECE: Final = 1 << 16
MAX_TERM: Final = 64
"""Longer atoms are truncated; longer identifiers are not kept in one piece."""

_SLICE: Final = 1 << 19
_LONG: Final = 1 << 12
"""A longer run of letters is cut into several identifiers: no call on text takes long, so other threads can run in between."""
_REMEMBERED: Final = 200
_SPACE = late(r"\s")
_ALONE = late(r"[\x00-\x7f]")
_CHUNK = late(r"\S+")
_IDENTIFIER = late(rf"\w{{1,{_LONG}}}")
_HUMPS = late(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z][a-z0-9]*|[A-Z]+[0-9]*|[0-9]+")
_MARKS: Final = (
    "\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06ed\u0711\u0730-\u074a"
    "\u0900-\u0963\u0966-\u0e3a\u0e40-\u0eff\u0f71-\u0f84\u1000-\u1049\u1050-\u109f\u1780-\u17d3\u20d0-\u20ff"
)
"""Combining marks over, under and beside letters, which are part of words too."""
_IDEOGRAPHS: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)


def normal(text: str) -> str:
    """Normalises characters that look the same, and removes terminal escape sequences."""
    if "\x1b" in text:
        text = _escapes().sub(" ", text)
    if text.isascii():
        return text
    if len(text) <= _SLICE:
        return unicodedata.normalize("NFKC", text)
    return "".join([unicodedata.normalize("NFKC", part) for part in _parts(text)])


def _parts(text: str) -> Iterator[str]:
    """Parts of a text, cut where nothing combines with what stands before: one long call would keep other threads waiting."""
    start = 0
    while len(text) - start > _SLICE:
        found = _ALONE.search(text, start + _SLICE, start + 2 * _SLICE)
        end = found.start() if found else start + _SLICE
        yield text[start:end]
        start = end
    yield text[start:]


@cache
def _escapes() -> re.Pattern[str]:
    return re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")


def atoms_of(identifier: str) -> Atoms:
    """The atoms of one identifier. Those of long ones are not remembered."""
    return _remembered_atoms(identifier) if len(identifier) <= _REMEMBERED else _atoms(identifier)


@lru_cache(maxsize=1 << 16)
def _remembered_atoms(identifier: str) -> Atoms:
    return _atoms(identifier)


def _atoms(identifier: str) -> Atoms:
    found: list[str] = []
    for piece in identifier.split("_"):
        if not piece:
            continue
        if piece.isascii():
            if piece.islower() or piece.isupper() or piece.isdigit():
                found.append(piece.lower())
            else:
                found.extend(hump.lower() for hump in _HUMPS.findall(piece))
        else:
            for part in _pieces().findall(piece):
                found.extend((part,) if len(part) == 1 and is_ideographic(part) else _foreign_humps(part))
    return tuple([atom[:MAX_TERM] for atom in found])


@cache
def _pieces() -> re.Pattern[str]:
    """Compiled on first use: that takes longer than a search."""
    return re.compile(f"[{_IDEOGRAPHS}]|[^{_IDEOGRAPHS}]+")


@cache
def _ideograph() -> re.Pattern[str]:
    return re.compile(f"[{_IDEOGRAPHS}]")


def is_ideographic(text: str) -> bool:
    """Whether it contains a character of a script that is written without spaces."""
    return _ideograph().search(text) is not None


def _foreign_humps(part: str) -> Iterator[str]:
    """Humps in any alphabet: splits before a capital that follows, or is followed by, a lower-case letter."""
    start = 0
    for at in range(1, len(part)):
        small_before = part[at - 1].islower() or part[at - 1].isdigit()
        small_after = at + 1 < len(part) and part[at + 1].islower()
        if part[at].isupper() and (small_before or small_after):
            yield part[start:at].casefold()
            start = at
    yield part[start:].casefold()


def joined(atoms: Atoms) -> str | None:
    """The identifier in one piece, if that adds anything to its atoms."""
    if len(atoms) < 2:
        return None
    whole = "".join(atoms)
    return whole if len(whole) <= MAX_TERM and (whole.isascii() or not is_ideographic(whole)) else None


def identifiers_of(chunk: str) -> list[Atoms]:
    pattern = _IDENTIFIER if chunk.isascii() else _foreign_identifier()
    if len(chunk) > _LONG:
        return [atoms for match in pattern.finditer(chunk) if (atoms := atoms_of(match[0]))]
    return [atoms for word in pattern.findall(chunk) if (atoms := atoms_of(word))]


@cache
def _foreign_identifier() -> re.Pattern[str]:
    return re.compile(rf"[\w{_MARKS}]{{1,{_LONG}}}")


def terms_of(chunk: str) -> tuple[str, ...]:
    """All terms by which a chunk can be found."""
    terms: list[str] = []
    for atoms in identifiers_of(chunk):
        terms.extend(atoms)
        whole = joined(atoms)
        if whole is not None:
            terms.append(whole)
    return tuple(terms)


def _long_terms(chunk: str) -> Iterator[str]:
    """The same one after another, so that other threads may run while they are counted."""
    for atoms in identifiers_of(chunk):
        yield from atoms
        whole = joined(atoms)
        if whole is not None:
            yield whole


class _Known(dict[str, Iterable[str]]):
    """The terms of chunks. The same few chunks make up most text, so their terms are cached."""

    _LONGEST: Final = 48

    def __missing__(self, chunk: str) -> Iterable[str]:
        if len(chunk) > _LONG:
            return _long_terms(chunk)
        terms = terms_of(chunk)
        if len(chunk) <= self._LONGEST:
            self[chunk] = terms
        return terms


def _slices(text: str) -> Iterator[str]:
    """Parts of a text, cut at white space: counting a long one in one go would keep other threads waiting."""
    start = 0
    looked = _SLICE
    while looked < len(text):
        found = _SPACE.search(text, looked, looked + _SLICE)
        if found is None:
            looked += _SLICE
            continue
        yield text[start : found.start()]
        start, looked = found.end(), found.end() + _SLICE
    yield text[start:]


class Counts:
    """Counts the terms of many texts."""

    _REMEMBERED: Final = 200_000

    def __init__(self) -> None:
        self._known = _Known()

    def of(self, parts: Iterable[tuple[int, str]]) -> dict[str, int]:
        """The weighted count of each term, given texts with weights."""
        known = self._known
        if len(known) > self._REMEMBERED:
            known.clear()
        by_weight: dict[int, Counter[str]] = {}
        for weight, text in parts:
            counter = by_weight.setdefault(weight, Counter())
            for piece in _slices(normal(text)):
                counter.update(chain.from_iterable(map(known.__getitem__, piece.split())))
        if len(by_weight) == 1:
            ((weight, counts),) = by_weight.items()
            return counts if weight == 1 else {term: weight * number for term, number in counts.items()}
        # Most terms are in the longest part, whose counts are taken over as they are.
        most = max(by_weight, key=lambda weight: len(by_weight[weight]))
        whole = {term: most * number for term, number in by_weight.pop(most).items()}
        for weight, counts in by_weight.items():
            for term, number in counts.items():
                whole[term] = whole.get(term, 0) + weight * number
        return whole


class Sought(Frozen):
    """A word or a phrase of a query: a sequence of identifiers. With ``prefix``, the last atom is only a prefix."""

    identifiers: tuple[Atoms, ...]
    prefix: bool = False
    across: bool = False
    """Whether white space may separate them: a phrase."""

    @property
    def atoms(self) -> Atoms:
        return tuple(atom for atoms in self.identifiers for atom in atoms)

    @property
    def simple(self) -> bool:
        """Whether it is a single term."""
        return len(self.identifiers) == 1 and len(self.identifiers[0]) == 1


class _Word(NamedTuple):
    """An identifier and its position."""

    atoms: Atoms
    start: int
    end: int


def occurs(sought: Sought, texts: Iterable[str]) -> bool:
    """Whether it occurs in one of the texts. This is the reference definition: faster methods must agree with it."""
    return any(True for text in texts for _ in spans(sought, normal(text)))


def may_occur(sought: Sought, text: str) -> bool:
    """Whether it may occur in the document that a text is the source of: the ``bare`` bytes of a task file. Only what reading the
    file removes may stand between its atoms: escapes, the times of a tool log, the operations in a list of files."""
    return "\\u" in text or _in_source(sought).search(text) is not None


@lru_cache(maxsize=64)
def _in_source(sought: Sought) -> re.Pattern[str]:
    between = r"(?:\W|\\\w|[0-9]{2}:[0-9]{2}:[0-9]{2}|read |write |delete )*"
    return re.compile(between.join(_followed(atom) for atom in sought.atoms[:8]))


def _followed(atom: str) -> str:
    """Long words are cut, so more letters may follow."""
    return re.escape(atom) + (r"\w*" if len(atom) >= MAX_TERM else "")


def spans(sought: Sought, text: str) -> Iterator[tuple[int, int]]:
    """The matches in a (normal) text: each from the first to the last letter of the identifiers it touches."""
    for flow in _flows(text, sought):
        yield from _spans_in(sought, flow)


def _flows(text: str, sought: Sought) -> Iterator[list[_Word]]:
    """The ranges in which a match is possible: its identifiers can follow one another there, and all its letters are in
    them."""
    atoms = sought.atoms
    if sought.across:
        # Split a long text into pieces that overlap by more than the length of a phrase.
        overlap = 2_000 + 8 * sum(map(len, atoms))
        in_order = re.compile(r"\W*".join(map(_followed, atoms[:8])))
        for start in range(0, max(1, len(text) - overlap), _PIECE):
            end = min(len(text), start + _PIECE + overlap)
            if in_order.search(bare(text[start:end])):
                for first, last in _places(text, start, end, atoms):
                    yield _words(text, first, last)
        return
    for start, end in _chunks(text, atoms[0]):
        small = bare(text[start:end])
        if all(atom in small for atom in atoms):
            yield _words(text, start, end)


def _places(text: str, start: int, end: int, atoms: Atoms) -> Iterator[tuple[int, int]]:
    """Where in a range the atoms follow one another, up to the white space around them; all of it if that is not plain."""
    if len(atoms) > 8 or max(map(len, atoms)) >= MAX_TERM or not text.isascii():
        yield start, end
        return
    pattern, first, last, at = _in_row(atoms), start, start, start
    while found := pattern.search(text, at, end):
        at = found.start() + 1  # another may begin in this one
        if found.end() <= last:
            continue
        if found.start() >= last:
            if last > first:
                yield first, last
            first = found.start()
            while first > max(start, last) and not text[first - 1].isspace():
                first -= 1
        rest = _CHUNK.match(text, found.end(), end)
        last = rest.end() if rest else found.end()
    if last > first:
        yield first, last


@lru_cache(maxsize=64)
def _in_row(atoms: Atoms) -> re.Pattern[str]:
    """Atoms in plain text, with underscores anywhere."""
    return re.compile(r"[\W_]*".join("_*".join(map(re.escape, atom)) for atom in atoms), re.IGNORECASE)


def _chunks(text: str, atom: str) -> Iterator[tuple[int, int]]:
    """The chunks of a text that may contain an atom, which may have underscores in it there."""
    if not text.isascii():
        yield from (chunk.span() for chunk in _CHUNK.finditer(text))
        return
    pattern, end = _with_underscores(atom), 0
    while found := pattern.search(text, end):
        start = found.start()
        while start > end and not text[start - 1].isspace():
            start -= 1
        chunk = _CHUNK.match(text, start)
        end = chunk.end() if chunk else found.end()
        yield start, end


@lru_cache(maxsize=64)
def _with_underscores(atom: str) -> re.Pattern[str]:
    return re.compile("_*".join(map(re.escape, atom)), re.IGNORECASE)


def bare(text: str) -> str:
    """A (normal) text in lower case, without underscores. Every term of the text is a substring of it."""
    return (text.lower() if text.isascii() else text.casefold()).replace("_", "")


def _words(text: str, start: int, end: int) -> list[_Word]:
    return [
        _Word(atoms, match.start(), match.end())
        for match in (_IDENTIFIER if text.isascii() else _foreign_identifier()).finditer(text, start, end)
        if (atoms := atoms_of(match[0]))
    ]


def _spans_in(sought: Sought, flow: Sequence[_Word]) -> Iterator[tuple[int, int]]:
    wanted, wanted_whole = _steps(sought.identifiers)
    found, found_whole = _steps([word.atoms for word in flow])
    last = len(wanted) - 1

    def same(want: str, have: str, at: int) -> bool:
        return have.startswith(want) if sought.prefix and at == last else have == want

    def end_of(start: int) -> int:
        """Where a match that begins at ``start`` ends in the flow; 0 if there is none. Each pair of positions is visited once,
        because many paths lead to it."""
        ways, seen = [(0, start)], {(0, start)}
        while ways:
            want, have = ways.pop()
            if want == len(wanted):
                return have
            if have >= len(found):
                continue
            one, many = wanted_whole.get(want), found_whole.get(have)
            on = []
            if one:
                after = want + one[1]
                if many and same(one[0], many[0], after - 1):
                    on.append((after, have + many[1]))
                if same(one[0], found[have], after - 1):
                    on.append((after, have + 1))
            if many and same(wanted[want], many[0], want):
                on.append((want + 1, have + many[1]))
            if same(wanted[want], found[have], want):
                on.append((want + 1, have + 1))
            for way in on:
                if way not in seen:
                    seen.add(way)
                    ways.append(way)
        return 0

    # The first atom rules out nearly all positions.
    firsts = {wanted[0]}
    if 0 in wanted_whole:
        firsts.add(wanted_whole[0][0])
    anything = sought.prefix and (last == 0 or wanted_whole.get(0, ("", 0))[1] == last + 1)
    owners = [number for number, word in enumerate(flow) for _ in word.atoms]
    start = 0
    while start < len(found):
        if not anything and found[start] not in firsts and found_whole.get(start, ("", 0))[0] not in firsts:
            start += 1
            continue
        end = end_of(start)
        if end:
            yield flow[owners[start]].start, flow[owners[end - 1]].end
        start = max(start + 1, end)


def _steps(identifiers: Sequence[Atoms]) -> tuple[list[str], dict[int, tuple[str, int]]]:
    """All atoms in a row. For each position where an identifier of several atoms begins: its joined form and its atom count."""
    row: list[str] = []
    wholes: dict[int, tuple[str, int]] = {}
    for atoms in identifiers:
        whole = joined(atoms)
        if whole is not None:
            wholes[len(row)] = (whole, len(atoms))
        row.extend(atoms)
    return row, wholes
