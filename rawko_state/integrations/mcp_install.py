"""Adds rawko's MCP server to an agent's settings and removes it again. Everything else in the file is kept."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any, Final

from rawko_state.errors import RawkoError
from rawko_state.integrations.install import json_of, json_text, toml_of
from rawko_state.late import late

_NAME: Final = "rawko"
_TABLE: Final = late(r"\n*^\[mcp_servers\.rawko\]\n(?:(?!\[).*\n?)*", re.MULTILINE)


def settings_file(agent: str, root: Path | None) -> Path:
    """The file in which the agent looks for servers: the user's, or the project's."""
    if agent == "claude-code":
        home = os.environ.get("CLAUDE_CONFIG_DIR")
        return root / ".mcp.json" if root is not None else Path(home or Path.home()) / ".claude.json"
    home = os.environ.get("CODEX_HOME")
    return (root / ".codex" if root is not None else Path(home or Path.home() / ".codex")) / "config.toml"


def command(*, write: bool, shared: bool) -> list[str]:
    """The command for the agent to run: this installation, or the one on everybody's path if the file is shared."""
    found = "rawko" if shared else shutil.which("rawko")
    started = [found] if found else [sys.executable, "-m", "rawko_state"]
    return [*started, "mcp", *(["--write"] if write else [])]


def changed(text: str, path: Path, words: list[str] | None) -> str:
    """The settings with our server, started with these words; without it, if there are none."""
    return _in_toml(text, path, words) if path.suffix == ".toml" else _in_json(text, path, words)


def _in_json(text: str, path: Path, words: list[str] | None) -> str:
    settings = json_of(text, path)
    servers = settings.get("mcpServers", {}) if isinstance(settings, dict) else None
    if not isinstance(servers, dict):
        raise RawkoError(f"{path} does not have the expected structure; left unchanged.")
    _check(servers.get(_NAME), path)
    wanted = {name: server for name, server in servers.items() if name != _NAME}
    if words is not None:
        wanted[_NAME] = {"type": "stdio", "command": words[0], "args": words[1:], "env": {}}
    if wanted == servers:
        return text
    settings = {**settings, "mcpServers": wanted}
    if not wanted:
        del settings["mcpServers"]
    return json_text(settings, text, path)


def _in_toml(text: str, path: Path, words: list[str] | None) -> str:
    """Appends one table, or takes it out. All other settings must stay the same."""
    before = toml_of(text, path)
    _check(before.get("mcp_servers", {}).get(_NAME), path)
    after = _TABLE.sub("\n", text).lstrip("\n") if _TABLE.search(text) else text
    if words is not None:
        gap = "" if not after else "\n" if after.endswith("\n") else "\n\n"
        table = f"[mcp_servers.rawko]\ncommand = {json.dumps(words[0])}\nargs = {json.dumps(words[1:])}\n"
        after = after + gap + table
    if sys.version_info >= (3, 11):
        servers = {name: server for name, server in before.get("mcp_servers", {}).items() if name != _NAME}
        if words is not None:
            servers[_NAME] = {"command": words[0], "args": words[1:]}
        wanted = {**before, "mcp_servers": servers}
        if {"mcp_servers": {}, **toml_of(after, path)} != wanted:
            raise RawkoError(f"Can't edit {path} safely. Add or remove the server 'rawko' by hand.")
    return after


def _check(server: Any, path: Path) -> None:
    """Leaves a server of the same name alone that somebody else made."""
    if server is None:
        return
    args = server.get("args") if isinstance(server, dict) else None
    if not isinstance(args, list) or "mcp" not in args:
        raise RawkoError(f"{path} has another server with the name {_NAME}. Rename or remove it first.")
