"""Other agents' sessions: everything comes in, once, as it was; what grows comes after; what is broken is told of."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from pathlib import Path

from rawko_state.backends.files.store import FileStore
from rawko_state.exchange.importing import task_id
from rawko_state.exchange.transcript import text_of
from rawko_state.model.entries import ToolCall, Turn
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
        assert "<-p><--resume><" in rawko(project, "resume", task, "--with", "claude", **env).stdout

    def test_a_fork_that_was_handed_over_has_ended(self, store: FileStore, project: Path, tmp_path: Path) -> None:
        with store.start("Fix the frobnicator") as task:
            task.add_turn(Turn(number=1, agent="dev", content="half done"))
        for code in (0, 3):
            env = self.agent(tmp_path, "codex", f"exit {code}")
            rawko(project, "resume", task.id, "--at-turn", "1", "--with", "codex", code=code, **env)
        forks = [each.status for each in store.history(TaskFilter()) if (each.parent or "").startswith(task.id)]
        assert sorted(forks) == ["completed", "failed"]

    def test_as_a_session_of_the_agents_own_that_continues_the_task(
        self, store: FileStore, project: Path, tmp_path: Path
    ) -> None:
        with store.start("Fix the frobnicator") as task:
            task.add_turn(
                Turn(number=1, agent="dev", content="half done", tools=(ToolCall("sh", "ls", "ok", output="a.py"),))
            )
            task.say("and the other half")
        answer = {"type": "assistant", "cwd": str(project)}
        answer |= {"message": {"id": "m1", "role": "assistant", "content": [{"type": "text", "text": "All done."}]}}
        asked = {"type": "user", "cwd": str(project), "message": {"role": "user", "content": "Now"}}
        does = f"file=$(echo {tmp_path}/claude/projects/*/$3.jsonl); cat >> $file <<'END'\n{json.dumps(asked)}\n{json.dumps(answer)}\nEND"
        env = self.agent(tmp_path, "claude", does)
        done = rawko(project, "resume", task.id, "--with", "claude", "-m", "Now", "--", "--model", "opus", **env)
        assert done.stdout.startswith("<-p><--resume><")
        assert done.stdout.endswith("><Now><--model><opus>")
        child = done.stderr.split("Recorded as ")[1].strip().rstrip(".")
        summary = store.summary(child)
        assert (summary.parent, summary.request) == (f"{task.id}@2", "Now")
        assert [(turn.number, turn.content) for turn in turns(store, child)] == [(3, "All done.")]
        # What the agent finds in its session: everything, in order.
        (path,) = (tmp_path / "claude/projects").glob("*/*.jsonl")
        written = [json.loads(line) for line in path.read_text().splitlines()][:-2]
        said = [(each["type"], text_of(each["message"]["content"])) for each in written]
        assert said == [
            ("user", "Fix the frobnicator"),
            ("assistant", "half done\n\n[sh ls]\n\na.py"),
            ("user", "and the other half"),
        ]
        assert all(each["parentUuid"] == before["uuid"] for before, each in itertools.pairwise(written))
        # Importing it again adds nothing.
        report = bring(store, "claude-code", path)
        assert (report.new, report.grown) == ([], [])

    def test_an_agent_that_says_nothing_leaves_no_task(self, store: FileStore, project: Path, tmp_path: Path) -> None:
        with store.start("Fix the frobnicator") as task:
            task.add_turn(Turn(number=1, agent="dev", content="half done"))
        for agent in ("claude", "codex"):
            done = rawko(project, "resume", task.id, "--with", agent, **self.agent(tmp_path, agent))
            assert "left no session" in done.stderr
        assert len(store.history(TaskFilter())) == 1

    def test_with_a_context_where_sessions_cannot_be_written(
        self, store: FileStore, project: Path, tmp_path: Path
    ) -> None:
        with store.start("Fix the frobnicator") as task:
            task.add_turn(Turn(number=1, agent="dev", content="half done"))
        for agent, first in (("gemini", "<-p><# Task"), ("opencode", "<run><# Task"), ("aider", "<--message-file><")):
            done = rawko(project, "resume", task.id, "--with", agent, **self.agent(tmp_path, agent))
            assert done.stdout.startswith(first)
        assert (
            "no such command"
            in rawko(project, "resume", task.id, "--with", "claude", code=1, PATH="/usr/bin:/bin").stderr
        )
        assert "go to the agent" in rawko(project, "resume", task.id, "--", "--model", "x", code=2).stderr
