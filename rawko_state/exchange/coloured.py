"""The colours of a recorded program: SGR sequences become styles, everything else of an escape sequence becomes a mark.

Recorded output is data. A terminal or a browser gets colours from here that were checked and written again, never the
program's own bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from rawko_state.format.text import visible
from rawko_state.late import late

MARK: Final = "␛"
# An escape sequence: SGR (group 1), another CSI, a string such as a window title up to its end, or two characters.
_SEQUENCE = late(
    "\x1b\\[([0-9;:]{0,40})m|\x1b\\[[0-?]{0,40}[ -/]{0,8}[@-~]"
    "|\x1b[\\]PX^_][^\x07\x1b\n]{0,1000}(?:\x07|\x1b\\\\)|\x1b[ -/]{0,8}[0-~]|\x1b"
)


class Style(NamedTuple):
    """``colour`` is one of the sixteen of ANSI, 0 to 15. Backgrounds are left out: they hide text on the wrong theme."""

    colour: int | None = None
    bold: bool = False
    dim: bool = False
    italic: bool = False
    underline: bool = False


PLAIN: Final = Style()


def runs(text: str) -> Iterator[tuple[Style, str]]:
    """The text in pieces of one style each, with nothing in them that a terminal would obey."""
    style, start = PLAIN, 0
    for match in _SEQUENCE.finditer(text):
        if match.start() > start:
            yield style, visible(text[start : match.start()])
        start = match.end()
        if match[1] is None:
            yield style, MARK
        else:
            style = _changed(style, match[1])
    if start < len(text):
        yield style, visible(text[start:])


def settled(text: str) -> str:
    """The text as a terminal shows it in the end: a line that was written again and again (a progress bar) as it was last."""
    if "\r" not in text:
        return text
    lines = text.replace("\r\n", "\n").split("\n")
    return "\n".join(
        next((part for part in reversed(line.split("\r")) if part), "") if "\r" in line else line for line in lines
    )


def _changed(style: Style, codes: str) -> Style:
    numbers = [int(code) if code.isdecimal() else 0 for code in re.split("[;:]", codes)]
    at = 0
    while at < len(numbers):
        code = numbers[at]
        at += 1
        if code == 0:
            style = PLAIN
        elif code in (1, 2, 3, 4):
            style = style._replace(**{("bold", "dim", "italic", "underline")[code - 1]: True})
        elif code == 22:
            style = style._replace(bold=False, dim=False)
        elif code == 23:
            style = style._replace(italic=False)
        elif code == 24:
            style = style._replace(underline=False)
        elif 30 <= code <= 37:
            style = style._replace(colour=code - 30)
        elif 90 <= code <= 97:
            style = style._replace(colour=code - 82)
        elif code == 39:
            style = style._replace(colour=None)
        elif code in (38, 48):  # an extended colour: its numbers belong to it
            kind = numbers[at] if at < len(numbers) else None
            if code == 38:
                chosen = numbers[at + 1] if kind == 5 and at + 1 < len(numbers) else None
                style = style._replace(colour=chosen if chosen is not None and chosen < 16 else None)
            at += {5: 2, 2: 4}.get(kind, 1) if kind is not None else 0
    return style
