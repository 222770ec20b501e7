"""`rawko mcp install` and `uninstall`: they show the change, ask, and leave everything else alone."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from rawko_state.errors import RawkoError
from rawko_state.integrations.mcp_install import changed, command, settings_file
from tests.support.processes import rawko

WORDS = ["/usr/bin/rawko", "mcp"]
JSON = '{\n    "theme": "dark",\n    "mcpServers": {\n        "other": {\n            "command": "x"\n        }\n    }\n}\n'
TOML = '# mine\nmodel = "gpt-5.5"\n\n[mcp_servers.other]\ncommand = "x"\n\n[tui]\ntheme = "dark"\n'


@pytest.mark.parametrize(
    ("name", "text"), [("a.json", JSON), ("a.json", ""), ("a.toml", TOML), ("a.toml", ""), ("a.toml", "a = 1")]
)
def test_what_is_installed_is_taken_out_again(name: str, text: str) -> None:
    path = Path(name)
    installed = changed(text, path, WORDS)
    assert installed != text
    assert changed(installed, path, WORDS) == installed
    assert changed(installed, path, None).rstrip("\n") == (text.rstrip("\n") if text or name == "a.toml" else "{}")
    assert changed(text, path, None) == text
    writing = changed(installed, path, [*WORDS, "--write"])
    assert "--write" in writing
    assert changed(writing, path, WORDS) == installed


def test_the_agents_find_it() -> None:
    assert json.loads(changed(JSON, Path("a.json"), WORDS))["mcpServers"]["rawko"]["args"] == ["mcp"]
    if sys.version_info >= (3, 11):
        import tomllib

        assert tomllib.loads(changed(TOML, Path("a.toml"), WORDS)) == {
            **tomllib.loads(TOML),
            "mcp_servers": {"other": {"command": "x"}, "rawko": {"command": WORDS[0], "args": ["mcp"]}},
        }


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", '{"mcpServers": {"rawko": {"command": "theirs", "args": []}}}'),
        ("a.json", '{"mcpServers": []}'),
        ("a.json", "{"),
        pytest.param("a.toml", '[mcp_servers.rawko]\ncommand = "theirs"\n', marks=pytest.mark.skipif(sys.version_info < (3, 11), reason="no TOML parser")),
    ],
)  # fmt: skip
def test_what_somebody_else_made_is_left_alone(name: str, text: str) -> None:
    for words in (WORDS, None):
        with pytest.raises(RawkoError):
            changed(text, Path(name), words)


def test_where_the_agents_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLAUDE_CONFIG_DIR", raising=False)
    monkeypatch.delenv("CODEX_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert settings_file("claude-code", None) == tmp_path / ".claude.json"
    assert settings_file("codex", None) == tmp_path / ".codex/config.toml"
    assert settings_file("claude-code", Path("p")) == Path("p/.mcp.json")
    assert settings_file("codex", Path("p")) == Path("p/.codex/config.toml")
    assert command(write=False, shared=True) == ["rawko", "mcp"]


def test_it_shows_the_change_and_asks(tmp_path: Path) -> None:
    (tmp_path / ".rawko").mkdir()
    (tmp_path / ".mcp.json").write_text(changed(JSON, Path("a.json"), WORDS))
    shown = rawko(tmp_path, "mcp", "uninstall", "claude-code", "--project", "--dry-run")
    assert '-        "rawko": {' in shown.stdout
    refused = rawko(tmp_path, "mcp", "uninstall", "claude-code", "--project", code=2)
    assert "--yes" in refused.stderr
    assert "rawko" in (tmp_path / ".mcp.json").read_text()
    rawko(tmp_path, "mcp", "uninstall", "claude-code", "--project", "--yes")
    assert (tmp_path / ".mcp.json").read_text() == JSON
