"""Text for terminals: safe, measured by display width, coloured where that is wanted, and paged when it is long.

Task files contain whatever a model or a web page said; the terminal must not interpret it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence

import click

from rawko_state.format.figures import counted, in_short, size_text, took
from rawko_state.format.text import visible
from rawko_state.late import late

_STYLED = late("\x1b\\[[0-9;]*m")

# Colour repeats what the words say. The normal case is quiet: a completed task has none.
STATUS_COLOURS = {
    "failed": "red",
    "interrupted": "yellow",
    "paused": "yellow",
    "waiting": "yellow",
    "running": "cyan",
}
_EMOJI = "\ufe0f"
"""Makes an emoji of the character before it, which is then two columns wide."""
_JOINS = "\u200d"
PAGER = "rawko.pager"
"""In the root context: False with --no-pager."""

__all__ = ["counted", "in_short", "one_line", "progress", "screen", "size_text", "visible"]


# Width


def width_of(text: str) -> int:
    """How many columns a terminal needs for a line: two for CJK and emoji, none for combining marks and styles."""
    text = _STYLED.sub("", text)
    return len(text) if text.isascii() else sum(map(columns_of, text))


def columns_of(character: str) -> int:
    if character < "\u0300" or character == _EMOJI:
        return 1
    import unicodedata

    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def cut(text: str, width: int) -> str:
    """The start of a line, with … if it had to be cut to fit into this many columns."""
    if width_of(text) <= width:
        return text
    taken, used = 0, 0
    for character in text:
        used += columns_of(character)
        if used > width - 1:
            break
        taken += 1
    return text[:taken].rstrip().rstrip(_JOINS) + "…" if width > 0 else ""


def padded(text: str, width: int, *, right: bool = False) -> str:
    gap = " " * (width - width_of(text))
    return gap + text if right else text + gap


def one_line(text: str, width: int) -> str:
    """The start of a text, on one line of at most this many columns."""
    return cut(" ".join(visible(text[: width * 4 + 100]).split()), width)


def first_line(text: str) -> str:
    """A whole text on one line, for a column in a pipe."""
    return " ".join(visible(text).split())


def wrapped(text: str, width: int) -> list[str]:
    """The lines of a text, each at most this many columns wide."""
    return [part for line in visible(text).split("\n") for part in wrap(line, width)]


def wrap(line: str, width: int, hang: int = 0) -> list[str]:
    """A line broken at spaces, and within words that are wider than a line; what follows is indented by ``hang``."""
    if width_of(line) <= width:
        return [line]
    lines: list[str] = []
    current = line[: len(line) - len(line.lstrip(" "))]
    empty = True
    for word in line.strip(" ").split(" "):
        space = "" if empty else " "
        if not empty and width_of(current) + 1 + width_of(word) > width and not _breaks_anywhere(word, width):
            lines.append(current.rstrip())
            current, space = " " * hang, ""
        while width_of(current) + len(space) + width_of(word) > width and len(word) > 1:
            if current.strip() and width_of(current) + len(space) + 2 > width:  # no room for one more character
                lines.append(current.rstrip())
                current, space = " " * hang, ""
            taken = fitting(word, max(1, width - width_of(current) - len(space)))
            lines.append(current + space + word[:taken])
            current, space, word = " " * hang, "", word[taken:]
        current, empty = current + space + word, False
    return [*lines, current.rstrip()]


def _breaks_anywhere(word: str, width: int) -> bool:
    """Chinese, Japanese and Korean text has no spaces: a line of it is filled."""
    return len(word) > 1 and not word.isascii() and any(columns_of(character) == 2 for character in word[:width])


def fitting(word: str, width: int) -> int:
    """How many characters of a word fit into this many columns; at least one."""
    used = 0
    for number, character in enumerate(word):
        used += columns_of(character)
        if used > width:
            return max(1, number)
    return len(word)


def table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], *, right: Iterable[int] = (), indent: str = ""
) -> list[str]:
    """Columns, two spaces apart. The last one is not padded; the caller cuts it. Numbers of ``right`` columns end at the
    same place."""
    ends = set(right)
    everything = [list(heads), *rows] if heads else [list(row) for row in rows]
    widths = [max(width_of(row[n]) for row in everything) for n in range(len(everything[0]))]
    lines = []
    for number, row in enumerate(everything):
        cells = [
            cell if n == len(row) - 1 and n not in ends else padded(cell, widths[n], right=n in ends)
            for n, cell in enumerate(row)
        ]
        line = (indent + "  ".join(cells)).rstrip()
        lines.append(click.style(line, dim=True) if heads and not number else line)
    return lines


def styled_status(status: str, text: str | None = None) -> str:
    shown = text if text is not None else one_line(status, 16)
    colour = STATUS_COLOURS.get(status)
    return click.style(shown, fg=colour, bold=status == "waiting" or None, dim=status == "cancelled" or None)


# Where it goes


def screen() -> os.terminal_size:
    """The size of the terminal; 80 by 24 if unknown."""
    import shutil

    size = shutil.get_terminal_size()
    return os.terminal_size((size.columns or 80, size.lines or 24))  # Python 3.10 may return zeros


def is_terminal() -> bool:
    return sys.stdout.isatty()


def use_colour() -> bool:
    """Whether standard output gets colours: --color decides, then NO_COLOR, CLICOLOR_FORCE and TERM, then the terminal."""
    context = click.get_current_context(silent=True)
    if context is not None and context.color is not None:
        return context.color
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("CLICOLOR_FORCE", "0") != "0":
        return True
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def say(lines: Iterable[str]) -> None:
    """Prints lines to standard output, without styles where there is no colour."""
    colour = use_colour()
    for line in lines:
        click.echo(line if colour else click.unstyle(line), color=colour)


def page(lines: Iterable[str], height: int | None = None) -> None:
    """Prints lines, through a pager if they are longer than the screen."""
    context = click.get_current_context(silent=True)
    wanted = context is None or context.find_root().meta.get(PAGER) is not False
    if not (wanted and is_terminal() and os.environ.get("TERM") != "dumb"):
        say(lines)
        return
    size = screen()
    text = "\n".join(lines)
    shown = text if use_colour() else click.unstyle(text)
    rows = sum(max(1, -(-width_of(line) // size.columns)) for line in shown.split("\n"))
    if rows < (height or size.lines) or not _through_pager(shown + "\n"):
        click.echo(shown, color=use_colour())


def _through_pager(text: str) -> bool:
    """False if there is no pager."""
    import shlex
    import shutil
    import subprocess

    command = os.environ.get("RAWKO_PAGER") or os.environ.get("PAGER") or "less"
    try:
        words = shlex.split(command)
        if not words or shutil.which(words[0]) is None:
            return False
        env = {"LESS": "FRX", "LV": "-c", **os.environ}
        pager = subprocess.Popen(words, stdin=subprocess.PIPE, env=env)
    except (OSError, ValueError):
        return False
    assert pager.stdin is not None
    try:
        pager.stdin.write(text.encode("utf-8", "replace"))
        pager.stdin.close()
    except (BrokenPipeError, KeyboardInterrupt):
        pass  # it was left before the end
    while True:
        try:
            pager.wait()
            return True
        except KeyboardInterrupt:  # the pager decides what Ctrl-C means
            continue


def hint(*commands: tuple[str, str] | str) -> None:
    """What to type next, on standard error: only for a person at a terminal, and never with RAWKO_HINTS=off."""
    if not (is_terminal() and sys.stderr.isatty()) or os.environ.get("RAWKO_HINTS") == "off":
        return
    for line in commands_shown(commands):
        click.echo(line, err=True)


def footer(text: str) -> None:
    """What a list leaves out, below it, on standard error: only for a person at a terminal."""
    if is_terminal() and sys.stderr.isatty():
        lines = [click.style(line, dim=True) for line in wrapped(text, screen().columns)]
        click.echo("\n" + "\n".join(lines if use_colour() else map(click.unstyle, lines)), err=True, color=use_colour())


def commands_shown(commands: Iterable[tuple[str, str] | str]) -> list[str]:
    """Commands with what each is for, below one another; the commands alone where a terminal is too narrow for both."""
    pairs = [(each, "") if isinstance(each, str) else each for each in commands]
    width = max((width_of(command) for command, _ in pairs), default=0)
    room = screen().columns if is_terminal() else 10_000
    if any(width + 5 + width_of(what) > room for _, what in pairs):
        return [f"  {command}" for command, _ in pairs]
    return [f"  {padded(command, width)}   {click.style(what, dim=True)}".rstrip() for command, what in pairs]


def warn(message: str) -> None:
    click.echo(message_text(message), err=True)


def message_text(message: str, who: str = "rawko: ") -> str:
    """A message with the name of the program. On a terminal, its first line is broken at spaces; lines with a command are not, so
    that it can be copied."""
    first, *more = f"{who}{visible(message).strip()}".split("\n")
    broken = wrapped(first, screen().columns) if sys.stderr is not None and sys.stderr.isatty() else [first]
    return "\n".join([broken[0], *(f"  {line}" for line in broken[1:]), *more])


def progress(what: str = "", unit: str = "") -> Callable[[int, int], None] | None:
    """A progress bar on standard error, on one line that appears after half a second and is erased at the end. None if that is
    not a terminal."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        return None
    began = time.monotonic()
    last = 0.0

    def step(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if done >= total:
            if last:
                click.echo("\r\x1b[K", nl=False, err=True)
            last = 0.0
        elif now - began > 0.5 and now - last > 0.1:
            last = now
            filled = 26 * done // max(1, total)
            left = f" · {took(int((now - began) * 1000 * (total - done) / done))} left" if done else ""
            label = f"{what}  " if what else ""
            counts = f"{done:,} of {total:,}{' ' if unit else ''}{unit}{left}"
            line = f"{label}[{'#' * filled}{'-' * (26 - filled)}]  {counts}"
            click.echo(f"\r\x1b[K{cut(line, screen().columns - 1)}", nl=False, err=True)

    return step
