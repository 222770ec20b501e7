"""Records that only some versions, or only people at a terminal, make."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from rawko_state.backends.files.store import FileStore
from rawko_state.exchange.importing import Belonging, task_id
from rawko_state.exchange.sources import claude_code
from rawko_state.exchange.transcript import Usage
from rawko_state.exchange.turns import told_until
from rawko_state.model.entries import Result, ToolCall
from tests.exchange.sessions import bring, turns

SESSION = "7f1f7a52-6f62-4f0e-8a0c-0d8f3c7f1c11"


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    (tmp_path / "project/.rawko").mkdir(parents=True)
    return FileStore(tmp_path / "project")


def claude(store: FileStore, *records: dict[str, Any]) -> str:
    """Imports a session of Claude Code; each record follows the one before."""
    report = bring(store, "claude-code", written(store, *records))
    assert (report.wrong, dict(report.unknown)) == ([], {})
    return task_id("claude-code", SESSION)


def written(store: FileStore, *records: dict[str, Any], name: str = SESSION) -> Path:
    folder = store.root.parent / "claude"
    folder.mkdir(exist_ok=True)
    lines = []
    for number, record in enumerate(records):
        before = f"{name}-{number - 1}" if number else None
        common = {"uuid": f"{name}-{number}", "parentUuid": before, "sessionId": SESSION, "cwd": str(store.root)}
        lines.append({**common, "timestamp": f"2026-11-19T10:00:{number:02}.000Z", **record})
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def said(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "user", "message": {"role": "user", "content": text}, **more}


def answered(number: int, *parts: dict[str, Any] | str, **more: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    message = {"id": f"m{number}", "role": "assistant", "model": "claude-opus-5-5", "content": content}
    return {"type": "assistant", "message": message, **more}


def called(key: str, tool: str, **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": key, "name": tool, "input": given}


def gave(key: str, text: str, **more: Any) -> dict[str, Any]:
    content = [{"type": "tool_result", "tool_use_id": key, "content": text}]
    return {"type": "user", "message": {"role": "user", "content": content}, **more}


def spent(dollars: float, tokens: int = 0, session: str = SESSION, **more: Any) -> dict[str, Any]:
    """What newer versions write when they end: the sum over all runs of a session, and of what it was forked from."""
    used = {"claude-opus-5-5": {"inputTokens": tokens, "costUSD": dollars}}
    told = {"type": "cost-state", "sessionId": session, "totalCostUSD": dollars, "modelUsage": used, **more}
    return {**told, "uuid": None, "parentUuid": None, "timestamp": None}


def outcome(store: FileStore, task: str) -> Result:
    return [entry for _, entry in store.entries(task) if isinstance(entry, Result)][-1]


class TestClaudeCode:
    def test_a_run_costs_what_its_totals_say_less_what_the_session_had_cost_before(self, store: FileStore) -> None:
        def costs(task: str) -> list[str | None]:
            results = [entry for _, entry in store.entries(task) if isinstance(entry, Result)]
            return [None if each.cost is None else str(each.cost.amount) for each in results]

        shared = [said("one"), answered(1, "First.")]
        once = [*shared, spent(0.25)]
        task = claude(store, *once)
        assert costs(task) == ["0.25"]
        twice = [*once, said("two"), answered(2, "Second."), spent(0.75)]
        assert (claude(store, *twice), costs(task)) == (task, ["0.25", "0.50"])
        open_ended = [*twice, said("three"), answered(3, "Third.")]
        assert (claude(store, *open_ended), costs(task)) == (task, ["0.25", "0.50", None])
        # The next total has the third run in it, too, which nothing tells apart.
        whole = [*open_ended, said("four"), answered(4, "Fourth."), spent(1.5)]
        assert (claude(store, *whole), costs(task)) == (task, ["0.25", "0.50", None, None])
        guessed = [*whole, said("five"), answered(5, "Fifth."), spent(2.5, hasUnknownModelCost=True)]
        assert (claude(store, *guessed), costs(task)[-1]) == (task, None)

        fork = "8f1f7a52-6f62-4f0e-8a0c-0d8f3c7f1c22"
        later = {"timestamp": "2026-11-19T11:00:00.000Z"}
        copied = [{**record, "uuid": f"{SESSION}-{number}", "parentUuid": None} for number, record in enumerate(shared)]
        own = [
            {"sessionId": fork, **record}
            for record in (*copied, said("fork", **later), answered(9, "Forked.", **later))
        ]
        written(store, *own, spent(0.375, session=fork), name=fork)
        claude(store, *guessed)
        assert costs(task_id("claude-code", fork)) == ["0.125"]

    def test_what_was_handed_over_to_a_session_cost_it_nothing(self, store: FileStore) -> None:
        folder = written(store, said("Fix it", rawko="abc123@1"), answered(1, "Done.", rawko="abc123@1"))
        (session,) = claude_code.found([folder], folder, [])
        assert told_until(session, session.end()) == Usage({}, Decimal(0))

    def test_what_is_typed_while_the_agent_works_is_a_prompt(self, store: FileStore) -> None:
        def queued(prompt: str, **more: Any) -> dict[str, Any]:
            return {"type": "attachment", "attachment": {"type": "queued_command", "prompt": prompt, **more}}

        task = claude(
            store,
            said("Fix it"),
            answered(1, called("t1", "Bash", command="sleep 20")),
            gave("t1", "done"),
            queued("and look at other.py", commandMode="prompt", origin={"kind": "human"}),
            queued("<task-notification>\n<task-id>b1</task-id>", commandMode="task-notification"),
            answered(2, "Both done."),
        )
        found = [(turn.agent, turn.content) for turn in turns(store, task)]
        assert found == [("claude", None), ("user", "and look at other.py"), ("claude", "Both done.")]
        assert store.status(task) == "completed"

    def test_a_session_that_is_killed_after_such_a_prompt_is_interrupted(self, store: FileStore) -> None:
        asked = {"type": "queued_command", "prompt": "one more thing", "commandMode": "prompt"}
        task = claude(store, said("Fix it"), answered(1, "Done."), {"type": "attachment", "attachment": asked})
        assert store.status(task) == "interrupted"

    def test_a_session_that_is_killed_while_a_sub_agent_works_in_the_background_is_interrupted(
        self, store: FileStore
    ) -> None:
        begun = gave("t1", "Launched.", toolUseResult={"status": "async_launched", "agentId": "a1"})
        told = "<task-notification>\n<tool-use-id>t1</tool-use-id>\n<status>completed</status>\n</task-notification>"
        records = [
            said("Count"),
            answered(1, called("t1", "Agent", description="Count")),
            begun,
            answered(2, "It works."),
        ]
        task = claude(store, *records)
        assert store.status(task) == "interrupted"
        ended = {"type": "queue-operation", "operation": "enqueue", "content": told, "uuid": None}
        claude(store, *records, ended, said(told), answered(3, "It counted two."))
        assert store.status(task) == "completed"

    def test_an_answer_that_came_at_the_second_try_is_complete(self, store: FileStore) -> None:
        task = claude(store, said("Fix it"), {"type": "system", "subtype": "api_error"}, answered(1, "Done."))
        assert ([turn.status for turn in turns(store, task)], store.status(task)) == (["complete"], "completed")

    def test_what_the_program_notes_for_itself_is_known_and_ends_nothing(self, store: FileStore) -> None:
        noted = [
            {"type": kind, "uuid": None}
            for kind in ("worktree-state", "agent-color", "file-history-delta", "relocated")
        ]
        task = claude(
            store, said("Fix it"), answered(1, "Done."), *noted, {"type": "system", "subtype": "memory_saved"}
        )
        assert (store.status(task), store.summary(task).turns) == ("completed", 1)

    def test_a_command_that_a_person_runs_is_a_tool_call_of_the_user(self, store: FileStore) -> None:
        task = claude(
            store,
            said("Fix it"),
            answered(1, "Done."),
            said("<bash-input>git status</bash-input>"),
            said("<bash-stdout>clean</bash-stdout><bash-stderr></bash-stderr>"),
        )
        turn = turns(store, task)[-1]
        (call,) = turn.tools
        assert isinstance(call, ToolCall)
        assert (turn.agent, call.tool, call.args) == ("user", "bash", "git status")
        assert store.turn_output(call) == "clean"
        assert store.status(task) == "completed"

    def test_a_command_of_ones_own_is_a_prompt_as_it_was_typed(self, store: FileStore) -> None:
        told = "<command-message>hello</command-message>\n<command-name>/hello</command-name>\n<command-args>Ann</command-args>"
        task = claude(store, said(told), said("GREET Ann", isMeta=True), answered(1, "Hello."))
        assert store.summary(task).request == "/hello Ann"

    def test_sub_agents_of_older_versions_are_children_of_the_call_that_started_them(self, store: FileStore) -> None:
        started = called("t1", "Task", subagent_type="Explore", description="Count them", prompt="Count the functions")
        written(
            store,
            said("Count the functions", isSidechain=True, agentId="ab12"),
            answered(7, "Two.", isSidechain=True, agentId="ab12"),
            name="agent-ab12",
        )
        parent = claude(
            store,
            said("How many?"),
            answered(1, started),
            gave("t1", "Two.", toolUseResult={"agentId": "ab12"}),
            answered(2, "2."),
        )
        child = task_id("claude-code", "agent-ab12")
        found = store.summary(child)
        assert (found.parent, found.title, found.agents) == (parent, "Count them", ("Explore",))

    def test_what_an_agent_asks_a_sub_agent_in_the_same_file_is_no_prompt_of_a_person(self, store: FileStore) -> None:
        task = claude(
            store,
            said("How many?"),
            answered(1, called("t1", "Task", description="Count", prompt="Count them")),
            said("Count them", isSidechain=True),
            answered(2, "Two.", isSidechain=True),
            gave("t1", "Two."),
            answered(3, "There are two."),
        )
        assert [turn.agent for turn in turns(store, task) if turn.agent == "user"] == []
        assert store.status(task) == "completed"


class TestCodex:
    def test_sessions_from_before_records_had_envelopes(self, store: FileStore) -> None:
        folder = store.root.parent / "codex"
        folder.mkdir()
        here = f"<environment_context>\nCurrent working directory: {store.root}\nApproval policy: never\n</environment_context>"
        records: list[dict[str, Any]] = [
            {"id": SESSION, "timestamp": "2025-08-10T08:00:00.000Z", "instructions": None, "git": {"branch": "main"}},
            {"record_type": "state"},
            {"type": "message", "id": None, "role": "user", "content": [{"type": "input_text", "text": here}]},
            {"type": "message", "id": None, "role": "user", "content": [{"type": "input_text", "text": "Fix add"}]},
            {"type": "function_call", "id": "f1", "name": "shell", "call_id": "c1",
             "arguments": json.dumps({"command": ["bash", "-lc", "exit 3"]})},
            {"type": "function_call_output", "call_id": "c1",
             "output": json.dumps({"output": "no", "metadata": {"exit_code": 3}})},
            {"type": "message", "id": None, "role": "assistant", "content": [{"type": "output_text", "text": "It failed."}]},
        ]  # fmt: skip
        path = folder / f"rollout-2025-08-10T08-00-00-{SESSION}.jsonl"
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
        report = bring(store, "codex", folder)
        assert (report.wrong, dict(report.unknown), len(report.new)) == ([], {}, 1)
        (task,) = report.new
        summary = store.summary(task)
        assert (summary.request, summary.status, summary.branch) == ("Fix add", "completed", "main")
        found = [(turn.agent, [c.result for c in turn.tools if isinstance(c, ToolCall)]) for turn in turns(store, task)]
        assert found == [("codex", ["error"]), ("codex", [])]

    def test_a_file_that_was_moved_is_gone_from_where_it_was(self, store: FileStore) -> None:
        patch = "*** Begin Patch\n*** Update File: a.py\n*** Move to: b.py\n@@\n-x = 1\n+x = 2\n*** End Patch\n"
        folder = store.root.parent / "codex"
        folder.mkdir()
        items: list[dict[str, Any]] = [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Move it"}]},
            {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": patch},
            {"type": "custom_tool_call_output", "call_id": "c1", "output": "Exit code: 0\nOutput:\nSuccess. Updated"},
        ]
        records = [{"type": "session_meta", "payload": {"id": SESSION, "cwd": str(store.root)}}]
        records += [{"type": "response_item", "payload": item} for item in items]
        path = folder / f"rollout-2026-08-10T08-00-00-{SESSION}.jsonl"
        path.write_text(
            "".join(json.dumps({"timestamp": "2026-08-10T08:00:00.000Z", **each}) + "\n" for each in records)
        )
        (task,) = bring(store, "codex", folder).new
        touched = {(file.operation, file.path) for turn in turns(store, task) for file in turn.files}
        assert touched == {("write", "b.py"), ("delete", "a.py")}


def test_messages_of_the_first_version_of_pi_are_turns_of_their_own(store: FileStore) -> None:
    def message(second: int, **about: Any) -> dict[str, Any]:
        return {"type": "message", "timestamp": f"2026-01-01T00:00:0{second}.000Z", "message": about}

    def answer(text: str) -> dict[str, Any]:
        return {"role": "assistant", "content": [{"type": "text", "text": text}], "stopReason": "stop"}

    records = [
        {"type": "session", "id": SESSION, "timestamp": "2026-01-01T00:00:00.000Z", "cwd": str(store.root)},
        message(1, role="user", content="One"),
        message(2, **answer("First.")),
        message(3, **answer("Second.")),
    ]
    path = store.root.parent / f"2026_{SESSION}.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    (task,) = bring(store, "pi", path, belonging=Belonging((str(store.root),), everywhere=True)).new
    assert [turn.content for turn in turns(store, task)] == ["First.", "Second."]


@pytest.mark.parametrize(
    ("answer", "added", "removed"),
    [
        ("a.py\n```\nx = 2\n```", ["x = 2"], []),
        ("Here.\n\n```diff\n--- a.py\n+++ a.py\n@@ ... @@\n-x = 1\n+x = 2\n```", ["x = 2"], ["x = 1"]),
    ],
)
def test_edits_of_aider_in_its_other_formats(
    store: FileStore, answer: str, added: list[str], removed: list[str]
) -> None:
    path = store.root / ".aider.chat.history.md"
    done = f"\n# aider chat started at 2026-11-19 10:00:00\n\n#### Set x  \n\n{answer}\n\n> Applied edit to a.py  \n"
    path.write_text(done)
    (task,) = bring(store, "aider", path).new
    (diff,) = turns(store, task)[-1].diffs
    text = [line for line in diff.hunks.split("\n") if line]
    assert [line[1:] for line in text if line[0] == "+"] == added
    assert [line[1:] for line in text if line[0] == "-"] == removed


def test_a_sub_agent_of_codex_is_named_by_its_task(store: FileStore) -> None:
    spawned = {
        "thread_spawn": {"parent_thread_id": "p", "agent_nickname": "Zeno", "agent_path": "/root/count_functions"}
    }
    meta = {"id": SESSION, "cwd": str(store.root), "source": {"subagent": spawned}}
    said = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Count"}]}
    records = [{"type": "session_meta", "payload": meta}, {"type": "response_item", "payload": said}]
    path = store.root.parent / f"rollout-2026-08-10T08-00-00-{SESSION}.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in records))
    (task,) = bring(store, "codex", path).new
    assert store.summary(task).title == "count_functions"
