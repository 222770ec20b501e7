"""Streamed reasoning and tool output: seen as they arrive, kept if the process dies, without secrets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import rawko_state
from rawko_state.backends.files.store import FileStore
from rawko_state.errors import InvalidValue
from rawko_state.format.reader import TaskReader
from rawko_state.model.entries import ToolCall, Turn
from rawko_state.tasks.lines import Recorder

SECRET = "ghp_" + "a1B2" * 9


def live_texts(store: rawko_state.Store, task_id: str, kind: str) -> list[str | None]:
    return [event.text for event in store.events(task_id) if event.live and event.kind == kind]


class TestThinking:
    def test_followers_see_it_as_it_comes(self) -> None:
        store = rawko_state.open(":memory:")
        with store.start("x") as task:
            with task.turn("dev") as turn:
                turn.think("First. ")
                turn.think("Then. ")
                assert "".join(text or "" for text in live_texts(store, task.id, "thinking")) == "First. Then. "
                turn.say("Done.")
            recorded = store.turn(task.id, 1)
        assert (recorded.thinking, recorded.content) == ("First. Then. ", "Done.")

    def test_a_secret_in_pieces_is_removed(self) -> None:
        store = rawko_state.open(":memory:")
        with store.start("x") as task:
            with task.turn("dev") as turn:
                for letter in f"I use {SECRET} here.":
                    turn.think(letter)
                    assert SECRET[:30] not in "".join(text or "" for text in live_texts(store, task.id, "thinking"))
            thinking = store.turn(task.id, 1).thinking or ""
        assert SECRET[10:] not in thinking
        assert "[redacted:github-token" in thinking


class TestToolOutput:
    def test_it_is_seen_while_the_tool_runs_and_is_the_output_at_its_end(self) -> None:
        store = rawko_state.open(":memory:")
        with store.start("x") as task:
            with task.turn("dev") as turn:
                key = turn.begin_tool("shell", "make test")
                turn.tool_output(key, "one\n")
                turn.tool_output(key, "two\n")
                assert "".join(text or "" for text in live_texts(store, task.id, "output")) == "one\ntwo\n"
                turn.end_tool(key, "exit 0")
                other = turn.begin_tool("shell", "ls")
                turn.tool_output(other, "streamed")
                turn.end_tool(other, "exit 0", output="given at the end")
            first, second = store.turn(task.id, 1).tools
            seen = [event.kind for event in store.events(task.id)]
        assert isinstance(first, ToolCall)
        assert isinstance(second, ToolCall)
        assert (first.result, first.output, second.output) == ("exit 0", "one\ntwo\n", "given at the end")
        assert seen.count("tool") == 2

    def test_what_a_dead_process_had_seen_is_kept(self, tmp_path: Path) -> None:
        store = FileStore(tmp_path)
        task = store.start("x")
        turn = task.turn("dev")
        key = turn.begin_tool("shell", "make test")
        turn.tool_output(key, "half of it")
        task.close()  # leaves the draft, as a killed process does
        FileStore(tmp_path).resume(task.id).close()
        (call,) = store.turn(task.id, 1).tools
        assert isinstance(call, ToolCall)
        assert (call.result, call.output) == ("may have run", "half of it")

    def test_a_secret_in_pieces_is_removed(self) -> None:
        store = rawko_state.open(":memory:")
        with store.start("x") as task:
            with task.turn("dev") as turn:
                key = turn.begin_tool("shell", "env")
                for letter in f"TOKEN {SECRET}\n":
                    turn.tool_output(key, letter)
                turn.end_tool(key)
            (call,) = store.turn(task.id, 1).tools
        assert isinstance(call, ToolCall)
        assert SECRET[10:] not in (call.output or "")

    def test_only_a_running_call_has_output(self) -> None:
        with rawko_state.open(":memory:").start("x") as task, task.turn("dev") as turn:
            key = turn.begin_tool("shell", "ls")
            turn.end_tool(key)
            with pytest.raises(InvalidValue, match="running"):
                turn.tool_output(key, "late")


class TestWarmReads:
    def test_the_newest_state_is_not_read_twice(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        read = []
        fetch, scan = TaskReader.fetch, TaskReader.scan
        monkeypatch.setattr(TaskReader, "fetch", lambda self, at, size: read.append(size) or fetch(self, at, size))
        monkeypatch.setattr(TaskReader, "scan", lambda self, after=None: read.append(after) or scan(self, after))
        with FileStore(tmp_path) as store, store.open_task("k:1", "x") as task:
            for number in range(50):
                task.add_turn(Turn(agent="dev", number=1, state={"step": number}))
            assert store.latest_state(task.id) == {"step": 49}
            read.clear()
            for _ in range(3):
                assert store.latest_state(task.id) == {"step": 49}
            assert read == []
            end = task.end
            task.add_turn(Turn(agent="dev", number=1, state={"step": 50}))
            assert store.latest_state(task.id) == {"step": 50}
            assert [after[0] for after in read if isinstance(after, tuple)] == [end]

    def test_a_rewritten_task_is_read_again(self, tmp_path: Path) -> None:
        with FileStore(tmp_path) as store:
            with store.open_task("k:1", "x", exact=True) as task:
                task.add_turn(Turn(agent="dev", number=1, state={"token": SECRET}))
            before = store.latest_state(task.id)
            cursor = store.now(task.id)
            store.redact(task.id)
            after = store.latest_state(task.id)
            assert (before, after == before) == ({"token": SECRET}, False)
            with pytest.raises(rawko_state.ChainMoved):
                list(store.records(task.id, cursor))

    def test_turns_are_read_page_by_page(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("rawko_state.backends.base._PAGE", 3)
        with FileStore(tmp_path) as store, store.open_task("k:1", "x") as task:
            for number in range(10):
                task.add_turn(Turn(agent="dev", number=1, content=str(number)))
            assert [turn.content for turn in store.turns(task.id)] == [str(number) for number in range(10)]
            assert [turn.content for turn in store.turns(task.id, last=7)] == [str(number) for number in range(3, 10)]


def test_the_line_protocol_streams_output_too() -> None:
    store = rawko_state.open(":memory:")
    lines = Recorder(store)
    for line in (
        {"type": "start", "request": "x"},
        {"type": "turn", "agent": "dev", "open": True},
        {"type": "tool", "tool": "shell", "args": "make", "id": "t1", "running": True},
        {"type": "output", "id": "t1", "text": "one\n"},
        {"type": "output", "id": "t1", "text": "two\n"},
        {"type": "tool", "id": "t1", "result": "exit 0"},
        {"type": "end"},
    ):
        answer = lines.take(json.dumps(line).encode())
    (call,) = store.turn(answer["task"], 1).tools
    assert isinstance(call, ToolCall)
    assert (call.output, call.result) == ("one\ntwo\n", "exit 0")
    lines.take(b'{"type": "turn", "agent": "dev", "open": true}')
    with pytest.raises(InvalidValue):
        lines.take(b'{"type": "output", "id": "t9", "text": "x"}')
