"""Trajectories (ATIF): a task is written as one, and read back as a task that says the same."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import rawko_state as rawko
from rawko_state.exchange.exporting import exported
from tests.exchange.sessions import bring


@pytest.fixture
def store(tmp_path: Path) -> Any:
    (tmp_path / ".rawko").mkdir()
    return rawko.open(tmp_path)


def sample(store: rawko.Store) -> str:
    with store.start("Fix the login bug", agent="developer", model="gpt-5", title="Login") as task:
        task.decide(selected="developer", reason="small")
        task.note("Mind the tests", in_context=True)
        call = rawko.ToolCall(
            "filesystem.write", "auth.py", "ok", output="2 bytes", more={"id": "c1", "input": {"path": "auth.py"}}
        )
        task.add_turn(
            rawko.Turn(
                number=1, agent="developer", status="complete", content="Fixed", thinking="Skew?", model="gpt-5", tools=(call, "odd line"),
                tokens={"in": 10, "out": 5, "cache_read": 90, "reasoning": 2}, cost=rawko.Money(Decimal("0.25")),
            )
        )  # fmt: skip
        with store.start("Look around", agent="scout", parent=rawko.Parent(task.id)) as child:
            child.add_turn(rawko.Turn(number=1, agent="scout", content="Nothing here"))
        task.say("Thanks")
        task.finish("success", "Done")
    return task.id


def written(store: rawko.Store, task_id: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(b"".join(exported(store, task_id, "atif")))
    return found


def test_a_task_is_a_trajectory(store: rawko.Store) -> None:
    task = sample(store)
    whole = written(store, task)
    assert (whole["trajectory_id"], whole["agent"]["name"], whole["agent"]["model_name"]) == (
        task,
        "developer",
        "gpt-5",
    )
    assert [step["source"] for step in whole["steps"]] == ["user", "agent", "system", "agent", "user"]
    assert [step["step_id"] for step in whole["steps"]] == [1, 2, 3, 4, 5]
    turn = whole["steps"][3]
    assert (turn["message"], turn["reasoning_content"]) == ("Fixed", "Skew?")
    assert turn["tool_calls"] == [
        {"tool_call_id": "c1", "function_name": "filesystem.write", "arguments": {"path": "auth.py"}}
    ]
    assert turn["observation"]["results"] == [{"source_call_id": "c1", "content": "2 bytes"}, {"content": "odd line"}]
    assert turn["metrics"] == {
        "prompt_tokens": 100, "completion_tokens": 5, "cached_tokens": 90, "cost_usd": 0.25, "extra": {"reasoning_tokens": 2}
    }  # fmt: skip
    assert whole["final_metrics"]["total_prompt_tokens"] == 100
    assert [sub["steps"][1]["message"] for sub in whole["subagent_trajectories"]] == ["Nothing here"]


def test_it_is_read_back_and_only_once(store: rawko.Store, tmp_path: Path) -> None:
    file = tmp_path / "login.atif.json"
    file.write_bytes(b"".join(exported(store, sample(store), "atif")))
    root = tmp_path / "other"
    (root / ".rawko").mkdir(parents=True)
    other = rawko.open(root)
    for fresh in (2, 0):
        assert len(bring(other, "atif", file).new) == fresh
    parent, child = sorted(other.history(rawko.TaskFilter()), key=lambda task: task.turns, reverse=True)
    assert (parent.title, parent.request, child.parent) == ("Login", "Fix the login bug", parent.id)
    turns = [entry for _, entry in other.entries(parent.id) if isinstance(entry, rawko.Turn)]
    fixed = next(turn for turn in turns if turn.content == "Fixed")
    assert (fixed.thinking, fixed.model, fixed.cost) == ("Skew?", "gpt-5", rawko.Money(Decimal("0.25")))
    assert fixed.tokens == {"in": 10, "out": 5, "cache_read": 90, "reasoning": 2}
    assert other.files(parent.id) == [(fixed.number, "write", "auth.py")]


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"schema_version": "x"}', '{"schema_version": "ATIF-v1.7", "steps": 3}']
)
def test_what_is_no_trajectory_is_told(store: rawko.Store, tmp_path: Path, text: str) -> None:
    file = tmp_path / "x.json"
    file.write_text(text)
    report = bring(store, "atif", file, tmp_path / "missing.json")
    assert report.new == []
    assert any("missing.json" in str(each.path) for each in report.wrong)


def test_odd_steps_are_kept(store: rawko.Store, tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    steps = [
        {"step_id": 1, "source": "user", "message": [{"type": "text", "text": "Hi"}, {"type": "image", "source": {"path": "a.png"}}]},
        {"step_id": 2, "source": "robot", "message": "beep"},
        {"step_id": 3, "source": "agent", "message": "", "tool_calls": "x", "metrics": {"prompt_tokens": "many"}},
        7,
    ]  # fmt: skip
    file.write_text(json.dumps({"schema_version": "ATIF-v1.9", "agent": {"name": "a", "version": "1"}, "steps": steps}))
    assert len(bring(store, "atif", file).new) == 1
    with store.reader(store.history(rawko.TaskFilter())[0].id) as reader:
        text = reader.fetch(0, reader.size).decode()
    for raw in ("beep", "a.png", '"many"'):
        assert raw in text


def test_the_version_of_the_agent_and_what_it_saw_without_a_call_go_through(store: rawko.Store, tmp_path: Path) -> None:
    steps: list[dict[str, Any]] = [
        {"step_id": 1, "source": "user", "message": "Fix it"},
        {
            "step_id": 2,
            "source": "agent",
            "message": "ls",
            "observation": {"results": [{"content": "a.py"}, {"content": "b.py"}]},
        },
    ]
    given = {
        "schema_version": "ATIF-v1.7",
        "trajectory_id": "t1",
        "agent": {"name": "terminus", "version": "2.0"},
        "steps": steps,
    }
    file = tmp_path / "t1.json"
    file.write_text(json.dumps(given))
    bring(store, "atif", file)
    (task,) = store.history(rawko.TaskFilter())
    assert [
        call.output for turn in store.turns(task.id) for call in turn.tools if isinstance(call, rawko.ToolCall)
    ] == ["a.py", "b.py"]
    whole = written(store, task.id)
    assert whole["agent"]["version"] == "2.0"
    assert whole["steps"][1]["observation"] == steps[1]["observation"]
    assert "tool_calls" not in whole["steps"][1]
