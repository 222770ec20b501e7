"""The agents whose sessions can be imported, one module each. Each module has ``found()``, which yields sessions."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from rawko_state.exchange.transcript import Session, Trouble

SOURCES: Final = {
    "claude-code": "claude_code",
    "codex": "codex",
    "aider": "aider",
    "cowork": "cowork",
    "jsonl": "jsonl",
}


def sessions(source: str, paths: Iterable[Path], root: Path, wrong: list[Trouble]) -> Iterator[Session]:
    """The sessions in the given paths, or in the source's default folders if there are none."""
    module = importlib.import_module(f"rawko_state.exchange.sources.{SOURCES[source]}")
    found: Iterator[Session] = module.found(list(paths), root, wrong)
    return found
