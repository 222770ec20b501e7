"""RawkoSaver, by LangGraph's own conformance suite, in a graph, and in what it costs on disk."""

from __future__ import annotations

import asyncio
import json
import operator
import os
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

import rawko_state as rawko
from rawko_state.integrations.langgraph import RawkoSaver
from tests.support.serving import served

SECRET = "ghp_" + "0123456789abcdefghijABCDEFGHIJ012345"


@pytest.mark.parametrize("where", ["files", "memory", "server"])
def test_langgraphs_own_suite_passes_in_full(tmp_path: Path, where: str) -> None:
    (tmp_path / ".rawko").mkdir()

    @checkpointer_test(name="RawkoSaver")
    async def saver() -> AsyncIterator[RawkoSaver]:
        store = rawko.open(":memory:") if where == "memory" else rawko.open(tmp_path, remote=remote or "local")
        found = RawkoSaver(store)
        yield found
        found.close()

    remote = None
    if where == "server":
        with served(tmp_path) as server:
            remote = server.url
            report = asyncio.run(validate(saver))
    else:
        report = asyncio.run(validate(saver))
    results = report.results.values()
    assert not [failure for result in results for failure in result.failures], report
    assert sum(result.tests_passed for result in results) >= 81
    assert not any(result.tests_skipped for result in results)


class State(TypedDict):
    said: Annotated[list[str], operator.add]
    count: int


def graph(saver: RawkoSaver) -> Any:
    builder = StateGraph(State)
    builder.add_node("speak", lambda state: {"said": [f"step {state['count']}"], "count": state["count"] + 1})
    builder.add_edge(START, "speak")
    builder.add_conditional_edges("speak", lambda state: "speak" if state["count"] < 5 else END)
    return builder.compile(checkpointer=saver)


def test_a_graph_goes_on_where_another_process_would_find_it(tmp_path: Path) -> None:
    (tmp_path / ".rawko").mkdir()
    config = {"configurable": {"thread_id": "Zürich / 1"}}
    graph(RawkoSaver(rawko.open(tmp_path))).invoke({"said": [f"hello {SECRET}"], "count": 0}, config)
    again = graph(RawkoSaver(rawko.open(tmp_path)))
    state = again.get_state(config)
    assert state.values == {"said": [f"hello {SECRET}", *(f"step {n}" for n in range(5))], "count": 5}
    history = list(again.get_state_history(config))
    assert [each.values.get("count") for each in history] == [5, 4, 3, 2, 1, 0, None]
    third = next(each for each in history if each.values.get("count") == 3)
    assert again.invoke(None, third.config)["count"] == 5  # time travel: a branch of its own
    assert again.get_state(third.config).values["count"] == 3


def test_people_read_what_the_nodes_said_and_each_message_once(tmp_path: Path) -> None:
    (tmp_path / ".rawko").mkdir()
    store = rawko.open(tmp_path)
    call = {"name": "shell", "args": {"command": "make test"}, "id": "c1"}
    said = {
        "plan": [AIMessage("First the test.", tool_calls=[call])],
        "tools": [ToolMessage("3 passed", tool_call_id="c1")],
    }
    inner = StateGraph(MessagesState)
    for node in ("plan", "tools"):
        inner.add_node(node, lambda state, node=node: {"messages": said[node]})  # type: ignore[misc]
    inner.add_edge(START, "plan").add_edge("plan", "tools")

    class Whole(MessagesState):
        verdict: str

    builder = StateGraph(Whole)
    builder.add_node("work", inner.compile())
    builder.add_node("judge", lambda state: {"verdict": "kangaroo"})
    builder.add_edge(START, "work").add_edge("work", "judge")
    config: Any = {"configurable": {"thread_id": "t"}}
    builder.compile(checkpointer=RawkoSaver(store)).invoke({"messages": [("user", f"Fix it, {SECRET}")]}, config)
    # Another process, and a person who says the same again.
    builder.compile(checkpointer=RawkoSaver(rawko.open(tmp_path))).update_state(
        config, {"messages": [("user", "Go on")]}
    )
    (task,) = store.history(rawko.TaskFilter())
    assert (task.request or "").startswith("Fix it, [redacted:")
    turns = list(store.turns(task.id))
    assert [(turn.agent, turn.content) for turn in turns] == [
        ("plan", "First the test."), ("plan", None), ("judge", "verdict: kangaroo"), ("user", "Go on")
    ]  # fmt: skip
    (tool,) = turns[1].tools
    assert isinstance(tool, rawko.ToolCall)
    assert (tool.tool, tool.args, tool.output) == ("shell", "make test", "3 passed")
    assert [hit.turn for hit in store.search("kangaroo").hits] == [3]


def test_people_read_questions_answers_and_errors_of_a_graph() -> None:
    store = rawko.open(":memory:")

    def ask(state: State) -> dict[str, Any]:
        return {"said": [f"You said {interrupt('Deploy now?')}"]}

    def fail(state: State) -> dict[str, Any]:
        raise ValueError("no luck")

    builder = StateGraph(State)
    builder.add_node("ask", ask)
    builder.add_node("fail", fail)
    builder.add_edge(START, "ask").add_edge("ask", "fail")
    graph = builder.compile(checkpointer=RawkoSaver(store))
    config: Any = {"configurable": {"thread_id": "t"}}
    graph.invoke({"said": ["Ship it"], "count": 1}, config)
    with pytest.raises(ValueError, match="no luck"):
        graph.invoke(Command(resume="yes"), config)
    (task,) = store.history(rawko.TaskFilter())
    assert task.request == "Ship it"
    told = [(turn.agent, turn.content, turn.status) for turn in store.turns(task.id)]
    # LangGraph writes in several threads, and does not wait for one before another.
    assert Counter(told) == Counter(
        [
            ("ask", "Deploy now?", "complete"),
            ("user", "yes", None),
            ("ask", "said: You said yes", "complete"),
            ("fail", "ValueError: no luck", "failed"),
        ]
    )
    assert told[0][1] == "Deploy now?"


@pytest.mark.parametrize("value", [object(), {1: 2}, [[]], b"\x00", {"role": 1, "content": 2}, [("user", 3)], float("nan"), "\ud800\x00", {"role": "user", "content": [None, {"type": 3}]}])  # fmt: skip
def test_odd_values_are_stored_whatever_can_be_said_of_them(value: Any) -> None:
    saver = RawkoSaver(rawko.open(":memory:"), serde=_Named())
    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    config = saver.put(config, {**empty_checkpoint(), "channel_values": {"x": value}}, {}, {"x": 1})
    saver.put_writes(
        config, [("x", value), ("__error__", value), ("__interrupt__", value)], "task", "~__pregel_pull, n"
    )
    found = saver.get_tuple(config)
    assert found is not None
    assert len(found.pending_writes or ()) == 3


class _Named:
    """Stores the name of a value, so that any value can be stored."""

    def dumps_typed(self, value: Any) -> tuple[str, bytes]:
        try:
            return "json", json.dumps(value).encode()
        except (TypeError, ValueError):
            return "json", json.dumps(repr(value)).encode()

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        return json.loads(data[1])


def test_two_savers_see_each_other(tmp_path: Path) -> None:
    (tmp_path / ".rawko").mkdir()
    one, two = (RawkoSaver(rawko.open(tmp_path)) for _ in range(2))
    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    seen = []
    for number in range(6):
        saver, other = (one, two) if number % 2 else (two, one)
        config = saver.put(config, {**empty_checkpoint(), "channel_values": {"n": [number]}, "channel_versions": {"n": number}}, {"step": number}, {"n": number})  # fmt: skip
        found = other.get_tuple({"configurable": {"thread_id": "t"}})
        assert found is not None
        seen.append(found.checkpoint["channel_values"]["n"][0])
    assert seen == list(range(6))
    assert len(list(one.list({"configurable": {"thread_id": "t"}}))) == 6


def test_a_growing_state_takes_little_more_than_its_text(tmp_path: Path) -> None:
    (tmp_path / ".rawko").mkdir()
    store = rawko.open(tmp_path)
    saver = RawkoSaver(store)
    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    said: list[str] = []
    for number in range(200):
        said.append(f"{number:04} " + os.urandom(247).hex())
        checkpoint = {
            **empty_checkpoint(),
            "channel_values": {"said": list(said)},
            "channel_versions": {"said": number + 1},
        }
        config = saver.put(config, checkpoint, {"source": "loop", "step": number, "parents": {}}, {"said": number + 1})
    text = sum(map(len, said))
    with store.reader(store.by_source("langgraph:")["langgraph:t"]) as reader:
        assert reader.size < 3 * text
    fresh = RawkoSaver(rawko.open(tmp_path)).get_tuple({"configurable": {"thread_id": "t"}})
    assert fresh is not None
    assert fresh.checkpoint["channel_values"]["said"] == said


def test_what_was_pruned_still_counts_for_channels_that_store_only_what_was_added() -> None:
    saver = RawkoSaver(rawko.open(":memory:"))
    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    for step, values in enumerate(({"said": ["seed"]}, {}, {})):
        config = saver.put(config, {**empty_checkpoint(), "channel_values": values, "channel_versions": {"said": step + 1}}, {"step": step}, {"said": step + 1})  # fmt: skip
        saver.put_writes(config, [("said", f"write {step}")], f"task {step}")
    saver.prune(["t"])
    assert len(list(saver.list({"configurable": {"thread_id": "t"}}))) == 1
    history = saver.get_delta_channel_history(config=config, channels=["said"])["said"]
    assert (history["seed"], [write[2] for write in history["writes"]]) == (["seed"], ["write 0", "write 1"])
