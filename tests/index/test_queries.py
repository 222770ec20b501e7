"""The index: always fresh, always rebuildable, never in the way."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from rawko_state.backends.files.store import FileStore
from rawko_state.model.entries import Parent, Turn
from rawko_state.model.frozen import replace
from rawko_state.store import TaskFilter
from tests.index.indexes import ALL, ids, turn


class TestQueries:
    @pytest.fixture
    def filled(self, store: FileStore) -> FileStore:
        base = datetime(2024, 1, 1, tzinfo=timezone.utc)
        for number in range(6):
            task = store.start(
                f"request {number}",
                created=base + timedelta(days=number),
                labels={"area": "auth" if number % 2 else "ui, new", "n": str(number)},
            )
            task.add_turn(turn("x", f"src/auth/{number}.py", "README.md"))
            task.add_turn(Turn(number=1, agent="reviewer" if number < 2 else "planner", status="complete"))
            if number < 4:
                task.finish("success" if number else "failure", duration_ms=number * 1000)
            else:
                task.close()
        return store

    def _numbers(self, store: FileStore, **wanted: object) -> list[str]:
        return [s.labels["n"] for s in store.history(TaskFilter(**{"sort": "created", **wanted}))]  # type: ignore[arg-type]

    def test_filters_and_their_combination(self, filled: FileStore) -> None:
        day = datetime(2024, 1, 3, tzinfo=timezone.utc)
        numbers = self._numbers
        assert numbers(filled) == ["5", "4", "3", "2", "1", "0"]
        assert numbers(filled, limit=2) == ["5", "4"]
        assert numbers(filled, reverse=True, limit=1) == ["0"]
        assert numbers(filled, status=("failed",)) == ["0"]
        assert numbers(filled, status=("interrupted",)) == ["5", "4"]
        assert numbers(filled, status=("running",)) == []
        assert numbers(filled, status=("failed", "interrupted")) == ["5", "4", "0"]
        assert numbers(filled, agent="reviewer") == ["1", "0"]
        assert numbers(filled, since=day) == ["5", "4", "3", "2"]
        assert numbers(filled, until=day) == ["1", "0"]
        assert numbers(filled, labels=(("area", "auth"),)) == ["5", "3", "1"]
        assert numbers(filled, labels=(("area", "ui, new"),)) == ["4", "2", "0"]
        assert numbers(filled, labels=(("n", None),), limit=1) == ["5"]
        assert numbers(filled, labels=(("a", None),)) == []
        assert numbers(filled, sort="duration", limit=2) == ["3", "2"]
        assert numbers(filled, agent="planner", status=("completed",), labels=(("area", "auth"),)) == ["3"]

    def test_files_by_path_folder_and_glob(self, filled: FileStore) -> None:
        numbers = self._numbers
        assert numbers(filled, file="src/auth/3.py") == ["3"]
        assert numbers(filled, file="src/auth") == ["5", "4", "3", "2", "1", "0"]
        assert numbers(filled, file="src/aut") == []
        assert numbers(filled, file="*/[12].py") == ["2", "1"]
        (found,) = filled.history(TaskFilter(file="src/auth/3.py"))
        assert found.touched == (("write", "src/auth/3.py"),)

    def test_brackets_in_paths_and_commas_in_labels_are_only_text(self, store: FileStore) -> None:
        with store.start("x", labels={"x": "foo, a=1, z\na=1\n"}) as task:
            task.add_turn(turn("x", "app/[id]/page.tsx"))
        assert ids(store, TaskFilter(file="app/[id]/page.tsx")) == [task.id]
        assert ids(store, TaskFilter(file="app/[id]")) == [task.id]
        assert ids(store, TaskFilter(labels=(("a", None),))) == []
        assert ids(store, TaskFilter(labels=(("a", "1"),))) == []
        assert ids(store, TaskFilter(labels=(("x", "foo, a=1, z\na=1\n"),))) == [task.id]

    def test_stats(self, filled: FileStore) -> None:
        stats = filled.stats(ALL)
        assert (stats.tasks, stats.turns) == (6, 12)
        assert stats.by_status == {"completed": 3, "failed": 1, "interrupted": 2}
        assert stats.by_agent["dev"][0] == 6
        assert stats.by_file["README.md"] == 6
        assert stats.by_day["2024-01-01"] == 1
        assert stats.disk["tasks"] > 1000

    def test_one_turn_of_a_huge_file_is_one_seek(self, store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
        task = store.start("x")
        for number in range(50):
            task.add_turn(turn(f"turn {number} " + "y" * 50_000))
        task.close()
        store.history(ALL)
        read = 0
        original = type(store.reader(task.id)).fetch

        def counting(self: object, offset: int, length: int) -> bytes:
            nonlocal read
            read += length
            return original(self, offset, length)  # type: ignore[arg-type]

        monkeypatch.setattr("rawko_state.format.reader.TaskReader.fetch", counting)
        assert (store.turn(task.id, 42).content or "").startswith("turn 41 ")
        assert read < 120_000

    def test_children_of_a_task(self, store: FileStore) -> None:
        parent = store.start("parent", detached=True)
        child = store.start("child", parent=Parent(parent.id, 4), detached=True)
        assert store.children(parent.id) == [(child.id, 4, "child")]
        assert store.summary(child.id).parent == f"{parent.id}@4"


class TestRememberedStats:
    def test_they_are_those_that_are_summed_up_anew(self, tmp_path: Path) -> None:
        """After an append and a deletion: remembered sums never outlive what they were made from."""

        def both() -> tuple[object, object]:
            with FileStore(tmp_path) as store:
                remembered = store.stats(TaskFilter())
                index = store.sync.index()
                with index.transaction():
                    index.connection.execute("DELETE FROM index_meta WHERE k LIKE 'stats:%'")
                return replace(remembered, disk={}), replace(store.stats(TaskFilter()), disk={})

        made = []
        with FileStore(tmp_path) as store:
            for day in (1, 2, 2):
                with store.start("x", created=datetime(2024, 1, day, tzinfo=timezone.utc)) as task:
                    task.add_turn(turn())
                    task.finish("success")
                made.append(task.id)
            assert store.stats(TaskFilter()).turns == 3
            with store.resume(made[0]) as task:
                task.add_turn(turn())
                task.finish("success")
            assert store.stats(TaskFilter()).turns == 4
            store.delete(made[1])
            assert store.stats(TaskFilter()).turns == 3
        remembered, anew = both()
        assert remembered == anew

    def test_they_read_no_turns_again(self, tmp_path: Path) -> None:
        with FileStore(tmp_path) as store, store.start("x") as task:
            task.add_turn(turn())
            task.finish("success")
            store.stats(TaskFilter())
            statements: list[str] = []
            store.sync.index().connection.set_trace_callback(statements.append)
            store.stats(TaskFilter())
        assert statements
        assert not [each for each in statements if "task_agents" in each or "task_files" in each]
