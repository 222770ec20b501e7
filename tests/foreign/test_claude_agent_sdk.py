"""RawkoSessionStore, by the Claude Agent SDK's own contracts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from claude_agent_sdk import SessionStore
from claude_agent_sdk.testing import run_session_store_conformance

import rawko_state as rawko
from rawko_state.integrations.claude_agent_sdk import RawkoSessionStore
from tests.support.serving import served

KEY: Any = {"project_key": "-home-ann/shop", "session_id": "s1"}
SECRET = "ghp_" + "0123456789abcdefghijABCDEFGHIJ012345"


def test_no_optional_method_is_missing() -> None:
    for name in ("list_sessions", "list_session_summaries", "delete", "list_subkeys"):
        assert getattr(RawkoSessionStore, name) is not getattr(SessionStore, name)


@pytest.mark.parametrize("where", ["files", "memory", "server"])
def test_the_sdks_own_contracts_hold(tmp_path: Path, where: str) -> None:
    count = iter(range(1000))

    def made() -> RawkoSessionStore:
        root = tmp_path / str(next(count))
        (root / ".rawko").mkdir(parents=True)
        return RawkoSessionStore(rawko.open(":memory:") if where == "memory" else rawko.open(root))

    if where != "server":
        asyncio.run(run_session_store_conformance(made))
        return
    (tmp_path / ".rawko").mkdir()
    with served(tmp_path) as server:

        def remote() -> RawkoSessionStore:
            store = rawko.open(tmp_path, remote=server.url)
            for task in store.history(rawko.TaskFilter()):
                store.delete(task.id)
            return RawkoSessionStore(store)

        asyncio.run(run_session_store_conformance(remote))


def test_entries_come_back_as_they_were_and_once(tmp_path: Path) -> None:
    (tmp_path / ".rawko").mkdir()
    entry = {
        "type": "user",
        "uuid": "u1",
        "message": {"role": "user", "content": f"Use {SECRET} \ud800\x00é"},
        "n": 1.5,
        "x": None,
    }

    async def session() -> None:
        one, two = (RawkoSessionStore(rawko.open(tmp_path)) for _ in range(2))
        await one.append(KEY, [entry, {"type": "title"}])
        await two.append(KEY, [entry, {"type": "title"}])
        assert await one.load(KEY) == [entry, {"type": "title"}, {"type": "title"}]

    asyncio.run(session())


def test_people_read_what_was_said_and_done_whichever_process_stored_it(tmp_path: Path) -> None:
    (tmp_path / ".rawko").mkdir()
    call = {"type": "tool_use", "id": "t1", "name": "Read", "input": {"file_path": f"{tmp_path}/parser.py"}}
    asked = {"type": "user", "uuid": "1", "message": {"role": "user", "content": f"Look at the parser, {SECRET}"}}
    answer = {"type": "assistant", "uuid": "2", "message": {"id": "m", "model": "m-1", "usage": {"input_tokens": 7}, "content": [{"type": "text", "text": "Reading."}, call]}}  # fmt: skip
    result = {"type": "user", "uuid": "3", "message": {"content": [{"type": "tool_result", "tool_use_id": "t1", "content": "def parse(): ..."}]}}  # fmt: skip
    title = {"type": "custom-title", "uuid": "4", "customTitle": "The parser"}
    again = {"type": "user", "uuid": "5", "message": {"role": "user", "content": "Thanks, wombat"}}

    async def session() -> None:
        await RawkoSessionStore(rawko.open(tmp_path)).append(KEY, [asked, answer])
        other = RawkoSessionStore(rawko.open(tmp_path))
        await other.append(KEY, [answer, result, title])
        await other.append(KEY, [again])
        assert await other.load(KEY) == [asked, answer, result, title, again]

    asyncio.run(session())
    store = rawko.open(tmp_path)
    (task,) = store.history(rawko.TaskFilter())
    assert (task.title, SECRET in (task.request or SECRET)) == ("The parser", False)
    turns = list(store.turns(task.id))
    assert [(turn.agent, turn.content) for turn in turns] == [("claude", "Reading."), ("claude", None), ("user", "Thanks, wombat")]  # fmt: skip
    assert (turns[0].model, turns[0].tokens, turns[0].tools) == ("m-1", {"in": 7}, ())
    (tool,) = turns[1].tools
    assert isinstance(tool, rawko.ToolCall)
    assert (tool.tool, tool.args, tool.output) == ("Read", f"{tmp_path}/parser.py", "def parse(): ...")
    assert turns[1].files == (rawko.FileTouch("read", "parser.py"),)
    assert [hit.turn for hit in store.search("wombat").hits] == [3]


def test_racing_writers_lose_nothing(tmp_path: Path) -> None:
    (tmp_path / ".rawko").mkdir()
    stores = [RawkoSessionStore(rawko.open(tmp_path)) for _ in range(3)]

    async def main() -> Any:
        batches = [
            stores[n % 3].append(
                KEY, [{"type": "x", "uuid": str(n), "timestamp": f"2024-01-01T00:00:{n:02}Z", "customTitle": str(n)}]
            )
            for n in range(30)
        ]
        await asyncio.gather(*batches)
        return await stores[0].load(KEY), await stores[1].list_session_summaries(KEY["project_key"])

    loaded, summaries = asyncio.run(main())
    assert {entry["uuid"] for entry in loaded} == {str(n) for n in range(30)}
    assert summaries[0]["data"]["custom_title"] == loaded[-1]["customTitle"]
