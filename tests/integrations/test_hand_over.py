"""Other agents' sessions: everything comes in, once, as it was; what grows comes after; what is broken is told of."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import uuid
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
        assert rawko(project, "resume", task, "--with", "claude", **env).stdout.endswith(f"<Continue.>{below}\n")
        below.rmdir()
        assert "<-p><--resume><" in rawko(project, "resume", task, "--with", "claude", **env).stdout

    def test_a_fork_that_was_handed_over_has_ended(self, store: FileStore, project: Path, tmp_path: Path) -> None:
        with store.start("Fix the frobnicator") as task:
            task.add_turn(Turn(number=1, agent="dev", content="half done"))
        for code in (0, 3):
            env = self.agent(tmp_path, "codex", f"exit {code}")
            rawko(project, "resume", task.id, "--at-turn", "1", "--with", "codex", code=code, **env)
        forks = [
            store.runs(each.id)[-1].status for each in store.history(TaskFilter()) if each.parent == f"{task.id}@1"
        ]
        assert sorted(str(status) for status in forks) == ["failed", "unknown"]

    def test_a_fork_takes_what_the_agent_does(self, store: FileStore, project: Path, tmp_path: Path) -> None:
        with store.start("Fix the frobnicator") as task:
            task.add_turn(Turn(number=1, agent="dev", content="half done"))
            task.add_turn(Turn(number=2, agent="dev", content="went wrong"))
        env = self.agent(tmp_path, "claude", self.answered(tmp_path, project, "Now", "All done."))
        done = rawko(project, "resume", task.id, "--at-turn", "1", "--with", "claude", "-m", "Now", **env)
        fork = done.stderr.split("Recorded as ")[1].strip().rstrip(".")
        assert (store.summary(fork).parent, store.summary(fork).request) == (f"{task.id}@1", "Now")
        assert [(turn.agent, turn.content) for turn in turns(store, fork)] == [("claude", "All done.")]
        (path,) = (tmp_path / "claude/projects").glob("*/*.jsonl")
        assert "half done" in path.read_text()
        assert "went wrong" not in path.read_text()

    def answered(self, tmp_path: Path, project: Path, prompt: str, text: str) -> str:
        """What a Claude Code does that is resumed with a prompt, in a shell."""
        asked = {"type": "user", "cwd": str(project), "uuid": str(uuid.uuid4())}
        asked |= {"message": {"role": "user", "content": prompt}}
        answer = {"type": "assistant", "cwd": str(project), "uuid": str(uuid.uuid4())}
        said = {"id": f"m{text}", "role": "assistant", "content": [{"type": "text", "text": text}]}
        both = f"{json.dumps(asked)}\n{json.dumps({**answer, 'message': said})}"
        return f"file=$(echo {tmp_path}/claude/projects/*/$3.jsonl); cat >> $file <<'END'\n{both}\nEND"

    def test_as_a_session_of_the_agents_own_whose_turns_join_the_task(
        self, store: FileStore, project: Path, tmp_path: Path
    ) -> None:
        with store.start("Fix the frobnicator") as task:
            task.add_turn(
                Turn(number=1, agent="dev", content="half done", tools=(ToolCall("sh", "ls", "ok", output="a.py"),))
            )
            task.say("and the other half")
            task.finish("success")
        env = self.agent(tmp_path, "claude", self.answered(tmp_path, project, "Now", "All done."))
        done = rawko(project, "resume", task.id, "--with", "claude", "-m", "Now", "--", "--model", "opus", **env)
        assert done.stdout.startswith("<-p><--resume><")
        assert done.stdout.endswith("><Now><--model><opus>")
        assert f"Recorded as {task.id}." in done.stderr
        assert [each.id for each in store.history(TaskFilter())] == [task.id]
        assert [run.request for run in store.runs(task.id)] == ["Fix the frobnicator", "Now"]
        assert [(turn.number, turn.content) for turn in turns(store, task.id)][2:] == [(3, "All done.")]
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
        # Importing it again adds nothing; what it does later joins the same task, also after the index was lost.
        report = bring(store, "claude-code", path)
        assert (report.new, report.grown) == ([], [])
        assert store.by_source("claude-code:") == {f"claude-code:{path.stem}": task.id}
        subprocess.run(["sh", "-c", self.answered(tmp_path, project, "More", "Even more."), "", "", "", path.stem])
        store.reindex()
        report = bring(store, "claude-code", path)
        assert (report.new, report.grown) == ([], [task.id])
        assert turns(store, task.id)[-1].content == "Even more."
        # It is resumed as it is, not written a second time.
        rawko(project, "resume", task.id, "--with", "claude", "-m", "Now", **self.agent(tmp_path, "claude"))
        assert len(list((tmp_path / "claude/projects").glob("*/*.jsonl"))) == 1

    def test_there_and_back_keeps_every_turn(
        self, store: FileStore, project: Path, sessions: Path, tmp_path: Path
    ) -> None:
        first = tmp_path / "claude/projects/-x/session-2.0.jsonl"
        first.parent.mkdir(parents=True)
        shutil.copy(sessions / "claude-code/session-2.0.jsonl", first)
        (task,) = bring(store, "claude-code", first).new
        before = store.summary(task).turns
        answer = {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Codex was here."}],
        }
        line = json.dumps({"type": "response_item", "payload": answer})
        asked = json.dumps({"type": "event_msg", "payload": {"type": "task_started"}})
        ended = json.dumps({"type": "event_msg", "payload": {"type": "task_complete"}})
        does = f"printf '%s\\n' '{asked}' '{line}' '{ended}' >> $(echo {tmp_path}/codex/sessions/*/*/*/*$3.jsonl)"
        rawko(project, "resume", task, "--with", "codex", "-m", "Now", **self.agent(tmp_path, "codex", does))
        assert [turn.agent for turn in turns(store, task)][before:] == ["codex"]
        env = self.agent(tmp_path, "claude", self.answered(tmp_path, project, "Back", "And back."))
        rawko(project, "resume", task, "--with", "claude", "-m", "Back", cwd=project, **env)
        assert [turn.content for turn in turns(store, task)][before:] == ["Codex was here.", "And back."]
        (third,) = [path for path in (tmp_path / "claude/projects").glob("*/*.jsonl") if path != first]
        assert "Codex was here." in third.read_text()
        assert len(store.by_source("")) == 3
        # The first session also goes on: what is new in it joins the same task, and nothing comes twice.
        assert bring(store, "claude-code", first).same == 1
        text = self.answered(tmp_path, project, "Old one", "From the first one.")
        subprocess.run(["sh", "-c", text, "", "", "", first.stem])
        assert bring(store, "claude-code", first).grown == [task]
        assert bring(store, "claude-code", third).same == 1
        assert [turn.content for turn in turns(store, task)][before:][2:] == ["From the first one."]
        # A fork that the agent makes of a session that was handed over is a child, with only its own turns.
        fork = third.with_name(f"{uuid.uuid4()}.jsonl")
        fork.write_text(third.read_text())
        subprocess.run(["sh", "-c", self.answered(tmp_path, project, "Fork", "Forked."), "", "", "", fork.stem])
        (child,) = bring(store, "claude-code", third.parent).new
        assert store.summary(child).parent == f"{task}@{before + 2}"
        assert [turn.content for turn in turns(store, child)] == ["Forked."]

    def test_a_task_that_runs_is_not_handed_over(self, store: FileStore, project: Path, tmp_path: Path) -> None:
        with store.start("Fix the frobnicator") as task:
            done = rawko(project, "resume", task.id, "--with", "claude", code=1, **self.agent(tmp_path, "claude"))
        assert "is running now" in done.stderr

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
            "Command not found"
            in rawko(project, "resume", task.id, "--with", "claude", code=1, PATH="/usr/bin:/bin").stderr
        )
        assert "need --with" in rawko(project, "resume", task.id, "--", "--model", "x", code=2).stderr
