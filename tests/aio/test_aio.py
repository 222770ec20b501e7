"""The API with await: the same results, an event loop that goes on, and cancellation that is recorded truthfully."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from rawko_state import aio
from rawko_state.backends.files.store import FileStore
from rawko_state.errors import NoAnswer, TaskBusy
from rawko_state.model.entries import Note, Turn
from rawko_state.store import TaskFilter


def run(work: Any) -> Any:
    return asyncio.run(asyncio.wait_for(work, 60))


class TestTasks:
    def test_a_whole_task(self) -> None:
        async def work() -> None:
            async with aio.open(":memory:") as store:
                async with store.start("Fix it", title="Mine") as task:
                    await task.decide(selected="dev")
                    async with task.turn("dev", model="m") as turn:
                        await turn.think("Hm. ")
                        for word in ("It ", "is ", "fixed."):
                            await turn.say(word)
                        key = await turn.begin_tool("shell", "make")
                        await turn.tool_output(key, "ok\n")
                        await turn.end_tool(key, "exit 0")
                    await task.add_turn(Turn(agent="dev", number=1, state={"a": 1}))
                assert (await store.summary(task.id)).status == "completed"
                assert [turn.content async for turn in store.turns(task.id, last=2)] == ["It is fixed.", None]
                assert await store.latest_state(task.id) == {"a": 1}
                assert [each.id for each in await store.history(TaskFilter())] == [task.id]
                assert "turn" in [event.kind async for event in store.events(task.id)]
                again = await store.open_task("k:1", "x")
                assert again.is_new
                await again.close()

        run(work())

    def test_an_exception_fails_the_task(self) -> None:
        async def work() -> None:
            store = aio.open(":memory:")

            async def failing() -> None:
                async with store.start("x") as task, task.turn("dev") as turn:
                    await turn.say("half")
                    raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                await failing()
            (task,) = await store.history(TaskFilter())
            assert task.status == "failed"
            recorded = await store.turn(task.id, 1)
            assert (recorded.status, recorded.content) == ("failed", "half")

        run(work())

    def test_questions_are_waited_for_without_blocking(self) -> None:
        async def work() -> None:
            store = aio.open(":memory:", threads=1)

            async def answer(task_id: str) -> None:
                while await store.open_question(task_id) is None:
                    await asyncio.sleep(0.01)
                other = await store.attach(task_id)
                await other.answer("2")

            async with store.start("x") as task:
                turn = await task.turn("dev")
                answering = asyncio.create_task(answer(task.id))
                assert await turn.ask("Which?", ["one", "two"]) == "two"
                await answering
                turn = await task.turn("dev")
                with pytest.raises(NoAnswer):
                    await turn.ask("And now?", timeout=0.01)

        run(work())

    def test_a_follower_sees_tokens_as_they_come(self) -> None:
        async def work() -> None:
            store = aio.open(":memory:")
            seen: list[str] = []
            async with store.start("x") as task:
                turn = await task.turn("dev")
                await turn.say("one ")
                async for event in store.follow(task.id):
                    if event.kind == "text":
                        seen.append(event.text or "")
                        if len(seen) == 2:
                            break
                        await turn.say("two ")
            assert "".join(seen) == "one two "

        run(work())

    def test_a_busy_task_is_waited_for(self) -> None:
        async def work() -> None:
            store = aio.open(":memory:")
            task = await store.start("x")
            with pytest.raises(TaskBusy):
                await store.resume(task.id)
            waiting = asyncio.create_task(store.resume(task.id, wait=30).__aenter__())
            await asyncio.sleep(0.02)
            await task.close()
            await (await waiting).finish("success")

        run(work())


class TestCancellation:
    def test_a_cancelled_coroutine_cancels_its_task_and_interrupts_its_turn(self, tmp_path: Path) -> None:
        async def agent(store: aio.Store, began: asyncio.Event) -> None:
            async with store.start("x") as task, task.turn("dev") as turn:
                self.id = task.id
                await turn.say("so far")
                began.set()
                await asyncio.sleep(60)

        async def work() -> None:
            async with aio.open(tmp_path) as store:
                began = asyncio.Event()
                running = asyncio.create_task(agent(store, began))
                await began.wait()
                running.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await running
                turn = await store.turn(self.id, 1)
                assert (turn.status, turn.content) == ("interrupted", "so far")
                assert (await store.summary(self.id)).status == "cancelled"

        run(work())

    def test_a_call_that_has_begun_is_finished_first(self) -> None:
        """The loop cancels while a thread is in the middle of an append, twice."""

        async def work() -> None:
            store = aio.open(":memory:")
            async with store.open_task("k:1", "x") as task:
                inside, go = threading.Event(), threading.Event()

                def before(record: object) -> None:
                    inside.set()
                    go.wait(30)

                task.blocking.before_write = before
                adding = asyncio.create_task(task.add_turn(Turn(agent="dev", number=1, content="kept")))
                while not inside.is_set():
                    await asyncio.sleep(0.001)
                adding.cancel()
                await asyncio.sleep(0.01)
                adding.cancel()
                assert not adding.done()
                go.set()
                with pytest.raises(asyncio.CancelledError):
                    await adding
                assert (await store.turn(task.id, 1)).content == "kept"

        run(work())

    def test_a_task_that_was_made_for_nobody_is_cancelled(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def work() -> None:
            store = aio.open(":memory:")
            inside, go = threading.Event(), threading.Event()

            def before(record: object) -> None:
                inside.set()
                go.wait(30)

            starting = asyncio.create_task(store.start("x", before=before).__aenter__())
            while not inside.is_set():
                await asyncio.sleep(0.001)
            starting.cancel()
            go.set()
            with pytest.raises(asyncio.CancelledError):
                await starting
            (made,) = await store.history(TaskFilter())
            assert made.status == "cancelled"
            assert await store.alive() == set()

        run(work())

    def test_waiting_for_an_answer_ends_at_once(self) -> None:
        async def work() -> None:
            store = aio.open(":memory:", threads=1)
            async with store.start("x") as task:
                turn = await task.turn("dev")
                asking = asyncio.create_task(turn.ask("Which?"))
                while await store.open_question(task.id) is None:
                    await asyncio.sleep(0.01)
                asking.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await asking
                assert (await store.summary(task.id)).status == "waiting"

        run(work())

    def test_a_timeout_around_a_follower_ends_it(self) -> None:
        async def work() -> None:
            store = aio.open(":memory:")
            task = await store.start("x")

            async def follow() -> None:
                async for _ in store.follow(task.id):
                    pass

            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(follow(), 0.1)
            await task.finish("success")

        run(work())


class TestLoop:
    def test_the_loop_goes_on_while_a_call_blocks(self) -> None:
        """An append waits for a lock that only the loop can release."""

        async def work() -> None:
            store = aio.open(":memory:")
            async with store.open_task("k:1", "x") as task:
                go = threading.Event()

                def before(record: object) -> None:
                    go.wait(30)

                task.blocking.before_write = before
                adding = asyncio.create_task(task.note("said"))
                await asyncio.sleep(0)
                asyncio.get_running_loop().call_later(0.01, go.set)
                await adding
                assert [note.content async for note in store.notes(task.id)] == ["said"]

        run(work())

    def test_many_streams_at_once(self, tmp_path: Path) -> None:
        async def stream(store: aio.Store, number: int) -> None:
            async with store.start(f"stream {number}") as task, task.turn("dev") as turn:
                for token in range(30):
                    await turn.say(f"{token} ")

        async def work() -> None:
            async with aio.open(tmp_path) as store:
                await asyncio.gather(*(stream(store, number) for number in range(10)))
                everything = await store.history(TaskFilter())
                expected = "".join(f"{token} " for token in range(30))
                assert [(await store.turn(task.id, 1)).content for task in everything] == [expected] * 10

        run(work())

    def test_an_iteration_that_is_left_closes_its_file(self, tmp_path: Path) -> None:
        async def work() -> None:
            async with aio.open(tmp_path) as store, store.open_task("k:1", "x") as task:
                for number in range(5):
                    await task.note(kind="n", data=number)
                records = store.records(task.id)
                async for _ in records:
                    break
                await records.aclose()  # type: ignore[attr-defined]
                assert [entry.data for record in [r async for r in store.records(task.id)] for entry in record.entries
                        if isinstance(entry, Note)] == [0, 1, 2, 3, 4]  # fmt: skip

        run(work())


def test_a_store_of_your_own_gets_the_layer(tmp_path: Path) -> None:
    async def work() -> None:
        async with aio.Store(FileStore(tmp_path)) as store, store.start("x"):
            assert store.where == str(tmp_path)

    run(work())
