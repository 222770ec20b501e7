"""Bare `rawko`: the front door."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rawko_state.backends.files.store import FileStore
from rawko_state.cli.agents_here import agents_here
from rawko_state.exchange.sources import sessions
from tests.support.processes import rawko

REAL = Path(__file__).parents[2] / "fixtures/real"
WHERE = {
    "claude-code": ".claude/projects/-home-ann-src-cc",
    "codex": ".codex/sessions/2026/11/17",
    "gemini": ".gemini",
    "qwen": ".qwen",
    "pi": ".pi/agent",
    "copilot": ".copilot",
    "cline": ".cline/data",
    "opencode": ".local/share/opencode",
}
COUNTED = ("claude-code", "codex", "gemini", "qwen", "pi", "copilot", "cline")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with the sessions of every agent, as these wrote them."""
    for variable in ("CODEX_HOME", "CLAUDE_CONFIG_DIR", "XDG_DATA_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for agent, place in WHERE.items():
        shutil.copytree(REAL / agent, tmp_path / "home" / place)
    return tmp_path / "home"


def test_a_new_project_is_told_what_could_be_imported(home: Path, tmp_path: Path) -> None:
    shop = tmp_path / "shop"
    (shop / ".git").mkdir(parents=True)
    (shop / ".aider.chat.history.md").write_text("# aider chat started at 2026-11-17 02:00:00\n")
    out = rawko(None, cwd=shop).stdout
    assert out.startswith("No tasks in shop yet.\n\nFound on this machine:\n")
    for name in ("Claude Code", "Codex", "Gemini CLI", "Qwen Code", "pi", "Copilot CLI", "Cline", "aider", "opencode"):
        assert f"\n  {name:<11}   " in out


@pytest.mark.parametrize("agent", COUNTED)
def test_the_sessions_that_are_counted_are_those_that_an_import_finds(agent: str, home: Path) -> None:
    (words,) = (what for _, source, what in agents_here(Path("/home/ann/src/cc")) if source == agent)
    # A sub-agent's session is a part of the one that started it.
    found = {session.key for session in sessions(agent, [], home, []) if session.parent is None}
    assert int(words.split()[0]) == len(found)


@pytest.mark.parametrize(("agent", "folder"), [("claude-code", "cc"), ("qwen", "qw"), ("pi", "pi")])
def test_those_of_this_project_are_told_apart(agent: str, folder: str, home: Path) -> None:
    def own(project: str) -> str:
        return next(what for _, source, what in agents_here(Path(project)) if source == agent)

    assert own(f"/home/ann/src/{folder}").endswith(" from this project")
    assert "from this project" not in own("/home/ann/src/else")


def test_many_interrupted_tasks_are_counted(tmp_path: Path) -> None:
    with FileStore(tmp_path) as store:
        for number in range(7):
            store.start(f"request {number}").close()
    out = rawko(tmp_path).stdout
    assert out.splitlines()[0].endswith(" · 7 tasks")
    assert "  and 2 more: rawko history --status interrupted\n" in out
