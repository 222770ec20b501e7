"""Adds rawko's hooks to an agent's settings and removes them again. Everything else in the file is kept."""

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

from rawko_state.errors import RawkoError, StorageError
from rawko_state.format.fair_json import shallow
from rawko_state.late import late

EVENTS: Final = {
    "claude-code": (
        "SessionStart", "UserPromptSubmit", "PreToolUse", "PostToolUse", "PostToolUseFailure", "PreCompact", "SubagentStart",
        "SubagentStop", "Stop", "SessionEnd",
    ),
    "codex": (
        "SessionStart", "UserPromptSubmit", "PreToolUse", "PostToolUse", "PreCompact", "SubagentStop", "Stop", "SessionEnd",
    ),
}  # fmt: skip
_OF_TOOLS: Final = frozenset(("PreToolUse", "PostToolUse", "PostToolUseFailure"))
_ASIDE: Final = frozenset(
    ("PreToolUse", "PostToolUse", "PostToolUseFailure", "PreCompact", "SubagentStart", "SubagentStop")
)
"""Claude Code need not wait for these. For the others it does, as they come when a session ends or may have been changed."""
_NOTIFY = late(r"^notify = \[.*\]\n", re.MULTILINE)


def settings_files(agent: str, root: Path | None) -> list[Path]:
    """The agent's settings files: the user's, or the project's. Codex runs hooks only once the user trusts them, so its older
    ``notify``, which needs no trust, is set too."""
    if agent == "claude-code":
        home = Path(os.environ.get("CLAUDE_CONFIG_DIR") or Path.home() / ".claude")
        return [(root / ".claude" if root is not None else home) / "settings.json"]
    home = Path(os.environ.get("CODEX_HOME") or Path.home() / ".codex")
    folder = root / ".codex" if root is not None else home
    return [folder / "hooks.json", folder / "config.toml"]


def command(agent: str) -> list[str]:
    """The command for the agent to run: this installation of rawko."""
    found = shutil.which("rawko")
    return [*([found] if found else [sys.executable, "-m", "rawko_state"]), "hook", "run", agent]


def changed(agent: str, text: str, path: Path, *, install: bool) -> str:
    """The settings with our hooks, or without them."""
    return _codex(text, path, install) if path.suffix == ".toml" else _hooks(agent, text, path, install)


def _hooks(agent: str, text: str, path: Path, install: bool) -> str:
    """Both agents have the same form: events, groups of hooks for each, and commands in each group."""
    settings = json_of(text, path)
    hooks = settings.get("hooks", {}) if isinstance(settings, dict) else None
    if not isinstance(hooks, dict) or any(not isinstance(groups, list) for groups in hooks.values()):
        raise RawkoError(f"{path} does not have the expected structure; left unchanged.")
    kept = {event: _without_ours(groups, agent) for event, groups in hooks.items()}
    # Remove only the lists that became empty by removing our hooks.
    kept = {event: groups for event, groups in kept.items() if groups or not hooks[event]}
    if install:
        for event in EVENTS[agent]:
            run: dict[str, Any] = {"type": "command", "command": shlex.join(command(agent)), "timeout": 10}
            if agent == "claude-code" and event in _ASIDE:
                run["async"] = True
            ours: dict[str, Any] = {"hooks": [run]}
            if agent == "claude-code" and event in _OF_TOOLS:
                ours = {"matcher": "*", **ours}
            kept[event] = [*kept.get(event, []), ours]
    if kept == hooks:
        return text
    settings = {**settings, "hooks": kept}
    if not kept:
        del settings["hooks"]
    return json_text(settings, text, path)


def json_of(text: str, path: Path) -> Any:
    """The settings in a JSON file; none if it is empty."""
    try:
        return json.loads(shallow(text), object_pairs_hook=_once) if text.strip() else {}
    except ValueError as error:
        raise RawkoError(f"{path} is not valid JSON; left unchanged: {error}.") from None


def json_text(settings: Any, text: str, path: Path) -> str:
    """The settings as JSON, laid out like the text that was there."""
    try:
        made = (
            json.dumps(settings, indent=_indent(text), ensure_ascii=not _can_be_written(text), allow_nan=False) + "\n"
        )
    except ValueError as error:
        raise RawkoError(f"{path} contains a number that JSON does not allow; left unchanged: {error}.") from None
    return made.replace("\n", "\r\n") if "\r\n" in text else made


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) != len(pairs):
        raise ValueError("a key appears twice")
    return dict(pairs)


def _indent(text: str) -> int | str:
    match = re.search(r"\n([ \t]+)\"", text)
    return match[1] if match else 2


def _can_be_written(text: str) -> bool:
    """Whether text may be written unescaped. Escaped surrogates in the file must stay escaped."""
    return "\\ud" not in text.lower()


def _without_ours(groups: list[Any], agent: str) -> list[Any]:
    left = []
    for group in groups:
        inner = group.get("hooks") if isinstance(group, dict) else None
        if not isinstance(inner, list):
            left.append(group)
            continue
        others = [
            hook for hook in inner if not (isinstance(hook, dict) and _is_ours(str(hook.get("command", "")), agent))
        ]
        if others or not inner:
            left.append({**group, "hooks": others} if len(others) != len(inner) else group)
    return left


def _is_ours(line: str, agent: str) -> bool:
    """Whether a command was added by rawko, by this installation or another."""
    try:
        words = shlex.split(line)
    except ValueError:
        return False
    return _are_ours(words, agent)


def _are_ours(words: list[str], agent: str) -> bool:
    if words[-3:] != ["hook", "run", agent]:
        return False
    return (len(words) == 4 and Path(words[0]).name == "rawko") or words[1:-3] == ["-m", "rawko_state"]


def _codex(text: str, path: Path, install: bool) -> str:
    """Changes one line, ``notify = […]``, before everything else. All other settings must stay the same."""
    before = toml_of(text, path)
    notify = before.get("notify")
    if isinstance(notify, str):
        notify = _listed(notify)
    ours = isinstance(notify, list) and _are_ours([str(word) for word in notify], "codex")
    if notify is not None and not ours:
        return text  # one of the user's own; the hooks do without
    after = _NOTIFY.sub("", text, count=1) if ours else text
    if install:
        after = f"notify = {json.dumps(command('codex'))}\n" + after
    wanted = {**before, "notify": command("codex")} if install else {k: v for k, v in before.items() if k != "notify"}
    if sys.version_info >= (3, 11) and toml_of(after, path) != wanted:
        raise RawkoError(f"Can't edit {path} safely. Add this line yourself: notify = {json.dumps(command('codex'))}")
    return after


def _listed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def toml_of(text: str, path: Path) -> dict[str, Any]:
    if sys.version_info < (3, 11):  # no TOML parser: look only at that one line
        match = _NOTIFY.search(text)
        return {"notify": match[0].partition("=")[2].strip()} if match else {}
    import tomllib  # type: ignore[import-not-found,unused-ignore]

    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise RawkoError(f"{path} is not valid TOML; left unchanged: {error}.") from None


def difference(before: str, after: str, path: Path) -> str:
    return "".join(difflib.unified_diff(before.splitlines(True), after.splitlines(True), f"{path} (now)", f"{path}"))


def write(path: Path, text: str) -> None:
    """Writes the file atomically. Keeps it even if it is now empty."""
    beside = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        target = path.resolve()
        descriptor, beside = tempfile.mkstemp(dir=target.parent, prefix=f".{path.name}.")
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        if target.exists():
            os.chmod(beside, target.stat().st_mode & 0o777)
        os.replace(beside, target)
        beside = None
    except (OSError, UnicodeError) as error:
        raise StorageError(f"Can't write {path}: {error}.", str(path)) from error
    finally:
        if beside is not None:
            Path(beside).unlink(missing_ok=True)
