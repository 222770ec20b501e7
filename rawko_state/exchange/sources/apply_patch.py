"""The patches that several agents give to a tool called apply_patch: ``*** Begin Patch``, files, hunks without line numbers."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from rawko_state.format.diffs import compared, positionless
from rawko_state.model.entries import Diff

NAME: Final = "apply_patch"
_FILE = re.compile(r"^\*\*\* (Add|Update|Delete) File: (.+)$", re.MULTILINE)
_MOVE: Final = "*** Move to: "
_TOUCHED = re.compile(r"^\*\*\* (Add|Update|Delete) File: (.+)$(?:\n\*\*\* Move to: (.+)$)?", re.MULTILINE)


def touched(text: str) -> tuple[tuple[str, str], ...]:
    """The files that a patch changes: operation and path."""
    found: list[tuple[str, str]] = []
    for what, path, moved in _TOUCHED.findall(text):
        found += [("write", moved.strip())] if moved else []
        found.append(("delete" if what == "Delete" or moved else "write", path.strip()))
    return tuple(found)


def diffs(text: str) -> tuple[Diff, ...]:
    """What the text of an apply_patch call would change. It does not say where in the file."""
    found: list[Diff] = []
    sections = [(match[1], match[2].strip(), match.end()) for match in _FILE.finditer(text)]
    for number, (kind, path, start) in enumerate(sections):
        end = text.find("\n*** End", start) if number + 1 == len(sections) else sections[number + 1][2]
        body = text[start : end if end > 0 else len(text)].strip("\n").split("\n")
        moved = next((line[len(_MOVE) :].strip() for line in body if line.startswith(_MOVE)), path)
        lines_of = [line for line in body if not line.startswith("*** ")]
        if kind == "Add":
            found.append(compared(path, None, "".join(line[1:] + "\n" for line in lines_of if line.startswith("+"))))
        elif kind == "Delete":
            found.append(Diff(path, None))
        else:
            found.append(replace(_update(path, lines_of), new=moved))
    return tuple(found)


def _update(path: str, body: list[str]) -> Diff:
    hunks: list[list[str]] = []
    for line in body:
        if line.startswith("@@") or not hunks:
            hunks.append([])
        if not line.startswith("@@"):
            hunks[-1].append(line if line[:1] in (" ", "+", "-") else f" {line}")
    return positionless(path, [hunk for hunk in hunks if hunk])
