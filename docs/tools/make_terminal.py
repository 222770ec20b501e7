"""Draws docs/terminal.svg, the picture in the README, from what the commands print; with --check, says whether it is up to date.

The colours are those of the 16 colours of a terminal. Only bold, dim and colours are understood: that is all that rawko uses.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import unicodedata
from html import escape
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from examples import Terminal, shape

TARGET = Path(__file__).parents[1] / "terminal.svg"
COMMANDS = ("rawko history", "rawko search 'clock skew'", "rawko show qw2kns3c 4-5")
_WIDE, _HIGH, _LEFT, _TOP = 8.42, 19, 18, 44
_COLOURS = {31: "#ff7b72", 32: "#7ee787", 33: "#e3b341", 35: "#d2a8ff", 36: "#76e3ea"}
_FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"
_STYLE = re.compile(r"\x1b\[([0-9;]*)m")


def picture(lines: list[str]) -> str:
    height = _TOP + _HIGH * len(lines) + 12
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 712 {height}" role="img" aria-label="rawko in a terminal">',
        f'<rect width="712" height="{height}" rx="8" fill="#0d1117"/>',
        *(f'<circle cx="{20 + 18 * place}" cy="20" r="5.5" fill="#30363d"/>' for place in range(3)),
        f'<g font-family="{_FONT}" font-size="14" fill="#e6edf3">',
    ]
    for number, line in enumerate(lines):
        parts += _line(line, _TOP + _HIGH * number + 14)
    return "\n".join([*parts, "</g>", "</svg>", ""])


def _line(line: str, y: int) -> list[str]:
    column, drawn, style = 0, [], set[int]()
    for number, piece in enumerate(_STYLE.split(line)):
        if number % 2:
            codes = {int(code) for code in piece.split(";") if code} or {0}
            style = set() if 0 in codes else style | codes
        elif piece:
            if piece.strip():
                # Spaces at the ends of a text are dropped when it is drawn; others are not.
                text = escape(piece).replace(" ", "\N{NO-BREAK SPACE}")
                drawn.append(f'<text x="{_LEFT + _WIDE * column:.1f}" y="{y}"{_look(style)}>{text}</text>')
            column += sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in piece)
    return drawn


def _look(style: set[int]) -> str:
    colour = next((_COLOURS[code] for code in style if code in _COLOURS), None)
    look = f' fill="{colour}"' if colour else ' fill="#8b949e"' if 2 in style else ""
    return look + (' font-weight="bold"' if 1 in style else "")


def lines() -> list[str]:
    found = []
    with tempfile.TemporaryDirectory(prefix="rawko-docs-") as folder:
        terminal = Terminal(Path(folder).resolve(), colour=True)
        terminal.run("rawko import --yes")
        for command in COMMANDS:
            found += [f"\x1b[32m$\x1b[0m \x1b[1m{command}\x1b[0m", *terminal.run(command).split("\n"), ""]
    return found[:-1]


def texts(drawing: str) -> list[str]:
    return shape("\n".join(re.findall(r">([^<>]+)</text>", drawing)).replace("\N{NO-BREAK SPACE}", " "))


if __name__ == "__main__":
    drawn = picture(lines())
    if "--check" not in sys.argv:
        TARGET.write_text(drawn, "utf-8")
    elif texts(drawn) != texts(TARGET.read_text("utf-8")):
        sys.exit(f"docs/terminal.svg is out of date: run {os.path.relpath(__file__)}")
