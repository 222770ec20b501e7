"""Other agents' sessions: everything comes in, once, as it was; what grows comes after; what is broken is told of."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from rawko_state.backends.files.store import FileStore
from rawko_state.exchange.importing import task_id
from rawko_state.model.entries import Turn
from rawko_state.store import TaskFilter
from tests.exchange.conftest import project, sessions, store  # noqa: F401 - fixtures
from tests.exchange.sessions import bring, turns
from tests.support.processes import rawko


class TestHandOver:
    def agent(self, tmp_path: Path, name: str, does: str = "") -> dict[str, str]:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(f'#!/bin/sh\nfor word in "$@"; do printf "<%s>" "$word"; done\n{does}\n')
        (folder / name).chmod(0o755)
        return {
            "PATH": f"{folder}:{os.environ['PATH']}",
            "CLAUDE_CONFIG_DIR": str(tmp_path / "claude"),
            "CODEX_HOME": str(tmp_path / "codex"),
        }

    def test_natively_where_it_came_from(self, store: FileStore, project: Path, sessions: Path, tmp_path: Path) -> None:
        shutil.copytree(sessions / "claude-code", tmp_path / "claude/projects/-x")
        path = tmp_path / "claude/projects/-x/session-2.0.jsonl"
        more = json.dumps(
            {"type": "user", "message": {"role": "user", "content": "more"}, "timestamp": "2026-10-02T09:00:00Z"}
        )
        answer = json.dumps(
            {
                "type": "assistant",
                "message": {"id": "m9", "role": "assistant", "content": [{"type": "text", "text": "More is done."}]},
            }
        )
        env = self.agent(tmp_path, "claude", f"printf '%s\\n' '{more}' '{answer}' >> {path}")
        bring(store, "claude-code", path)
        task = task_id("claude-code", "session-2.0")
        done = rawko(project, "resume", task, "--with", "claude", "-m", "more", **env)
        assert done.stdout == "<-p><--resume><session-2.0><more>"
        assert f"Recorded as {task}" in done.stderr
        assert turns(store, task)[-1].content == "More is done."
        assert store.summary(task).runs == 2

    def test_natively_in_the_folder_of_the_session_and_not_when_that_is_gone(
        self, store: FileStore, project: Path, sessions: Path, tmp_path: Path
    ) -> None:
        """Claude Code finds a session only from the folder that it was run in."""
        below = project / "below"
        below.mkdir()
        path = tmp_path / "claude/projects/-x/session-2.0.jsonl"
        path.parent.mkdir(parents=True)
        path.write_text((sessions / "claude-code/session-2.0.jsonl").read_text().replace(f'"{project}"', f'"{below}"'))
        task = bring(store, "claude-code", path).new[0]
        env = self.agent(tmp_path, "claude", "pwd")
        assert rawko(project, "resume", task, "--with", "claude", **env).stdout.endswith(f"<Go on.>{below}\n")
        below.rmdir()
        assert "<--session-id>" in rawko(project, "resume", task, "--with", "claude", **env).stdout

    def test_a_fork_that_was_handed_over_has_ended(self, store: FileStore, project: Path, tmp_path: Path) -> None:
        with store.start("Fix the frobnicator") as task:
            task.add_turn(Turn(number=1, agent="dev", content="half done"))
        for code in (0, 3):
            env = self.agent(tmp_path, "codex", f"exit {code}")
            rawko(project, "resume", task.id, "--at-turn", "1", "--with", "codex", code=code, **env)
        forks = [each.status for each in store.history(TaskFilter()) if (each.parent or "").startswith(task.id)]
        assert sorted(forks) == ["completed", "failed"]

    def test_with_a_context_otherwise_and_as_a_child(self, store: FileStore, project: Path, tmp_path: Path) -> None:
        with store.start("Fix the frobnicator") as task:
            task.add_turn(Turn(number=1, agent="dev", content="half done"))
        line = json.dumps({"type": "user", "cwd": str(project), "message": {"role": "user", "content": "go on"}})
        does = (
            f"mkdir -p {tmp_path}/claude/projects/-x; printf '%s\\n' '{line}' > {tmp_path}/claude/projects/-x/$3.jsonl"
        )
        done = rawko(project, "resume", task.id, "--with", "claude", **self.agent(tmp_path, "claude", does))
        assert "<-p><--session-id><" in done.stdout
        assert "Fix the frobnicator" in done.stdout
        assert "half done" in done.stdout
        child = done.stderr.split("Recorded as ")[1].strip().rstrip(".")
        assert store.summary(child).parent == task.id
        done = rawko(project, "resume", task.id, "--with", "codex", **self.agent(tmp_path, "codex"))
        assert done.stdout.startswith("<exec><# Task")
        done = rawko(project, "resume", task.id, "--with", "aider", **self.agent(tmp_path, "aider"))
        assert done.stdout.startswith("<--message-file><")
        assert (
            "no such command"
            in rawko(project, "resume", task.id, "--with", "claude", code=1, PATH="/usr/bin:/bin").stderr
        )
