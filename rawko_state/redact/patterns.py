"""The user's own patterns: refused if they could take exponentially long, and tried in windows that no text makes slow."""

from __future__ import annotations

import math
import re
import time
import warnings
from collections.abc import Iterator
from typing import Any, Final

_WINDOWS: Final = (4096, 2048, 1024, 512, 256, 128, 64)
"""A pattern is matched against one line at a time, and a longer line in windows that overlap: as wide as its steps allow."""
_STEPS: Final = 4e6
"""So many steps of the matcher take about 15 ms."""
_SLOW: Final = 0.010
"""Seconds of the processor for one window after which the windows become narrower."""
_ENDLESS: Final = 3
"""A repetition with more than this many rounds counts as endless."""
_SECONDS_PER_MEGABYTE: Final = 2.0


class Refused(ValueError):
    """The pattern could take too long."""


class Pattern:
    """A compiled pattern that keeps the time."""

    def __init__(self, pattern: str) -> None:
        """Raises Refused, or re.error."""
        self.compiled = re.compile(pattern)
        items = _parsed(pattern)
        _check(items)
        self._window = _widest(items, searching=True)
        if not self._window:
            raise Refused("too many parts of it can match the same text, which can take very long")
        self._reach = max(self._window, _widest(items, searching=False))
        """How far a match is followed that reaches the end of its window."""
        self.skipped = 0
        """How many characters were not searched, because the pattern was too slow for them."""

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        start, spent = 0, 0.0
        allowed = 1.0 + _SECONDS_PER_MEGABYTE * len(text) / 1e6
        while start < len(text):
            if spent > allowed:
                self.skipped += len(text) - start
                return
            # Look for the end of the line in the window alone.
            limit = min(len(text), start + self._window)
            line = text.find("\n", start, limit) + 1
            end = line or limit
            began = time.thread_time()
            found = [match.span() for match in self.compiled.finditer(text, start, end)]
            if found and found[-1][1] == end and not line and end < len(text):
                at = found[-1][0]
                line_end = text.find("\n", end, at + self._reach)
                whole = self.compiled.match(text, at, line_end if line_end >= 0 else min(len(text), at + self._reach))
                if whole is not None:
                    found[-1] = whole.span()
                    end = max(end, whole.end())
            took = time.thread_time() - began
            spent += took
            if took > _SLOW:
                self._window = max(_WINDOWS[-1], self._window // 2)
            yield from (span for span in found if span[1] > span[0])
            start = end if line or end >= len(text) else max(start + 1, end - min(512, self._window // 2))


def check(pattern: str) -> None:
    """Raises Refused if a repetition contains another, or alternatives, so that one text can be matched in many ways."""
    _check(_parsed(pattern))


def _parsed(pattern: str) -> list[tuple[Any, Any]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            from re import _parser as parser  # type: ignore[attr-defined] # since Python 3.11
        except ImportError:
            import sre_parse as parser
    return list(parser.parse(pattern))


def _widest(items: list[tuple[Any, Any]], *, searching: bool) -> int:
    """The widest window in which no text takes too many steps; 0 if none is narrow enough. ``searching``: from every character
    of the window, else from its first."""
    return next((window for window in _WINDOWS if _steps(items, window, searching=searching) <= _STEPS), 0)


def _steps(items: list[tuple[Any, Any]], window: int, *, searching: bool) -> float:
    """How many steps the worst text of this length takes, at most: the ways to share it among repetitions that can match the
    same characters."""
    worst, rows = 1.0, [items]
    while rows:
        row = _flat(rows.pop())
        steps = 1.0
        rounds: list[int] = []  # of repetitions that stand side by side
        letters: frozenset[int] = frozenset()
        literal = ending = 0
        for at, (kind, value) in enumerate(row):
            name = str(kind)
            taken = _letters([(kind, value)])
            if name in ("ASSERT", "ASSERT_NOT"):
                rows.append(list(value[1]))
                continue
            if name == "AT":
                continue
            literal += name == "LITERAL" and at == literal
            if _must((kind, value)) and not (taken & letters):
                steps, rounds, letters = steps * _ways(rounds, window), [], frozenset()
            if name == "BRANCH":
                rows += [list(branch) for branch in value[1]]
            elif name == "GROUPREF_EXISTS":
                rows += [list(branch) for branch in value[1:] if branch]
            elif name.endswith("REPEAT") and value[0] != value[1]:
                rounds.append(min(window, int(value[1]) - int(value[0]) + 1))
                letters |= taken
                ending = at
        steps *= _ways(rounds, window)
        # The last way is followed to its end; so is every start, if the pattern does not begin with letters that tell.
        steps *= window / 2 if ending or rounds else 1
        worst = max(worst, steps * (window / max(1, literal) if searching else 1))
    return worst


def _ways(rounds: list[int], window: int) -> float:
    """In how many ways repetitions that stand side by side can share a text: the last one takes what the others leave."""
    others = sorted(rounds)[:-1]
    endless = sum(each >= window // 2 for each in others)
    return math.prod(others) / math.factorial(endless + 1) if others else 1.0


def _check(items: list[tuple[Any, Any]]) -> None:
    for kind, value in items:
        name = str(kind)
        if name in ("MAX_REPEAT", "MIN_REPEAT"):
            _, most, body = value
            if int(most) > _ENDLESS:
                _check_body(_flat(body))
            _check(list(body))
        elif name in ("SUBPATTERN", "POSSESSIVE_REPEAT"):
            _check(list(value[-1]))
        elif name in ("ASSERT", "ASSERT_NOT"):
            _check(list(value[1]))
        elif name == "ATOMIC_GROUP":
            _check(list(value))
        elif name == "BRANCH":
            for branch in value[1]:
                _check(list(branch))
        elif name == "GROUPREF_EXISTS":
            for branch in value[1:]:
                _check(list(branch or ()))


def _flat(body: Any) -> list[tuple[Any, Any]]:
    """The items of a body, groups opened."""
    found = []
    for kind, value in body:
        if str(kind) == "SUBPATTERN":
            found += _flat(value[-1])
        else:
            found.append((kind, value))
    return found


def _check_body(items: list[tuple[Any, Any]]) -> None:
    """The body of an endless repetition."""
    for kind, value in items:
        name = str(kind)
        if name in ("MAX_REPEAT", "MIN_REPEAT") and value[0] != value[1]:
            letters = _letters(_flat(value[2]))
            # Safe if something that must be there cannot be taken for a part of the inner repetition.
            others = [each for each in items if each[1] is not value]
            if not any(_must(other) and not (_letters([other]) & letters) for other in others):
                raise Refused("a repetition inside a repetition can take exponentially long")
        elif name == "BRANCH":
            branches = [_flat(branch) for branch in value[1]]
            if sum(not branch for branch in branches) > 1:
                raise Refused("alternatives that start alike inside a repetition can take exponentially long")
            if not all(branches):  # one of them is empty, as in (?:aa|a)+: the rest may be there or not
                letters = frozenset().union(*map(_letters, branches))
                others = [each for each in items if each[1] is not value]
                if not any(_must(other) and not (_letters([other]) & letters) for other in others):
                    raise Refused("alternatives that start alike inside a repetition can take exponentially long")
            firsts = [_letters(branch[:1]) for branch in branches]
            for at, one in enumerate(firsts):
                if any(one & other for other in firsts[at + 1 :]):
                    raise Refused("alternatives that start alike inside a repetition can take exponentially long")


def _must(item: tuple[Any, Any]) -> bool:
    name = str(item[0])
    return name in ("LITERAL", "NOT_LITERAL", "IN", "ANY") or (name.endswith("REPEAT") and item[1][0] > 0)


_ALL: Final = frozenset(range(129))
"""The codes of ASCII; 128 stands for all others."""


def _letters(items: list[tuple[Any, Any]]) -> frozenset[int]:
    """The characters that the items can match, at most."""
    found: set[int] = set()
    for kind, value in items:
        name = str(kind)
        if name == "LITERAL":
            found.add(min(value, 128))
        elif name == "IN":
            found |= _class(value)
        elif name.endswith("REPEAT"):
            found |= _letters(_flat(value[2]))
        elif name in ("AT", "ASSERT", "ASSERT_NOT"):
            continue
        else:
            return _ALL
    return frozenset(found)


def _is_in(category: str, letter: str) -> bool:
    if category == "DIGIT":
        return letter.isdigit()
    return letter.isspace() if category == "SPACE" else letter.isalnum() or letter == "_"


def _class(items: list[tuple[Any, Any]]) -> frozenset[int]:
    found: set[int] = set()
    negated = False
    for kind, value in items:
        name = str(kind)
        if name == "NEGATE":
            negated = True
        elif name == "LITERAL":
            found.add(min(value, 128))
        elif name == "RANGE":
            found |= set(range(value[0], min(value[1], 128) + 1))
        elif name == "CATEGORY":
            category = str(value)
            inside = {code for code in range(128) if _is_in(category.rsplit("_", 1)[1], chr(code))} | {128}
            found |= (_ALL - inside) | {128} if "NOT" in category else inside
    return frozenset(_ALL - found) | {128} if negated else frozenset(found)
