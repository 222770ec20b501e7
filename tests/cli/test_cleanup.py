"""What is kept and what goes: the plan, the trash, packed files, rewriting; and all of them with the process killed in between."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rawko_state.backends.files.store import FileStore
from rawko_state.lifecycle.retention import Policy, policy_of
from tests.lifecycle.conftest import store  # noqa: F401 - fixtures
from tests.lifecycle.retention import (
    DAY,
    SECRET,
    configure,
    contents,
    filled,
    nowhere,
    written_with_secrets,
)
from tests.support.faults import quiet
from tests.support.machine import patience
from tests.support.processes import rawko


class TestCommand:
    def test_without_settings_nothing_is_removed(self, store: FileStore, tmp_path: Path) -> None:
        filled(store, 3)
        assert "nothing is ever removed" in rawko(tmp_path, "cleanup", "--yes").stdout
        assert len(contents(tmp_path)) == 3

    def test_where_nobody_can_be_asked_nothing_is_done_without_yes(self, store: FileStore, tmp_path: Path) -> None:
        made = filled(store, 3)
        store.delete(made[0])
        configure(tmp_path, "max_count: 0")
        before = contents(tmp_path)
        for words in (("cleanup",), ("cleanup", "--json"), ("cleanup", "--empty-trash")):
            assert "--yes" in rawko(tmp_path, *words, code=2).stderr
        assert contents(tmp_path) == before
        assert len(store.trash()) == 1

    def test_dry_run_clean_restore(self, store: FileStore, tmp_path: Path) -> None:
        made = filled(store, 4)
        configure(tmp_path, "max_age: 30d, max_count: 2, min_keep: 1")
        shown = rawko(tmp_path, "cleanup", "--dry-run").stdout
        assert len(contents(tmp_path)) == 4
        assert f"{made[0]}\t" in shown
        assert "\tmax_age\t" in shown
        told = json.loads(rawko(tmp_path, "cleanup", "--dry-run", "--json").stdout)
        assert [each["id"] for each in told["removed"]] == made[:3]
        assert all(each["bytes"] > 20_000 for each in told["removed"])
        done = rawko(tmp_path, "cleanup", "--yes")
        assert "Moved 3 tasks to the trash" in done.stdout
        assert [each["id"] for each in json.loads(rawko(tmp_path, "cleanup", "--trash", "--json").stdout)["trash"]]
        assert rawko(tmp_path, "cleanup", "--restore", made[0]).stdout == f"{made[0]}\n"
        rawko(tmp_path, "cleanup", "--restore")
        assert len(contents(tmp_path)) == 4
        assert "Nothing to do" in rawko(tmp_path, "cleanup", "--yes").stdout
        assert "No task in the trash starts with 'zzz'" in rawko(tmp_path, "cleanup", "--restore", "zzz", code=1).stderr
        not_there = rawko(tmp_path, "cleanup", "--restore", made[0], code=1).stderr
        assert f"Task {made[0]} is not in the trash" in not_there

    def test_a_bad_settings_file_stops_it(self, store: FileStore, tmp_path: Path) -> None:
        filled(store, 2)
        configure(tmp_path, "max_count: 0, max_age: soon")
        done = rawko(tmp_path, "cleanup", "--yes", code=2)
        assert "config.yaml:4: state.retention.max_age takes a duration" in done.stderr
        assert len(contents(tmp_path)) == 2

    def test_it_asks_on_a_terminal(self, store: FileStore, tmp_path: Path) -> None:
        if sys.platform == "win32":
            pytest.skip("NOT TESTED HERE: needs a pseudo-terminal")
        import pty

        filled(store, 2)
        configure(tmp_path, "max_count: 0")

        def answer(text: bytes, *given: str) -> bytes:
            parent, child = pty.openpty()
            process = subprocess.Popen(
                [sys.executable, "-m", "rawko_state", "-C", str(tmp_path), "cleanup", *given],
                stdin=child,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            os.close(child)
            os.write(parent, text)
            out = process.communicate(timeout=patience(60))[0]
            os.close(parent)
            return out

        assert b"Move 2 tasks to the trash? [y/N]" in answer(b"n\n")
        assert b"Move 2 tasks to the trash? [y/N]" in answer(b"n\n", "--json")
        assert len(contents(tmp_path)) == 2
        answer(b"y\n")
        assert len(contents(tmp_path)) == 0
        assert b"This can't be undone. [y/N]" in answer(b"n\n", "--empty-trash", "--json")
        assert len(store.trash()) == 2
        answer(b"", "--empty-trash", "--json", "--yes")
        assert store.trash() == []

    def test_once_a_day_in_passing_with_one_line(self, store: FileStore, tmp_path: Path) -> None:
        filled(store, 3)
        configure(tmp_path, "max_count: 1")
        done = rawko(tmp_path, "history")
        assert len(done.stdout.splitlines()) == 3, "the command itself is as it was"
        assert done.stderr.count("\n") == 1
        assert "Cleanup: moved 2 tasks to the trash (max_count)" in done.stderr
        filled(store, 2)
        assert rawko(tmp_path, "history").stderr == ""
        assert len(contents(tmp_path)) == 3
        stamp = tmp_path / ".rawko/state/live/cleanup.lock"
        with store.daily() as mine:
            assert not mine
        os.utime(stamp, (time.time() - DAY - 1,) * 2)
        assert "moved 2 tasks" in rawko(tmp_path, "stats").stderr

    def test_a_bad_settings_file_never_fails_another_command(self, store: FileStore, tmp_path: Path) -> None:
        filled(store, 2)
        configure(tmp_path, "max_count: minus")
        done = rawko(tmp_path, "history")
        assert "Skipped today's cleanup" in done.stderr
        assert len(contents(tmp_path)) == 2
        assert rawko(tmp_path, "history").stderr == ""

    def test_deleting_by_hand_and_packing_by_settings(self, store: FileStore, tmp_path: Path) -> None:
        made = filled(store, 2)
        assert "to the trash" in rawko(tmp_path, "task", "delete", made[0]).stderr
        assert "in the trash" in rawko(tmp_path, "history", "show", made[0], code=1).stderr
        configure(tmp_path, "compress_after: 7d")
        assert "Compressed 1 task" in rawko(tmp_path, "cleanup", "--yes").stdout
        assert "hello 1" in rawko(tmp_path, "history", "show", made[1]).stdout
        assert made[1] in rawko(tmp_path, "history", "--search", "hello").stdout
        exported = json.loads(rawko(tmp_path, "history", "export", made[1]).stdout)
        assert exported["file"].endswith(".task")
        rawko(tmp_path, "cleanup", "--empty-trash", "--yes")
        assert "No task" in rawko(tmp_path, "history", "show", made[0], code=1).stderr

    def test_redact_and_export(self, tmp_path: Path) -> None:
        store = quiet(tmp_path)
        task_id = written_with_secrets(store, tmp_path)
        for form in ("json", "jsonl", "task"):
            assert "rawko redact" in rawko(tmp_path, "history", "export", task_id, "--format", form, code=1).stderr
            assert (
                SECRET
                in rawko(tmp_path, "history", "export", task_id, "--format", form, "--as-is").stdout.replace(
                    "\\n", "\n"
                )
                or form != "task"
            )
        for form in ("md", "html"):
            assert SECRET not in rawko(tmp_path, "history", "export", task_id, "--format", form).stdout
        assert "github-token" in rawko(tmp_path, "redact", "--dry-run").stdout
        told = json.loads(rawko(tmp_path, "redact", "--json").stdout)
        assert told["tasks"][0]["id"] == task_id
        nowhere(tmp_path)
        assert "No secrets found" in rawko(tmp_path, "redact").stderr
        rawko(tmp_path, "history", "export", task_id)

    def test_policy_of_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from rawko_state.config.settings import load

        monkeypatch.setenv("RAWKO_STATE_RETENTION_MAX_AGE", "2w")
        monkeypatch.setenv("RAWKO_STATE_RETENTION_KEEP_FAILED", "no")
        assert policy_of(load(None)) == Policy(max_age=14 * DAY, keep_failed=False)
