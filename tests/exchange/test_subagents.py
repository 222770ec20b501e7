"""Sub-agents are children of the session, or the sub-agent, that started them, and name the call."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rawko_state.backends.files.store import FileStore
from rawko_state.exchange.importing import Belonging, task_id
from rawko_state.model.entries import TaskHeader
from tests.exchange.sessions import bring, turns

PARENT = "7ae06a6b-4b6b-4af9-a00f-1efa19404b31"
CHILD = "894b5f6a-bfc3-4fcf-be6b-5927039f1665"


def write(path: Path, *records: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def imported(store: FileStore, source: str, folder: Path) -> None:
    report = bring(store, source, folder, belonging=Belonging((str(store.root),), everywhere=True))
    assert (report.wrong, dict(report.unknown)) == ([], {})


def call_of(store: FileStore, task: str) -> str | None:
    header = next(entry for _, entry in store.entries(task) if isinstance(entry, TaskHeader))
    return next((field.value for field in header.extra if field.name == "X-Parent-Call"), None)


def parent_of(store: FileStore, task: str) -> str:
    parent = store.summary(task).parent
    assert parent is not None
    return parent.partition("@")[0]


class TestClaudeCode:
    def session(self, folder: Path, meta: dict[str, Any]) -> None:
        """A session whose sub-agent ``outer`` started ``inner``."""

        def asked(uuid: str, text: str) -> dict[str, Any]:
            return {"type": "user", "uuid": uuid, "sessionId": PARENT, "message": {"role": "user", "content": text}}

        def calls(uuid: str, call: str) -> dict[str, Any]:
            part = {"type": "tool_use", "id": call, "name": "Agent", "input": {"description": "help"}}
            return {
                "type": "assistant", "uuid": uuid, "sessionId": PARENT, "message": {"id": uuid, "content": [part]},
            }  # fmt: skip

        below = folder / PARENT / "subagents"
        write(folder / f"{PARENT}.jsonl", asked("u1", "go"), calls("a1", "call-1"))
        write(below / "agent-outer.jsonl", asked("u2", "ask another"), calls("a2", "call-2"))
        write(below / "agent-inner.jsonl", asked("u3", "count"))
        (below / "agent-outer.meta.json").write_text(json.dumps({"agentType": "x", "toolUseId": "call-1"}))
        (below / "agent-inner.meta.json").write_text(json.dumps({"agentType": "y", "toolUseId": "call-2", **meta}))

    def check(self, store: FileStore) -> None:
        outer, inner = (task_id("claude-code", f"{PARENT}/agent-{name}") for name in ("outer", "inner"))
        assert parent_of(store, outer) == task_id("claude-code", PARENT)
        assert (parent_of(store, inner), call_of(store, inner)) == (outer, "call-2")

    def test_a_sub_agent_of_a_sub_agent_is_a_child_of_that(self, store: FileStore, tmp_path: Path) -> None:
        self.session(tmp_path / "x", {"spawnDepth": 2, "parentAgentId": "outer"})
        imported(store, "claude-code", tmp_path / "x")
        self.check(store)

    def test_older_versions_do_not_name_it_so_it_is_looked_for(self, store: FileStore, tmp_path: Path) -> None:
        self.session(tmp_path / "x", {"spawnDepth": 2})
        imported(store, "claude-code", tmp_path / "x")
        self.check(store)


class TestCodex:
    def session(self, folder: Path, *told: dict[str, Any], task: list[dict[str, Any]]) -> None:
        day = folder / "2026" / "11" / "19"

        def item(**payload: Any) -> dict[str, Any]:
            return {"type": "response_item", "payload": payload}

        spawned = {"subagent": {"thread_spawn": {"parent_thread_id": PARENT, "agent_nickname": "Zeno"}}}
        write(
            day / f"rollout-2026-11-19T01-00-00-{PARENT}.jsonl",
            {"type": "session_meta", "payload": {"id": PARENT, "cwd": "/x"}},
            item(type="message", role="user", content=[{"type": "input_text", "text": "go"}]),
            item(type="function_call", name="spawn_agent", call_id="call-7", arguments='{"message": "count"}'),
            *told,
        )
        write(
            day / f"rollout-2026-11-19T01-00-01-{CHILD}.jsonl",
            {
                "type": "session_meta",
                "payload": {"id": CHILD, "cwd": "/x", "parent_thread_id": PARENT, "source": spawned},
            },
            {"type": "inter_agent_communication_metadata", "payload": {"trigger_turn": True}},
            item(type="agent_message", id="m", author="/root", recipient="/root/count", content=task),
        )

    def test_a_sub_agent_names_the_call_that_its_parents_session_tells(self, store: FileStore, tmp_path: Path) -> None:
        activity = {"type": "SubAgentActivity", "id": "call-7", "kind": "started", "agent_thread_id": CHILD}
        told = {"type": "event_msg", "payload": {"type": "item_completed", "item": activity}}
        head = {"type": "input_text", "text": "Message Type: NEW_TASK\nTask name: /root/count\nPayload:\n"}
        self.session(tmp_path, told, task=[head, {"type": "encrypted_content", "encrypted_content": "count them all"}])
        imported(store, "codex", tmp_path / "2026")
        child = store.summary(task_id("codex", CHILD))
        assert (child.request, child.title, child.status) == ("count them all", "Zeno", "interrupted")
        assert parent_of(store, child.id) == task_id("codex", PARENT)
        assert call_of(store, child.id) == "call-7"

    def test_a_task_that_is_encrypted_is_known_by_its_name(self, store: FileStore, tmp_path: Path) -> None:
        head = {"type": "input_text", "text": "Message Type: NEW_TASK\nTask name: /root/count\nPayload:\n"}
        self.session(tmp_path, task=[head, {"type": "encrypted_content", "encrypted_content": "gAAAAABk=="}])
        imported(store, "codex", tmp_path / "2026")
        assert store.summary(task_id("codex", CHILD)).request == "Task name: /root/count"
        assert call_of(store, task_id("codex", CHILD)) is None


class TestQwen:
    def record(self, number: int, kind: str, part: dict[str, Any], **more: Any) -> dict[str, Any]:
        message = {"role": "user" if kind == "user" else "model", "parts": [part]}
        return {"uuid": f"q{number}", "sessionId": PARENT, "type": kind, "message": message, **more}

    def test_a_sub_agent_with_a_file_of_its_own_is_read_from_there(self, store: FileStore, tmp_path: Path) -> None:
        project = tmp_path / "projects" / "-x"
        start = {"id": "call-3", "name": "agent", "args": {"subagent_type": "helper", "prompt": "count"}}
        noted = {"uiEvent": {"event.name": "qwen-code.api_response", "prompt_id": f"{PARENT}#helper-call-3#0"}}
        write(
            project / "chats" / f"{PARENT}.jsonl",
            self.record(1, "user", {"text": "go"}),
            self.record(2, "assistant", {"functionCall": start}),
            {**self.record(3, "system", {}), "subtype": "ui_telemetry", "systemPayload": noted},
        )
        own = project / "subagents" / PARENT / "agent-helper-call-3.jsonl"
        about = {"agentType": "helper", "description": "Count", "toolUseId": "call-3", "parentAgentId": None}
        write(own, self.record(4, "user", {"text": "count"}), self.record(5, "assistant", {"text": "Two."}))
        own.with_suffix(".meta.json").write_text(json.dumps({**about, "status": "completed"}))
        inner = own.with_name("agent-helper-call-4.jsonl")
        write(inner, self.record(6, "user", {"text": "count more"}), self.record(7, "assistant", {"text": "No."}))
        about = {"agentType": "helper", "toolUseId": "call-4", "parentAgentId": "helper-call-3", "status": "failed"}
        inner.with_suffix(".meta.json").write_text(json.dumps(about))
        imported(store, "qwen", tmp_path)
        outer, below = (task_id("qwen", f"{PARENT}/helper-call-{number}") for number in (3, 4))
        assert len(store.by_source("qwen:")) == 3
        assert (store.summary(outer).title, store.status(outer), call_of(store, outer)) == (
            "Count",
            "completed",
            "call-3",
        )
        assert [(turn.agent, turn.content) for turn in turns(store, outer)] == [("helper", "Two.")]
        assert (parent_of(store, below), store.status(below)) == (outer, "failed")

    def test_an_error_of_the_session_itself_is_not_one_of_a_sub_agent(self, store: FileStore, tmp_path: Path) -> None:
        event = {"event.name": "qwen-code.api_error", "prompt_id": f"{PARENT}########0", "error_message": "400 no"}
        write(
            tmp_path / "chats" / f"{PARENT}.jsonl",
            self.record(1, "user", {"text": "go"}),
            {**self.record(2, "system", {}), "subtype": "ui_telemetry", "systemPayload": {"uiEvent": event}},
        )
        imported(store, "qwen", tmp_path)
        assert store.runs(task_id("qwen", PARENT))[-1].error == "400 no"
