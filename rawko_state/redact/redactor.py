"""Removes secrets from text. The rules find them; a tag that is the same for the same secret replaces them.

``[redacted:github-token:3f2a]``: the four digits are derived with a key. Two occurrences of one secret can be recognised, but the
secret cannot be guessed from the digits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from rawko_state.redact.rules import ASSIGNED, FOLD, RULES, RUN, TEXT, Rule, is_named_secret

_RUN = re.compile(r"\b[A-Za-z0-9_.\-]{20,}", re.ASCII)
_SHORTEST: Final = 6
"""Shorter literals would match everywhere."""
_TAG = re.compile(r"\[redacted:[a-z0-9-]{1,40}:[0-9a-f]{4}\]")
_WINDOW: Final = 4096
"""A user-defined pattern is matched against one line at a time, of at most this many characters."""
_OVERLAP: Final = 512
"""Longer lines are split into windows that overlap by this many."""
_ROUNDS: Final = 8
_MACHINE: Final = frozenset(
    ("id", "status", "decision", "operation", "time", "writer", "format", "context", "kind", "currency")
)
"""Fields of entries that only programs read."""


class Redacting(Protocol):
    """What walking over data needs."""

    def text(self, text: str) -> str: ...

    def whole(self, secret: str, rule: str) -> str: ...


Tag = Callable[[str], str]
"""Maps a secret to its four digits."""


class Span(NamedTuple):
    start: int
    end: int
    rule: str


class Redactor:
    """All rules, and the user's additions."""

    def __init__(
        self,
        tag: Tag,
        *,
        off: Collection[str] = (),
        patterns: Mapping[str, re.Pattern[str]] | None = None,
        literals: Mapping[str, str] | None = None,
    ) -> None:
        """``literals``: exact values that are secrets, by the names to show for them."""
        self._tag = tag
        self.rules = tuple(rule for rule in RULES if rule.name not in off)
        self.patterns = dict(patterns or {})
        self.literals = {value: name for name, value in (literals or {}).items() if len(value) >= _SHORTEST}
        self.in_runs = _by_hint(self.rules, RUN)
        self._hint = re.compile("|".join(re.escape(hint) for hint in self.in_runs)) if self.in_runs else None
        self.anywhere = _by_hint(self.rules, TEXT)
        self._folded = [rule for rule in self.rules if rule.where == FOLD]

    def text(self, text: str) -> str:
        """The text without its secrets; the same object if it has none."""
        # The first round may remove text that hid a token behind it.
        for _ in range(_ROUNDS):
            spans = self.spans(text)
            if not spans:
                break
            text = self.replaced(text, spans)
        return text

    def whole(self, secret: str, rule: str) -> str:
        """The replacement for a secret."""
        return f"[redacted:{rule}:{self._tag(secret)}]"

    def replaced(self, text: str, spans: Sequence[Span], start: int = 0, end: int | None = None) -> str:
        """A part of the text with its spans replaced. If a span starts before the part, the rest of it is replaced."""
        end = len(text) if end is None else end
        pieces, at = [], start
        for span in spans:
            if span.end <= at or span.start >= end:
                continue
            pieces.append(text[at : max(at, span.start)])
            pieces.append(self.whole(text[span.start : span.end], span.rule))
            at = span.end
        pieces.append(text[at:end])
        return "".join(pieces)

    def spans(self, text: str) -> list[Span]:
        """The positions of the secrets, in order, without overlaps."""
        found = list(self._found(text))
        return _merged(found, text) if found else []

    def _found(self, text: str) -> Iterator[Span]:
        if len(text) >= 20 and self._hint is not None:
            for run in _RUN.finditer(text):
                yield from self._in_run(text, run.start(), run.end())
        for hint, rules in self.anywhere.items():
            for rule in rules:
                yield from _at_hints(rule, hint, text, text)
        if self._folded:
            # Keep one character per character, so that positions match; lower() alone can turn one into two.
            small = (text if text.isascii() else text.encode("ascii", "replace").decode("ascii")).lower()
            for rule in self._folded:
                for hint in rule.hints:
                    yield from _at_hints(rule, hint, small, text)
        for literal, name in self.literals.items():
            at = text.find(literal)
            while at >= 0:
                yield Span(at, at + len(literal), name)
                at = text.find(literal, at + len(literal))
        for name, pattern in self.patterns.items():
            yield from _by_pattern(name, pattern, text)

    def _in_run(self, text: str, start: int, end: int) -> Iterator[Span]:
        assert self._hint is not None
        ended = -1
        while (hit := self._hint.search(text, start, end)) is not None:
            start = hit.start() + 1
            # One hint may be a prefix of another: sk- of sk-ant-.
            for rule in self.in_runs[hit[0]]:
                at = hit.start()
                match = rule.pattern.match(text, at)
                if match is None and at == ended:
                    # Directly after another token, so the boundary check fails; still a secret.
                    glued = rule.pattern.match(text[at : at + _WINDOW])
                    if glued is not None:
                        ended = at + glued.end()
                        yield Span(at, ended, rule.name)
                        start = max(start, ended)
                        break
                if match is not None:
                    yield _span(rule, match)
                    ended = match.end()
                    start = max(start, ended)
                    break

    def entry(self, value: Any) -> Any:
        """An entry, or any value of dataclasses, mappings and sequences, without its secrets; the same object if it has none."""
        words: list[str] = []
        named = _collect(value, words)
        return _mapped(value, self) if named or self.spans("\n".join(words)) else value

    def value(self, value: Any) -> Any:
        return _mapped(value, self)


def _by_hint(rules: Iterable[Rule], where: str) -> dict[str, list[Rule]]:
    """The rules of each hint, longest hints first. A hint that starts with a shorter one includes the rules of that one."""
    chosen = [rule for rule in rules if rule.where == where]
    hints = sorted({hint for rule in chosen for hint in rule.hints}, key=lambda hint: (-len(hint), hint))
    return {hint: [rule for rule in chosen if any(hint.startswith(other) for other in rule.hints)] for hint in hints}


def _at_hints(rule: Rule, hint: str, searched: str, text: str) -> Iterator[Span]:
    at = searched.find(hint)
    while at >= 0:
        match = rule.pattern.match(text, at)
        if match is None:
            at = searched.find(hint, at + 1)
            continue
        if rule.check is None or rule.check(match):
            yield _span(rule, match)
        # Continue after the match, secret or not, so that no text is scanned repeatedly.
        at = searched.find(hint, max(at + 1, match.end()))


def _span(rule: Rule, match: re.Match[str]) -> Span:
    group: str | int = 0
    if "secret" in rule.pattern.groupindex:
        group = "secret"
    elif rule.pattern.groupindex:
        group = match.lastgroup or 0
    return Span(match.start(group), match.end(group), rule.name)


def _by_pattern(name: str, pattern: re.Pattern[str], text: str) -> Iterator[Span]:
    """A user-defined pattern may be slow, so it is matched against one short window at a time."""
    start = 0
    while start < len(text):
        line = text.find("\n", start) + 1 or len(text)
        end = min(line, start + _WINDOW)
        for match in pattern.finditer(text, start, end):
            if match.end() > match.start():
                yield Span(match.start(), match.end(), name)
        start = end if end == line else end - _OVERLAP


def _merged(found: list[Span], text: str) -> list[Span]:
    """Sorts the spans and merges those that overlap, under the name of the first. Tags are never secrets."""
    tags = [match.span() for match in _TAG.finditer(text)] if "[redacted:" in text else []
    kept: list[Span] = []
    at = 0
    for span in sorted(found, key=lambda span: (span.start, -span.end)):
        while at < len(tags) and tags[at][1] <= span.start:
            at += 1
        if at < len(tags) and tags[at][0] < span.end:
            continue
        if kept and span.start < kept[-1].end:
            kept[-1] = kept[-1]._replace(end=max(kept[-1].end, span.end))
        elif span.end > span.start:
            kept.append(span)
    return kept


def walked(value: Any, redact: Redacting) -> Any:
    """An entry, or any data, with every text passed through ``redact``."""
    return _mapped(value, redact)


_TEXTS: dict[type, tuple[str, ...]] = {}


def _names(kind: type) -> tuple[str, ...]:
    """The fields of a dataclass that may hold text."""
    found = _TEXTS.get(kind)
    if found is None:
        import dataclasses

        found = tuple(field.name for field in dataclasses.fields(kind) if field.name not in _MACHINE)
        if kind.__name__ == "Blob":
            found = ()  # a digest that names a file
        _TEXTS[kind] = found
    return found


def _collect(value: Any, words: list[str]) -> bool:
    """Collects every text. Returns whether one of them is a secret because of its key. Not recursive: what a model sends may be
    nested to any depth, or contain itself."""
    left, seen, named = [value], set[int](), False
    while left:
        value = left.pop()
        kind = type(value)
        if kind is str or isinstance(value, str):
            words.append(value)
        elif kind is tuple:
            left.extend(value)
        elif hasattr(kind, "__dataclass_fields__"):
            left.extend([item for name in _names(kind) if (item := getattr(value, name)) is not None])
        elif kind is int or kind is bool or not isinstance(value, (list, tuple, Mapping)) or id(value) in seen:
            continue
        else:
            seen.add(id(value))
            if isinstance(value, Mapping):
                for key, item in value.items():
                    left.append(key)
                    left.append(item)
                    named = named or (isinstance(item, str) and is_named_secret(str(key), item))
            else:
                left.extend(value)
    return named


def _mapped(value: Any, redact: Redacting) -> Any:
    """The same structure with every text redacted. Unchanged parts are reused."""
    kind = type(value)
    if isinstance(value, str):
        return redact.text(value)
    if isinstance(value, tuple):
        items = tuple(_mapped(item, redact) for item in value)
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return items if kind is tuple else kind(*items)  # a NamedTuple
    if isinstance(value, (list, Mapping)):
        return _json(value, redact)
    if hasattr(kind, "__dataclass_fields__"):
        import dataclasses

        changed = {}
        for name in _names(kind):
            old = getattr(value, name)
            new = old if old is None else _mapped(old, redact)
            if new is not old and new != old:
                changed[name] = new
        return dataclasses.replace(value, **changed) if changed else value
    return value


def _json(value: Any, redact: Redacting) -> Any:
    """Lists and mappings of any depth; the same object if there is nothing to redact."""
    whole: Any = {} if isinstance(value, Mapping) else []
    left: list[tuple[Any, Any]] = [(value, whole)]
    made: dict[int, Any] = {id(value): whole}
    changed = False
    while left:
        old, new = left.pop()
        for key, item in old.items() if isinstance(old, Mapping) else enumerate(old):
            shown, name = item, key
            if isinstance(item, (list, tuple, Mapping)):
                shown = made.get(id(item))
                if shown is None:
                    shown = made[id(item)] = {} if isinstance(item, Mapping) else []
                    left.append((item, shown))
            elif isinstance(item, str):
                named = isinstance(old, Mapping) and is_named_secret(str(key), item)
                shown = redact.whole(item, ASSIGNED) if named else redact.text(item)
                changed = changed or shown != item
            if isinstance(new, list):
                new.append(shown)
                continue
            if isinstance(key, str):
                name = redact.text(key)
                changed = changed or name != key
            new[name] = shown
    return whole if changed else value
