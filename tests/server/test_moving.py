"""The server, over real sockets: what it takes and refuses, from whom; requests that are done once; streams without gap or double."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rawko_state.backends.files.store import FileStore
from rawko_state.backends.postgres.store import PostgresStore
from rawko_state.model.entries import Turn
from tests.server.clients import _all


class TestMoving:
    @pytest.fixture
    def there(self, database: str, tmp_path: Path) -> Iterator[PostgresStore]:
        store = PostgresStore(database, f"w{uuid.uuid4().hex[:8]}", root=tmp_path)
        yield store
        store.close()

    def _move(self, source: Any, target: Any, *ids: str) -> Any:
        from rawko_state.lifecycle.moving import Moved, move

        moved = Moved()
        for *_, done in move(source, target, ids):
            moved = done
        return moved

    def test_both_ways_byte_for_byte_and_only_what_is_new(self, project: Path, there: PostgresStore) -> None:
        here = FileStore(project)
        with here.start("x") as task, task.turn("dev") as turn:
            turn.tool("t", "", output="long " * 10_000)
        assert self._move(here, there, task.id).new == [task.id]
        assert _all(there, task.id) == _all(here, task.id)
        assert there.blobs_of(task.id) == here.blobs_of(task.id)
        assert self._move(here, there, task.id).same == 1
        with there.resume(task.id, message="more") as more:
            more.add_turn(Turn(number=1, agent="a", status="complete", content="there"))
        assert self._move(here, there, task.id).behind == 1
        assert self._move(there, here, task.id).grown == [task.id]
        assert _all(there, task.id) == _all(here, task.id)
        assert here.summary(task.id).turns == 2
        assert here.search("there").hits
        (verdict,) = here.verify(task.id)
        assert verdict.faults == []

    def test_what_has_grown_on_both_sides_becomes_a_fork(self, project: Path, there: PostgresStore) -> None:
        here = FileStore(project)
        task = here.start("x", detached=True)
        task.add_turn(Turn(number=1, agent="a", content="common"))
        self._move(here, there, task.id)
        task.add_turn(Turn(number=1, agent="a", content="here"))
        with there.attach(task.id) as other:
            other.add_turn(Turn(number=1, agent="a", content="there"))
        before = _all(there, task.id)
        moved = self._move(here, there, task.id)
        fork = moved.forked[task.id]
        assert _all(there, task.id) == before
        assert there.turn(fork, 2).content == "here"
        assert there.summary(fork).parent == task.id
        assert fork.startswith(task.id)
        (verdict,) = there.verify(fork)
        assert verdict.faults == []
        assert self._move(here, there, task.id).forked == {}  # not again
        task.add_turn(Turn(number=1, agent="a", content="here, more"))
        assert self._move(here, there, task.id).forked == {task.id: fork}  # it grows
        assert there.turn(fork, 3).content == "here, more"
        (verdict,) = there.verify(fork)
        assert verdict.faults == []
        assert self._move(there, here, task.id).forked

    def test_odd_files_go_through_as_they_are(self, project: Path, there: PostgresStore, fixtures: Path) -> None:
        here = FileStore(project, warn=lambda message: None)
        ids = []
        for number, path in enumerate(sorted((fixtures / "format").glob("*.task"))):
            name = f"2024-01-15T10-30-00-odd{number:03}.task"
            here.add_file(name, path.read_bytes())
            ids.append(f"odd{number:03}")
        moved = self._move(here, there, *ids)
        assert moved.failed == {}
        for task_id in ids:
            assert _all(there, task_id) == _all(here, task_id), task_id
            assert [type(e).__name__ for _, e in there.entries(task_id)] == [
                type(e).__name__ for _, e in here.entries(task_id)
            ]
