"""Whose sessions are on this machine, and how many: told by the names of files, none of which is opened."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from rawko_state.cli.printing import counted

_PATIENCE = 0.05
"""Seconds that counting the sessions of an agent may take."""


def agents_here(root: Path) -> Iterator[tuple[str, str, str]]:
    """Name, word for ``rawko import``, and what there is, of each agent. The folders are those that an import looks in."""
    named = re.sub(r"[^A-Za-z0-9]", "-", str(root))
    for name, source, folder, depth, pattern, mine in (
        ("Claude Code", "claude-code", _home("CLAUDE_CONFIG_DIR", ".claude") / "projects", 2, "*.jsonl", named),
        ("Codex", "codex", _home("CODEX_HOME", ".codex") / "sessions", 4, "*.jsonl*", ""),
        ("Gemini CLI", "gemini", _gemini(), 3, "session-*.json*", ""),
        ("Qwen Code", "qwen", _qwen(), 3, "*.jsonl", named),
        ("pi", "pi", _pi(), 2, "*.jsonl", f"-{re.sub(r'[/:]', '-', str(root))}--"),
        ("Copilot CLI", "copilot", _home("COPILOT_HOME", ".copilot") / "session-state", 2, "events.jsonl", ""),
        ("Cline", "cline", _cline(), 2, "[0-9]*.messages.json", ""),
    ):
        total = _count(folder, depth, pattern)
        if total:
            own = _count(folder / mine, depth - 1, pattern) if mine else 0
            here = f", {own:,} from this project" if own > 0 else ""
            yield name, source, (counted(total, "session") if total > 0 else "many sessions") + here
    if (root / ".aider.chat.history.md").is_file():
        yield "aider", "aider", "here, in .aider.chat.history.md"
    data = _home("XDG_DATA_HOME", ".local/share") / "opencode"
    if any(data.glob("opencode*.db")):
        yield "opencode", "opencode", "a database of sessions"
    if (Path.home() / ".cowork" / "sessions.db").is_file():
        yield "cowork", "cowork", "a database of sessions"


def _home(variable: str, folder: str) -> Path:
    return Path(os.environ.get(variable) or Path.home() / folder)


def _gemini() -> Path:
    return _home("GEMINI_CLI_HOME", "") / ".gemini" / "tmp"


def _qwen() -> Path:
    return Path(os.environ.get("QWEN_RUNTIME_DIR") or _home("QWEN_HOME", ".qwen")) / "projects"


def _pi() -> Path:
    moved = os.environ.get("PI_CODING_AGENT_SESSION_DIR")
    return Path(moved or _home("PI_CODING_AGENT_DIR", ".pi/agent") / "sessions").expanduser()


def _cline() -> Path:
    data = Path(os.environ.get("CLINE_DATA_DIR") or _home("CLINE_DIR", ".cline") / "data")
    return Path(os.environ.get("CLINE_SESSION_DATA_DIR") or data / "sessions")


def _count(folder: Path, depth: int, pattern: str) -> int:
    """The number of session files exactly this deep in a folder; negative if counting takes too long."""
    until = time.monotonic() + _PATIENCE
    number, folders = 0, [(str(folder), depth)]
    while folders:
        path, left = folders.pop()
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    if left == 1:
                        number += fnmatchcase(entry.name, pattern)
                    elif entry.is_dir(follow_symlinks=False):
                        folders.append((entry.path, left - 1))
        except OSError:
            continue
        if time.monotonic() > until:
            return -1
    return number
