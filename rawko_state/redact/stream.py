"""Redacts text that arrives in pieces. A possible start of a secret is held back until it is known to be one or not."""

from __future__ import annotations

import re
from typing import Final

from rawko_state.redact.redactor import Redactor, Span
from rawko_state.redact.rules import BOUNDARY, Rule

_CONTEXT: Final = 256
"""How many released characters are remembered: the name and '=' before a value tell whether it is a secret."""
_LONGEST: Final = 2048
"""At most this much is held back, except for a private key or a JSON web token."""
_LONGEST_HEADER: Final = 8192
"""What starts like a web token may be any JSON in base64. At most this much is held back until the deciding dot."""
_KEPT: Final = 4096
_JWT: Final = "jwt"
_WEB_TOKEN = re.compile(
    r"eyJ[A-Za-z0-9_-]*(?:\Z|(?<=[A-Za-z0-9_-]{8})\.(?:e|ey|eyJ[A-Za-z0-9_-]{0,7})?\Z"
    r"|\.(?P<payload>eyJ[A-Za-z0-9_-]{8,})(?:\.[A-Za-z0-9_-]{0,7})?\Z)"
)
"""A web token that is still too short for the rule to match: its signature is still to come."""
_TOKEN = re.compile(r"[A-Za-z0-9_.\-+/=~]*")
_BOUNDARY = re.compile(BOUNDARY)


class Stream:
    """``feed`` returns the text that is safe to show so far, ``flush`` the rest."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._before = ""
        self._held = ""
        self._swallowing = False
        """Inside a token that is longer than the limit: its end is still to come."""

    def feed(self, text: str) -> str:
        if self._swallowing:
            match = _TOKEN.match(text)
            rest = text[match.end() :] if match else text
            self._swallowing = not rest
            text = rest
        self._held += text
        whole = self._before + self._held
        start, end = len(self._before), len(whole)
        cut = max(start, min(end, self._open_from(whole)))
        spans = self._redactor.spans(whole)
        for span in reversed(spans):
            # A span that reaches the end may continue.
            if span.start < cut and (span.end > cut or span.end == end):
                cut = max(start, span.start)
        if end - cut > _LONGEST and "-----BEGIN " not in whole[cut : cut + 16]:
            self._swallowing = bool(spans) and spans[-1].end == end
            cut = end
        begun = self._web_token(whole)
        if begun is not None:
            if begun["payload"] and end - begun.start() > _LONGEST:
                self._swallowing = True
                return self._release(whole, end, Span(begun.start(), end, _JWT))
            cut = min(cut, max(start, begun.start()))
        return self._release(whole, cut)

    def flush(self) -> str:
        whole = self._before + self._held
        return self._release(whole, len(whole))

    def _release(self, whole: str, cut: int, last: Span | None = None) -> str:
        """``last``: a secret that the rules cannot match yet."""
        spans = self._redactor.spans(whole[:cut])
        if last is not None:
            spans = [*(span for span in spans if span.end <= last.start), last]
        shown = self._redactor.replaced(whole, spans, len(self._before), cut)
        self._before, self._held = whole[max(0, cut - _CONTEXT) : cut], whole[cut:]
        return shown

    def _open_from(self, text: str) -> int:
        """The position from which the text may be an incomplete secret; the end of the text if there is none."""
        redactor, found = self._redactor, len(text)
        tail = max(0, len(text) - _KEPT)
        line = max(text.rfind("\n", tail) + 1, tail)
        for rule in redactor.rules:
            match = None if rule.opening is None else _last(rule.opening, rule.hints, text, line)
            if match is not None:
                found = min(found, match)
        # Ignore older hints: they are past the limit, and must not release a secret that started since.
        recent = max(0, len(text) - _LONGEST)
        run = max(max(text.rfind(space, tail) for space in " \t\n") + 1, recent)
        for hint, rules in (*redactor.in_runs.items(), *redactor.anywhere.items()):
            at = text.find(hint, run)
            if at >= 0 and any(rule.opening is None and _may_begin(rule, text, at) for rule in rules):
                found = min(found, at)
        key = text.rfind("-----BEGIN ")
        if key >= 0 and "-----END " not in text[key:] and len(text) - key < 20_000:
            found = min(found, key)
        for literal in redactor.literals:
            for length in range(min(len(literal) - 1, len(text)), 2, -1):
                if text.endswith(literal[:length]):
                    found = min(found, len(text) - length)
                    break
        return min(found, max(line, recent)) if redactor.patterns else found

    def _web_token(self, text: str) -> re.Match[str] | None:
        """A web token that has started and reaches the end of the text."""
        if not any(rule.name == _JWT for rule in self._redactor.in_runs.get("eyJ", ())):
            return None
        tail = max(0, len(text) - _LONGEST_HEADER)
        at = text.find("eyJ", max(text.rfind(space, tail) for space in " \t\n") + 1 or tail)
        while at >= 0:
            match = _WEB_TOKEN.match(text, at) if _BOUNDARY.match(text, at) else None
            if match is not None:
                return match
            at = text.find("eyJ", at + 1)
        return None


def _may_begin(rule: Rule, text: str, at: int) -> bool:
    """Whether the rule allows the text before its hint."""
    return not rule.pattern.pattern.startswith(BOUNDARY) or _BOUNDARY.match(text, at) is not None


def _last(opening: re.Pattern[str], hints: tuple[str, ...], text: str, line: int) -> int | None:
    """Where the secret starts if an opening reaches the end of the text; None if none does."""
    small = text[line:].lower() if text[line:].isascii() else text[line:].encode("ascii", "replace").decode().lower()
    starts = []
    for hint in hints:
        at = small.rfind(hint.lower())
        while at >= 0 and len(small) - at < 1000:
            match = opening.match(text, line + at)
            if match is not None:
                starts.append(match.start("secret"))
                break
            at = small.rfind(hint.lower(), 0, at)
    return min(starts) if starts else None
