"""Markdown for the terminal: headings and strong words bold, code as it is, lines wrapped with the indent of their list.

What an agent said is shown line by line, so that nothing is lost where it is not Markdown at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import click

from rawko_state.cli.printing import wrap
from rawko_state.format.text import visible
from rawko_state.late import late

_FENCE = late(r" {0,3}(```+|~~~+)")
_HEADING = late(r"#{1,6} +(.*?)(?: +#+)?")
_ITEM = late(r"(\s*(?:[-*+]|[0-9]{1,4}[.)])\s+)(.*)")
_STRONG = late(r"(?<![\w`*])(\*\*|__)(?=\S)([^`\n]+?)(?<=\S)\1(?![\w*])")
_QUOTE = late(r" {0,3}> ?")


def shown(text: str, width: int) -> Iterator[str]:
    """The lines of a text, each at most ``width`` columns wide."""
    fence = ""
    for line in visible(text).strip("\n").split("\n"):
        mark = _FENCE.match(line)
        if fence:
            if mark is not None and line.strip().startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
            else:
                yield click.style(f"    {line}".rstrip(), dim=True)
            continue
        if mark is not None:
            fence = mark[1]
            continue
        heading = _HEADING.fullmatch(line)
        if heading is not None:
            yield from (click.style(part, bold=True) for part in wrap(heading[1], width))
        elif line.lstrip().startswith("|"):
            yield line  # a table: wrapping would break its columns
        elif quote := _QUOTE.match(line):
            yield from (click.style(f"│ {part}", dim=True) for part in wrap(line[quote.end() :], width - 2))
        else:
            item = _ITEM.fullmatch(line)
            hang = len(item[1]) if item is not None else len(line) - len(line.lstrip())
            yield from (_STRONG.sub(_bold, part) for part in wrap(line, width, min(hang, width // 2)))


def _bold(match: re.Match[str]) -> str:
    return click.style(match[2], bold=True)
