"""Other agents' sessions: everything comes in, once, as it was; what grows comes after; what is broken is told of."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

from rawko_state.exchange.importing import task_id
from tests.exchange.conftest import project, sessions, store  # noqa: F401 - fixtures
from tests.exchange.sessions import payload
from tests.support.faults import quiet
from tests.support.machine import patience
from tests.support.processes import rawko


class TestCommand:
    def test_import_show_and_wrong_use(self, project: Path, sessions: Path) -> None:
        (project / ".rawko").mkdir()
        assert (
            "Would import 3 sessions."
            in rawko(project, "import", "claude-code", str(sessions / "claude-code"), "--dry-run").stdout
        )
        assert not (project / ".rawko/state/tasks").exists()
        told = json.loads(rawko(project, "import", "claude-code", str(sessions / "claude-code"), "--json").stdout)
        assert len(told["new"]) == 3
        assert told["unknown"] == {"hologram": 1}
        assert (
            "Nothing new: 3 unchanged." in rawko(project, "import", "claude-code", str(sessions / "claude-code")).stdout
        )
        assert "No such file" in rawko(project, "import", "claude-code", "/not/there", code=1).stderr
        assert "needs a file" in rawko(project, "import", "jsonl", code=2).stderr
        assert "Unknown agent: 'emacs'" in rawko(project, "import", "emacs", code=2).stderr
        assert "Nothing new: " in rawko(project, "import", "codex", "--since", "1d").stdout
        since = (datetime.now(timezone.utc) + timedelta(days=1)).strftime("%Y-%m-%d")
        assert "Nothing new: " in rawko(project, "import", "codex", str(sessions / "codex"), "--since", since).stdout

    def test_watching(self, project: Path, sessions: Path) -> None:
        (project / ".rawko").mkdir()
        path = sessions / "claude-code/session-2.0.jsonl"
        lines = path.read_text().split("\n")
        path.write_text("\n".join(lines[:8]) + "\n")
        process = subprocess.Popen(
            [sys.executable, "-m", "rawko_state", "-C", str(project), "import", "claude-code", str(path), "--watch"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert "Imported 1 session as a task" in process.stdout.readline()
        assert "1 " in process.stdout.readline()  # how it ended
        path.write_text("\n".join(lines))
        assert "Updated 1 task" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=patience(20))
        store = quiet(project)
        assert payload(store, task_id("claude-code", "session-2.0")) + "\n" == path.read_text()

    def test_watching_says_once_what_is_wrong(self, project: Path, sessions: Path) -> None:
        (project / ".rawko").mkdir()
        (sessions / "claude-code/torn.jsonl").write_text('{"type":"us')
        (sessions / "claude-code/empty.jsonl").write_text("")
        words = ["-C", str(project), "import", "claude-code", str(sessions / "claude-code"), "--watch"]
        process = subprocess.Popen(
            [sys.executable, "-m", "rawko_state", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert "Imported" in process.stdout.readline()
        for number in range(2):  # each is found in another round
            shutil.copy(sessions / "claude-code/session-2.0.jsonl", sessions / f"claude-code/later-{number}.jsonl")
            assert next((line for line in process.stdout if "Imported 1 session as a task" in line), None)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=patience(20))[1]
        assert [said.count(name) for name in ("torn.jsonl", "empty.jsonl")] == [1, 1]

    def test_projects_and_a_search_through_all(self, project: Path, sessions: Path, tmp_path: Path) -> None:
        other = tmp_path / "other"
        (other / ".rawko").mkdir(parents=True)
        (project / ".rawko").mkdir()
        rawko(project, "import", "claude-code", str(sessions / "claude-code"))
        rawko(other, "task", "start", "something about clock skew here")
        rawko(other, "history")
        listed = json.loads(rawko(project, "projects", "list", "--json").stdout)["projects"]
        assert {each["root"] for each in listed} == {str(project), str(other)}
        found = json.loads(rawko(project, "history", "--all-projects", "--search", "clock skew", "--json").stdout)[
            "tasks"
        ]
        assert {each["project"] for each in found} == {str(project), str(other)}
        assert str(other) in rawko(tmp_path, "history", "--all-projects").stdout
        figures = json.loads(rawko(project, "stats", "--all-projects", "--json").stdout)["projects"]
        assert {each["project"]: each["tasks"] for each in figures} == {
            each["root"]: len(json.loads(rawko(Path(each["root"]), "history", "--json").stdout)["tasks"])
            for each in listed
        }
        shown = rawko(project, "stats", "--all-projects").stdout
        assert shown.startswith(f"2 projects · {sum(each['tasks'] for each in figures)} tasks · ")
        assert "\nPROJECT " in shown
        shutil.rmtree(other)
        assert "gone" in rawko(project, "projects").stdout
        assert "is gone" in rawko(project, "history", "--all-projects").stderr
        rawko(project, "projects", "forget", "--gone")
        assert str(other) not in rawko(project, "projects").stdout
        assert "Not in the list" in rawko(project, "projects", "forget", "/nowhere", code=1).stderr
        assert "is not a project" in rawko(project, "projects", "add", str(tmp_path), code=1).stderr
        rawko(project, "projects", "forget", str(project))
        assert f"{project}\n" in rawko(project, "projects", "scan", str(tmp_path)).stdout

    def test_a_project_is_learned_of_when_it_is_made_and_where_it_is_moved_to(
        self, project: Path, tmp_path: Path
    ) -> None:
        def roots() -> set[str]:
            return {
                each["root"] for each in json.loads(rawko(tmp_path, "projects", "list", "--json").stdout)["projects"]
            }

        rawko(project, "init")
        assert roots() == {str(project)}
        rawko(project, "task", "start", "something about clock skew")
        moved = tmp_path / "moved"
        shutil.move(project, moved)
        rawko(moved, "history")
        assert roots() == {str(project), str(moved)}
        assert "clock skew" in rawko(tmp_path, "history", "--all-projects").stdout
