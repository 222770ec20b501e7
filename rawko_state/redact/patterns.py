"""The user's own patterns: tried in short windows, with a time limit, and refused if they could take exponentially long."""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Iterator
from typing import Any, Final

_WINDOW: Final = 4096
"""A pattern is matched against one line at a time, of at most this many characters."""
_OVERLAP: Final = 512
"""Longer lines are split into windows that overlap by this many."""
_NARROW: Final = 256
"""The window after the pattern was found to be slow."""
_SLOW: Final = 0.010
"""Seconds for one window after which the windows become narrow."""
_ENDLESS: Final = 12
"""A repetition with more than this many rounds counts as endless."""
_SECONDS_PER_MEGABYTE: Final = 2.0


class Refused(ValueError):
    """The pattern could take exponentially long."""


class Pattern:
    """A compiled pattern that keeps the time."""

    def __init__(self, pattern: str) -> None:
        """Raises Refused, or re.error."""
        self.compiled = re.compile(pattern)
        check(pattern)
        self._window = _WINDOW
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
            began = time.perf_counter()
            found = [match.span() for match in self.compiled.finditer(text, start, end)]
            took = time.perf_counter() - began
            spent += took
            if took > _SLOW:
                self._window = _NARROW
            yield from (span for span in found if span[1] > span[0])
            start = end if line or end == len(text) else max(start + 1, end - min(_OVERLAP, self._window // 4))


def check(pattern: str) -> None:
    """Raises Refused if a repetition contains another, or alternatives, so that one text can be matched in many ways."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            from re import _parser as parser  # type: ignore[attr-defined] # since Python 3.11
        except ImportError:
            import sre_parse as parser
    _check(list(parser.parse(pattern)))


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
