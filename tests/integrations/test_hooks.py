"""Other agents' sessions: everything comes in, once, as it was; what grows comes after; what is broken is told of."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rawko_state.backends.files.store import FileStore
from rawko_state.exchange.importing import task_id
from rawko_state.integrations.hook_event import note_event
from rawko_state.integrations.hooks import sweep
from rawko_state.store import TaskFilter
from tests.exchange.conftest import project, sessions, store  # noqa: F401 - fixtures
from tests.exchange.sessions import agrees, hook_event, payload
from tests.support.faults import quiet
from tests.support.machine import patience, wait_for
from tests.support.processes import rawko


@pytest.fixture(autouse=True)
def agents_home(sessions: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only transcripts in the agent's own folder are read."""
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(sessions))


class TestHooks:
    def test_a_session_is_recorded_as_it_goes(self, project: Path, sessions: Path) -> None:
        (project / ".rawko").mkdir()
        source = sessions / "claude-code/session-2.0.jsonl"
        lines = source.read_text(encoding="utf-8").split("\n")[:-1]
        path = sessions / "live" / "session-2.0.jsonl"
        path.parent.mkdir()
        store = quiet(project)
        task = task_id("claude-code", "session-2.0")
        for count, name in (
            (3, "UserPromptSubmit"),
            (7, "PostToolUse"),
            (10, "PostToolUse"),
            (12, "Stop"),
            (13, "UserPromptSubmit"),
            (16, "Stop"),
        ):
            path.write_text("\n".join(lines[:count]) + "\n", encoding="utf-8")
            done = rawko(project, "hook", "run", "claude-code", given=hook_event(name, path, project))
            assert (done.stdout, done.stderr) == ("", "")
            if name == "Stop":
                wait_for(lambda: store.history(TaskFilter(ids=(task,), status=("completed",))))
            else:
                wait_for(lambda: store.history(TaskFilter(ids=(task,))))
                wait_for(lambda: not list((project / ".rawko/state/live").glob("hook-*")))
        wait_for(lambda: payload(store, task) == "\n".join(lines))
        assert store.summary(task).runs == 2
        agrees(store)
        assert "Nothing new: 1 unchanged." in rawko(project, "import", "claude-code", str(path)).stdout

    def test_many_at_once(self, project: Path, sessions: Path) -> None:
        (project / ".rawko").mkdir()
        source = sessions / "claude-code/session-2.0.jsonl"
        paths = []
        for number in range(4):
            path = sessions / "claude-code" / f"m{number}.jsonl"
            shutil.copy(source, path)
            paths.append(path)
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "rawko_state", "hook", "run", "claude-code"], stdin=subprocess.PIPE, text=True
            )
            for _ in range(12)
        ]
        for number, process in enumerate(processes):
            process.communicate(hook_event("Stop", paths[number % 4], project), timeout=patience(60))
        store = quiet(project)
        wait_for(lambda: len(store.history(TaskFilter(status=("completed",)))) == 4)
        for path in paths:
            assert payload(store, task_id("claude-code", path.stem)) + "\n" == source.read_text(encoding="utf-8")
        agrees(store)

    @pytest.mark.parametrize(
        "given",
        [
            "",
            "junk",
            "[]",
            "null",
            '{"cwd": 7}',
            '{"cwd": "/not/there"}',
            '{"transcript_path": "/not/there", "cwd": "%s"}',
        ],
    )
    def test_never_fails_the_agent(self, project: Path, given: str) -> None:
        (project / ".rawko").mkdir()
        done = rawko(
            project, "hook", "run", "claude-code", given=given.replace("%s", str(project)), RAWKO_DIR=str(project)
        )
        assert (done.stdout, done.stderr) == ("", "")

    def test_trouble_is_in_the_doctors_report(self, project: Path) -> None:
        (project / ".rawko").mkdir()
        rawko(project, "task", "start", "x")
        rawko(project, "hook", "run", "claude-code", given="junk", RAWKO_DIR=str(project))
        assert "A hook had a problem: " in rawko(project, "doctor", code=1).stdout

    def test_trouble_where_there_is_no_project_yet_is_too(self, project: Path, tmp_path: Path) -> None:
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        for text in ("junk", "[]"):
            rawko(elsewhere, "hook", "run", "claude-code", given=text, RAWKO_DIR=str(elsewhere))
        assert not list(elsewhere.iterdir())
        (project / ".rawko").mkdir()
        assert rawko(project, "doctor", code=1).stdout.count("A hook had a problem: ") == 2

    def test_the_home_folder_is_not_made_a_project(self, project: Path, sessions: Path, tmp_path: Path) -> None:
        home = tmp_path / "home"
        home.mkdir()
        given = hook_event("Stop", sessions / "claude-code/session-2.0.jsonl", home)
        rawko(home, "hook", "run", "claude-code", given=given, HOME=str(home))
        assert not (home / ".rawko").exists()
        (project / ".rawko").mkdir()
        assert "is not a project" in rawko(project, "doctor", code=1).stdout

    def test_a_second_sweeper_is_no_trouble(self, store: FileStore) -> None:
        from rawko_state.integrations import hooks
        from rawko_state.journal.locks import gate

        store.journal.layout.make()
        live = store.journal.layout.live
        with gate(live / hooks.LOCK):
            assert hooks.sweep(store) == 0
        assert hooks.trouble(live) == []

    def test_what_is_told_of_while_a_sweeper_ends_is_recorded(
        self, store: FileStore, sessions: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from rawko_state.integrations import hook_event as noting
        from rawko_state.integrations import hooks

        path = sessions / "claude-code/session-2.0.jsonl"
        event = json.loads(hook_event("Stop", path, store.root))
        store.journal.layout.make()
        (store.root / ".rawko").mkdir(exist_ok=True)
        real = time.sleep

        def sleep(seconds: float) -> None:
            """The last nap before the sweeper ends: the event finds the lock held, and starts no other."""
            real(0.05)
            if not told:
                told.append(True)
                noting.note_event("claude-code", event)

        told: list[bool] = []
        monkeypatch.setattr(noting, "_start", lambda root: pytest.fail("the lock is held: nothing is to be started"))
        monkeypatch.setattr(hooks.time, "sleep", sleep)
        hooks.sweep(store, idle=0.01)
        assert store.summary(task_id("claude-code", "session-2.0")).status == "completed"

    def test_codex_tells_by_an_argument(self, project: Path, sessions: Path, tmp_path: Path) -> None:
        (project / ".rawko").mkdir()
        home = tmp_path / "codex"
        shutil.copytree(sessions / "codex", home / "sessions/2026/10/01")
        event = json.dumps({"type": "agent-turn-complete", "thread-id": "7f9a", "cwd": str(project)})
        rawko(project, "hook", "run", "codex", event, CODEX_HOME=str(home))
        store = quiet(project)
        wait_for(lambda: [s.id for s in store.history(TaskFilter())] == [task_id("codex", "7f9a")])

    def test_installing_keeps_what_is_there_and_can_be_undone(self, project: Path, tmp_path: Path) -> None:
        (project / ".rawko").mkdir()
        path = tmp_path / "claude/settings.json"
        path.parent.mkdir()
        mine = {"model": "opus", "hooks": {"Stop": [{"hooks": [{"type": "command", "command": "say done"}]}]}, "ö": [1]}
        path.write_text(json.dumps(mine))
        shown = rawko(project, "hook", "install", "claude-code", CLAUDE_CONFIG_DIR=str(path.parent)).stdout
        assert "This adds rawko to 10 events in" in shown
        settings_now = json.loads(path.read_text())
        assert settings_now["hooks"]["Stop"][0] == mine["hooks"]["Stop"][0]  # type: ignore[index]
        assert set(settings_now["hooks"]) == {
            "SessionStart",
            "UserPromptSubmit",
            "PreToolUse",
            "PostToolUse",
            "PostToolUseFailure",
            "PreCompact",
            "SubagentStart",
            "SubagentStop",
            "Stop",
            "SessionEnd",
        }
        assert settings_now["hooks"]["PostToolUse"][0]["hooks"][0]["async"]
        assert (
            "Nothing to change"
            in rawko(project, "hook", "install", "claude-code", CLAUDE_CONFIG_DIR=str(path.parent)).stdout
        )
        rawko(project, "hook", "uninstall", "claude-code", CLAUDE_CONFIG_DIR=str(path.parent))
        assert json.loads(path.read_text()) == mine
        path.unlink()
        for word in ("install", "uninstall"):
            rawko(project, "hook", word, "claude-code", CLAUDE_CONFIG_DIR=str(path.parent))
        assert not path.exists()  # where there was no file, none is left
        path.write_text("{ not json")
        assert (
            "left unchanged"
            in rawko(project, "hook", "install", "claude-code", code=1, CLAUDE_CONFIG_DIR=str(path.parent)).stderr
        )
        assert path.read_text() == "{ not json"
        assert "+" in rawko(project, "hook", "install", "claude-code", "--project", "--dry-run").stdout
        assert not (project / ".claude").exists()

    def test_no_event_is_lost_while_others_are_taken(self, project: Path) -> None:
        """One that was noted between a sweeper's look and its clearing away was lost."""
        (project / ".rawko").mkdir()
        store = quiet(project)
        event = {"cwd": str(project), "hook_event_name": "Stop", "transcript_path": "/no/such/file"}

        def note() -> None:
            for _ in range(150):
                note_event("claude-code", event, sweeper=False)

        note_event("claude-code", event, sweeper=False)
        threads = [threading.Thread(target=note) for _ in range(4)]
        for thread in threads:
            thread.start()
        taken = 0
        while any(thread.is_alive() for thread in threads):
            taken += sweep(store, idle=0.01)
        for thread in threads:
            thread.join()
        taken += sweep(store, idle=0.01)
        assert taken == 601

    def test_codex_settings(self, project: Path, tmp_path: Path) -> None:
        (project / ".rawko").mkdir()
        path = tmp_path / "codex/config.toml"
        path.parent.mkdir()
        mine = '# mine\nmodel = "gpt-5"\n\n[tools]\nweb = true\n'
        path.write_text(mine)
        rawko(project, "hook", "install", "codex", CODEX_HOME=str(path.parent))
        assert path.read_text().startswith("notify = [")
        assert path.read_text().endswith(mine)
        rawko(project, "hook", "uninstall", "codex", CODEX_HOME=str(path.parent))
        assert path.read_text() == mine
        assert not (path.parent / "hooks.json").exists()
        path.write_text('notify = ["my-own"]\n')
        done = rawko(project, "hook", "install", "codex", CODEX_HOME=str(path.parent))
        assert f"Nothing to change in {path}" in done.stdout
        hooks = json.loads((path.parent / "hooks.json").read_text())["hooks"]
        assert {"SessionStart", "PreToolUse", "Stop"} <= hooks.keys()
        assert hooks["Stop"][0]["hooks"][0]["command"].endswith("hook run codex")
