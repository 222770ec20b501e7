"""Markdown for the terminal: headings and strong words bold, code as it is, lines wrapped with the indent of their list, the
columns of tables below one another.

What an agent said is shown line by line, so that nothing is lost where it is not Markdown at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import click

from rawko_state.cli.printing import padded, width_of, wrap
from rawko_state.format.text import visible
from rawko_state.late import late

_FENCE = late(r" {0,3}(```+|~~~+)")
_HEADING = late(r"#{1,6} +(.*?)(?: +#+)?")
_ITEM = late(r"(\s*(?:[-*+]|[0-9]{1,4}[.)])\s+)(.*)")
_STRONG = late(r"(?<![\w`*])(\*\*|__)(?=\S)([^`\n]+?)(?<=\S)\1(?![\w*])")
_QUOTE = late(r" {0,3}> ?")
_CELLS = late(r"(?<!\\)\|")
_RULE = late(r"\s*:?-+:?\s*")


def shown(text: str, width: int) -> Iterator[str]:
    """The lines of a text, each at most ``width`` columns wide."""
    fence = ""
    table: list[str] = []
    for line in visible(text).strip("\n").split("\n"):
        mark = _FENCE.match(line)
        if not fence and line.lstrip().startswith("|"):
            table.append(line)
            continue
        yield from _table(table, width)
        table = []
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
        elif quote := _QUOTE.match(line):
            yield from (click.style(f"│ {part}", dim=True) for part in wrap(line[quote.end() :], width - 2))
        else:
            item = _ITEM.fullmatch(line)
            hang = len(item[1]) if item is not None else len(line) - len(line.lstrip())
            yield from (_STRONG.sub(_bold, part) for part in wrap(line, width, min(hang, width // 2)))
    yield from _table(table, width)


def _table(lines: Sequence[str], width: int) -> Iterator[str]:
    """A table with its columns below one another. What is too wide or not a table is not changed: wrapping would break rows."""
    rows = [[cell.strip().replace("\\|", "|") for cell in _CELLS.split(line.strip())] for line in lines]
    rows = [row[1:-1] if row[-1:] == [""] else row[1:] for row in rows]
    if len(rows) < 2 or not all(map(_RULE.fullmatch, rows[1])) or len({len(row) for row in rows}) > 1:
        yield from lines
        return
    cells = [[_STRONG.sub(_bold, cell) for cell in row] for row in (rows[0], *rows[2:])]
    widths = [max(map(width_of, column)) for column in zip(*cells, strict=True)]
    if sum(widths) + 2 * (len(widths) - 1) > width:
        yield from lines
        return
    for number, row in enumerate(cells):
        line = "  ".join(map(padded, row, widths)).rstrip()
        yield click.style(line, bold=True) if not number else line
        if not number:
            yield click.style("  ".join("─" * each for each in widths), dim=True)


def _bold(match: re.Match[str]) -> str:
    return click.style(match[2], bold=True)
