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
    "opencode": "opencode",
    "gemini": "gemini",
    "qwen": "qwen",
    "pi": "pi",
    "copilot": "copilot",
    "cline": "cline",
    "jsonl": "jsonl",
    "atif": "atif",
}


def session_named(source: str, key: str) -> Session | None:
    """One session by its name, from the source's default folders. None if there is none, or the source cannot tell."""
    module = importlib.import_module(f"rawko_state.exchange.sources.{SOURCES[source]}")
    plain = "".join(c for c in key if c.isalnum() or c in "-_.")  # safe in a file name and in a pattern
    named = getattr(module, "named", None)
    return named(plain) if named is not None and plain else None


def siblings(session: Session) -> list[Session]:
    """The sessions beside this one, of which it may be a copy; at least itself."""
    module = importlib.import_module(f"rawko_state.exchange.sources.{SOURCES[session.source]}")
    beside = getattr(module, "siblings", None)
    return beside(session) if beside is not None else [session]


def sessions(source: str, paths: Iterable[Path], root: Path, wrong: list[Trouble]) -> Iterator[Session]:
    """The sessions in the given paths, or in the source's default folders if there are none."""
    module = importlib.import_module(f"rawko_state.exchange.sources.{SOURCES[source]}")
    found: Iterator[Session] = module.found(list(paths), root, wrong)
    return found
