"""Detects where a task starts: the repository, the folder, the agent and the runtime."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from rawko_state.config.repository import Repository

# Variables that agents set for the commands they run.
_AGENTS: Final = (
    ("CLAUDECODE", "claude"),
    ("CODEX_SANDBOX", "codex"),
    ("CODEX_SANDBOX_NETWORK_DISABLED", "codex"),
    ("CURSOR_AGENT", "cursor"),
    ("GEMINI_CLI", "gemini"),
    ("OPENCODE", "opencode"),
    ("QWEN_CODE", "qwen"),
)
_DEVCONTAINER: Final = ("REMOTE_CONTAINERS", "DEVCONTAINER", "CODESPACES")
_CONTAINER: Final = ("container", "KUBERNETES_SERVICE_HOST")
_CONTAINER_FILES: Final = ("/.dockerenv", "/run/.containerenv")


class Surroundings(NamedTuple):
    repo: str | None = None
    branch: str | None = None
    commit: str | None = None
    cwd: str | None = None
    runtime: str | None = None
    agent: str | None = None


def look_around(root: Path, env: Mapping[str, str] = os.environ) -> Surroundings:
    """Everything that can be detected for a task that starts now in the project at ``root``."""
    repository = Repository.around(root)
    return Surroundings(
        repo=next(iter(repository.remotes), None) if repository else None,
        branch=repository.branch if repository else None,
        commit=repository.commit if repository else None,
        cwd=_cwd(),
        runtime=runtime(env),
        agent=next((agent for variable, agent in _AGENTS if env.get(variable)), None),
    )


def runtime(env: Mapping[str, str] = os.environ) -> str:
    """``devcontainer``, ``container`` or ``local``, as far as it can be detected."""
    if any(env.get(name) for name in _DEVCONTAINER):
        return "devcontainer"
    if any(env.get(name) for name in _CONTAINER) or any(map(os.path.exists, _CONTAINER_FILES)):
        return "container"
    return "local"


def devcontainer_of(root: Path) -> str | None:
    """The file that describes the project's development container."""
    for name in (".devcontainer/devcontainer.json", ".devcontainer.json"):
        if (root / name).is_file():
            return name
    return None


def _cwd() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # the folder was deleted
        return None
