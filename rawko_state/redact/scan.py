"""Which literals occur in a text: one pass over its distinct words, in slices that take a few milliseconds each.

A text is split into words in C. Most words repeat, so the distinct ones are a small part of it, and only these are searched for
hints. The rules are then tried where their hints are. The interpreter never runs a single call over more than one slice, so other
threads are not held up, whatever the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Final

SLICE: Final = 3 << 12
REACH: Final = 64
"""A slice is read so far into the next one: no hint is longer."""
_NEAR: Final = 1_000
LEAST_RUN: Final = 20
LONG_RUN: Final = 33
_WORD: Final = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.~-"
_SPACED: Final = bytes(code if code in _WORD else 32 for code in range(256))
_FEW: Final = 3_000
"""Up to so many characters, looking for each literal in turn is faster than one expression for all, and needs none compiled."""
_SOON: Final = 100
"""After so many looks, the expression pays."""
_REMEMBERED: Final = 100_000
"""How many words are remembered at most. Only short and plain ones are, so that no token stays in memory."""


class Literals:
    """Says which of many literals occur in words."""

    def __init__(self, literals: Iterable[str], *, fold: bool = False) -> None:
        """With ``fold``, in upper or lower case."""
        self._fold = fold
        self._names: dict[bytes, set[str]] = {}
        for literal in literals:
            self._names.setdefault((literal.lower() if fold else literal).encode(), set()).add(literal)
        self._all = sorted(self._names, key=lambda literal: (-len(literal), literal))
        self._looks = 0
        self._telling: dict[bytes, set[str]] = {}
        self._plain: set[bytes] = set()

    def unfamiliar(self, words: set[bytes]) -> set[bytes]:
        """Without those that are known to contain none. All long words are among them."""
        return words - self._plain

    def among(self, words: set[bytes]) -> set[str]:
        """Which literals are in words that are unfamiliar."""
        found: set[str] = set()
        if not self._all:
            return found  # every rule is off
        fresh = words.difference(self._telling)
        if len(fresh) < len(words):
            for word in words - fresh:
                found |= self._telling[word]
        if not fresh:
            return found
        text = b" ".join(fresh)
        searched = text.lower() if self._fold else text
        if self._looks < _SOON:
            self._looks += 1
            if len(text) < _FEW:
                # As text: looking for bytes first tries them as a number, and the error that this raises costs ten times as much.
                letters = searched.decode()
                present = [literal for literal, text in self._as_text if text in letters]
                for literal in present:
                    found |= self._names[literal]
                self._remember(fresh, present)
                return found
        telling = set()
        for hit in self._any.finditer(searched):
            start = searched.rfind(b" ", 0, hit.start()) + 1
            end = searched.find(b" ", hit.end())
            word = text[start : end if end >= 0 else len(text)]
            if word not in telling:
                telling.add(word)
                found |= self._within(word)
        self._plain.update([word for word in fresh if word not in telling and _is_plain(word)])
        self._forget_some()
        return found

    def _remember(self, fresh: set[bytes], present: Sequence[bytes]) -> None:
        """Remembers which words hold which of the literals that occur in them."""
        plain = [word for word in fresh if _is_plain(word)]
        for word in plain if present else ():
            searched = word.lower() if self._fold else word
            if names := {name for literal in present if searched.find(literal) >= 0 for name in self._names[literal]}:
                self._telling[word] = names
        self._plain.update(word for word in plain if word not in self._telling)
        self._forget_some()

    def _forget_some(self) -> None:
        if len(self._plain) + len(self._telling) > _REMEMBERED:
            self._plain, self._telling = set(), {}

    def _within(self, word: bytes) -> set[str]:
        """The literals in a word."""
        searched = word.lower() if self._fold else word
        names = set()
        for hit in set(self._any.findall(searched)):
            for other in self._near[hit]:
                if other in searched:
                    names |= self._names[other]
        if _is_plain(word):
            self._telling[word] = names
        return names

    @cached_property
    def _as_text(self) -> list[tuple[bytes, str]]:
        return [(literal, literal.decode()) for literal in self._all]

    @cached_property
    def _any(self) -> re.Pattern[bytes]:
        return re.compile(_branches(self._all))

    @cached_property
    def _near(self) -> dict[bytes, list[bytes]]:
        """For each literal, all those that may start inside of it, which one search for all does not find."""
        starts: dict[bytes, list[bytes]] = {}
        for literal in self._all:
            for size in range(1, len(literal) + 1):
                starts.setdefault(literal[:size], []).append(literal)
        found = {}
        for one in self._all:
            near: set[bytes] = set()
            for at in range(len(one)):
                near.update(starts.get(one[at:], ()))
                near.update(one[at:end] for end in range(at + 1, len(one) + 1) if one[at:end] in self._names)
            found[one] = sorted(near)
        return found


def _is_plain(word: bytes) -> bool:
    """Whether it may be remembered: it is too short, or too plain, for a token."""
    return len(word) < 6 or (len(word) < LEAST_RUN and word.translate(None, b"_.-").isalpha())


def _branches(literals: list[bytes]) -> bytes:
    """An expression for all of them that shares their beginnings; the longest match wins."""
    if literals == [b""]:
        return b""
    groups: dict[bytes, list[bytes]] = {}
    for literal in literals:
        if literal:
            groups.setdefault(literal[:1], []).append(literal[1:])
    branches = [re.escape(first) + _branches(rest) for first, rest in sorted(groups.items())]
    joined = branches[0] if len(branches) == 1 else b"(?:" + b"|".join(branches) + b")"
    return b"(?:" + joined + b")?" if b"" in literals else joined


class Slice:
    """A part of a text: the hints that start in it are found here."""

    def __init__(self, text: str, start: int) -> None:
        self.text, self.start = text, start
        self.end = min(len(text), start + SLICE)
        piece = text[start : self.end + REACH]
        # One byte per character, so that positions match.
        self.plain = piece.encode("ascii", "replace")

    def words(self) -> set[bytes]:
        return set(self.plain.translate(_SPACED).split())

    @cached_property
    def small(self) -> bytes:
        return self.plain.lower()

    def has_near(self, text: str) -> bool:
        """Whether a text is in this slice, or shortly before."""
        return self.text.find(text, max(0, self.start - _NEAR), self.end + REACH) >= 0

    def positions(self, hint: bytes, *, fold: bool = False) -> list[int]:
        """Where the hint starts in this slice."""
        text, shift = self.small if fold else self.plain, self.start
        stop = self.end - shift + len(hint) - 1
        found = []
        at = text.find(hint, 0, stop)
        while at >= 0:
            found.append(at + shift)
            at = text.find(hint, at + 1, stop)
        return found


def slices(text: str) -> Iterator[Slice]:
    for start in range(0, len(text), SLICE):
        yield Slice(text, start)


def is_in_words(hint: str) -> bool:
    return all(code in _WORD for code in hint.encode())


def ending_word(hint: str) -> bytes:
    """The part of a hint that a word starts with."""
    letters = hint.encode()
    return letters[len(letters.rstrip(_WORD)) :]


def long_runs(words: Iterable[bytes], least: int = LEAST_RUN) -> set[bytes]:
    return {word for word in words if len(word) >= least}
