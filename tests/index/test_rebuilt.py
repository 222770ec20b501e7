"""The index: always fresh, always rebuildable, never in the way."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from rawko_state.backends.files.store import FileStore
from tests.index.indexes import ALL, DRIVER, ids, rebuilt, turn
from tests.support.machine import patience


class TestLiveEqualsRebuilt:
    @pytest.mark.parametrize("seed", range(4))
    def test_after_any_sequence_of_operations_by_several_processes(self, tmp_path: Path, seed: int) -> None:
        commands = [[sys.executable, DRIVER, str(tmp_path), str(seed * 10 + n), "40"] for n in range(3)]
        writers = [subprocess.Popen(command) for command in commands]
        if seed % 2:
            writers[0].kill()
        for writer in writers:
            writer.wait(patience(100))
        store = FileStore(tmp_path)
        live = store.sync.fresh().dump()
        expected = rebuilt(tmp_path)
        for table in expected:
            differing = [pair for pair in zip(live[table], expected[table], strict=True) if pair[0] != pair[1]]
            assert not differing, table
        assert len(live["tasks"]) > 5
        assert store.sync.index().check() == []
        store.reindex()
        assert store.sync.index().dump() == expected

    def test_golden_files_and_all(self, store: FileStore, fixtures: Path) -> None:
        store.journal.layout.make()
        for number, path in enumerate(sorted((fixtures / "format").glob("*.task"))):
            shutil.copy(path, store.journal.layout.tasks / f"2024-01-15T10-30-{number:02d}-gold{number:02d}.task")
        live = store.sync.fresh().dump()
        assert live == rebuilt(store.root)
        by_id = {summary.id: summary for summary in store.history(ALL)}
        assert len(by_id) == number + 1

    def test_torn_tails_and_adopted_files(self, store: FileStore, fixtures: Path) -> None:
        store.journal.layout.make()
        tasks = store.journal.layout.tasks
        shutil.copy(fixtures / "format" / "torn-tail.task", tasks / "2024-01-15T10-30-00-k3f9a1.task")
        shutil.copy(fixtures / "format" / "rfc-example.task", tasks / "2024-01-15T10-30-00-abc123.task")
        ids(store)
        for task_id in ("k3f9a1", "abc123"):
            task = store.resume(task_id)
            task.add_turn(turn("more"))
            task.add_turn(turn("and more"))
            task.finish("success")
        assert store.sync.fresh().dump() == rebuilt(store.root)

    def test_a_repair_is_known_to_the_index(self, store: FileStore, fixtures: Path) -> None:
        store.journal.layout.make()
        shutil.copy(
            fixtures / "format" / "torn-tail.task", store.journal.layout.tasks / "2024-01-15T10-30-00-k3f9a1.task"
        )
        ids(store)
        assert [verdict.repaired for verdict in store.verify(repair=True)] == [
            ["marked an unfinished write of 63 bytes"]
        ]
        assert store.sync.fresh().dump() == rebuilt(store.root)


class TestTheRfc:
    def test_its_sql_runs_unchanged(self, store: FileStore, fixtures: Path) -> None:
        store.journal.layout.make()
        shutil.copy(
            fixtures / "format" / "rfc-example.task", store.journal.layout.tasks / "2024-01-15T10-30-00-abc123.task"
        )
        ids(store)
        with sqlite3.connect(store.sync.path) as connection:
            row = connection.execute(
                "SELECT id, created_at, completed_at, status, duration_ms, request, result_summary, file_path FROM tasks"
            ).fetchone()
            assert row == (
                "abc123", "2024-01-15T10:30:00Z", None, "completed", 45_200,
                "Fix the login bug where users can't authenticate with SSO",
                "Fixed SSO authentication by correcting token validation timing",
                ".rawko/state/tasks/2024-01-15T10-30-00-abc123.task",
            )  # fmt: skip
            turns = connection.execute(
                "SELECT task_id, turn, agent, status, duration_ms, tool_calls FROM task_agents ORDER BY turn"
            ).fetchall()
            assert turns[1] == ("abc123", 2, "planner", "complete", 8300, 5)
            assert len(turns) == 7
            joined = connection.execute(
                "SELECT DISTINCT t.id FROM tasks t JOIN task_files f ON f.task_id = t.id "
                "WHERE f.file_path = 'auth/sso.rs' AND f.operation = 'write' AND t.created_at > '2024-01-01'"
            ).fetchall()
            assert joined == [("abc123",)]
            names = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'index'")}
            assert {"idx_tasks_created", "idx_tasks_status", "idx_task_files_path"} <= names
        connection.close()

    def test_one_header_a_task_and_one_child_a_record_are_kept_by_the_database(self, store: FileStore) -> None:
        task = store.start("x")
        task.add_turn(turn())
        task.close()
        connection = sqlite3.connect(store.sync.path)
        connection.execute("PRAGMA foreign_keys = ON")
        parent = connection.execute("SELECT parent FROM task_records WHERE parent IS NOT NULL").fetchone()[0]
        insert = (
            "INSERT INTO task_records (task_id, offset, length, kind, seal, parent) VALUES (?, ?, 1, 'sealed', 's', ?)"
        )
        with pytest.raises(sqlite3.IntegrityError):
            connection.execute(insert, (task.id, 99_999, parent))
        with pytest.raises(sqlite3.IntegrityError):
            connection.execute(insert, (task.id, 99_999, None))
        with pytest.raises(sqlite3.IntegrityError):
            connection.execute(insert, ("nobody", 0, None))
        connection.close()
