"""Runs the examples of the documentation, and compares what they print with what the pages show.

    python docs/tools/examples.py [PAGE...]             write the real output into the pages
    python docs/tools/examples.py --again [PAGE...]     the same, also where only times and ids differ
    python docs/tools/examples.py --check [PAGE...]     only compare; exit 1 and show the difference

An example is a block that is marked ``console``: each line that starts with ``$ `` is a command, and what follows is its output.
The blocks of a page run one after the other, in a terminal of 80 columns, in the project that ``shop.py`` makes. A comment above
a block changes how it is run:

    <!-- type: y -->        what to type while the first command runs
    <!-- not run: why -->   show it, don't run it
    <!-- files: NAME -->    write the next block into a file of the project instead of running it

With ``--check``, commands of rawko in blocks that are marked ``sh`` are run too, one after the other, and must end with 0.
The id of a task takes the place of ``ID`` and ``abc123``; programs that only print a word take that of agents. What needs a
person, a browser, a database or another machine is left out.

Times, durations, sizes and random ids differ from run to run, so they are compared by their shape. A line that holds only ``…``
stands for any lines.
"""

from __future__ import annotations

import difflib
import os
import pty
import re
import select
import signal
import struct
import sys
import tempfile
import termios
import time
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from fcntl import ioctl
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent))
from shop import make_shop

DOCS = Path(__file__).resolve().parents[1]
PAGES = ("start.md", "howto/*.md", "reference/importers.md", "../README.md")
_BLOCK = re.compile(
    r"(?:<!-- (?P<word>type|not run|files): (?P<value>.*?) -->\n)?```(?P<language>\w+)[^\n]*\n(?P<body>.*?)^```$",
    re.S | re.M,
)
_PATIENCE = 60.0
_TASK = "dg2a3xc4"
_PROGRAMS = ("claude", "codex", "opencode", "gemini", "qwen", "pi", "copilot", "cline", "make")
_LEFT_OUT = re.compile(r"rawko (pick|open|watch|serve|pg|mcp|token (save|revoke)|--remote)\b|--database|--restore\b")

_SHAPES: tuple[tuple[str, str], ...] = (
    (r"\d{4}-\d\d-\d\d[T ]\d\d[:-]\d\d([:-]\d\d)?(\.\d+)?Z?", "TIME"),
    (r"\b(today|yesterday) \d\d:\d\d\b", "TIME"),
    (r"\b(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) \d{1,2}( \d\d:\d\d)?\b", "TIME"),
    (r"\b\d{1,2} (Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)( \d{4})?\b", "TIME"),
    (r"\b\d{4}-\d\d-\d\d\b", "TIME"),
    (r"\b\d\d:\d\d(:\d\d)?\b", "TIME"),
    (r"\b(now|\d+[smhd] ago)\b", "TIME"),
    (r"(?<![\w.])(\d+[hm])?\d+(\.\d+)?(ms|s)\b", "DURATION"),
    (r"\b\d+(\.\d+)? (B|kB|MB|GB)\b", "SIZE"),
    (r"\b[0-9a-f]{16,64}\b", "HASH"),
    (r"(-secret:|-token:)[0-9a-f]{4}\b", "TAG"),
    (r"\b127\.0\.0\.1:\d+", "ADDRESS"),
    (r"[█▇▆▅▄▃▂▁]+", "BAR"),
    (r"\bversion \d+\.\d+\S*", "version X"),
)


class Block(NamedTuple):
    """One block of a page, and where its body is."""

    word: str | None
    value: str
    language: str
    body: str
    start: int
    end: int


def blocks(text: str) -> Iterator[Block]:
    for match in _BLOCK.finditer(text):
        yield Block(match["word"], match["value"] or "", match["language"], match["body"], *match.span("body"))


def commands(body: str) -> list[tuple[str, str]]:
    """The commands of a block, each with the output below it."""
    found: list[tuple[str, list[str]]] = []
    for line in body.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif found and found[-1][0].endswith("\\") and not found[-1][1]:
            found[-1] = (f"{found[-1][0]}\n{line}", [])
        elif found:
            found[-1][1].append(line)
    return [(command, "\n".join(lines)) for command, lines in found]


class Terminal:
    """Runs commands as a person would, in a home folder of its own."""

    def __init__(self, home: Path, *, colour: bool = False) -> None:
        self._home, self.folder, self._colour = home, make_shop(home), colour
        self._environment = {
            "HOME": str(home),
            "PATH": f"{home}/bin:{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}",
            "TERM": "xterm",
            **({} if colour else {"NO_COLOR": "1"}),
            "LANG": "C.UTF-8",
            "TZ": _afternoon(),
            "USER": "ann",
            "RAWKO_PAGER": "cat",
            "PAGER": "cat",
            "PYTHONDONTWRITEBYTECODE": os.environ.get("PYTHONDONTWRITEBYTECODE", ""),
        }

    def run(self, command: str, typed: str = "") -> str:
        child, descriptor = pty.fork()
        if child == 0:
            os.chdir(self.folder)
            # `cd` in an example holds for those after it.
            script = f'{command}\ncode=$?\npwd > "$HOME/.folder"\nexit $code'
            os.execve("/bin/bash", ["bash", "--norc", "-c", script], self._environment)
        ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 80, 0, 0))
        output, deadline = b"", time.monotonic() + _PATIENCE
        if typed:
            os.write(descriptor, typed.encode() + b"\n")
        while True:
            if time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
            if not select.select([descriptor], [], [], 1.0)[0]:
                continue
            try:
                piece = os.read(descriptor, 65536)
            except OSError:  # Linux says so when the other end is closed
                piece = b""
            if not piece:
                break
            output += piece
        os.waitpid(child, 0)
        os.close(descriptor)
        note = self._home / ".folder"
        if note.exists():
            self.folder = Path(note.read_text().strip())
        return self._as_shown(output.decode("utf-8", "replace"), typed)

    def random_ids(self) -> set[str]:
        """The ids of tasks that were recorded here. Those of imported tasks are eight characters long, and always the same."""
        return {path.stem.rsplit("-", 1)[1] for path in self._home.rglob("state/tasks/*-??????.task")}

    def _as_shown(self, text: str, typed: str) -> str:
        text = text.replace("\r\n", "\n").replace(str(self._home), "/home/ann")
        text = re.sub(r"\x1b\[[0-9;?]*[A-Za-ln-z]" if self._colour else r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
        # A line that was drawn again (progress) leaves what was drawn last.
        text = "\n".join(line.rsplit("\r", 1)[-1] for line in text.split("\n"))
        if typed and text.startswith(f"{typed}\n"):
            # What is typed before the question is asked is echoed first; a person types behind the question.
            text = re.sub(r"(\[[YyNn]/[YyNn]\][:]?) ?\n?", rf"\1 {typed}\n", text.removeprefix(f"{typed}\n"), count=1)
        return "\n".join(line.rstrip() for line in text.split("\n")).strip("\n")


def _afternoon() -> str:
    """A time zone in which it is between three and four in the afternoon now. What happened three hours ago is then always
    today's, and what happened a day before that is always yesterday's."""
    return f"XXX{datetime.now(timezone.utc).hour - 15:+}"


def shape(text: str, ids: Iterable[str] = ()) -> list[str]:
    """Lines to compare: what differs from run to run is replaced by its kind, and runs of spaces count as one."""
    for one in ids:
        text = text.replace(one, _ANY_ID)
    for pattern, kind in _SHAPES:
        text = re.sub(pattern, kind, text)
    return [re.sub(r"\s+", " ", line).strip() for line in text.split("\n") if line.strip()]


_ANY_ID = "\N{WHITE SQUARE}"


def same(shown: list[str], real: list[str]) -> bool:
    """Whether the lines of a page are those of a run; ``…`` stands for any lines, and any id for one that was made at random."""
    if not shown:
        return not real
    if shown[0] == "…":
        return any(same(shown[1:], real[skip:]) for skip in range(len(real) + 1))
    return bool(real) and _same_line(shown[0], real[0]) and same(shown[1:], real[1:])


def _same_line(shown: str, real: str) -> bool:
    return re.fullmatch(re.escape(real).replace(_ANY_ID, "[0-9a-z]{6}"), shown) is not None


def run_page(page: Path, *, again: bool = False) -> tuple[str, list[str]]:
    """The page with real output, and what differs. ``again``: output that is the same but for times and ids is written too."""
    text, differences, moved = page.read_text("utf-8"), [], 0
    result = text
    with tempfile.TemporaryDirectory(prefix="rawko-docs-") as folder:
        terminal = Terminal(Path(folder).resolve())
        for block in blocks(text):
            if block.word == "files":
                target = terminal.folder / block.value
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(block.body)
                continue
            if block.language != "console" or block.word == "not run":
                continue
            parts = []
            for number, (command, shown) in enumerate(commands(block.body)):
                real = terminal.run(command, block.value if block.word == "type" and number == 0 else "")
                expected, got = shape(shown), shape(real, terminal.random_ids())
                if same(expected, got):
                    real = real if again and "…" not in expected else shown
                else:
                    differences += [f"{page.relative_to(DOCS)}: $ {command}"]
                    differences += list(difflib.unified_diff(expected, got, "shown", "real", lineterm=""))
                parts.append(f"$ {command}\n" + (f"{real}\n" if real else ""))
            body = "".join(parts)
            result = result[: block.start + moved] + body + result[block.end + moved :]
            moved += len(body) - (block.end - block.start)
    return result, differences


def shell_commands(text: str) -> Iterator[str]:
    """The commands of rawko in the blocks of a page that only say what to type."""
    for block in blocks(text):
        for line in block.body.splitlines() if block.language == "sh" else ():
            command = line.split(" # ")[0].strip()
            if command.startswith("rawko ") and not _LEFT_OUT.search(command):
                yield re.sub(r"\b(ID|abc123|qw2kns3c)\b", _TASK, command)


def failing(page: Path) -> list[str]:
    """What fails of them, in a shop whose sessions are imported."""
    chosen = list(shell_commands(page.read_text("utf-8")))
    if not chosen:
        return []
    found = []
    with tempfile.TemporaryDirectory(prefix="rawko-docs-") as folder:
        terminal = Terminal(Path(folder).resolve())
        for program in _PROGRAMS:
            path = Path(folder).resolve() / "bin" / program
            path.parent.mkdir(exist_ok=True)
            path.write_text("#!/bin/sh\necho done\n")
            path.chmod(0o755)
        terminal.run("rawko import --yes")
        for command in chosen:
            shown = terminal.run(f'{command}\ncode=$?; [ $code = 0 ] || echo "[exit code $code]"', "y")
            if "[exit code" in shown:
                found.append(f"{page.name}: $ {command}\n{shown}")
            terminal.run("rawko cleanup --restore")
    return found


def main(arguments: list[str]) -> int:
    check, again = "--check" in arguments, "--again" in arguments
    named = [DOCS / name for name in arguments if not name.startswith("--")]
    trouble = 0
    for page in named or sorted(path for pattern in PAGES for path in DOCS.glob(pattern)):
        text, differences = (
            run_page(page, again=again) if page.parent.name != "reference" else (page.read_text("utf-8"), [])
        )
        differences += failing(page) if check else []
        if differences:
            trouble += 1
            print("\n".join(differences))
        if not check and text != page.read_text("utf-8"):
            page.write_text(text, "utf-8")
    return 1 if check and trouble else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
