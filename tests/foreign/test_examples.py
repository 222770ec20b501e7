"""The examples that need other projects' packages run, and print what they promise."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.machine import patience
from tests.support.processes import ROOT

PRINTED = {
    "langgraph_thread.py": "now: ['start', 'thought 1', 'thought 2', 'thought 3']\nbefore: ['start', 'thought 1', 'thought 2']",
    "claude_session_store.py": "session: 5f3c\nuser: Fix the login\nassistant: Done.",
    "openai_session.py": "taken back: 41\nuser: What is 6 times 7?\nassistant: 42",
    "opentelemetry_agent.py": "while it runs: ['running']\nFix the login bug: completed, 1 turn",
    "mcp_client.py": "tools: search, list_tasks, show_task, show_turn, file_history, resume_context\n1 result for 'clock skew', best first.",
}


@pytest.mark.parametrize("name", PRINTED)
def test_it_runs(tmp_path: Path, name: str) -> None:
    (tmp_path / ".rawko").mkdir()
    words = [sys.executable, str(ROOT / "examples" / name), str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=patience(60), cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert PRINTED[name] in done.stdout


def test_what_the_page_of_integrations_imports_is_there() -> None:
    page = (ROOT / "docs/reference/integrations.md").read_text(encoding="utf-8")
    lines = [line for block in re.findall(r"```python\n(.*?)```", page, re.S) for line in block.splitlines() if re.match(r"from \S+ import |import ", line)]  # fmt: skip
    assert len(lines) > 10
    for line in lines:
        exec(line, {})
