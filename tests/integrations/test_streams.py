"""The streams of agents, as ``rawko run`` records them: turns with their tools, files, diffs, tokens and cost."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from rawko_state.backends.files.store import FileStore
from rawko_state.exchange.linking import LINKED
from rawko_state.exchange.sources import gemini, qwen
from rawko_state.integrations import recording
from rawko_state.integrations.recording import Recording
from rawko_state.integrations.steps import Steps
from rawko_state.model.entries import Note, Turn
from tests.exchange.sessions import payload, turns
from tests.support.faults import quiet
from tests.support.processes import ROOT

STREAMS = ROOT / "fixtures" / "real" / "streams"
FIXED = [
    ("I will look at calc.py first.", ["read"]),
    ("The add function subtracts. Fixing it.", ["edit"]),
    (None, ["shell"]),
    ("Fixed: add() in calc.py subtracted instead of adding. The check passes now.", []),
]


def recorded(root: Path, name: str, request: str = "do it") -> tuple[FileStore, str, Steps]:
    root.mkdir(exist_ok=True)
    store = quiet(root)
    task = store.start(request)
    recording = Recording(store, task, "agent", terminal=False)
    data = (STREAMS / name).read_bytes()
    for at in range(0, len(data), 1000):
        recording.take(data[at : at + 1000])
    recording.finish()
    return store, task.id, recording.steps


def linked(store: FileStore, task: str) -> str | None:
    notes = [entry for _, entry in store.entries(task) if isinstance(entry, Note) and entry.kind == LINKED]
    return notes[0].source if notes else None


def of_agent(store: FileStore, task: str) -> list[Turn]:
    return [turn for turn in turns(store, task) if turn.agent != "user"]


def shown(turn: Turn) -> tuple[str | None, list[tuple[str, Any]]]:
    return turn.content, [(call.tool, call.result) for call in turn.tools if not isinstance(call, str)]


@pytest.mark.parametrize(
    ("name", "tools", "session"),
    [
        ("gemini-fixbug", ("read_file", "replace", "run_shell_command"), "gemini:ef6ca73e-b6d1-4fce-8897-57d503a58e3f"),
        ("qwen-fixbug", ("read_file", "edit", "run_shell_command"), "qwen:c9557b5b-4b40-48bf-8130-105e96c10650"),
        ("opencode-fixbug", ("read", "edit", "bash"), "opencode:ses_e188929a5ffeNuSftibN4J5bMG"),
        ("copilot-fixbug", ("view", "edit", "bash"), "copilot:b84eabc9-d47a-49dd-9cad-9691919df887"),
        ("cline-fixbug", ("read_files", "editor", "run_commands"), None),
    ],
)
def test_a_repair_is_recorded_turn_by_turn(
    name: str, tools: tuple[str, ...], session: str | None, tmp_path: Path
) -> None:
    store, task, steps = recorded(tmp_path / "project", f"{name}.jsonl")
    names = dict(zip(("read", "edit", "shell"), tools, strict=True))
    found = [(content, [tool for tool, _ in calls]) for content, calls in map(shown, of_agent(store, task))]
    assert found == [(content, [names[call] for call in calls]) for content, calls in FIXED]
    assert steps.failed is None
    assert linked(store, task) == session
    lines = (STREAMS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    assert payload(store, task).split("\n") == lines
    edit = of_agent(store, task)[1]
    if name == "opencode-fixbug":  # there the edit failed
        assert (edit.files, edit.diffs) == ((), ())
    else:
        assert [(touch.operation, Path(touch.path).name) for touch in edit.files] == [("write", "calc.py")]
        assert [(diff.added, diff.removed) for diff in edit.diffs] == [(1, 1)]


def test_tokens_and_cost_are_those_of_the_stream(tmp_path: Path) -> None:
    store, task, _ = recorded(tmp_path / "opencode", "opencode-fixbug.jsonl")
    first = of_agent(store, task)[0]
    assert dict(first.tokens) == {"in": 532, "out": 162, "reasoning": 0, "cache_read": 600, "cache_write": 0}
    assert first.cost is not None
    assert first.cost.amount == Decimal("0.000856")
    store, task, steps = recorded(tmp_path / "qwen", "qwen-fixbug.jsonl")
    first = of_agent(store, task)[0]
    assert (dict(first.tokens), first.thinking) == (
        {"in": 534, "out": 164, "cache_read": 600},
        "First I need to see calc.py.",
    )
    assert steps.used.tokens == {}  # the turns state all of it
    _, _, steps = recorded(tmp_path / "gemini", "gemini-fixbug.jsonl")
    assert steps.used.tokens == {"in": 2270, "out": 455, "cache_read": 3000, "reasoning": 35}
    store, task, _ = recorded(tmp_path / "cline", "cline-fixbug.jsonl")
    assert dict(of_agent(store, task)[0].tokens) == {"in": 559, "out": 189, "cache_read": 600}


def test_pi(tmp_path: Path) -> None:
    store, task, _ = recorded(tmp_path / "project", "pi-failed-command.jsonl", "FAILCMD please")
    assert [turn.agent for turn in turns(store, task)] == ["pi", "pi"]  # the prompt is the request
    first, last = map(shown, turns(store, task))
    assert first == (None, [("bash", "error")])
    assert last == ("The file no_such_file.txt does not exist, so the command failed.", [])
    assert linked(store, task) == "pi:01a1e774-bed6-72ec-a660-bc7eee962735"


def test_another_prompt_than_the_request_is_a_turn(tmp_path: Path) -> None:
    store, task, _ = recorded(tmp_path / "project", "gemini-parallel.jsonl")
    assert [(turn.agent, turn.content) for turn in turns(store, task)] == [
        ("user", "PARALLEL please"),
        ("gemini", "Looking at two things at once."),
        ("gemini", "Both done."),
    ]


def test_a_file_that_a_stream_says_was_written(tmp_path: Path) -> None:
    store, task, _ = recorded(tmp_path / "project", "gemini-resumed.jsonl")
    first = of_agent(store, task)[0]
    assert [(touch.operation, touch.path) for touch in first.files] == [("write", "/home/ann/src/gm/docs/notes.md")]
    assert [diff.added for diff in first.diffs] == [3]


def test_a_sub_agent_is_a_call(tmp_path: Path) -> None:
    store, task, _ = recorded(tmp_path / "project", "opencode-subagent.jsonl")
    assert [tool for turn in of_agent(store, task) for tool, _ in shown(turn)[1]] == ["task"]


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("opencode", "scripted error"),
        ("qwen", "400 scripted error"),
        ("cline", "scripted error"),
        ("copilot", "400 scripted error"),
    ],
)
def test_an_error_is_told_in_its_own_words(name: str, error: str, tmp_path: Path) -> None:
    _, _, steps = recorded(tmp_path / "project", f"{name}-api-error.jsonl")
    assert steps.failed == error


def test_gemini_tells_an_error_as_the_program_does(tmp_path: Path) -> None:
    _, _, steps = recorded(tmp_path / "project", "gemini-api-error.jsonl")
    assert steps.failed is not None
    assert "scripted error" in steps.failed
    assert recording._outcome("gemini", 400 & 255, steps) == ("failure", steps.failed)  # as it ends: no signal did that
    assert recording._outcome("gemini", 128 + 9, Steps(*idle(tmp_path)))[0] == "interrupted"


def idle(folder: Path) -> tuple[FileStore, Any, str]:
    store = quiet(folder)
    return store, store.start("do it"), "agent"


def test_a_sub_agent_of_cline_is_a_task_of_its_own(tmp_path: Path) -> None:
    """Its events come among those of the session, without a name."""
    store, task, _ = recorded(tmp_path / "cline", "cline-subagent.jsonl")
    assert [shown(turn) for turn in of_agent(store, task)] == [
        ("I hand this to a sub-agent.", [("spawn_agent", "44 bytes")]),
        ("The sub-agent says: two functions.", []),
    ]
    ((child, _, request),) = store.children(task)
    assert (request, store.summary(child).turns, store.status(child)) == ("scripted task", 1, "completed")


def test_a_stream_of_cline_is_of_the_session_in_its_folder_that_has_not_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLINE_DATA_DIR", str(tmp_path / "cline"))
    monkeypatch.chdir(tmp_path)
    about = {"cwd": str(tmp_path), "started_at": "2026-11-17T03:09:41Z"}
    for key, ended in (
        ("1794884900000_first", "2026-11-17T03:09:45Z"),
        ("1794884981352_lpkp1", "2026-11-17T03:10:02Z"),
    ):
        path = tmp_path / "cline/sessions" / key / f"{key}.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({**about, "session_id": key, "ended_at": ended, "model": "fake-model"}))
        path.with_suffix(".messages.json").write_text('{"messages": []}')
    store, task, _ = recorded(tmp_path / "project", "cline-fixbug.jsonl")
    assert linked(store, task) == "cline:1794884981352_lpkp1"
    assert of_agent(store, task)[0].model == "fake-model"


def test_a_stream_that_stops_inside_a_tool_is_cut_off(tmp_path: Path) -> None:
    """A command that runs in the background is announced as a task, but is no sub-agent."""
    store = quiet(tmp_path)
    task = store.start("do it")
    recording = Recording(store, task, "claude", terminal=False)
    common = {"session_id": "4dd23a6a-250f-430c-bde9-07a44d2347db"}
    called = {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "sleep 20"}}
    for record in (
        {"type": "assistant", "message": {"id": "m1", "content": [called]}},
        {"type": "system", "subtype": "task_started", "tool_use_id": "t1", "task_type": "local_bash"},
    ):
        recording.take(json.dumps({**record, **common}).encode() + b"\n")
    recording.finish()
    assert recording.steps.cut_off
    (turn,) = of_agent(store, task.id)
    assert turn.status == "interrupted"
    assert store.children(task.id) == []


def test_a_session_that_goes_on_counts_what_it_uses_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Newer versions of Claude Code tell at the end what all runs of a session used, and what it was forked from."""
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "claude"))
    (tmp_path / "claude/projects/x").mkdir(parents=True)
    store = quiet(tmp_path)
    session, fork = "7f1f7a52-6f62-4f0e-8a0c-0d8f3c7f1c11", "8f1f7a52-6f62-4f0e-8a0c-0d8f3c7f1c22"

    def has(name: str, *records: dict[str, Any]) -> None:
        lines = [json.dumps({"sessionId": name, "cwd": str(tmp_path), **record}) + "\n" for record in records]
        (tmp_path / f"claude/projects/x/{name}.jsonl").write_text("".join(lines))

    def used(name: str, cost: float, tokens: int) -> dict[str, Any]:
        task = store.start("go on")
        recording = Recording(store, task, "claude", terminal=False)
        by_model = {"m": {"inputTokens": tokens, "outputTokens": 1}}
        for record in (
            {"type": "system", "subtype": "init"},
            {"type": "assistant", "message": {"id": "m", "content": [{"type": "text", "text": "Done."}]}},
            {"type": "result", "subtype": "success", "total_cost_usd": cost, "modelUsage": by_model},
        ):
            recording.take(json.dumps({**record, "session_id": name}).encode() + b"\n")
        recording.finish()
        return {**recording.steps.used.tokens, "cost": str(recording.steps.used.cost)}

    assert used(session, 0.5, 100) == {"in": 100, "out": 1, "cost": "0.5"}
    asked = {"type": "user", "uuid": "u1", "timestamp": "2026-11-19T10:00:00Z", "message": {"content": "one"}}
    total = {"type": "cost-state", "totalCostUSD": 0.5, "modelUsage": {"m": {"inputTokens": 100, "outputTokens": 1}}}
    has(session, asked, total)
    assert used(session, 0.75, 140) == {"in": 40, "out": 0, "cost": "0.25"}
    has(fork, asked, {**asked, "uuid": "u2", "message": {"content": "two"}})
    assert used(fork, 0.625, 130) == {"in": 30, "out": 0, "cost": "0.125"}
    assert used(session, 0.25, 7) == {"in": 7, "out": 1, "cost": "0.25"}  # an older version, which begins anew


class TestSubagentsOfClaudeCode:
    def children(self, store: FileStore, task: str) -> list[tuple[str | None, str, int]]:
        found = [store.summary(child) for child, _, _ in store.children(task)]
        return sorted((each.title, each.status, each.turns) for each in found)

    def test_one_in_the_background_is_one_child_until_it_is_told_that_it_ended(self, tmp_path: Path) -> None:
        store, task, _ = recorded(tmp_path / "p", "claude-subagents-background.jsonl")
        assert self.children(store, task) == [
            ("Count the functions", "completed", 2),
            ("Write the memo", "completed", 2),
        ]
        store, task, _ = recorded(tmp_path / "q", "claude-subagent-failed.jsonl")
        assert self.children(store, task) == [("Doomed helper", "failed", 1)]

    def test_one_of_a_sub_agent_is_a_child_of_that_also_if_it_is_told_of_before_its_call(self, tmp_path: Path) -> None:
        store, task, _ = recorded(tmp_path / "p", "claude-subagent-nested.jsonl")
        assert self.children(store, task) == [("Outer helper", "completed", 1)]
        ((outer, _, _),) = store.children(task)
        assert self.children(store, outer) == [("Inner helper", "completed", 0)]


def test_a_command_that_failed_without_a_word_is_a_failed_call() -> None:
    said = "Command exited with code: 1"
    told = {"type": "tool_result", "tool_id": "t1", "status": "success", "output": said}
    (output,) = gemini.Reader().step_of(json.dumps(told)).outputs
    assert output.failed
    content = [{"type": "tool_result", "tool_use_id": "t1", "content": said, "is_error": False}]
    told = {"type": "user", "session_id": "s", "message": {"role": "user", "content": content}}
    (output,) = qwen.Stream("qwen").step_of(json.dumps(told)).outputs
    assert output.failed
    told = {"type": "tool_result", "tool_id": "t1", "status": "success", "output": "Command exited with code: 0"}
    assert not gemini.Reader().step_of(json.dumps(told)).outputs[0].failed
