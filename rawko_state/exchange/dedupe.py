"""Sessions that are in several files: a copy, a snapshot that predates a database, a rollout and its compressed form."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from rawko_state.exchange.transcript import Session, Trouble

_PIECE: Final = 1 << 20
_MADE_OF_ANOTHER: Final = (".zst", ".json")
"""Snapshots and compressed files: the other file has the same content, or newer."""


def one_each(found: Iterable[Session], wrong: list[Trouble]) -> list[Session]:
    """The most complete file of each session. Two tasks with one id would hide each other, so a file with different content is
    reported and skipped."""
    files: dict[str, dict[str, Session]] = {}
    for session in found:
        files.setdefault(session.key, {}).setdefault(str(session.path), session)
    return [
        next(iter(same.values())) if len(same) == 1 else _fullest(list(same.values()), wrong) for same in files.values()
    ]


def _fullest(same: Sequence[Session], wrong: list[Trouble]) -> Session:
    chosen = max(same, key=_fullness)
    for other in same:
        if other is chosen or other.path.name.endswith(_MADE_OF_ANOTHER):
            continue
        try:
            if not _begins(other.path, chosen.path):
                text = f"Skipped: {chosen.path} has the same session id but different content"
                wrong.append(Trouble(other.path, text))
        except OSError as error:
            wrong.append(Trouble(other.path, str(error.strerror)))
    return chosen


def _fullness(session: Session) -> tuple[bool, int, str]:
    try:
        size = os.stat(session.path).st_size
    except OSError:
        size = -1
    return not session.path.name.endswith(_MADE_OF_ANOTHER), size, str(session.path)


def _begins(less: Path, more: Path) -> bool:
    """Whether a file is a prefix of another one, or equal to it."""
    with open(less, "rb") as short, open(more, "rb") as long:
        while piece := short.read(_PIECE):
            if long.read(len(piece)) != piece:
                return False
    return True
