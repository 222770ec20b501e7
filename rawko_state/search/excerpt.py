"""The part of a document that shows why it matched."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final

from rawko_state.late import late
from rawko_state.search.documents import Document
from rawko_state.search.words import Sought, bare, normal, spans

WIDTH: Final = 160
_LOOKED_AT: Final = 1 << 16
"""How many characters of a long text are examined, from shortly before the first match on."""
_MOST: Final = 500
_SPACE = late(r"\s+")
_OF_THE_FORMAT = late(
    r"\n {4}(?:= \{[^\n]*|@ [0-9a-f]{64}[^\n]*|\|(?: |(?=\n|$)))|\n(?:@@ [^\n]* @@|(?:---|\+\+\+) (?:[ab]/|/dev/null)[^\n]*)"
)
"""Under a line of the tool log: its JSON, where its output is kept, and the mark before each line of output. In a diff: the
names of the file, and where a change is."""


def excerpt(
    document: Document, sought: Sequence[Sought], width: int = WIDTH
) -> tuple[str, tuple[tuple[int, int], ...]]:
    """One line of text, and the positions of the words in it. Taken from where the most different words are close together."""
    best: tuple[int, int, int, str, list[tuple[int, int]]] | None = None
    for weight, whole in document.parts:
        text = _window(normal(whole), sought)
        if text is None:
            continue
        marks = sorted(
            (start, end, number)
            for number, each in enumerate(sought)
            for start, end in islice(spans(each, text), _MOST)
        )
        for at, (start, _, _) in enumerate(marks):
            near = [mark for mark in marks[at : at + 64] if mark[1] <= start + width] or [marks[at]]
            different = len({number for _, _, number in near})
            candidate = (different, weight, -at, text, [(first, last) for first, last, _ in near])
            if best is None or candidate[:3] > best[:3]:
                best = candidate
    if best is None:
        text = next((text for weight, text in sorted(document.parts, key=lambda part: -part[0])), "")
        return _flat(text[: 4 * width])[:width], ()
    _, _, _, text, found = best
    start = max(0, found[0][0] - width // 4)
    return _line(text, start, start + width, found)


def _window(text: str, sought: Sequence[Sought]) -> str | None:
    """The part of a long text to examine: around the first match. None if nothing in it can match."""
    letters = bare(text)
    if not any(all(atom in letters for atom in each.atoms) for each in sought):
        return None
    if len(text) <= _LOOKED_AT:
        return text
    first = min((at for each in sought if (at := _first(text, each)) is not None), default=0)
    return text[max(0, first - 1_000) : first + _LOOKED_AT]


def _first(text: str, sought: Sought) -> int | None:
    """The approximate position of the first match in a long text: where its first atom occurs and a match is nearby."""
    small, at = text.lower(), -1
    for _ in range(_MOST):
        at = small.find(sought.atoms[0], at + 1)
        if at < 0:
            return None
        start = max(0, at - 100)
        if any(True for _ in spans(sought, text[start : at + 1_000])):
            return start
    return None


def _line(text: str, start: int, end: int, found: Sequence[tuple[int, int]]) -> tuple[str, tuple[tuple[int, int], ...]]:
    """The range as one line, with … where it was cut, and the adjusted marks."""
    while start > 0 and not text[start - 1].isspace() and start > found[0][0] - 60:
        start -= 1
    start = _past_the_format(text, start, found[0][0])
    line = "" if start == 0 else "…"
    marks: list[tuple[int, int]] = []
    at = start
    for first, last in found:
        last = min(last, end)
        if first < at or first >= last:
            continue
        line += _flat(text[at:first], after=line)
        word = _SPACE.sub(" ", text[first:last])
        marks.append((len(line), len(line) + len(word)))
        line += word
        at = last
    line += _flat(text[at:end], after=line)
    return (line.rstrip() + ("…" if end < len(text.rstrip()) else ""), tuple(marks))


def _past_the_format(text: str, start: int, first: int) -> int:
    """Where to start if ``start`` is in a line that only the file format needs, and the first match is not."""
    before = text.rfind("\n", 0, start)
    line = _OF_THE_FORMAT.match("\n" + text[before + 1 : first])
    return before + line.end() if line is not None and start < before + line.end() else start


def _flat(text: str, after: str = "") -> str:
    flat = _SPACE.sub(" ", _OF_THE_FORMAT.sub(" ", text) if "\n" in text else text)
    return flat.lstrip() if not after or after.endswith((" ", "…")) else flat
