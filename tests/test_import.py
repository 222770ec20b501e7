"""Other agents' sessions: everything comes in, once, as it was; what grows comes after; what is broken is told of."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rawko_state.backends.files.store import FileStore
from rawko_state.exchange.importing import Belonging, Report, import_sessions, plain_remote, task_id
from rawko_state.exchange.sources import claude_code, codex
from rawko_state.model.entries import Note, ToolCall, Turn
from rawko_state.store import TaskFilter
from tests.faults import quiet
from tests.support.machine import patience, wait_for


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    return root


@pytest.fixture
def store(project: Path) -> Iterator[FileStore]:
    opened = quiet(project)
    yield opened
    opened.close()


@pytest.fixture
def sessions(tmp_path: Path, project: Path, fixtures: Path) -> Path:
    """The fixtures with the project's own folder in them."""
    target = tmp_path / "agents"
    for path in (fixtures / "agents").rglob("*"):
        if path.is_file():
            copy = target / path.relative_to(fixtures / "agents")
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(path.read_text(encoding="utf-8").replace("ROOT", str(project)), encoding="utf-8")
    return target


def bring(store: FileStore, source: str, *paths: Path, **more: object) -> Report:
    belonging = more.pop("belonging", None) or Belonging((str(store.root),))
    return import_sessions(store, source, paths, belonging=belonging, **more)  # type: ignore[arg-type]


def payload(store: FileStore, task: str) -> str:
    """All that a task holds of its source, in order."""
    found = []
    for _, entry in store.entries(task, whole=True):
        if isinstance(entry, Turn) and entry.payload is not None:
            found.append(entry.payload)
        if isinstance(entry, Note):
            found += [section.text for section in entry.sections if section.heading == "Payload"]
    return "\n".join(found)


def turns(store: FileStore, task: str) -> list[Turn]:
    return [entry for _, entry in store.entries(task) if isinstance(entry, Turn)]


def agrees(store: FileStore) -> None:
    live = store.sync.fresh().dump()
    store.reindex()
    assert store.sync.fresh().dump() == live
    assert not [fault for verdict in store.verify() for fault in verdict.faults]


class TestClaudeCode:
    def test_a_session_with_all_that_it_has(self, store: FileStore, sessions: Path) -> None:
        report = bring(store, "claude-code", sessions / "claude-code")
        assert len(report.new) == 3
        assert report.unknown == {"hologram": 1}
        task = task_id("claude-code", "session-2.0")
        summary = store.summary(task)
        assert summary.title == "SSO clock skew"
        assert summary.request == "Fix the login bug in auth/sso.py"
        assert (summary.status, summary.created, summary.completed) == (
            "completed",
            "2026-10-01T09:00:00Z",
            "2026-10-01T09:05:04Z",
        )
        assert (summary.branch, summary.model) == ("main", "claude-sonnet-4-5")
        assert (summary.tokens_in, summary.tokens_out) == (900 + 1200 + 1300 + 10, 61 + 80 + 20 + 5)
        first, second, third, asked, last = turns(store, task)
        assert (first.agent, first.content, first.model) == (
            "claude",
            "I will read the handler first.",
            "claude-sonnet-4-5",
        )
        assert [section.text for section in first.sections] == ["The token check may ignore clock skew."]
        assert first.tokens == {"in": 900, "out": 61, "cache_read": 4000, "cache_write": 10}
        (read,) = first.tools
        assert isinstance(read, ToolCall)
        assert (read.tool, read.time, read.result) == ("Read", "09:00:05", "50 bytes")
        assert read.output == "def check(token):\n    return token.expires > now()"
        assert [(call.tool, call.result, call.output) for call in second.tools if isinstance(call, ToolCall)] == [
            ("Edit", "6 bytes", "edited"), ("Write", "error", "permission denied"), ("Bash", "8 bytes", "3 passed")]  # fmt: skip
        assert [(file.operation, file.path) for file in second.files] == [
            ("write", "auth/sso.py"),
            ("write", "/etc/hosts.new"),
        ]  # type: ignore[union-attr]
        assert third.content == "Fixed: the check allows for clock skew now. \u2028 done"
        assert (asked.agent, asked.content) == ("user", "And what is in this picture?\n[image]")
        assert last.content == "=== RESULT ===\nStatus: failure"
        assert [hit.task.id for hit in store.search("clock skew picture").hits] == [task]
        assert [s.id for s in store.history(TaskFilter(file="auth/sso.py"))] == [task]
        agrees(store)

    def test_every_record_is_found_again_as_it_was(self, store: FileStore, sessions: Path) -> None:
        bring(store, "claude-code", sessions / "claude-code")
        for path in (sessions / "claude-code").rglob("*.jsonl"):
            key = path.stem if path.parent.name != "subagents" else f"{path.parent.parent.name}/{path.stem}"
            assert payload(store, task_id("claude-code", key)) + "\n" == path.read_text(encoding="utf-8")

    def test_sub_agents_are_children_and_side_chains_have_their_name(self, store: FileStore, sessions: Path) -> None:
        bring(store, "claude-code", sessions / "claude-code")
        child = store.summary(task_id("claude-code", "session-2.0/agent-a1"))
        assert child.parent == task_id("claude-code", "session-2.0")
        side, main = turns(store, task_id("claude-code", "session-1.0"))
        assert (side.agent, main.agent) == ("agent-x9", "claude")
        assert main.status == "interrupted"
        assert [file.path for file in main.files] == ["sub/mod.py"]  # type: ignore[union-attr]
        assert store.summary(task_id("claude-code", "session-1.0")).status == "cancelled"
        assert store.summary(task_id("claude-code", "session-1.0")).request == "Rename the module"

    def test_its_own_places(
        self, store: FileStore, sessions: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        shutil.copytree(sessions / "claude-code", tmp_path / "claude" / "projects" / "-x")
        monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "claude"))
        assert len(bring(store, "claude-code").new) == 3


class TestCodex:
    def test_a_session_with_all_that_it_has(self, store: FileStore, sessions: Path) -> None:
        report = bring(store, "codex", sessions / "codex")
        assert len(report.new) == 2
        assert report.unknown == {"event_msg/aurora_borealis": 1}
        task = task_id("codex", "7f9a")
        summary = store.summary(task)
        assert (summary.request, summary.model, summary.branch) == ("Add a retry to the client", "gpt-5-codex", "main")
        row = store.sync.index().row(task)
        assert row is not None
        assert (row["commit"], row["repo"]) == (
            "3f786850e387550fdab836ed7e6dc881de23001b",
            "git@github.com:acme/app.git",
        )
        first, second, third, asked, back = turns(store, task)
        assert [(call.tool, call.args, call.output) for call in first.tools if isinstance(call, ToolCall)] == [
            ("shell", "bash -lc grep -rn Client src", "src/client.py:3:class Client")]  # fmt: skip
        assert first.tokens == {"in": 100, "out": 10, "cache_read": 50}
        assert [(f.operation, f.path) for f in second.files] == [
            ("write", "src/client.py"),
            ("write", "src/retry.py"),
            ("delete", "old.py"),
        ]  # type: ignore[union-attr]
        assert third.content == "The client retries three times now."
        assert asked.content == "Hm, take that back"
        assert "taken back" in (back.content or "")
        assert store.summary(task_id("codex", "old1")).status == "cancelled"
        for path in (sessions / "codex").iterdir():
            assert payload(store, task_id("codex", path.stem.rpartition("-")[2])) + "\n" == path.read_text(
                encoding="utf-8"
            )
        agrees(store)

    def test_models_tokens_and_outputs_are_of_the_turn_that_they_came_in(
        self, store: FileStore, project: Path, tmp_path: Path
    ) -> None:
        def said(role: str, text: str) -> tuple[str, object]:
            return "response_item", {"type": "message", "role": role, "content": [{"type": "text", "text": text}]}

        def counted(total: int, last: int) -> tuple[str, object]:
            info = {"total_token_usage": {"input_tokens": total}, "last_token_usage": {"input_tokens": last}}
            return "event_msg", {"type": "token_count", "info": info}

        output = {
            "type": "function_call_output",
            "call_id": "k",
            "output": '{"output":"no","metadata":{"exit_code":2}}',
        }
        records: list[tuple[str, object]] = [
            ("session_meta", {"id": "m1", "cwd": str(project)}),
            ("turn_context", {"model": "first"}),
            said("user", "one"),
            said("assistant", "1"),
            counted(10, 10),
            counted(10, 10),
            ("turn_context", {"model": "second"}),
            said("user", "two"),
            ("response_item", {"type": "function_call", "name": "shell", "arguments": "{}", "call_id": "k"}),
            ("response_item", output),
            counted(30, 20),
        ]
        path = tmp_path / "rollout-2026-10-01T09-00-00-m1.jsonl"
        path.write_text("".join(json.dumps({"type": kind, "payload": inner}) + "\n" for kind, inner in records))
        task = bring(store, "codex", path).new[0]
        assert store.summary(task).model == "first"
        found = [(turn.model, dict(turn.tokens)) for turn in turns(store, task) if turn.agent == "codex"]
        assert found == [("first", {"in": 10}), ("second", {"in": 20})]
        call = turns(store, task)[-1].tools[0]
        assert isinstance(call, ToolCall)
        assert (call.result, call.output) == ("error", "no")

    def test_compressed_ones(self, store: FileStore, sessions: Path) -> None:
        if shutil.which("zstd") is None:
            path = sessions / "codex" / "rollout-2025-05-01T09-00-00-zst1.jsonl.zst"
            path.write_bytes(b"(\xb5/\xfd")
            report = bring(store, "codex", path)
            assert "zstd" in report.wrong[0].text
            return
        for path in (sessions / "codex").iterdir():
            subprocess.run(["zstd", "-q", "--rm", path], check=True)
        assert len(bring(store, "codex", sessions / "codex").new) == 2

    @pytest.mark.skipif(shutil.which("zstd") is None, reason="needs the zstd command")
    def test_one_that_was_compressed_after_it_came_in_is_the_same(self, store: FileStore, sessions: Path) -> None:
        assert len(bring(store, "codex", sessions / "codex").new) == 2
        for path in (sessions / "codex").iterdir():
            subprocess.run(["zstd", "-q", "--rm", path], check=True)
        report = bring(store, "codex", sessions / "codex")
        assert (report.new, report.grown, report.same, report.wrong) == ([], [], 2, [])

    def test_a_clone_elsewhere_belongs_by_its_remote(self, store: FileStore, sessions: Path) -> None:
        other = Belonging(("/somewhere/else",), frozenset((plain_remote("https://github.com/acme/app"),)))
        assert len(bring(store, "codex", sessions / "codex", belonging=other, dry_run=True).new) == 1


class TestOthers:
    def test_aider(self, store: FileStore, sessions: Path, project: Path) -> None:
        shutil.copy(sessions / "aider/.aider.chat.history.md", project)
        report = bring(store, "aider")
        assert len(report.new) == 2
        older, newer = reversed(store.history(TaskFilter()))
        assert (older.request, newer.request) == ("add a greeting\nto main.py", "remove it again")
        assert older.model == "claude-sonnet"
        first, *_, last = turns(store, older.id)
        assert "I'll add it." in (first.content or "")
        assert [f.path for f in first.files] == ["main.py"]  # type: ignore[union-attr]
        assert (last.agent, last.content) == ("aider", "You're welcome.")
        whole = (project / ".aider.chat.history.md").read_text()
        assert payload(store, older.id).strip() + "\n\n" + payload(store, newer.id).strip() == whole.strip()
        with open(project / ".aider.chat.history.md", "a") as stream:
            stream.write("\n#### again\n\nSure.\n")
        report = bring(store, "aider")
        assert report.grown == [newer.id]
        assert store.summary(newer.id).runs == 2
        agrees(store)

    def test_an_aider_history_whose_beginning_was_cut_off(
        self, store: FileStore, sessions: Path, project: Path
    ) -> None:
        shutil.copy(sessions / "aider/.aider.chat.history.md", project)
        last = bring(store, "aider").new[-1]
        path = project / ".aider.chat.history.md"
        text = path.read_text()
        path.write_text(text[text.rindex("# aider chat started at") :] + "\n#### again\n\nSure.\n")
        report = bring(store, "aider")
        assert (report.new, report.grown) == ([], [last])
        assert payload(store, last).strip() == path.read_text().strip()

    def test_cowork_snapshot_and_database(
        self, store: FileStore, sessions: Path, tmp_path: Path, project: Path
    ) -> None:
        assert len(bring(store, "cowork", sessions / "cowork").new) == 1
        summary = store.summary(task_id("cowork", "legacy"))
        assert (summary.title, summary.request, summary.model) == (
            "Plan the week",
            "What is open?",
            "claude-sonnet-4-5",
        )
        first, last = turns(store, summary.id)
        assert [(f.operation, f.path) for f in first.files] == [("read", "TODO.md")]  # type: ignore[union-attr]
        assert last.content == "Shipping is open."
        database = tmp_path / "sessions.db"
        messages = [{"role": "user", "content": "hello cowork"}, {"role": "assistant", "content": "hi"}]
        with sqlite3.connect(database) as connection:
            connection.execute(
                "CREATE TABLE sessions (session_id TEXT PRIMARY KEY, title TEXT, working_directory TEXT, status TEXT)"
            )
            connection.execute(
                "CREATE TABLE session_state (session_id TEXT PRIMARY KEY, system_prompt TEXT, messages_json TEXT, todos_json TEXT)"
            )
            connection.execute("CREATE TABLE session_events (session_id TEXT, seq INTEGER, event_type TEXT, ts TEXT)")
            connection.execute("INSERT INTO sessions VALUES ('s1', 'From the table', ?, 'active')", (str(project),))
            connection.execute("INSERT INTO session_state VALUES ('s1', 'sys', ?, '[]')", (json.dumps(messages),))
            connection.execute(
                "INSERT INTO session_events VALUES ('s1', 1, 'legacy_import_snapshot', '2026-01-01T00:00:00Z')"
            )
        connection.close()
        before = database.read_bytes()
        assert len(bring(store, "cowork", database).new) == 1
        task = task_id("cowork", "s1")
        assert store.summary(task).title == "From the table"
        assert "legacy_import_snapshot" in payload(store, task)
        assert database.read_bytes() == before
        messages += [{"role": "user", "content": "and more"}, {"role": "assistant", "content": "sure"}]
        with sqlite3.connect(database) as connection:
            connection.execute("UPDATE session_state SET messages_json = ?", (json.dumps(messages),))
        connection.close()
        assert bring(store, "cowork", database).grown == [task]
        assert [turn.content for turn in turns(store, task)] == ["hi", "sure"]
        assert bring(store, "cowork", database).grown == []
        agrees(store)

    def test_messages(self, store: FileStore, sessions: Path) -> None:
        report = bring(
            store, "jsonl", sessions / "jsonl/chat.jsonl", belonging=Belonging((str(store.root),), everywhere=True)
        )
        (task,) = report.new
        call, answer = turns(store, task)
        assert [(c.tool, c.args, c.output) for c in call.tools if isinstance(c, ToolCall)] == [
            ("calculate", "6*7", "42")
        ]
        assert (answer.content, answer.model) == ("It is 42.", "gpt-5")


class TestAgain:
    def test_nothing_new_nothing_done(self, store: FileStore, sessions: Path, project: Path) -> None:
        bring(store, "claude-code", sessions / "claude-code")
        before = {path.name: path.read_bytes() for path in (project / ".rawko/state/tasks").iterdir()}
        source = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in sessions.rglob("*") if path.is_file()}
        report = bring(store, "claude-code", sessions / "claude-code")
        assert (report.new, report.grown, report.same) == ([], [], 3)
        assert {path.name: path.read_bytes() for path in (project / ".rawko/state/tasks").iterdir()} == before
        assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in source} == source

    def test_without_its_memory_too(self, store: FileStore, sessions: Path) -> None:
        bring(store, "claude-code", sessions / "claude-code")
        for path in Path(os.environ["XDG_STATE_HOME"]).rglob("state.db*"):
            path.unlink()
        report = bring(store, "claude-code", sessions / "claude-code")
        assert (report.new, report.grown, report.same) == ([], [], 3)

    @settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.lists(st.integers(1, 16), min_size=1, max_size=6, unique=True))
    def test_growing_at_any_lines(self, sessions: Path, tmp_path: Path, cuts: list[int]) -> None:
        """However a file grows, in the end all of its records are there, in order, once."""
        folder = tmp_path / hashlib.sha256(repr(cuts).encode()).hexdigest()[:8]
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir()
        (tmp_path / "project").mkdir(exist_ok=True)
        store = quiet(folder / "p" if (folder / "p").mkdir() is None else folder)
        lines = (sessions / "claude-code/session-2.0.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
        path = folder / "session-2.0.jsonl"
        belonging = Belonging((str(store.root), str(tmp_path / "project")))
        for cut in [*sorted(cuts), len(lines)]:
            path.write_text("\n".join(lines[:cut]) + "\n", encoding="utf-8")
            bring(store, "claude-code", path, belonging=belonging)
        (task,) = [summary.id for summary in store.history(TaskFilter())] or [""]
        assert payload(store, task) == "\n".join(lines)
        assert store.summary(task).status == "completed"
        agrees(store)
        store.close()

    def test_a_last_record_without_a_line_end_comes_in_and_what_is_added_after_it_too(
        self, store: FileStore, sessions: Path
    ) -> None:
        path = sessions / "claude-code/session-1.0.jsonl"
        whole = path.read_bytes().replace(b"tests", b"t\xffsts")
        path.write_bytes(whole[:-1])
        report = bring(store, "claude-code", path)
        assert not report.wrong
        more = b'\n{"type":"user","message":{"role":"user","content":"and now"}}'
        path.write_bytes(whole[:-1] + more)
        assert bring(store, "claude-code", path).grown == report.new
        assert payload(store, report.new[0]).encode("utf-8", "surrogateescape") == whole[:-1] + more
        agrees(store)

    def test_a_torn_last_line_waits_for_its_end(self, store: FileStore, sessions: Path) -> None:
        path = sessions / "claude-code/session-1.0.jsonl"
        text = path.read_text()
        path.write_text(text[:-40])
        report = bring(store, "claude-code", path)
        assert "has no end" in report.wrong[0].text
        path.write_text(text)
        report = bring(store, "claude-code", path)
        assert report.grown == [task_id("claude-code", "session-1.0")]
        assert payload(store, report.grown[0]) + "\n" == text
        assert store.summary(report.grown[0]).status == "cancelled"

    def test_killed_again_and_again_then_run_to_its_end(self, project: Path, sessions: Path, tmp_path: Path) -> None:
        folder = tmp_path / "many"
        folder.mkdir()
        text = (sessions / "claude-code/session-2.0.jsonl").read_text(encoding="utf-8")
        for number in range(60):
            (folder / f"s{number}.jsonl").write_text(text, encoding="utf-8")
        (project / ".rawko").mkdir()
        chance = random.Random(7)
        command = [sys.executable, "-m", "rawko_state", "-C", str(project), "import", "claude-code", str(folder)]

        def count() -> int:
            return len(list(project.glob(".rawko/state/tasks/*.task")))

        killed = 0
        for _ in range(8):
            process = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
            )
            wanted = count() + chance.randrange(1, 8)
            wait_for(lambda process=process, wanted=wanted: process.poll() is not None or count() >= wanted)
            killed += process.poll() is None
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        assert killed > 1
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        store = quiet(project)
        found = store.history(TaskFilter())
        assert len(found) == 60
        assert all(payload(store, summary.id) + "\n" == text for summary in found)
        agrees(store)


class TestSeveralFilesOfOneSession:
    """They would be tasks of one id, of which only one is seen."""

    def test_the_fullest_one_comes_in_and_another_one_is_told_of(self, store: FileStore, sessions: Path) -> None:
        path = sessions / "claude-code/session-1.0.jsonl"
        copies = [sessions / f"claude-code/{name}/session-1.0.jsonl" for name in ("copy", "other")]
        lines = path.read_text().splitlines(True)
        for copy, part in zip(copies, (lines[:3], lines[2:]), strict=True):
            copy.parent.mkdir()
            copy.write_text("".join(part))
        for report in (bring(store, "claude-code", sessions / "claude-code") for _ in range(2)):
            assert [trouble.path for trouble in report.wrong] == [copies[1]]
        assert payload(store, task_id("claude-code", "session-1.0")) == path.read_text().rstrip("\n")
        assert len(store.history(TaskFilter())) == 3
        agrees(store)

    def test_a_rollout_and_its_packed_form_and_a_file_named_twice(self, store: FileStore, sessions: Path) -> None:
        path = next((sessions / "codex").glob("*-old1.jsonl"))
        path.with_name(path.name + ".zst").write_bytes(b"packed")
        report = bring(store, "codex", path.parent, path)
        assert (len(report.new), report.wrong) == (2, [])


class TestBelonging:
    def test_other_projects_stay_out(self, store: FileStore, sessions: Path, tmp_path: Path) -> None:
        elsewhere = Belonging((str(tmp_path / "projec"),))
        report = bring(store, "claude-code", sessions / "claude-code", belonging=elsewhere)
        assert (report.new, report.elsewhere) == ([], 3)
        assert bring(store, "claude-code", sessions / "claude-code", belonging=elsewhere).elsewhere == 3

    def test_all_projects_each_into_its_own(self, project: Path, sessions: Path, tmp_path: Path) -> None:
        other = tmp_path / "other"
        (other / ".rawko").mkdir(parents=True)
        (project / ".rawko").mkdir()
        moved = sessions / "claude-code/session-1.0.jsonl"
        moved.write_text(moved.read_text().replace(f"{project}/sub", str(other)))
        gone = sessions / "codex/rollout-2025-05-01T09-00-00-old1.jsonl"
        gone.write_text(gone.read_text().replace(str(project), "/not/there"))
        store = quiet(project)
        everywhere = Belonging((str(project),), everywhere=True)
        bring(store, "claude-code", sessions / "claude-code", belonging=everywhere)
        bring(store, "codex", sessions / "codex", belonging=everywhere)
        assert [s.request for s in quiet(other).history(TaskFilter())] == ["Rename the module"]
        assert len(store.history(TaskFilter())) == 4

    def test_worktrees_and_a_project_that_was_moved(self, tmp_path: Path, sessions: Path) -> None:
        def git(*words: str, cwd: Path) -> None:
            subprocess.run(
                ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=cwd, check=True, capture_output=True
            )

        repo, tree = tmp_path / "repo", tmp_path / "tree"
        repo.mkdir()
        git("init", "-q", cwd=repo)
        git("commit", "-q", "--allow-empty", "-m", "x", cwd=repo)
        git("remote", "add", "origin", "git@github.com:acme/app.git", cwd=repo)
        git("worktree", "add", "-q", str(tree), cwd=repo)
        path = sessions / "claude-code/session-2.0.jsonl"
        path.write_text(path.read_text().replace(str(tmp_path / "project"), str(tree)))
        done = rawko(repo, "import", "claude-code", str(path))
        assert "1 imported" in done.stdout
        store = quiet(repo)
        assert [s.id for s in store.history(TaskFilter(file="auth/sso.py"))] == [task_id("claude-code", "session-2.0")]
        # Moved: known by its remote, and the old folder is gone.
        rawko(repo, "projects", "add", str(repo))
        subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=repo, check=True)
        new = tmp_path / "new-place"
        repo.rename(new)
        old = sessions / "claude-code/session-1.0.jsonl"
        old.write_text(old.read_text().replace(f"{tmp_path / 'project'}/sub", str(repo)))
        assert "1 imported" in rawko(new, "import", "claude-code", str(old)).stdout

    def test_a_project_that_was_moved_and_has_no_remote(self, project: Path, sessions: Path, tmp_path: Path) -> None:
        (project / ".rawko").mkdir()
        rawko(project, "task", "start", "x")
        copy, moved = tmp_path / "copy", tmp_path / "moved"
        shutil.copytree(project, copy)
        path = str(sessions / "claude-code/session-2.0.jsonl")
        assert "1 of other projects" in rawko(copy, "import", "claude-code", path).stdout
        project.rename(moved)
        assert "1 imported" in rawko(moved, "import", "claude-code", path).stdout
        assert quiet(moved).history(TaskFilter(file="auth/sso.py"))


class TestBroken:
    def test_odd_files_are_told_of_and_the_rest_goes_on(self, store: FileStore, sessions: Path, project: Path) -> None:
        folder = sessions / "claude-code"
        good = (folder / "session-2.0.jsonl").read_text(encoding="utf-8")
        (folder / "empty.jsonl").write_bytes(b"")
        (folder / "folder.jsonl").mkdir()
        (folder / "junk.jsonl").write_bytes(b"\x00\xff\xfe junk\n" * 3)
        (folder / "latin.jsonl").write_bytes(
            good.replace("Fix the login", "Fix the lögin").encode("latin-1", "replace")
        )
        cycle = good.replace('"parentUuid":null', '"parentUuid":"u11"')
        (folder / "cycle.jsonl").write_text(cycle, encoding="utf-8")
        report = bring(store, "claude-code", folder)
        assert report.empty == [folder / "empty.jsonl"]
        assert [(each.path, each.text.split(",")[0]) for each in report.wrong] == [
            (folder / "folder.jsonl", "a folder")
        ]
        assert len(report.new) == 5
        assert payload(store, task_id("claude-code", "cycle")) + "\n" == cycle
        latin = payload(store, task_id("claude-code", "latin")) + "\n"
        assert latin.encode("utf-8", "surrogateescape") == (folder / "latin.jsonl").read_bytes()
        agrees(store)

    def test_a_line_that_is_too_long_is_left_out(
        self, store: FileStore, sessions: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from rawko_state.exchange import transcript as neutral

        monkeypatch.setattr(neutral, "LONGEST_LINE", 5000)
        path = sessions / "claude-code/session-1.0.jsonl"
        path.write_text(
            path.read_text()
            + json.dumps({"type": "user", "x": "y" * 20_000})
            + "\n"
            + '{"type":"user","message":{"role":"user","content":"after"}}\n'
        )
        report = bring(store, "claude-code", path)
        assert "was left out" in report.wrong[0].text
        assert [turn.content for turn in turns(store, report.new[0])][-1] == "after"

    values = st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=12)),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.dictionaries(
                st.sampled_from(["type", "text", "content", "id", "name", "input", "usage", "model", "role"]),
                inner,
                max_size=4,
            ),
        ),
        max_leaves=8,
    )

    @given(
        st.sampled_from(["user", "assistant", "system", "summary", "custom-title", "x"]),
        st.dictionaries(
            st.sampled_from(
                [
                    "message",
                    "timestamp",
                    "cwd",
                    "sessionId",
                    "uuid",
                    "requestId",
                    "subtype",
                    "isSidechain",
                    "agentId",
                    "customTitle",
                    "version",
                ]
            ),
            values,
        ),
    )
    def test_whatever_a_record_of_claude_code_holds(self, kind: str, record: dict[str, object]) -> None:
        line = json.dumps({"type": kind, **record})
        assert claude_code.step_of(line).raw == line

    @given(
        st.sampled_from(
            ["session_meta", "turn_context", "response_item", "event_msg", "item.completed", "turn.completed"]
        ),
        st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "role",
                    "content",
                    "call_id",
                    "name",
                    "arguments",
                    "input",
                    "output",
                    "info",
                    "changes",
                    "git",
                    "id",
                    "cwd",
                    "action",
                    "summary",
                    "model",
                ]
            ),
            st.one_of(
                values,
                st.sampled_from(
                    ["message", "function_call", "custom_tool_call", "patch_apply_end", "token_count", "reasoning"]
                ),
            ),
        ),
    )
    def test_whatever_a_record_of_codex_holds(self, kind: str, inner: dict[str, object]) -> None:
        line = json.dumps({"type": kind, "timestamp": 3, "payload": inner, "item": inner})
        assert codex.Reader().step_of(line).raw == line

    @settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.lists(st.tuples(st.sampled_from(["user", "assistant"]), values), min_size=1, max_size=5))
    def test_odd_sessions_come_in_whole(self, tmp_path: Path, records: list[tuple[str, object]]) -> None:
        folder = tmp_path / hashlib.sha256(repr(records).encode()).hexdigest()[:10]
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        lines = [
            json.dumps(
                {
                    "type": kind,
                    "cwd": str(folder),
                    "message": {"id": str(n), "content": value, "model": value, "usage": value},
                }
            )
            for n, (kind, value) in enumerate(records)
        ]
        (folder / "odd.jsonl").write_text("\n".join(lines) + "\n")
        store = quiet(folder)
        report = bring(store, "claude-code", folder / "odd.jsonl")
        assert report.wrong == []
        assert payload(store, report.new[0]) == "\n".join(lines)
        agrees(store)
        store.close()


def rawko(
    root: Path, *args: str, code: int | None = 0, given: str | None = None, **more: str
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "rawko_state", "-C", str(root), *args],
        capture_output=True,
        text=True,
        input=given,
        env={**os.environ, **more},
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert code is None or done.returncode == code, (done.stdout, done.stderr)
    return done


class TestCommand:
    def test_import_show_and_wrong_use(self, project: Path, sessions: Path) -> None:
        (project / ".rawko").mkdir()
        assert (
            "3 would be imported"
            in rawko(project, "import", "claude-code", str(sessions / "claude-code"), "--dry-run").stdout
        )
        assert not (project / ".rawko/state/tasks").exists()
        told = json.loads(rawko(project, "import", "claude-code", str(sessions / "claude-code"), "--json").stdout)
        assert len(told["new"]) == 3
        assert told["unknown"] == {"hologram": 1}
        assert (
            "0 imported, 0 have grown, 3 here already"
            in rawko(project, "import", "claude-code", str(sessions / "claude-code")).stdout
        )
        assert "no such file" in rawko(project, "import", "claude-code", "/not/there", code=1).stderr
        assert "name the files" in rawko(project, "import", "jsonl", code=1).stderr
        assert "Invalid value" in rawko(project, "import", "emacs", code=2).stderr
        assert "0 imported" in rawko(project, "import", "codex", "--since", "1d").stdout
        since = (datetime.now(timezone.utc) + timedelta(days=1)).strftime("%Y-%m-%d")
        assert "0 imported" in rawko(project, "import", "codex", str(sessions / "codex"), "--since", since).stdout

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
        assert "1 imported" in process.stdout.readline()
        path.write_text("\n".join(lines))
        assert "1 have grown" in process.stdout.readline()
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
        assert "imported" in process.stdout.readline()
        for number in range(3):  # each is found in another round
            shutil.copy(sessions / "claude-code/session-2.0.jsonl", sessions / f"claude-code/later-{number}.jsonl")
            assert "1 imported" in process.stdout.readline()
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
        shutil.rmtree(other)
        assert "gone" in rawko(project, "projects").stdout
        assert "is gone" in rawko(project, "history", "--all-projects").stderr
        rawko(project, "projects", "forget", "--gone")
        assert str(other) not in rawko(project, "projects").stdout
        assert "not known" in rawko(project, "projects", "forget", "/nowhere", code=1).stderr
        assert "no project" in rawko(project, "projects", "add", str(tmp_path), code=1).stderr
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


class TestHooks:
    def event(self, name: str, path: Path, project: Path) -> str:
        return json.dumps(
            {"session_id": path.stem, "transcript_path": str(path), "cwd": str(project), "hook_event_name": name}
        )

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
            done = rawko(project, "hook", "run", "claude-code", given=self.event(name, path, project))
            assert (done.stdout, done.stderr) == ("", "")
            if name == "Stop":
                wait_for(lambda: store.history(TaskFilter(ids=(task,), status=("completed",))))
            else:
                wait_for(lambda: store.history(TaskFilter(ids=(task,))))
                wait_for(lambda: not list((project / ".rawko/state/live").glob("hooks.spool*")))
        wait_for(lambda: payload(store, task) == "\n".join(lines))
        assert store.summary(task).runs == 2
        agrees(store)
        assert "0 imported, 0 have grown, 1 here already" in rawko(project, "import", "claude-code", str(path)).stdout

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
            process.communicate(self.event("Stop", paths[number % 4], project), timeout=patience(60))
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
        assert "a hook: " in rawko(project, "doctor", code=1).stdout

    def test_trouble_where_there_is_no_project_yet_is_too(self, project: Path, tmp_path: Path) -> None:
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        for text in ("junk", "[]"):
            rawko(elsewhere, "hook", "run", "claude-code", given=text, RAWKO_DIR=str(elsewhere))
        assert not list(elsewhere.iterdir())
        (project / ".rawko").mkdir()
        assert rawko(project, "doctor", code=1).stdout.count("a hook: ") == 2

    def test_the_home_folder_is_not_made_a_project(self, project: Path, sessions: Path, tmp_path: Path) -> None:
        home = tmp_path / "home"
        home.mkdir()
        given = self.event("Stop", sessions / "claude-code/session-2.0.jsonl", home)
        rawko(home, "hook", "run", "claude-code", given=given, HOME=str(home))
        assert not (home / ".rawko").exists()
        (project / ".rawko").mkdir()
        assert "is no project" in rawko(project, "doctor", code=1).stdout

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
        from rawko_state.integrations import hooks

        path = sessions / "claude-code/session-2.0.jsonl"
        event = json.loads(self.event("Stop", path, store.root))
        store.journal.layout.make()
        (store.root / ".rawko").mkdir(exist_ok=True)
        real = time.sleep

        def sleep(seconds: float) -> None:
            """The last nap before the sweeper ends: the event finds the lock held, and starts no other."""
            real(0.05)
            if not told:
                told.append(True)
                hooks.tell("claude-code", event)

        told: list[bool] = []
        monkeypatch.setattr(hooks, "_start", lambda root: pytest.fail("the lock is held: nothing is to be started"))
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
        assert "+" in shown
        settings_now = json.loads(path.read_text())
        assert settings_now["hooks"]["Stop"][0] == mine["hooks"]["Stop"][0]  # type: ignore[index]
        assert set(settings_now["hooks"]) == {
            "SessionStart",
            "UserPromptSubmit",
            "PostToolUse",
            "Stop",
            "SubagentStop",
            "SessionEnd",
        }
        assert (
            "nothing to change"
            in rawko(project, "hook", "install", "claude-code", CLAUDE_CONFIG_DIR=str(path.parent)).stdout
        )
        rawko(project, "hook", "uninstall", "claude-code", CLAUDE_CONFIG_DIR=str(path.parent))
        assert json.loads(path.read_text()) == mine
        path.write_text("{ not json")
        assert (
            "left as it is"
            in rawko(project, "hook", "install", "claude-code", code=1, CLAUDE_CONFIG_DIR=str(path.parent)).stderr
        )
        assert path.read_text() == "{ not json"
        rawko(project, "hook", "install", "claude-code", "--project", "--dry-run")
        assert not (project / ".claude").exists()

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
        path.write_text('notify = ["my-own"]\n')
        assert (
            "of its own already"
            in rawko(project, "hook", "install", "codex", code=1, CODEX_HOME=str(path.parent)).stderr
        )


STREAM = r"""
import json, os, sys, time
def say(**record):
    print(json.dumps({"session_id": "s1", **record}), flush=True)
say(type="system", subtype="init", cwd="/x")
say(type="assistant", message={"id": "m1", "role": "assistant", "model": "claude-x", "usage": {"input_tokens": 5, "output_tokens": 7},
    "content": [{"type": "text", "text": "I will look"}, {"type": "tool_use", "id": "t1", "name": "Read", "input": {"file_path": sys.argv[1] + "/a.py"}}]})
while not os.path.exists(sys.argv[2]):
    time.sleep(0.01)
say(type="user", message={"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "print(1)"}]})
say(type="assistant", message={"id": "m2", "role": "assistant", "content": [{"type": "text", "text": "Done."}]})
say(type="result", subtype="success", is_error=False)
"""


class TestRun:
    def run(self, project: Path, *command: str, code: int = 0, given: bytes | None = None) -> bytes:
        (project / ".rawko").mkdir(exist_ok=True)
        done = subprocess.run(
            [sys.executable, "-m", "rawko_state", "-C", str(project), "run", "do it", "--", *command],
            capture_output=True,
            input=given,
        )
        assert b"Traceback" not in done.stderr, done.stderr
        assert done.returncode == code, done.stderr
        return done.stdout

    def test_text_comes_through_as_it_is_and_is_recorded(self, store: FileStore, project: Path) -> None:
        out = self.run(project, "sh", "-c", "echo one; printf 'two \\377\\000'; cat; exit 3", code=3, given=b"in\n")
        assert out == b"one\ntwo \xff\x00in\n"
        (summary,) = store.history(TaskFilter())
        assert (summary.status, summary.request, summary.agents) == ("failed", "do it", ("sh",))
        assert turns(store, summary.id)[0].content == "one\ntwo \ufffd\x00in\n"

    def test_a_stream_of_claude_code_turn_by_turn_live(self, store: FileStore, project: Path) -> None:
        (project / ".rawko").mkdir()
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "rawko_state",
                "-C",
                str(project),
                "run",
                "fix it",
                "--",
                sys.executable,
                "-c",
                STREAM,
                str(project),
                str(project / "go-on"),
            ],
            stdout=subprocess.PIPE,
        )
        wait_for(lambda: store.history(TaskFilter(status=("running",))))
        (summary,) = store.history(TaskFilter())
        wait_for(lambda: any(event.live and event.kind == "tool" for event in store.events(summary.id)))
        (project / "go-on").touch()
        out = process.communicate(timeout=patience(30))[0]
        assert process.returncode == 0
        first, second = turns(store, summary.id)
        assert (first.content, first.model, first.tokens) == ("I will look", "claude-x", {"in": 5, "out": 7})
        assert [(c.tool, c.output) for c in first.tools if isinstance(c, ToolCall)] == [("Read", "print(1)")]
        assert [(f.operation, f.path) for f in first.files] == [("read", "a.py")]  # type: ignore[union-attr]
        assert second.content == "Done."
        assert (payload(store, summary.id) + "\n").encode() == out
        assert store.summary(summary.id).status == "completed"

    def test_codex_exec(self, store: FileStore, project: Path) -> None:
        lines = [
            {"type": "thread.started", "thread_id": "th1"},
            {"type": "turn.started"},
            {"type": "item.completed", "item": {"id": "i0", "type": "reasoning", "text": "hm"}},
            {
                "type": "item.completed",
                "item": {
                    "id": "i1",
                    "type": "command_execution",
                    "command": "ls",
                    "aggregated_output": "a.py",
                    "exit_code": 0,
                },
            },
            {
                "type": "item.completed",
                "item": {"id": "i2", "type": "file_change", "changes": [{"path": "a.py", "kind": "update"}]},
            },
            {"type": "item.completed", "item": {"id": "i3", "type": "agent_message", "text": "There is one file."}},
            {"type": "turn.completed", "usage": {"input_tokens": 9, "output_tokens": 3}},
        ]
        text = "\n".join(json.dumps(line) for line in lines)
        self.run(project, "printf", "%s\n", text)
        (summary,) = store.history(TaskFilter())
        (turn,) = turns(store, summary.id)
        assert (turn.content, turn.tokens) == ("There is one file.", {"in": 9, "out": 3})
        assert [f.path for f in turn.files] == ["a.py"]  # type: ignore[union-attr]

    def test_signals_and_a_cancel_from_elsewhere(self, store: FileStore, project: Path) -> None:
        (project / ".rawko").mkdir()
        command = [
            sys.executable,
            "-m",
            "rawko_state",
            "-C",
            str(project),
            "run",
            "wait",
            "--",
            "sh",
            "-c",
            "trap 'echo got; exit 7' TERM; echo up; while :; do sleep 0.1; done",
        ]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.send_signal(signal.SIGTERM)
        out = process.communicate(timeout=patience(20))[0]
        assert (out, process.returncode) == (b"got\n", 7)
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        wait_for(lambda: store.history(TaskFilter(status=("running",))))
        (summary,) = store.history(TaskFilter(status=("running",)))
        rawko(project, "cancel", summary.id)
        process.communicate(timeout=patience(20))
        assert store.status(summary.id) == "cancelled"

    def test_wrong_use(self, project: Path) -> None:
        (project / ".rawko").mkdir()
        assert "no such command" in rawko(project, "run", "x", "--", "not-a-command-7", code=1).stderr
        assert rawko(project, "run", "x", "--", code=2).stderr.count("\n") == 1
        assert rawko(project, "run", code=2).stderr.count("\n") == 1


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
        assert f"recorded as {task}" in done.stderr
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
        child = done.stderr.split("recorded as ")[1].strip()
        assert store.summary(child).parent == task.id
        done = rawko(project, "resume", task.id, "--with", "codex", **self.agent(tmp_path, "codex"))
        assert done.stdout.startswith("<exec><# Task")
        done = rawko(project, "resume", task.id, "--with", "aider", **self.agent(tmp_path, "aider"))
        assert done.stdout.startswith("<--message-file><")
        assert (
            "no such command"
            in rawko(project, "resume", task.id, "--with", "claude", code=1, PATH="/usr/bin:/bin").stderr
        )


def _is_alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


class TestOddOnes:
    """What a review came upon."""

    def lines(self, sessions: Path) -> list[str]:
        return (sessions / "claude-code/session-2.0.jsonl").read_text(encoding="utf-8").split("\n")[:-1]

    def test_growth_that_is_stopped_in_between_doubles_nothing(
        self, store: FileStore, sessions: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from rawko_state.tasks.task import Task

        path = sessions / "claude-code/session-2.0.jsonl"
        lines = self.lines(sessions)
        path.write_text("\n".join(lines[:4]) + "\n", encoding="utf-8")
        bring(store, "claude-code", path)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        real, left = Task.add, [0]

        def add(self: Task, entries: object) -> object:
            left[0] -= 1
            if left[0] < 0:
                raise OSError("stopped")
            return real(self, entries)  # type: ignore[arg-type]

        monkeypatch.setattr(Task, "add", add)
        for allowed in (0, 1, 2, 1, 3, 99):
            left[0] = allowed
            bring(store, "claude-code", path)
        assert payload(store, task_id("claude-code", "session-2.0")) == "\n".join(lines)
        assert store.summary(task_id("claude-code", "session-2.0")).status == "completed"
        agrees(store)

    def test_several_at_once_double_nothing(self, project: Path, sessions: Path) -> None:
        (project / ".rawko").mkdir()
        path = sessions / "claude-code/session-2.0.jsonl"
        lines = self.lines(sessions)
        path.write_text("\n".join(lines[:4]) + "\n", encoding="utf-8")
        rawko(project, "import", "claude-code", str(path))
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        command = [sys.executable, "-m", "rawko_state", "-C", str(project), "import", "claude-code", str(path)]
        processes = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(4)]
        assert [process.wait(patience(60)) for process in processes] == [0] * 4
        store = quiet(project)
        assert payload(store, task_id("claude-code", "session-2.0")) == "\n".join(lines)
        agrees(store)

    @pytest.mark.parametrize(
        "record",
        ['{"type":["x"]}', '{"type":{"a":1}}', '{"type":"user","timestamp":1' + "0" * 400 + "}", '{"type":"user","timestamp":"9999-12-31T23:59:59-23:59"}',
         '{"type":"user","timestamp":"0001-01-01T00:00:00+23:59"}', '{"type":"user","version":"1\\ud800"}',
         '{"type":"assistant","message":{"id":"q","content":"x","usage":{"input_tokens":true,"output_tokens":1' + "0" * 30 + '}}}'],
    )  # fmt: skip
    def test_an_odd_record_stops_nobody(self, store: FileStore, sessions: Path, record: str) -> None:
        odd = sessions / "claude-code/odd.jsonl"
        odd.write_text(f'{{"type":"user","cwd":"{store.root}","message":{{"content":"hi"}}}}\n{record}\n')
        report = bring(store, "claude-code", sessions / "claude-code")
        assert report.wrong == []
        assert len(report.new) == 4
        assert payload(store, task_id("claude-code", "odd")) + "\n" == odd.read_text()
        assert bring(store, "claude-code", sessions / "claude-code").same == 4

    def test_what_comes_while_a_file_is_read_is_seen_the_next_time(
        self, store: FileStore, sessions: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from rawko_state.exchange import importing

        path = sessions / "claude-code/session-1.0.jsonl"
        real = importing._brought

        def brought(job: object) -> object:
            done = real(job)  # type: ignore[arg-type]
            with open(path, "a") as stream:
                stream.write('{"type":"user","message":{"content":"came meanwhile"}}\n')
            return done

        monkeypatch.setattr(importing, "_brought", brought)
        bring(store, "claude-code", path)
        assert bring(store, "claude-code", path).grown == [task_id("claude-code", "session-1.0")]
        assert payload(store, task_id("claude-code", "session-1.0")) + "\n" == path.read_text()

    def test_a_project_that_was_begun_anew_gets_them_again_and_one_in_the_trash_stays_there(
        self, project: Path, sessions: Path
    ) -> None:
        store = quiet(project)
        bring(store, "claude-code", sessions / "claude-code")
        store.delete(task_id("claude-code", "session-1.0"))
        assert bring(store, "claude-code", sessions / "claude-code").new == []
        store.close()
        shutil.rmtree(project / ".rawko")
        assert len(bring(quiet(project), "claude-code", sessions / "claude-code").new) == 3

    def test_another_file_under_the_same_key_is_not_mixed_in(self, store: FileStore, sessions: Path) -> None:
        other = sessions / "other" / "session-2.0.jsonl"
        other.parent.mkdir()
        other.write_text(
            (sessions / "claude-code/session-2.0.jsonl").read_text().replace("login", "LOGOUT page of the") + "{}\n"
        )
        bring(store, "claude-code", sessions / "claude-code/session-2.0.jsonl")
        before = payload(store, task_id("claude-code", "session-2.0"))
        report = bring(store, "claude-code", other)
        assert "another one" in report.wrong[0].text
        assert payload(store, task_id("claude-code", "session-2.0")) == before

    def test_growth_in_another_project(self, project: Path, sessions: Path, tmp_path: Path) -> None:
        (project / ".rawko").mkdir()
        here = tmp_path / "here"
        here.mkdir()
        path = sessions / "claude-code/session-2.0.jsonl"
        lines = self.lines(sessions)
        path.write_text("\n".join(lines[:5]) + "\n", encoding="utf-8")
        everywhere = Belonging((str(here),), everywhere=True)
        bring(quiet(here), "claude-code", path, belonging=everywhere)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        assert bring(quiet(here), "claude-code", path, belonging=everywhere).grown == [
            task_id("claude-code", "session-2.0")
        ]
        assert payload(quiet(project), task_id("claude-code", "session-2.0")) == "\n".join(lines)
        assert quiet(here).history(TaskFilter()) == []

    def test_paths_below_a_worktree_and_projects_inside_projects(
        self, store: FileStore, sessions: Path, project: Path, tmp_path: Path
    ) -> None:
        path = sessions / "claude-code/session-1.0.jsonl"
        tree = tmp_path / "tree"
        path.write_text(path.read_text().replace(str(project), str(tree)))
        bring(store, "claude-code", path, belonging=Belonging((str(project), str(tree))))
        assert [f.path for f in turns(store, task_id("claude-code", "session-1.0"))[1].files] == ["sub/mod.py"]  # type: ignore[union-attr]
        (project / "sub" / ".rawko").mkdir(parents=True)
        path.write_text(path.read_text().replace(str(tree), str(project)).replace("session-1.0", "session-x"))
        path = path.rename(path.with_name("session-x.jsonl"))
        assert bring(store, "claude-code", path).elsewhere == 1

    def test_a_worker_that_is_killed_takes_nothing_with_it(
        self, store: FileStore, sessions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from rawko_state.exchange import importing

        if sys.platform != "linux":
            pytest.skip("NOT TESTED HERE: needs fork")
        for number in range(30):
            shutil.copy(sessions / "claude-code/session-2.0.jsonl", tmp_path / f"k{number}.jsonl")
        real, parent = importing._brought, os.getpid()

        def brought(job: importing._Job) -> importing._Done:
            if job.session.key == "k17" and os.getpid() != parent:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(job)

        monkeypatch.setattr(importing, "_brought", brought)
        files = [tmp_path / f"k{number}.jsonl" for number in range(30)]
        bring(store, "claude-code", *files)
        bring(store, "claude-code", *files)
        assert len(store.history(TaskFilter(limit=None))) == 30
        agrees(store)

    def test_workers_end_with_an_import_that_is_killed(self, project: Path, sessions: Path, tmp_path: Path) -> None:
        if sys.platform != "linux" or (os.cpu_count() or 1) < 2:
            pytest.skip("NOT TESTED HERE: needs /proc, and cores enough for workers")
        (project / ".rawko").mkdir()
        folder = tmp_path / "many"
        folder.mkdir()
        for number in range(300):
            shutil.copy(sessions / "claude-code/session-2.0.jsonl", folder / f"k{number}.jsonl")
        words = [sys.executable, "-m", "rawko_state", "-C", str(project), "import", "claude-code", str(folder)]
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while len(workers := children.read_text().split()) < 2:
            time.sleep(0.01)
        process.kill()
        process.wait()
        wait_for(lambda: not any(_is_alive(worker) for worker in workers))
        assert not [worker for worker in workers if _is_alive(worker)]

    def test_one_odd_event_does_not_keep_the_others_from_being_recorded(self, project: Path, sessions: Path) -> None:
        (project / ".rawko").mkdir()
        path = sessions / "claude-code/session-2.0.jsonl"
        for transcript in ("", str(sessions), "/not/there"):
            event = {"session_id": "h", "transcript_path": transcript, "cwd": str(project), "hook_event_name": "Stop"}
            rawko(project, "hook", "run", "claude-code", given=json.dumps(event))
        rawko(project, "hook", "run", "claude-code", given=TestHooks().event("Stop", path, project))
        store = quiet(project)
        wait_for(lambda: [s.status for s in store.history(TaskFilter())] == ["completed"] * 2)  # and its sub-agent
        rawko(project, "hook", "run", "claude-code", given=json.dumps({"cwd": str(project / "not" / "there")}))
        assert not (project / "not").exists()

    def test_a_stop_ends_a_run_of_which_nothing_is_new(self, project: Path, sessions: Path) -> None:
        from rawko_state.exchange.importing import grow, start

        store = quiet(project)
        path = sessions / "claude-code/session-2.0.jsonl"
        path.write_text("\n".join(self.lines(sessions)[:10]) + "\n", encoding="utf-8")
        (session,) = claude_code.found([path], path, [])
        task = start(store, session, [], ended=False)
        assert task is not None
        assert store.summary(task).status == "running"
        grow(store, task, session, [], ended=True)
        assert store.summary(task).status == "completed"
        assert grow(store, task, session, [], ended=True)[0] is False

    def test_run_goes_on_whatever_the_stream_holds(self, store: FileStore, project: Path) -> None:
        lines = ['{"type":"system","session_id":"s"}', '{"type":[1]}', '{"type":"assistant","message":{"id":"m","content":"x","usage":{"input_tokens":true}},"timestamp":1' + "0" * 400 + "}",
                 '{"type":"assistant","isSidechain":true,"agentId":"a\\nb","message":{"id":"n","content":"y"}}', '{"type":"item.completed","item":{"changes":5}}']  # fmt: skip
        out = TestRun().run(project, "sh", "-c", 'printf "%s\\n" "$@"; exit 5', "sh", *lines, code=5)
        assert out.decode().splitlines() == lines
        only = ['{"type":"system","session_id":"s"}', '{"type":"result","session_id":"s"}']
        TestRun().run(project, "printf", "%s\n", *only)
        (last,) = [summary for summary in store.history(TaskFilter()) if summary.turns == 0]
        assert payload(store, last.id).split("\n") == only

    def test_run_ends_when_nobody_reads_and_can_be_stopped_at_any_time(self, store: FileStore, project: Path) -> None:
        (project / ".rawko").mkdir()
        command = f"{sys.executable} -m rawko_state -C {project} run t -- yes | head -1"
        done = subprocess.run(["sh", "-c", command], capture_output=True, timeout=patience(60))
        assert done.stdout == b"y\n"
        words_ = [
            sys.executable,
            "-m",
            "rawko_state",
            "-C",
            str(project),
            "run",
            "quiet one",
            "--",
            "sh",
            "-c",
            "exec >&-; sleep 30",
        ]
        process = subprocess.Popen(words_, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(lambda: store.history(TaskFilter(status=("running",))))
        rawko(project, "cancel", store.history(TaskFilter(status=("running",)))[0].id)
        process.communicate(timeout=patience(20))
        process = subprocess.Popen(
            [*words_[:-1], "trap 'exit 9' INT; echo up; while :; do sleep 0.1; done"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(patience(20)) == 9
        process.stdout.close()

    @pytest.mark.parametrize(
        "mine",
        [
            '{"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "~/src/rawko/hook run tests"}]}]}}',
            '{\r\n\t"a": 1.10\r\n}',
            '{"x": "\\ud800"}',
            "{}",
        ],
    )
    def test_settings_come_back_as_they_were(self, project: Path, tmp_path: Path, mine: str) -> None:
        (project / ".rawko").mkdir()
        path = tmp_path / "settings.json"
        path.write_bytes(mine.encode())
        for word in ("install", "uninstall"):
            rawko(project, "hook", word, "claude-code", CLAUDE_CONFIG_DIR=str(tmp_path))
            assert b"\r\n" not in mine.encode() or b"\r\n" in path.read_bytes()
        assert json.loads(path.read_bytes()) == json.loads(mine)
        assert sorted(p.name for p in tmp_path.glob(".settings*")) == []

    @pytest.mark.parametrize("mine", ['{"a": 1e400}', '{"a": 1, "a": 2}', "[1]", '{"hooks": []}'])
    def test_settings_that_would_not_come_back_are_left(self, project: Path, tmp_path: Path, mine: str) -> None:
        (project / ".rawko").mkdir()
        path = tmp_path / "settings.json"
        path.write_text(mine)
        assert (
            "left as it is"
            in rawko(project, "hook", "install", "claude-code", code=1, CLAUDE_CONFIG_DIR=str(tmp_path)).stderr
        )
        assert path.read_text() == mine

    @pytest.mark.skipif(sys.version_info < (3, 11), reason="NOT TESTED HERE: needs tomllib")
    @pytest.mark.parametrize(
        "mine",
        [
            'x = [\n[1]\n]\nnotify = ["mine"]\n',
            '"notify" = ["mine"]\n',
            'notify = ["my-rawko-wrapper", "hook", "x"]\n',
            "\ufeffa = 1\n",
            "not toml",
        ],
    )
    def test_toml_that_is_the_users_is_left(self, project: Path, tmp_path: Path, mine: str) -> None:
        (project / ".rawko").mkdir()
        path = tmp_path / "config.toml"
        path.write_text(mine, encoding="utf-8")
        rawko(project, "hook", "install", "codex", code=1, CODEX_HOME=str(tmp_path))
        rawko(project, "hook", "uninstall", "codex", code=None, CODEX_HOME=str(tmp_path))
        assert path.read_text(encoding="utf-8") == mine

    def test_options_that_would_do_nothing_are_refused(self, project: Path, tmp_path: Path) -> None:
        (project / ".rawko").mkdir()
        assert "no option" in rawko(project, "import", "rawko", "--since", "1d", "x.json", code=2).stderr
