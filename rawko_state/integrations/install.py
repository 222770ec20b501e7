"""Putting rawko's hooks into an agent's settings, and taking them out again. Everything else in the file stays."""

from __future__ import annotations

import difflib
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from rawko_state.errors import InvalidValue, StorageError

EVENTS: Final = ("SessionStart", "UserPromptSubmit", "PostToolUse", "Stop", "SubagentStop", "SessionEnd")
_OURS: Final = "hook run "
_NOTIFY = re.compile(r"^\s*notify\s*=.*$", re.MULTILINE)
_TABLE = re.compile(r"^\s*\[", re.MULTILINE)


def settings_file(agent: str, root: Path | None) -> Path:
    """The user's, or the project's."""
    if agent == "claude-code":
        home = Path(os.environ.get("CLAUDE_CONFIG_DIR") or Path.home() / ".claude")
        return (root / ".claude" if root is not None else home) / "settings.json"
    home = Path(os.environ.get("CODEX_HOME") or Path.home() / ".codex")
    return (root / ".codex" if root is not None else home) / "config.toml"


def command(agent: str) -> list[str]:
    """What the agent is to run: this very rawko."""
    found = shutil.which("rawko")
    return [*([found] if found else [sys.executable, "-m", "rawko_state"]), "hook", "run", agent]


def changed(agent: str, text: str, path: Path, *, install: bool) -> str:
    """The settings with our hooks, or without them."""
    return _claude(text, path, install) if agent == "claude-code" else _codex(text, path, install)


def _claude(text: str, path: Path, install: bool) -> str:
    try:
        settings = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError) as error:
        raise InvalidValue(f"{path} is not JSON, and is left as it is: {error}") from None
    hooks = settings.get("hooks", {}) if isinstance(settings, dict) else None
    if not isinstance(hooks, dict) or any(not isinstance(groups, list) for groups in hooks.values()):
        raise InvalidValue(f"{path} is not made as Claude Code makes it, and is left as it is")
    hooks = {event: left for event, groups in hooks.items() if (left := _without_ours(groups))}
    if install:
        for event in EVENTS:
            ours: dict[str, Any] = {
                "hooks": [{"type": "command", "command": shlex.join(command("claude-code")), "timeout": 10}]
            }
            if event == "PostToolUse":
                ours = {"matcher": "*", **ours}
            hooks[event] = [*hooks.get(event, []), ours]
    settings = {**settings, "hooks": hooks}
    if not hooks:
        del settings["hooks"]
    return json.dumps(settings, indent=2, ensure_ascii=False) + "\n"


def _without_ours(groups: list[Any]) -> list[Any]:
    left = []
    for group in groups:
        inner = group.get("hooks") if isinstance(group, dict) else None
        if not isinstance(inner, list):
            left.append(group)
            continue
        others = [hook for hook in inner if not (isinstance(hook, dict) and _is_ours(str(hook.get("command", ""))))]
        if others or not inner:
            left.append({**group, "hooks": others} if len(others) != len(inner) else group)
    return left


def _is_ours(line: str) -> bool:
    return _OURS in line and "rawko" in line


def _codex(text: str, path: Path, install: bool) -> str:
    """One line, ``notify = […]``, before the first table."""
    table = _TABLE.search(text)
    top, rest = (text[: table.start()], text[table.start() :]) if table else (text, "")
    there = _NOTIFY.search(top)
    ours = there is not None and "rawko" in there[0] and '"hook"' in there[0]
    if there is not None and not ours:
        if install:
            raise InvalidValue(f"{path} has a notify of its own already, and is left as it is: {there[0].strip()}")
        return text
    if there is not None:
        top = (top[: there.start()] + top[there.end() :].removeprefix("\n")) if ours else top
    if install:
        top = f"notify = {json.dumps(command('codex'))}\n" + top
    return top + rest


def difference(before: str, after: str, path: Path) -> str:
    return "".join(difflib.unified_diff(before.splitlines(True), after.splitlines(True), f"{path} (now)", f"{path}"))


def write(path: Path, text: str) -> None:
    """At once, or not at all; a file that is empty afterwards stays."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        target = path.resolve()
        descriptor, beside = tempfile.mkstemp(dir=target.parent, prefix=f".{path.name}.")
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        if target.exists():
            os.chmod(beside, target.stat().st_mode & 0o777)
        os.replace(beside, target)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}", str(path), error.errno) from error
