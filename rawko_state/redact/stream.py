"""Redacts text that arrives in pieces. A possible start of a secret is held back until it is known to be one or not."""

from __future__ import annotations

import re
from typing import Final

from rawko_state.redact.redactor import Redactor, Span, merged
from rawko_state.redact.rule import BOUNDARY, RUN, Rule

_CONTEXT: Final = 256
"""How many released characters are remembered: the name and '=' before a value tell whether it is a secret."""
_LONGEST: Final = 2048
"""At most this much is held back, except for a private key or a JSON web token."""
_LONGEST_HEADER: Final = 8192
"""What starts like a web token may be any JSON in base64. At most this much is held back until the deciding dot."""
_KEPT: Final = 4096
_NEAR: Final = 1_000
"""How far before the end of the text a name may be whose value is incomplete."""
_KEY: Final = "private-key"
_KEY_START: Final = "-----BEGIN "
_LONGEST_KEY: Final = 20_000
_AFTER_KEY: Final = 200
"""So much text that is no part of a private key ends one that was cut off."""
_LONGEST_RUN: Final = 120
_RUN_AT_END = re.compile(
    r"(?<![A-Za-z0-9_])(?=[A-Za-z_]{0,40}[0-9])[A-Za-z0-9_]+"
    # Then the middle of such a token: of mailchimp, terraform, telegram and facebook.
    r"(?:-(?:us?[0-9]{0,2})?|\.(?:a|at|atl|atla|atlas|atlasv|atlasv1|atlasv1\.[A-Za-z0-9_=-]{0,90})?|(?<=[0-9])[:|][A-Za-z0-9_-]{0,41})?\Z",
    re.ASCII,
)
_JWT: Final = "jwt"
_WEB_TOKEN = re.compile(
    r"eyJ[A-Za-z0-9_-]*(?:\Z|(?<=[A-Za-z0-9_-]{8})\.(?:e|ey|eyJ[A-Za-z0-9_-]{0,7})?\Z"
    r"|\.(?P<payload>eyJ[A-Za-z0-9_-]{8,})(?:\.[A-Za-z0-9_-]{0,7})?\Z)"
)
"""A web token that is still too short for the rule to match: its signature is still to come."""
_TOKEN = re.compile(r"[A-Za-z0-9_.\-+/=~]*")
_BOUNDARY = re.compile(BOUNDARY)
_LONGEST_LINE: Final = 200
_BEFORE_LINE = r"(?:\A|[\s→|:>+\"'`(m│-])"
_KEY_LINE = re.compile(_BEFORE_LINE + r"[A-Za-z0-9+/]{24,80}={0,2}(?:[\s\"',│]|\x1b\[[0-9;]{0,16}m?){0,6}\Z")
_OPEN_LINE = re.compile(_BEFORE_LINE + r"(?=[A-Za-z]{0,79}[0-9+/]|[A-Za-z]{16})[A-Za-z0-9+/]{8,80}\Z")
"""The beginning of such a line: no word of a language has so many letters."""
_LAST_LINE = re.compile(_BEFORE_LINE + r"[A-Za-z0-9+/]{1,23}={0,2}(?:[\s\"',│]|\x1b\[[0-9;]{0,16}m?){0,6}\Z")
"""The last line of a key may be short."""
_KEY_END = re.compile(r"-{1,5}(?:E(?:N(?:D[A-Z0-9 ]{0,60}-{0,5})?)?)?\Z")
_SIGNS = r"(?:\x1b\[[0-9;]{0,16}m|[0-9]{1,6}[→|:]|[→|:>(│-]){0,4}"
"""What may stand before a line: a colour code, a line number, a mark. Each has a character that no key has, so they are read in
one way only."""
_ESCAPED_OPEN = re.compile(
    rf"(?:[^\s\"'`\\]{{0,40}}(?:\\{{1,8}}[nrt]){{1,2}}){{0,4}}{_SIGNS}(?=[A-Za-z]{{0,79}}[0-9+/]|[A-Za-z]{{16}})"
    rf"(?:(?:[A-Za-z0-9+/]{{24,80}}={{0,2}}(?:\\{{1,8}}[nr]){{1,2}}{_SIGNS}){{1,100}}[A-Za-z0-9+/]{{0,80}}={{0,2}}|[A-Za-z0-9+/]{{8,80}}={{0,2}})"
    r"(?:\\{1,8}[nr]?){0,2}\Z"
)
"""Such lines in a JSON string."""
_DATA_HEAD = re.compile(r"(?<![A-Za-z])(?:string)?data\"?:\s*\Z", re.IGNORECASE)
_DATA_LINE = re.compile(r"[ \t]{1,40}\"?[A-Za-z0-9_.-]{1,100}\"?:[ \t]*\"?[A-Za-z0-9+/=]{4,}\"?,?\s*\Z")


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
                return self._release(whole, end, spans, Span(begun.start(), end, _JWT))
            cut = min(cut, max(start, begun.start()))
        return self._release(whole, cut, spans)

    def flush(self) -> str:
        whole = self._before + self._held
        return self._release(whole, len(whole), [])

    def _release(self, whole: str, cut: int, found: list[Span], last: Span | None = None) -> str:
        """``found``: the spans of the whole, some of which depend on what is held back. ``last``: a secret that the rules cannot
        match yet."""
        spans = merged([*self._redactor.spans(whole[:cut]), *(span for span in found if span.end <= cut)])
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
        # A value may be on the line after its name.
        above = max(text.rfind("\n", tail, max(tail, line - 1)) + 1, tail, len(text) - _NEAR)
        for at, rule in redactor.openings(text, above):
            match = rule.opens.match(text, at) if rule.opens is not None else None
            if match is not None:
                found = min(found, match.start("secret"))
        # Ignore older hints: they are past the limit, and must not release a secret that started since.
        recent = max(0, len(text) - _LONGEST)
        run = max(max(text.rfind(space, tail) for space in " \t\n") + 1, recent)
        for at, rule in redactor.beginnings(text, run):
            if at < found and _may_begin(rule, text, at):
                found = at
        found = min(found, self._private_key(text), self._run(text), _lines(text))
        ending = _KEY_END.search(text, max(0, len(text) - _LONGEST_RUN))
        stop = ending.start() if ending is not None else len(text)
        quoted = max(text.rfind(sign, tail, stop) for sign in " \t\n\"'`") + 1
        if _ESCAPED_OPEN.match(text, quoted, stop):
            found = min(found, quoted)
        for literal in redactor.literals:
            for length in range(min(len(literal) - 1, len(text)), 2, -1):
                if text.endswith(literal[:length]):
                    found = min(found, len(text) - length)
                    break
        return min(found, max(line, recent)) if redactor.patterns else found

    def _run(self, text: str) -> int:
        """Where a run with digits starts that reaches the end of the text: some tokens are recognised by their end."""
        if not any(rule.parts is not None and rule.where == RUN for rule in self._redactor.rules):
            return len(text)
        match = _RUN_AT_END.search(text, max(0, len(text) - _LONGEST_RUN))
        return match.start() if match is not None else len(text)

    def _private_key(self, text: str) -> int:
        """Where a private key starts that may go on; the end of the text if there is none."""
        at = text.rfind(_KEY_START)
        if at < 0 or len(text) - at >= _LONGEST_KEY or "-----END " in text[at:]:
            return len(text)
        for rule in self._redactor.rules:
            if rule.name == _KEY:
                match = rule.regex.match(text, at)
                # A key that was cut off: what follows is no part of it.
                if match is not None and len(text) - match.end() > _AFTER_KEY:
                    return len(text)
                return at
        return len(text)

    def _web_token(self, text: str) -> re.Match[str] | None:
        """A web token that has started and reaches the end of the text."""
        if not any(rule.name == _JWT for rule in self._redactor.rules):
            return None
        tail = max(0, len(text) - _LONGEST_HEADER)
        at = text.find("eyJ", max(text.rfind(space, tail) for space in " \t\n") + 1 or tail)
        while at >= 0:
            match = _WEB_TOKEN.match(text, at) if _BOUNDARY.match(text, at) else None
            if match is not None:
                return match
            at = text.find("eyJ", at + 1)
        return None


def _lines(text: str) -> int:
    """Where lines start that are part of a secret if the right line follows: of a key, or of a Kubernetes Secret."""
    found = at = len(text)
    last = True
    while at > len(text) - _KEPT:
        start = text.rfind("\n", max(0, at - _LONGEST_LINE), max(0, at - 1)) + 1
        line = text[start:at]
        if _DATA_HEAD.search(line):
            return found
        is_part = _KEY_LINE.search(line) or _DATA_LINE.match(line) or (last and _OPEN_LINE.search(line))
        may_end = found == len(text) and _LAST_LINE.search(line)
        if not is_part and not last and not may_end:
            break
        if is_part:
            found = start
        if start == 0:
            break
        last, at = False, start
    first = text[found : text.find("\n", found) + 1 or len(text)]
    return found if _KEY_LINE.search(first) or _OPEN_LINE.search(first) else len(text)


def _may_begin(rule: Rule, text: str, at: int) -> bool:
    """Whether the rule allows the text before its hint."""
    return not rule.is_bounded or _BOUNDARY.match(text, at) is not None
