"""Removes secrets from text. The rules find them; a tag that is the same for the same secret replaces them.

``[redacted:github-token:3f2a]``: the four digits are derived with a key. Two occurrences of one secret can be recognised, but the
secret cannot be guessed from the digits.
"""

from __future__ import annotations

import hashlib
import operator
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple, Protocol

from rawko_state.redact.named import ASSIGNED, SPOKEN_SECRET, VENDOR, is_named_secret
from rawko_state.redact.patterns import Pattern
from rawko_state.redact.rule import FOLD, LONGEST, RUN, TEXT, Rule
from rawko_state.redact.rules import RULES
from rawko_state.redact.scan import LONG_RUN, REACH, Literals, Slice, ending_word, is_in_words, long_runs, slices
from rawko_state.redact.values import TAG

_SHORTEST: Final = 6
"""Shorter literals would match everywhere."""
_TAG_START: Final = b"[redacted:"
_LETTER = re.compile(r"[A-Za-z0-9]")
_ROUNDS: Final = 8
_MACHINE: Final = frozenset(
    ("id", "status", "decision", "operation", "time", "writer", "format", "context", "kind", "currency")
)
"""Fields of entries that only programs read."""


class Redacting(Protocol):
    """What walking over data needs."""

    def text(self, text: str) -> str: ...

    def named(self, key: str, value: str) -> str | None: ...


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
        patterns: Mapping[str, Pattern] | None = None,
        literals: Mapping[str, str] | None = None,
        allowed: Collection[str] = (),
    ) -> None:
        """``literals``: exact values that are secrets, by the names to show for them. ``allowed``: tags of values that are left
        alone, such as ``github-token:3f2a``."""
        self._tag = tag
        self.rules = tuple(rule for rule in RULES if rule.name not in off)
        self.patterns = dict(patterns or {})
        self.literals = {value: name for name, value in (literals or {}).items() if len(value) >= _SHORTEST}
        self._allowed = frozenset(allowed)
        self._rules_that_allow = {tag.partition(":")[0] for tag in self._allowed}
        self._assigns = ASSIGNED not in off
        self._hints = {where: _by_hint(self.rules, where) for where in (RUN, TEXT, FOLD)}
        # Short hints occur in many words. Where their tokens are long, only long words are searched for them.
        long = {hint for hint, rules in self._hints[RUN].items() if all(rule.least >= LONG_RUN for _, rule in rules)}
        self._in_runs = Literals(hint for hint in self._hints[RUN] if hint not in long)
        self._in_long_runs = Literals(long)
        self._in_words = Literals((*filter(is_in_words, self._hints[TEXT]), *self._hints[FOLD]), fold=True)
        # A mark that ends in a letter is followed by the rest of a token, so it is looked for where a long word starts so.
        marks = [(hint, ending_word(hint)) for hint in self._hints[TEXT] if not is_in_words(hint)]
        self._marks = [mark for mark, start in marks if not start]
        self._marks_of_runs = [(mark, start) for mark, start in marks if start]

    @property
    def fingerprint(self) -> str:
        """Says which rules and settings these are."""
        own = sorted((name, pattern.compiled.pattern) for name, pattern in self.patterns.items())
        said = [
            [(rule.name, rule.pattern) for rule in self.rules],
            own,
            sorted(self.literals.values()),
            sorted(self._allowed),
        ]
        return hashlib.sha256(repr(said).encode()).hexdigest()

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

    def named(self, key: str, value: str) -> str | None:
        """The replacement for the value of a secret-looking key in structured data; None if that is no secret."""
        if not self._assigns or not is_named_secret(key, value) or self._is_allowed(value, ASSIGNED):
            return None
        return self.whole(value, ASSIGNED)

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
        found: list[Span] = []
        tags: list[tuple[int, int]] = []
        progress: dict[Rule, int] = {}
        ended = -1
        for part in slices(text):
            for at in part.positions(_TAG_START):
                match = TAG.match(text, at)
                if match is not None:
                    tags.append(match.span())
            candidates = self._candidates(part)
            if ended < part.start and _is_clean(text, candidates, progress):
                candidates = []
            for at, _, rule in _in_order(candidates):
                if at < progress.get(rule, 0):
                    continue
                match = rule.regex.match(text, at)
                if match is not None:
                    spans = list(_in_match(rule, match)) if rule.check is None or rule.check(match) else []
                    found += spans
                    # Continue after the match, so that no text is scanned repeatedly. But a value that is no secret may contain
                    # one: url=https://…?token=…
                    progress[rule] = max(at + 1, match.end() if spans else rule.judged(match))
                    if spans:
                        ended = max(ended, spans[-1].end)
                        progress[rule] = max(progress[rule], spans[-1].end)
                elif at == ended and rule.where == RUN:
                    # Directly after another token, so the boundary check fails; still a secret.
                    glued = rule.regex.match(text[at : at + LONGEST])
                    if glued is not None:
                        ended = progress[rule] = at + glued.end()
                        found.append(Span(at, ended, rule.name))
            for literal, name in self.literals.items():
                # A literal may be longer than the reach of a slice.
                at = text.find(literal, part.start, part.end + len(literal) - 1)
                while at >= 0:
                    found.append(Span(at, at + len(literal), name))
                    at = text.find(literal, at + len(literal), part.end + len(literal) - 1)
        for name, pattern in self.patterns.items():
            found.extend(Span(start, end, name) for start, end in pattern.spans(text))
        if self._allowed:
            found = [span for span in found if not self._is_allowed(text[span.start : span.end], span.rule)]
        spans = merged(found) if found else []
        return list(_beside(tags, spans, text)) if tags else spans

    def openings(self, text: str, start: int) -> Iterator[tuple[int, Rule]]:
        """Where something starts, from ``start`` on, that a secret may follow."""
        searched = text[start:].encode("ascii", "replace").lower()
        for hint, rules in self._opening.items():
            at = searched.rfind(hint)
            while at >= 0:
                for rule in rules:
                    yield start + at, rule
                at = searched.rfind(hint, 0, at + len(hint) - 1)

    def beginnings(self, text: str, start: int) -> Iterator[tuple[int, Rule]]:
        """Where a token may start, from ``start`` on: the first place for each hint."""
        searched = text[start:].encode("ascii", "replace")
        for hint, rules in self._beginning.items():
            at = searched.find(hint)
            if at >= 0:
                for rule in rules:
                    yield start + at, rule

    @cached_property
    def _opening(self) -> dict[bytes, list[Rule]]:
        found: dict[bytes, list[Rule]] = {}
        for rule in self.rules:
            if rule.opening is not None:
                for hint in rule.hints:
                    found.setdefault(hint.lower().encode(), []).append(rule)
        return found

    @cached_property
    def _beginning(self) -> dict[bytes, list[Rule]]:
        found: dict[bytes, list[Rule]] = {}
        for rule in self.rules:
            if rule.opening is None and rule.where != FOLD:
                for hint in rule.hints:
                    found.setdefault(hint.encode(), []).append(rule)
        return found

    def _candidates(self, part: Slice) -> list[tuple[list[int], int, Rule]]:
        """The places where each rule may match."""
        words = self._in_words.unfamiliar(part.words())
        present = self._in_words.among(words)
        piece = part.text[part.start : part.end + REACH]
        if runs := long_runs(words):
            for mark, start in self._marks_of_runs:
                if any(word.startswith(start) for word in runs) and mark in piece:
                    present.add(mark)
            present |= self._in_runs.among(runs)
            if longer := long_runs(runs, LONG_RUN):
                present |= self._in_long_runs.among(longer)
        present.update([mark for mark in self._marks if mark in piece])
        found = []
        for hint in present:
            for fold, needed, rules in self._rules_of[hint]:
                if needed:
                    rules = [each for each in rules if each[1].needs is None or part.has_near(each[1].needs)]
                places = part.positions(hint.encode(), fold=fold) if rules else []
                if places:
                    found += [(places, order, rule) for order, rule in rules]
        return found

    @cached_property
    def _rules_of(self) -> dict[str, list[tuple[bool, bool, list[tuple[int, Rule]]]]]:
        """For each hint: whether it is in upper or lower case, whether a rule needs something near it, and its rules."""
        found: dict[str, list[tuple[bool, bool, list[tuple[int, Rule]]]]] = {}
        for where, hints in self._hints.items():
            for hint, rules in hints.items():
                needed = any(rule.needs is not None for _, rule in rules)
                found.setdefault(hint, []).append((where == FOLD, needed, rules))
        return found

    def _is_allowed(self, secret: str, rule: str) -> bool:
        return rule in self._rules_that_allow and f"{rule}:{self._tag(secret)}" in self._allowed

    def entry(self, value: Any) -> Any:
        """An entry, or any value of dataclasses, mappings and sequences, without its secrets; the same object if it has none."""
        return value if self.is_clean(value) else _mapped(value, self)

    def is_clean(self, value: Any) -> bool:
        """Whether entry() would return the same object: one look, however much it is."""
        words: list[str] = []
        return not _collect(value, words) and not self.spans("\n".join(words))

    def value(self, value: Any) -> Any:
        return _mapped(value, self)


_place = operator.itemgetter(0, 1)


def _is_clean(text: str, candidates: Iterable[tuple[list[int], int, Rule]], progress: dict[Rule, int]) -> bool:
    """Whether no rule finds a secret. Then the order does not matter, and each rule is tried at all of its places in one go."""
    now = progress.copy()
    for places, _, rule in candidates:
        match_at, start = rule.regex.match, now.get(rule, 0)
        for at in places:
            if at >= start and (match := match_at(text, at)) is not None:
                if rule.check is None or rule.check(match):
                    return False
                start = max(at + 1, rule.judged(match))
        now[rule] = start
    progress.update(now)
    return True


def _in_order(candidates: Iterable[tuple[list[int], int, Rule]]) -> list[tuple[int, int, Rule]]:
    """Each place with a rule, in order. Of vendors' tokens that start at the same place, the one with the longest hint comes
    first."""
    return sorted(((at, order, rule) for places, order, rule in candidates for at in places), key=_place)


def _by_hint(rules: Iterable[Rule], where: str) -> dict[str, list[tuple[int, Rule]]]:
    """The rules of each hint, each with its place in the order."""
    found: dict[str, list[tuple[int, Rule]]] = {}
    for rule in rules:
        if rule.where == where:
            for hint in rule.hints:
                found.setdefault(hint, []).append((-len(hint), rule))
    return found


def _in_match(rule: Rule, match: re.Match[str]) -> Iterator[Span]:
    """The secrets in a match that passed the rule's check."""
    if rule.parts is not None:
        for start, end in rule.parts(match):
            yield Span(start, end, rule.name)
        return
    start, end = match.span("secret" if "secret" in rule.regex.groupindex else 0)
    if rule.rest is not None:
        # Long runs are followed in pieces, so that no call takes long.
        while (more := rule.rest.match(match.string, end)) is not None:
            end = more.end()
    yield Span(start, end, rule.name)


def merged(found: Iterable[Span]) -> list[Span]:
    """Sorts the spans and merges those that overlap, under the name of the first."""
    kept: list[Span] = []
    for span in sorted(found, key=lambda span: (span.start, -span.end, span.rule in (VENDOR, SPOKEN_SECRET))):
        if kept and span.start < kept[-1].end:
            kept[-1] = kept[-1]._replace(end=max(kept[-1].end, span.end))
        elif span.end > span.start:
            kept.append(span)
    return kept


def _beside(tags: Sequence[tuple[int, int]], spans: Iterable[Span], text: str) -> Iterator[Span]:
    """Tags are no secrets: of a secret with a tag in it, what stands before and behind the tag."""
    first = 0
    for span in spans:
        while first < len(tags) and tags[first][1] <= span.start:
            first += 1
        at, each = span.start, first
        while each < len(tags) and tags[each][0] < span.end:
            if _LETTER.search(text, at, tags[each][0]):
                yield span._replace(start=at, end=tags[each][0])
            at, each = tags[each][1], each + 1
        if at < span.end and (at == span.start or _LETTER.search(text, at, span.end)):
            yield span._replace(start=at)


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


_VALUES: dict[type, Callable[[Any], tuple[Any, ...]]] = {}


def _values(kind: type) -> Callable[[Any], tuple[Any, ...]]:
    """Gets the values of those fields: in one call, as there are many objects and few of their fields are set."""
    found = _VALUES.get(kind)
    if found is None:
        names = _names(kind)
        one = operator.attrgetter(*names) if names else None
        found = (lambda value: ()) if one is None else one if len(names) > 1 else lambda value: (one(value),)
        _VALUES[kind] = found
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
        elif kind is dict and not value:  # most calls of tools state nothing more
            continue
        elif kind in _VALUES or hasattr(kind, "__dataclass_fields__"):
            left.extend([item for item in _values(kind)(value) if item is not None and item != ()])
        elif kind is int or kind is bool or not isinstance(value, (list, tuple, Mapping)) or id(value) in seen:
            continue
        else:
            seen.add(id(value))
            if isinstance(value, Mapping):
                for key, item in value.items():
                    left.append(key)
                    left.append(item)
                    named = named or (isinstance(item, str) and is_named_secret(_name_of(key, value), item))
            else:
                left.extend(value)
    return named


def _name_of(key: Any, pairs: Mapping[Any, Any]) -> str:
    """The name of a value in structured data; also as in ``{"name": "DB_PASSWORD", "value": …}``."""
    if isinstance(key, str) and key.lower() == "value":
        for other, name in pairs.items():
            if isinstance(other, str) and other.lower() in ("name", "key") and isinstance(name, str):
                return name
    return str(key)


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
                named = redact.named(_name_of(key, old), item) if isinstance(old, Mapping) else None
                shown = redact.text(item) if named is None else named
                changed = changed or shown != item
            if isinstance(new, list):
                new.append(shown)
                continue
            if isinstance(key, str):
                name = redact.text(key)
                changed = changed or name != key
            new[name] = shown
    return whole if changed else value
