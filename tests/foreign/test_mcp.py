"""`rawko mcp`, asked by the client of the official SDK over standard input and output."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from mcp import ClientSession, StdioServerParameters, stdio_client
from mcp.types import Implementation

import rawko_state as rawko

Value = TypeVar("Value")
READS = {"search", "list_tasks", "show_task", "show_turn", "file_history", "resume_context"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / ".rawko").mkdir()
    with rawko.open(tmp_path) as store:
        with store.start("Fix the login bug", agent="developer") as task:
            touch = rawko.FileTouch("write", "auth.py")
            task.add_turn(rawko.Turn(number=1, agent="developer", content="Clock skew.", files=(touch,)))
        running = store.start("Fix it again", agent="claude", detached=True)
        running.add_turn(rawko.Turn(number=1, agent="claude", content="Clock skew again."))
        running.close()
    return tmp_path


def asked(root: Path, ask: Callable[[ClientSession], Awaitable[Value]], *options: str) -> Value:
    async def main() -> Value:
        words = ["-m", "rawko_state", "mcp", *options]
        params = StdioServerParameters(command=sys.executable, args=words, cwd=root, env=dict(os.environ))
        who = Implementation(name="claude-code", version="1")
        async with stdio_client(params) as (read, write), ClientSession(read, write, client_info=who) as session:
            await session.initialize()
            return await ask(session)

    return asyncio.run(main())


def text(result: Any) -> str:
    return str(result.content[0].text)


def test_it_only_reads_unless_it_is_told_otherwise(root: Path) -> None:
    async def tools(session: ClientSession) -> dict[str, Any]:
        return {tool.name: tool for tool in (await session.list_tools()).tools}

    found = asked(root, tools)
    assert set(found) == READS
    assert all(tool.annotations.read_only_hint for tool in found.values())
    assert set(asked(root, tools, "--write")) == READS | {"record_note", "record_decision"}


def test_a_client_finds_reads_and_records(root: Path) -> None:
    async def session_of(session: ClientSession) -> list[str]:
        found = text(await session.call_tool("search", {"query": "skew"}))
        task = found.split("\n")[3].split()[0]
        answers = [found]
        for name, given in (
            ("list_tasks", {}),
            ("show_task", {"task": task}),
            ("show_turn", {"task": task, "turn": 1}),
            ("file_history", {"path": "auth.py"}),
            ("resume_context", {"task": task, "budget": 500}),
        ):
            result = await session.call_tool(name, given)
            assert not result.is_error
            answers.append(text(result))
        given = {"decision": "Allow 30 s", "reason": "Clocks differ"}
        answers.append(text(await session.call_tool("record_decision", given)))
        return answers

    *answers, recorded = asked(root, session_of, "--write")
    for answer in answers:
        assert "seal" in answer
        assert "again" not in answer.lower()  # what the asking agent works on
        assert len(answer.encode()) <= 4096
    with rawko.open(root) as store:
        running = store.history(rawko.TaskFilter(status=("running",)))[0]
        note = store.last_note(running.id, "decision")
        assert note is not None
        assert note.content == "Allow 30 s\n\nReason: Clocks differ"
        with store.reader(running.id) as reader:
            assert recorded.strip().endswith(f"seal {list(reader.records())[-1].seal}.")


def test_a_wrong_question_is_answered_with_one_line(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    async def wrong(session: ClientSession) -> list[Any]:
        return [
            await session.call_tool("show_task", {"task": "zzz"}),
            await session.call_tool("show_turn", {"task": "zzz", "turn": "x"}),
            await session.call_tool("search", {"query": "skew", "skip": -1}),
        ]

    for result in asked(root, wrong):
        assert result.is_error
        assert "Traceback" not in text(result)
    nowhere = tmp_path_factory.mktemp("nowhere")
    (result, *_) = asked(nowhere, wrong)
    assert result.is_error
    assert "rawko init" in text(result)
