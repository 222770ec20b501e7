"""The index: always fresh, always rebuildable, never in the way."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rawko_state.backends.files.store import FileStore
from rawko_state.index.database import Index
from tests.index.indexes import ALL, DRIVER, rebuilt, turn


class TestReindex:
    def test_killed_at_any_moment_leaves_the_old_index(self, store: FileStore, tmp_path: Path) -> None:
        for number in range(40):
            with store.start(f"request {number}") as task:
                task.add_turn(turn())
        expected = store.sync.fresh().dump()
        code = "import sys; from rawko_state.backends.files.store import FileStore; FileStore(sys.argv[1]).reindex()"
        for delay in (0.15, 0.2, 0.25, 0.3, 0.35, 0.4):
            worker = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)])
            try:
                worker.wait(delay)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
            assert FileStore(tmp_path).sync.fresh().dump() == expected
        store.reindex()
        assert not list(store.journal.layout.state.glob("index.db.new-*"))

    def test_what_is_settled_while_the_new_index_takes_its_place_is_not_missed(
        self, store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        task = store.start("x", detached=True)
        task.add_turn(turn())
        task.close()
        real = Index.replace_with

        def replace_with(index: Index, other: Index) -> None:
            with FileStore(tmp_path).attach(task.id) as late:  # its mark is gone when it is closed
                late.add_turn(turn("late"))
            real(index, other)

        monkeypatch.setattr(Index, "replace_with", replace_with)
        store.reindex()
        assert [summary.turns for summary in store.history(ALL)] == [2]

    def test_writers_go_on_meanwhile(self, store: FileStore, tmp_path: Path) -> None:
        for number in range(20):
            store.start(f"request {number}", detached=True).close()
        writer = subprocess.Popen([sys.executable, DRIVER, str(tmp_path), "77", "60"])
        while writer.poll() is None:
            FileStore(tmp_path).reindex()
        again = FileStore(tmp_path)
        assert again.sync.fresh().dump() == rebuilt(tmp_path)

    def test_files_that_cannot_be_read_are_reported(self, store: FileStore, fixtures: Path) -> None:
        store.journal.layout.make()
        tasks = store.journal.layout.tasks
        shutil.copy(fixtures / "format" / "damaged-body.task", tasks / "2024-01-15T10-30-00-bad001.task")
        (tasks / "2024-01-15T10-30-00-link01.task").symlink_to("/etc/passwd")
        problems = dict(store.reindex())
        assert "was changed after" in problems["bad001"]
        assert "not a regular file" in problems["link01"]
