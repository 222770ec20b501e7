"""Other agents' sessions: everything comes in, once, as it was; what grows comes after; what is broken is told of."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
from pathlib import Path

import pytest

from rawko_state.backends.files.store import FileStore
from rawko_state.exchange.importing import Belonging, plain_remote, task_id
from rawko_state.model.entries import ToolCall
from rawko_state.store import TaskFilter
from tests.exchange.sessions import agrees, bring, payload, turns


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
        assert first.thinking == "The token check may ignore clock skew."
        assert first.tokens == {"in": 900, "out": 61, "cache_read": 4000, "cache_write": 10}
        (read,) = first.tools
        assert isinstance(read, ToolCall)
        assert (read.tool, read.time, read.result) == ("Read", "09:00:05", "50 bytes")
        assert read.output == "def check(token):\n    return token.expires > now()"
        assert [(call.tool, call.result, call.output) for call in second.tools if isinstance(call, ToolCall)] == [
            ("Edit", "6 bytes", "edited"), ("Write", "error", "permission denied"), ("Bash", "8 bytes", "3 passed")]  # fmt: skip
        # What was refused is not touched.
        assert [(file.operation, file.path) for file in second.files] == [("write", "auth/sso.py")]  # type: ignore[union-attr]
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
        assert first.tokens == {"in": 50, "out": 10, "cache_read": 50}
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

    def test_cowork_says_when_it_began_and_whether_it_was_answered(self, store: FileStore, tmp_path: Path) -> None:
        folder = tmp_path / "snapshots"
        folder.mkdir()
        for name, last in (("answered", "assistant"), ("unanswered", "user")):
            messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
            messages += [{"role": "user", "content": "and?"}, {"role": "assistant", "content": "so."}][
                : 2 if last == "assistant" else 1
            ]
            whole = {
                "session": {"createdAt": "2024-05-06T07:08:09Z", "title": name, "cwd": str(store.root)},
                "messages": messages,
            }
            (folder / f"{name}.json").write_text(json.dumps(whole))
        bring(store, "cowork", folder)
        found = {each.title: each for each in store.history(TaskFilter())}
        assert {each.created for each in found.values()} == {"2024-05-06T07:08:09Z"}
        assert (found["answered"].status, found["unanswered"].status) == ("completed", "interrupted")

    def test_what_is_written_is_a_full_sealed_file_with_times(self, store: FileStore, sessions: Path) -> None:
        bring(store, "claude-code", sessions / "claude-code")
        verdicts = list(store.verify())
        assert verdicts
        assert not [verdict for verdict in verdicts if verdict.unsealed or verdict.faults or verdict.warnings]
        for task in store.history(TaskFilter()):
            head = Path(store.root, task.file).read_text(encoding="utf-8").split("\n\n")[0]
            assert f"\nStatus: {task.status} " in head
            assert "\nFormat: 1\n" in head
            assert "\nDuration: -" not in head
            assert [event.kind for event in store.events(task.id) if event.at is None] == []

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
