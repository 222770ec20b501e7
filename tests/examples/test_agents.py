"""The agents in examples/ do what they say."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

import rawko_state as rawko
from examples import async_agent, loop_agent, worker_pool
from rawko_state import TaskFilter
from tests.support.machine import wait_for


class TestLoop:
    @pytest.mark.parametrize("answer", ["yes", "no"])
    def test_it_asks_before_it_deletes(self, tmp_path: Path, answer: str) -> None:
        (tmp_path / "old.txt").touch()
        ids: list[str] = []
        agent = threading.Thread(
            target=lambda: ids.append(loop_agent.run(tmp_path, loop_agent.Scripted(iter(loop_agent.SCRIPT))))
        )
        agent.start()
        with rawko.open(tmp_path) as store:
            wait_for(lambda: bool(store.history(TaskFilter(status=("waiting",)))))
            (waiting,) = store.history(TaskFilter(status=("waiting",)))
            with store.attach(waiting.id) as task:
                task.answer(answer, by="Ann")
            agent.join()
            assert store.summary(ids[0]).status == "completed"
            assert (tmp_path / "old.txt").exists() == (answer == "no")
            (call,) = store.turn(ids[0], 1).tools
            assert call.output == "old.txt\n"
            deleted = [path for _, operation, path in store.files(ids[0]) if operation == "delete"]
            assert deleted == ([] if answer == "no" else ["old.txt"])
            assert [turn.question.text for turn in store.turns(ids[0]) if turn.question] == [
                "filesystem.delete old.txt"
            ]


class TestAsync:
    def test_one_of_five_is_cancelled(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        statuses = asyncio.run(async_agent.main(tmp_path))
        assert statuses.pop("an endless question") == "cancelled"
        assert set(statuses.values()) == {"completed"}
        assert "You asked: an endless question." in capsys.readouterr().out
        with rawko.open(tmp_path) as store:
            (cancelled,) = store.history(TaskFilter(status=("cancelled",)))
            (turn,) = store.turns(cancelled.id)
            assert turn.status == "interrupted"
            assert (turn.content or "").startswith("You asked: an endless question.")


class TestPool:
    def test_every_job_is_done_once_although_a_worker_dies(self, tmp_path: Path) -> None:
        codes = worker_pool.pool(tmp_path)
        assert codes == [9, 0, 0, 0]
        with rawko.open(tmp_path) as store:
            everything = store.history(TaskFilter())
            assert sorted(task.title or "" for task in everything) == worker_pool.JOBS
            for task in everything:
                assert task.status == "completed"
                assert [turn.content for turn in store.turns(task.id)] == ["step 1", "step 2", "step 3"]
