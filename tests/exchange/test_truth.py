"""What is said of sessions that real agents wrote: how they ended, and what they did to files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rawko_state.backends.files.store import FileStore
from rawko_state.exchange.importing import Belonging, task_id
from rawko_state.store import TaskFilter
from tests.exchange.sessions import bring
from tests.support.processes import ROOT

REAL = ROOT / "fixtures" / "real"


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> FileStore:
    root = tmp_path_factory.mktemp("project")
    shutil.copytree(REAL, root / "real")
    store = FileStore(root)
    for source in ("claude-code", "codex", "aider"):
        report = bring(store, source, root / "real" / source, belonging=Belonging((str(store.root),), everywhere=True))
        assert not report.wrong
        assert not report.unknown, source
    return store


class TestHowItEnded:
    def test_an_answer_is_a_success_and_nothing_else_is(self, imported: FileStore) -> None:
        found = {
            (task.request or "")[:12]: task.status
            for task in imported.history(TaskFilter())
            if "aider" not in task.agents
        }
        assert found == {
            "FIXBUG in ca": "completed",
            "APIERR pleas": "failed",
            "HANG please": "interrupted",  # a prompt that nobody answered
            "SLOW live ki": "interrupted",  # killed inside a tool
            "FAILCMD plea": "completed",
            "HANG": "interrupted",
            "SLOW two": "cancelled",  # by the user
            "(a session w": "unknown",  # of aider, without a prompt
        }

    def test_a_failure_says_why_in_its_own_words(self, imported: FileStore) -> None:
        claude = imported.runs(task_id("claude-code", "6f45989e-5d5d-4eb2-a191-fe8b3a3095f6"))[-1]
        assert (claude.status, claude.error) == ("failed", "API Error: 400 scripted error")
        codex = imported.runs(task_id("codex", "01a1e765-7470-7442-ba9b-ba5b9548f7da"))[-1]
        assert (codex.status, codex.error) == ("failed", "scripted error")
        aider = [task for task in imported.history(TaskFilter(status=("failed",))) if task.request == "APIERR please"]
        errors = {imported.runs(task.id)[-1].error for task in aider}
        assert "litellm.BadRequestError: OpenAIException - scripted error" in errors

    def test_what_does_not_say_is_unknown(self, imported: FileStore) -> None:
        (empty,) = imported.history(TaskFilter(status=("unknown",)))
        assert empty.turns == 0

    def test_a_turn_that_was_cut_off_is_interrupted(self, imported: FileStore) -> None:
        task = task_id("claude-code", "8b1f3bdf-ae9c-4098-a343-035ebc4d90e2")
        assert imported.turn(task, 1).status == "interrupted"
        assert imported.status(task) == "interrupted"


class TestFiles:
    def test_what_was_refused_or_failed_is_not_touched(self, imported: FileStore) -> None:
        task = task_id("claude-code", "b896e1ad-1d29-453c-9be0-59ceb5462d6d")
        assert [(operation, Path(path).name) for _, operation, path in imported.files(task)] == [
            ("read", "calc.py"),
            ("write", "notes.md"),
        ]
        edit = imported.turn(task, 2)
        assert [call.result for call in edit.tools if not isinstance(call, str)] == ["error"]

    def test_codex_in_code_mode_reads_and_writes(self, imported: FileStore) -> None:
        task = task_id("codex", "01a1e781-0978-7a93-9ce8-16e55552b409")
        assert [(operation, Path(path).name) for _, operation, path in imported.files(task)] == [
            ("read", "calc.py"),
            ("write", "calc.py"),
        ]

    def test_a_failed_command_is_an_error(self, imported: FileStore) -> None:
        task = task_id("codex", "01a1e765-5965-7181-bd18-96292fd2ab13")
        (call,) = imported.turn(task, 1).tools
        assert not isinstance(call, str)
        assert call.result == "error"
