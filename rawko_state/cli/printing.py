"""Text for terminals. Task files contain whatever a model or a web page said; the terminal must not interpret it."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable

import click

from rawko_state.format.text import visible

__all__ = ["one_line", "progress", "screen", "size_text", "visible"]


def size_text(size: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return ""


def one_line(text: str, width: int) -> str:
    """The start of a text, on one line of at most this many characters."""
    flat = " ".join(visible(text[: width * 4 + 100]).split())
    return flat if len(flat) <= width else flat[: max(0, width - 1)] + "…"


def progress(what: str = "") -> Callable[[int, int], None] | None:
    """A progress bar on standard error; None if that is not a terminal."""
    if not sys.stderr.isatty():
        return None
    last = 0.0

    def step(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last > 0.1 or done == total:
            last = now
            bar = "█" * (30 * done // max(1, total))
            label = f"{what} " if what else ""
            click.echo(f"\r{label}{bar:30} {done:,}/{total:,}" + ("\n" if done == total else ""), nl=False, err=True)

    return step


def screen() -> os.terminal_size:
    """The size of the terminal; 80 by 24 if unknown."""
    size = shutil.get_terminal_size()
    return os.terminal_size((size.columns or 80, size.lines or 24))  # Python 3.10 may return zeros
