"""What is kept and what goes: the plan, the trash, packed files, rewriting; and all of them with the process killed in between."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from rawko_state.backends.files.store import FileStore
from rawko_state.errors import RawkoError, TaskBusy, TaskNotFound
from rawko_state.lifecycle.cleanup import carry_out, planned
from rawko_state.lifecycle.retention import COUNT, Policy
from rawko_state.model.entries import ToolCall, Turn
from rawko_state.store import TaskFilter
from tests.lifecycle.conftest import store  # noqa: F401 - fixtures
from tests.lifecycle.retention import (
    DRIVER,
    NOW,
    ago,
    agrees,
    contents,
    filled,
    ids,
)
from tests.support.faults import quiet
from tests.support.machine import patience


class TestTrash:
    def test_there_and_back_byte_for_byte_with_long_outputs(self, store: FileStore, tmp_path: Path) -> None:
        made = filled(store, 4)
        before, blobs = contents(tmp_path), contents(tmp_path, "blobs")
        assert len(blobs) == 4
        done = carry_out(store, Policy(max_count=1), planned(store, Policy(max_count=1), NOW))
        assert done.removed == dict.fromkeys(made[:3], COUNT)
        assert len(contents(tmp_path)) == len(contents(tmp_path, "blobs")) == 1
        assert [summary.id for summary in store.history(TaskFilter())] == made[3:]
        assert {hit.task.id for hit in store.search("hello").hits} == {made[3]}
        agrees(store)
        with pytest.raises(TaskNotFound, match="in the trash"):
            store.summary(made[0])
        assert store.restore(made[1][:4] if sum(m.startswith(made[1][:4]) for m in made) == 1 else made[1]) == [made[1]]
        assert sorted(store.restore()) == sorted([made[0], made[2]])
        assert contents(tmp_path) == before
        assert contents(tmp_path, "blobs") == blobs
        agrees(store)
        # What was brought back is left alone.
        assert ids(planned(store, Policy(max_count=0), NOW)) == {made[3]: COUNT}

    def test_a_shared_output_stays_until_the_last_task_goes(self, store: FileStore, tmp_path: Path) -> None:
        for _ in range(2):
            with store.start("x") as task:
                task.add_turn(Turn(number=1, agent="d", tools=(ToolCall("x", output="shared " * 5000),)))
        first, second = (summary.id for summary in store.history(TaskFilter()))
        assert store.freed_bytes([first]) == {first: 0}
        assert sum(store.freed_bytes([first, second]).values()) == 35_000
        store.delete(first)
        assert len(contents(tmp_path, "blobs")) == 1
        store.empty_trash()
        assert len(contents(tmp_path, "blobs")) == 1
        store.delete(second)
        assert len(contents(tmp_path, "blobs")) == 0
        assert len(contents(tmp_path, "trash/blobs")) == 1
        store.empty_trash()
        assert contents(tmp_path, "trash/blobs") == {}

    def test_it_empties_after_its_own_age_and_not_before(self, store: FileStore) -> None:
        (made,) = filled(store, 1)
        store.delete(made)
        assert store.empty_trash(datetime.now(timezone.utc) - timedelta(days=1)) == []
        assert [each.id for each in store.trash()] == [made]
        assert [each.id for each in store.empty_trash(datetime.now(timezone.utc) + timedelta(days=1))] == [made]
        assert store.trash() == []
        with pytest.raises(TaskNotFound):
            store.restore(made)

    def test_emptying_stops_when_its_time_is_up_the_oldest_first(
        self, store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("rawko_state.backends.files.trash._AT_LEAST", 1)
        made = filled(store, 3)
        for task_id in made:
            store.delete(task_id)
        log = tmp_path / ".rawko/state/trash/log.jsonl"
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        for number, line in enumerate(lines):
            line["at"] = ago(100 - number)
        log.write_text("".join(json.dumps(line) + "\n" for line in lines))
        times = iter([True, True, False])  # before the trash, and before its second and third task
        policy = Policy(max_age=10**9)
        done = carry_out(store, policy, planned(store, policy), proceed=lambda: next(times))
        assert [each.id for each in done.deleted] == made[:2]
        assert [each.id for each in store.trash()] == made[2:]
        assert len(contents(tmp_path, "trash/blobs")) == 1

    def test_what_changed_since_the_plan_or_is_being_run_stays(self, store: FileStore) -> None:
        made = filled(store, 3)
        chosen = planned(store, Policy(max_count=0), NOW)
        with store.attach(made[0]) as task:
            task.note("still needed", pinned=True)
        running = store.resume(made[1])
        assert carry_out(store, Policy(max_count=0), chosen).removed == {made[2]: COUNT}
        with pytest.raises(TaskBusy):
            store.delete(made[1])
        running.close()

    def test_an_open_writer_finds_that_its_task_is_gone_and_loses_nothing(self, store: FileStore) -> None:
        (made,) = filled(store, 1)
        task = store.attach(made)
        store.delete(made)
        with pytest.raises(RawkoError, match="no longer exists"):
            task.note("too late")
        task.close()

    def test_a_task_that_comes_there_a_second_time_replaces_nothing(self, store: FileStore, tmp_path: Path) -> None:
        (made,) = filled(store, 1)
        ((name, data),) = contents(tmp_path).items()
        store.delete(made)
        store.add_file(name, data)
        store.delete(made)
        assert len(store.trash()) == 2
        assert store.restore() == [made]
        assert len(store.trash()) == 1
        with pytest.raises(RawkoError, match=r"(?i)another task"):
            store.restore(made)

    def test_a_fork_says_that_its_parent_is_gone(self, store: FileStore) -> None:
        from rawko_state.lifecycle.context import build, prompt

        (made,) = filled(store, 1)
        fork = store.fork(made, 1, message="go on", detached=True)
        fork.close()
        assert "hello 0" in prompt(store, build(store, fork.id))
        store.delete(made)
        assert "no longer exists" in prompt(store, build(store, fork.id))

    def test_many_processes_clean_up_at_once(self, tmp_path: Path) -> None:
        store = quiet(tmp_path)
        made = filled(store, 40)
        before = contents(tmp_path)
        processes = [subprocess.Popen([sys.executable, DRIVER, "cleanup", str(tmp_path)]) for _ in range(4)]
        assert [process.wait(patience(60)) for process in processes] == [0] * 4
        assert contents(tmp_path) == {}
        assert sorted(store.restore()) == sorted(made)
        assert contents(tmp_path) == before
        agrees(store)
