"""RawkoSession: what OpenAI's own tests (``openai_suite.py``) don't ask, or ask of SQLite only."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from agents import Session
from click.testing import CliRunner

import rawko_state as rawko
from rawko_state.cli import cli
from rawko_state.errors import RawkoError
from rawko_state.exchange.exporting import exported
from rawko_state.integrations.openai_agents import RawkoSession
from tests.support.serving import served


def said(text: str) -> Any:
    return {"role": "user", "content": text}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / ".rawko").mkdir()
    return tmp_path


def test_popped_and_cleared_items_are_hidden_and_their_bytes_go_with_the_task(root: Path) -> None:
    store = rawko.open(root)

    async def main() -> None:
        session = RawkoSession(store, "s")
        assert isinstance(session, Session)
        await session.add_items([said("The first wallaby"), said("The second zebra")])
        assert await session.pop_item() == said("The second zebra")
        again = RawkoSession(rawko.open(root), "s")
        assert await again.get_items() == [said("The first wallaby")]
        task = store.history(rawko.TaskFilter())[0].id
        assert store.search("wallaby").hits
        assert not store.search("zebra").hits
        for form in ("md", "html", "atif", "json", "jsonl", "task"):
            assert b"zebra" not in b"".join(exported(store, task, form))
        shows = (["show", "--full", task], ["show", "--json", task], ["history", "show", task])
        for command in (*shows, ["resume", "--dry-run", task]):
            shown = CliRunner().invoke(cli, ["-C", str(root), *command])
            assert shown.exit_code == 0, shown.output
            assert "zebra" not in shown.output
        elsewhere = rawko.open(":memory:")
        elsewhere.add_file(store.find(task).filename, b"".join(exported(store, task, "task")))
        assert await RawkoSession(elsewhere, "s").get_items() == [said("The first wallaby")]
        await session.clear_session()
        assert await again.get_items() == await session.get_items() == []
        assert store.history(rawko.TaskFilter()) == []
        await again.add_items([said("A third")])
        assert await session.get_items() == [said("A third")]
        store.erase(task)
        assert not [path for path in root.rglob("*") if path.is_file() and b"zebra" in path.read_bytes()]

    asyncio.run(main())


def test_a_popped_first_question_is_not_the_request_of_a_task(root: Path) -> None:
    store = rawko.open(root)

    async def main() -> None:
        session, other = RawkoSession(store, "s"), RawkoSession(rawko.open(root), "s")
        await session.add_items([said("Where do zebras live?")])
        task = store.history(rawko.TaskFilter())[0]
        assert task.request == "Where do zebras live?"
        assert await other.pop_item() == said("Where do zebras live?")
        assert store.history(rawko.TaskFilter()) == []
        assert not store.search("zebras").hits
        await session.add_items([said("Where do lions live?")])
        assert [each.request for each in store.history(rawko.TaskFilter())] == ["Where do lions live?"]
        assert await other.get_items() == [said("Where do lions live?")]
        store.erase(task.id)
        assert not [path for path in root.rglob("*") if path.is_file() and b"zebras" in path.read_bytes()]
        await session.pop_item()
        await session.add_items([{"role": "system", "content": "Be kind."}, said("Where do yaks live?")])
        assert [each.request for each in store.history(rawko.TaskFilter())] == ["OpenAI Agents session s"]

    asyncio.run(main())


def test_an_item_that_comes_while_the_last_one_is_popped_is_not_lost(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = rawko.open(root)
    session, other = RawkoSession(store, "s"), RawkoSession(rawko.open(root), "s")
    asyncio.run(session.add_items([said("one")]))
    whole = store.delete

    def late(*args: Any, **more: Any) -> str:
        asyncio.run(other.add_items([said("two")]))
        return whole(*args, **more)

    monkeypatch.setattr(store, "delete", late)
    assert asyncio.run(session.pop_item()) == said("one")
    assert asyncio.run(session.get_items()) == asyncio.run(other.get_items()) == [said("two")]


def test_no_item_is_popped_twice(root: Path) -> None:
    sessions = [RawkoSession(rawko.open(root), "s") for _ in range(3)]

    async def main() -> list[Any]:
        await sessions[0].add_items([said(str(n)) for n in range(20)])
        return await asyncio.gather(*(sessions[n % 3].pop_item() for n in range(24)))

    popped = asyncio.run(main())
    assert sorted(int(item["content"]) for item in popped if item) == list(range(20))
    assert popped.count(None) == 4


def test_a_cancelled_add_has_happened_or_not(root: Path) -> None:
    async def main() -> None:
        session = RawkoSession(rawko.open(root), "s")
        adding = asyncio.ensure_future(session.add_items([said("once")]))
        await asyncio.sleep(0)
        adding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await adding
        before = await session.get_items()
        await asyncio.sleep(0.05)
        assert await session.get_items() == before

    asyncio.run(main())


def test_what_cannot_be_kept_is_refused_and_the_session_goes_on(root: Path) -> None:
    async def main() -> None:
        session = RawkoSession(rawko.open(root), "s")
        with pytest.raises(TypeError):
            await session.add_items([said("fine"), {"role": "user", "content": object()}])  # type: ignore[typeddict-item]
        assert await session.get_items() == []
        await session.add_items([said("after")])
        session.close()
        for use in (session.get_items(), session.add_items([]), session.pop_item(), session.clear_session()):
            with pytest.raises(RawkoError, match="closed"):
                await use

    asyncio.run(main())


def test_it_works_over_a_server(root: Path) -> None:
    async def main(url: str) -> None:
        session, other = (RawkoSession(rawko.open(root, remote=url), "s/1 é") for _ in range(2))
        await session.add_items([said("one"), said("two")])
        await other.add_items([said("three")])
        assert await session.get_items(2) == [said("two"), said("three")]
        assert await session.pop_item() == said("three")
        await other.clear_session()
        assert await session.get_items() == []

    with served(root) as server:
        asyncio.run(main(server.url))
