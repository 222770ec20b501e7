"""Other agents' sessions: everything comes in, once, as it was; what grows comes after; what is broken is told of."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rawko_state.backends.files.store import FileStore
from rawko_state.integrations.recording import prompt_in
from rawko_state.model.entries import ToolCall
from rawko_state.store import TaskFilter
from tests.exchange.conftest import project, sessions, store  # noqa: F401 - fixtures
from tests.exchange.sessions import STREAM, payload, run_recorded, turns
from tests.support.machine import patience, wait_for
from tests.support.processes import rawko


class TestRun:
    def test_text_comes_through_as_it_is_and_is_recorded(self, store: FileStore, project: Path) -> None:
        out = run_recorded(project, "sh", "-c", "echo one; printf 'two \\377\\000'; cat; exit 3", code=3, given=b"in\n")
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
        # The counts in a stream are those of when a message began.
        assert (first.content, first.model, first.tokens) == ("I will look", "claude-x", {})
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
        run_recorded(project, "printf", "%s\n", text)
        (summary,) = store.history(TaskFilter())
        thought, wrote, said = turns(store, summary.id)
        assert thought.thinking == "hm"
        assert [(c.tool, c.args, c.output) for c in thought.tools if isinstance(c, ToolCall)] == [
            ("shell", "ls", "a.py")
        ]
        assert [(f.operation, f.path) for f in wrote.files] == [("write", "a.py")]  # type: ignore[union-attr]
        assert said.content == "There is one file."
        assert (summary.tokens_in, summary.tokens_out) == (9, 3)

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
        assert "Command not found" in rawko(project, "run", "x", "--", "not-a-command-7", code=127).stderr
        assert rawko(project, "run", "x", "--", code=2).stderr.count("\n") == 2
        assert rawko(project, "run", code=2).stderr.count("\n") == 2

    def test_a_secret_between_quotes_of_the_command_is_removed(self, project: Path) -> None:
        (project / ".rawko").mkdir()
        rawko(project, "run", "--", "echo", "auth=('bob', 'k2JdQ8sLZx7v')")
        (path,) = (project / ".rawko/state/tasks").iterdir()
        text = path.read_text()
        assert "X-Command: echo" in text
        assert "auth=('bob', '[redacted:call-secret:" in text
        assert "k2JdQ8sLZx7v" not in text


class TestWithoutARequest:
    def test_the_command_is_the_request(self, tmp_path: Path) -> None:
        (tmp_path / ".rawko").mkdir()
        for words in (("--", "echo", "a b"), ("--label", "x=y", "--", "echo", "a b"), ("say it", "--", "echo", "a b")):
            assert rawko(tmp_path, "run", *words).stdout.strip() == "a b"
        store = FileStore(tmp_path)
        assert sorted(task.request or "" for task in store.history(TaskFilter())) == [
            "echo 'a b'",
            "echo 'a b'",
            "say it",
        ]

    @pytest.mark.parametrize(
        ("words", "prompt"),
        [
            (["claude", "-p", "Fix it", "--verbose"], "Fix it"),
            (["/usr/bin/claude", "--verbose", "-p", "Fix it"], "Fix it"),
            (["claude", "--verbose", "Fix it", "-p"], None),
            (["claude", "-p", "--output-format", "stream-json", "--verbose", "Fix it"], "Fix it"),
            (["claude", "-p", "--append-system-prompt", "Be brief, please"], None),
            (["pi", "-p", "--mode", "json", "--model", "m", "Fix it"], "Fix it"),
            (["codex", "exec", "--json", "Fix it"], "Fix it"),
            (["codex", "exec", "resume", "--last"], None),
            (["aider", "--message", "Fix it"], "Fix it"),
            (["make", "-p", "all"], None),
            (["claude"], None),
        ],
    )
    def test_of_an_agent_it_is_the_prompt(self, words: list[str], prompt: str | None) -> None:
        assert prompt_in(words) == prompt
