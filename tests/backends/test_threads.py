"""Store, Task and LiveTurn from many threads: every acknowledged turn is there once, on every backend."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rawko_state.backends.files.store import FileStore
from rawko_state.backends.postgres.store import PostgresStore
from rawko_state.backends.remote.store import RemoteStore
from rawko_state.errors import RawkoError
from rawko_state.model.entries import ToolCall, Turn
from rawko_state.store import TaskFilter
from tests.support.serving import served

THREADS = 16


def turn(content: str) -> Turn:
    return Turn(number=1, agent="dev", status="complete", content=content)


def run_all(works: list[Callable[[], object]]) -> None:
    """All at once; the first error is raised."""
    ready = threading.Barrier(len(works))

    def begin(work: Callable[[], object]) -> None:
        ready.wait()
        work()

    with ThreadPoolExecutor(len(works)) as pool:
        for done in [pool.submit(begin, work) for work in works]:
            done.result()


@pytest.fixture(params=["files", "postgres", "remote"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    warned: list[str] = []
    project = tmp_path / "project"
    (project / ".rawko").mkdir(parents=True)
    if request.param == "files":
        made: Any = FileStore(project, warn=warned.append)
        yield made
        made.close()
    elif request.param == "postgres":
        made = PostgresStore(request.getfixturevalue("database"), root=project, warn=warned.append)
        yield made
        made.close()
        made.postgres.close_all()
    else:
        with served(project) as running:
            made = RemoteStore(running.url, root=project, warn=warned.append)
            yield made
            made.close()
    assert warned == []


def contents(store: Any, task_id: str) -> list[str]:
    return [entry.content or "" for _, entry in store.entries(task_id) if isinstance(entry, Turn)]


class TestOneTask:
    def test_turns_of_many_threads_are_all_there_once_and_numbered(self, store: Any) -> None:
        task = store.start("x")
        said: list[str] = []

        def write(name: int) -> None:
            for number in range(6):
                text = f"{name}-{number}."
                task.add_turn(turn(text))
                said.append(text)  # acknowledged

        run_all([lambda name=name: write(name) for name in range(THREADS)])
        task.finish("success")
        assert sorted(contents(store, task.id)) == sorted(said)
        numbers = [entry.number for _, entry in store.entries(task.id) if isinstance(entry, Turn)]
        assert numbers == list(range(1, THREADS * 6 + 1))
        (verdict,) = store.verify(task.id)
        assert verdict.faults == []

    def test_mixed_calls(self, store: Any) -> None:
        task = store.start("x")

        def notes() -> None:
            for number in range(4):
                task.note(f"note {number}")

        def turns(name: str) -> None:
            for number in range(4):
                task.add_turn(turn(f"{name}{number}."))

        def looks() -> None:
            for _ in range(4):
                task.refresh()
                assert task.state.status == "running"
                store.summary(task.id)
                store.history(TaskFilter())
                store.search("note")

        run_all([notes, lambda: turns("a"), looks, notes, lambda: turns("b"), looks])
        task.finish("success")
        assert len(contents(store, task.id)) == 8
        (verdict,) = store.verify(task.id)
        assert verdict.faults == []

    def test_parallel_tool_calls_get_their_own_results(self, store: Any) -> None:
        task = store.start("x")
        live = task.turn("dev")

        def call(number: int) -> None:
            for each in range(5):
                key = live.begin_tool("shell.exec", f"{number}-{each}")
                live.end_tool(key, f"result {number}-{each}")
                live.say(".")

        run_all([lambda number=number: call(number) for number in range(8)])
        live.end()
        task.finish("success")
        (found,) = [entry for _, entry in store.entries(task.id) if isinstance(entry, Turn)]
        calls = [each for each in found.tools if isinstance(each, ToolCall)]
        assert len(calls) == 40
        assert [each.result for each in calls] == [f"result {each.args}" for each in calls]
        assert found.content == "." * 40

    def test_finishing_while_others_write_ends_cleanly(self, store: Any) -> None:
        """A thread that comes too late is told so; nothing hangs, and nothing that was acknowledged is missing."""
        task = store.start("x")
        live = task.turn("dev")
        said: list[str] = []

        def write(name: int) -> None:
            for number in range(5):
                try:
                    live.say(f"{name}-{number} ")
                except RawkoError:
                    return
                said.append(f"{name}-{number} ")

        run_all([*(lambda name=name: write(name) for name in range(6)), lambda: task.finish("success")])
        text = "".join(contents(store, task.id))
        assert [each for each in said if each not in text] == []


class TestOneStore:
    def test_a_new_project_opened_by_all_at_once(self, tmp_path: Path) -> None:
        for number in range(5):
            root = tmp_path / str(number)
            (root / ".rawko").mkdir(parents=True)
            warned: list[str] = []
            store = FileStore(root, warn=warned.append)

            def work(store: FileStore = store) -> None:
                store.history(TaskFilter())
                with store.start("x") as task:
                    task.add_turn(turn("said"))
                assert store.summary(task.id).status == "completed"

            run_all([work] * THREADS)
            assert len(store.history(TaskFilter())) == THREADS
            assert not list((root / ".rawko/state").glob("*.broken*"))
            assert warned == []
            store.close()

    def test_closing_it_in_one_thread_does_not_break_the_others(self, store: Any) -> None:
        task = store.start("x", detached=True)

        def write(name: int) -> None:
            for number in range(5):
                task.add_turn(turn(f"{name}-{number}"))
                store.history(TaskFilter())

        def close() -> None:
            for _ in range(10):
                store.close()

        run_all([*(lambda name=name: write(name) for name in range(6)), close])
        task.close()
        assert len(contents(store, task.id)) == 30

    def test_asyncio_to_thread(self, store: Any) -> None:
        async def work(number: int) -> str:
            task = await asyncio.to_thread(store.start, f"request {number}", detached=True)
            await asyncio.to_thread(task.add_turn, turn("said"))
            await asyncio.to_thread(task.finish, "success")
            return str(task.id)

        async def main() -> list[str]:
            return await asyncio.gather(*(work(number) for number in range(12)))

        ids = asyncio.run(main())
        assert {summary.id for summary in store.history(TaskFilter())} == set(ids)

    def test_a_cancelled_coroutine_is_a_cancelled_task(self, store: Any) -> None:
        ids: list[str] = []

        async def work() -> None:
            with store.start("x") as task:
                ids.append(task.id)
                await asyncio.sleep(3600)

        async def main() -> None:
            running = asyncio.create_task(work())
            while not ids:
                await asyncio.sleep(0)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running

        asyncio.run(main())
        assert store.status(ids[0]) == "cancelled"


def _in_child(store: Any, task: Any, results: Any) -> None:
    try:
        store.history(TaskFilter())
        with store.start("of the child", detached=True) as own:
            own.add_turn(turn("said by the child"))
        results.put("store works")
    except BaseException as error:
        results.put(f"store: {type(error).__name__}: {error}")
    try:
        task.add_turn(turn("by a task of the parent"))
        results.put("task works")
    except RawkoError as error:
        results.put(f"task refused: {error}")
    results.close()
    results.join_thread()


@pytest.mark.skipif(sys.platform != "linux", reason="NOT TESTED HERE: needs fork")
class TestForks:
    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    def test_after_a_fork_a_store_works_and_a_task_says_that_it_must_be_opened_again(self, store: Any) -> None:
        task = store.start("x", detached=True)
        task.add_turn(turn("one"))
        store.history(TaskFilter())
        context = multiprocessing.get_context("fork")
        results: Any = context.Queue()
        child = context.Process(target=_in_child, args=(store, task, results))
        child.start()
        said = [results.get(timeout=120) for _ in range(2)]
        child.join()
        assert said[0] == "store works", said
        assert "Open it again" in said[1], said
        task.add_turn(turn("two"))
        assert contents(store, task.id) == ["one", "two"]
        assert len(store.history(TaskFilter())) == 2
        assert os.getpid() != child.pid
        task.close()
