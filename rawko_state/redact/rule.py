"""One format of secrets: the literals that every match starts with, the pattern, and samples."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Final

from rawko_state.redact import values
from rawko_state.redact.scan import LEAST_RUN

RUN: Final = "run"
"""The hint is inside a run of at least 20 letters, digits, '_', '-', '~' and '.'."""
TEXT: Final = "text"
"""The hint may be anywhere."""
FOLD: Final = "fold"
"""Anywhere, in upper or lower case. The hint is written in lower case."""

Check = Callable[["re.Match[str]"], bool]
Parts = Callable[["re.Match[str]"], Iterable[tuple[int, int]]]


_LOOKED_AT_AGAIN: Final = 400
"""Up to so many characters of a match that is no secret are looked at again, for others in it."""


class Rule:
    """One format. Several rows may have the same name."""

    def __init__(
        self,
        name: str,
        hints: tuple[str, ...],
        pattern: str,
        samples: tuple[str, ...],
        never: tuple[str, ...] = (),
        where: str = RUN,
        check: Check | None = None,
        opening: str | None = None,
        parts: Parts | None = None,
        more: str | None = None,
        least: int = LEAST_RUN,
        needs: str | None = None,
    ) -> None:
        """``samples``: each contains one secret between '«' and '»', which are not part of the text. ``never``: texts that must
        not match. ``opening``: matches the end of a text if a secret may follow; a stream holds back the text from its group
        ``secret`` on. ``parts``: the secrets inside a match, if they are not its group. ``more``: characters that continue a
        secret which is longer than the pattern allows. ``least``: how long the run is at least that a match is in. ``needs``: a
        text that is near every match, for rules whose hints are common."""
        self.name, self.hints, self.pattern = name, hints, pattern
        self.samples, self.never, self.where, self.check = samples, never, where, check
        self.opening, self.parts, self.more, self.least = opening, parts, more, least
        self.needs = needs

    @cached_property
    def regex(self) -> re.Pattern[str]:
        return re.compile(self.pattern, re.ASCII | (re.IGNORECASE if self.where == FOLD else 0))

    @cached_property
    def opens(self) -> re.Pattern[str] | None:
        if self.opening is None:
            return None
        return re.compile(self.opening, re.ASCII | (re.IGNORECASE if self.where == FOLD else 0))

    @cached_property
    def rest(self) -> re.Pattern[str] | None:
        return None if self.more is None else re.compile(f"{self.more}{{1,65536}}", re.ASCII)

    def judged(self, match: re.Match[str]) -> int:
        """Up to where a match that is no secret need not be looked at again: its name, or what precedes its value. Of a long one,
        all: else a hostile text could have its matches looked at again and again."""
        group, of_end = self._judged_part
        at = match.end(group) if of_end else match.start(group)
        return at if match.end() - at <= _LOOKED_AT_AGAIN else match.end()

    @cached_property
    def _judged_part(self) -> tuple[str | int, bool]:
        """The group of a match, and whether its end or its start counts."""
        groups = self.regex.groupindex
        return ("name", True) if "name" in groups else ("secret", False) if "secret" in groups else (0, True)

    @property
    def is_bounded(self) -> bool:
        """Whether a token must not continue a word."""
        return BOUNDARY in self.pattern


LONGEST: Final = 4096
"""A pattern matches at most so many characters of a secret; the rest of a longer one is found by ``more``, piece by piece."""
BOUNDARY: Final = (
    r"(?:(?<![A-Za-z0-9])|(?<=\\[nrtbf])|(?<=\\u[0-9a-fA-F]{4})|(?<=\\x[0-9a-fA-F]{2})|(?<=%[0-9A-Fa-f]{2})"
    r"|(?<=\[m)|(?<=\[[0-9]m)|(?<=\[[0-9]{2}m)|(?<=;[0-9]m)|(?<=;[0-9]{2}m)|(?<=;[0-9]{3}m))"
)
"""A token must not continue a word. The end of a JSON or URL escape, or of a terminal colour code, may precede it."""
_OPEN_END = re.compile(r"(\[[^\]]+\])\{[0-9]+,\}(?:\(\?!\[?[_-]{1,2}\]?\))?\Z")
COLOUR = r"(?:(?:\x1b|\\{1,3}(?:x1b|u001b|033|e))\[[0-9;]{0,16}m){0,2}"
EDGE = (
    r"(?:(?<![A-Za-z0-9_])|(?<=\\[nrt])|(?<=\\u2192)"
    r"|(?<=\[m)|(?<=\[[0-9]m)|(?<=\[[0-9]{2}m)|(?<=;[0-9]m)|(?<=;[0-9]{2}m)|(?<=;[0-9]{3}m))"
)
"""Where a word starts; also behind an escaped line break or arrow, or a colour code."""
QUOTE = r"(?:'\"'\"'|\\{0,3}[\"'`])?"


_NOT_IN_RUNS = re.compile(r"\[[^\]]*[+=%][^\]]*\]")


def token(name: str, prefixes: str, body: str, sample: str, never: tuple[str, ...] = ()) -> Rule:
    """A token that is recognised by its prefix and is not part of a longer word."""
    starting = tuple(prefixes.split())
    # Only what is part of a word can be looked for among words.
    words = [re.split(r"[^A-Za-z0-9_.~-]", prefix)[0] for prefix in starting]
    hints = tuple(
        dict.fromkeys(word if len(word) > 3 else prefix for word, prefix in zip(words, starting, strict=True))
    )
    starts = "|".join(re.escape(prefix) for prefix in sorted(starting, key=lambda prefix: -len(prefix)))
    end = "(?![A-Za-z0-9])" if body.endswith("!") else ""
    weak = body.startswith("~")
    body = body.removeprefix("~").removesuffix("!")
    open_end = _OPEN_END.search(body)
    more = open_end[1] if open_end else None
    if open_end:
        body = body[: open_end.end(1)] + body[open_end.end(1) :].replace(",}", f",{LONGEST}}}", 1)
    where = TEXT if _NOT_IN_RUNS.search(body) or any(sign in prefixes for sign in ":$=|/") else RUN
    samples = tuple(f"«{prefix}{sample}»" for prefix in starting)
    least = min(map(len, starting)) + len(sample)  # a sample is as short as its pattern allows
    # Most places of a short prefix are in words, so their length is looked at first.
    long_enough = f"(?=[A-Za-z0-9_.~-]{{{least}}})" if where == RUN else ""
    pattern = f"{long_enough}{BOUNDARY}(?:{starts})(?P<body>{body}){end}"
    check = _is_random_body if weak else None
    return Rule(name, hints, pattern, samples, (*never, *starting), where, check, more=more, least=least)


def _is_random_body(match: re.Match[str]) -> bool:
    body = match["body"]
    return values.is_random(body) or (values.is_strong(body) and any(map(str.isdigit, body)))


def form(
    name: str,
    hints: tuple[str, ...],
    lead: str,
    body: str,
    size: tuple[int, int],
    samples: tuple[str, ...],
    never: tuple[str, ...] = (),
    *,
    check: Check,
    where: str = FOLD,
    tail: str = "",
    hold: str | None = None,
    needs: str | None = None,
) -> Rule:
    """A secret that is recognised by what precedes it. ``hold``: what a stream holds back after it, if not just the body."""
    least, most = size
    return Rule(
        name,
        hints,
        f"{lead}(?P<secret>{body}{{{least},{most}}}){tail}",
        samples,
        never,
        where,
        check,
        f"{lead}(?P<secret>{hold or body}{{0,{most}}})\\Z",
        more=body if body.startswith("[") and not tail else None,
        needs=needs,
    )


def before(match: re.Match[str], size: int = 200) -> str:
    return match.string[max(0, match.start() - size) : match.start()]
