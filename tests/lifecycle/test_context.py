"""The life of a task: its statuses, live turns, events, questions, pause and cancel, resume, follow-up, fork, snapshots."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from rawko_state.backends.files.store import FileStore
from rawko_state.lifecycle import context as contexts
from rawko_state.model.entries import ToolCall
from rawko_state.model.frozen import replace
from tests.support.processes import rawko
from tests.tasks.conftest import store  # noqa: F401 - fixtures
from tests.tasks.lives import a_turn, conversation


class TestContext:
    def test_who_is_next(self, store: FileStore) -> None:
        task_id = conversation(store)
        found = contexts.build(store, task_id)
        assert (found.next_agent, found.guidance) == ("dev", "mind 2")
        with store.resume(task_id) as task:
            task.add_turn(a_turn("done now"))
            assert contexts.build(store, task_id).next_agent == "arbiter"
            task.decide(selected="reviewer", reason="look")
            assert contexts.build(store, task_id).next_agent == "reviewer"
        fresh = store.start("nothing yet")
        assert contexts.build(store, fresh.id).next_agent == "agent"  # nobody decides here
        fresh.close()

    def test_what_was_interrupted(self, tmp_path: Path) -> None:
        store = FileStore(tmp_path, warn=lambda message: None)
        code = (
            "import os, sys; from rawko_state.backends.files.store import FileStore\n"
            "task = FileStore(sys.argv[1]).start('x'); task.decide(selected='dev', reason='r'); turn = task.turn('dev')\n"
            "turn.say('half'); turn.begin_tool('shell.exec', 'make'); print(task.id, flush=True); os.kill(os.getpid(), 9)"
        )
        done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
        task_id = done.stdout.strip()
        shown = rawko(tmp_path, "resume")
        assert "half" in shown.stdout
        assert "shell.exec make -> may have run" in shown.stdout
        assert "dev is next" in shown.stdout
        # How to continue is for people, and no part of what an agent gets.
        assert "rawko resume" not in shown.stdout
        assert f"\n  rawko resume {task_id} --with " in shown.stderr
        assert "Turn 2 (dev) was interrupted; what it had said is in the context." in shown.stderr
        assert "Context: 2 turns, about 100 tokens. Nothing was changed." in shown.stderr
        before = store.journal.layout.path(store.find(task_id)).read_bytes()
        rawko(tmp_path, "resume")
        assert store.journal.layout.path(store.find(task_id)).read_bytes() == before  # printing changes nothing
        assert store.status(task_id) == "interrupted"
        opened = rawko(tmp_path, "resume", "--open")
        assert "Turn 2 (dev) was interrupted" in opened.stderr
        assert "Next: dev" in opened.stderr
        assert store.status(task_id) == "running"
        assert b"=== RESUMED " in store.journal.layout.path(store.find(task_id)).read_bytes()
        store.close()

    def test_messages_pair_calls_and_results(self, store: FileStore) -> None:
        task_id = conversation(store)
        found = contexts.messages(store, contexts.build(store, task_id))
        assert found[0] == {"role": "user", "content": "Fix the login"}
        called = [call["id"] for message in found for call in message.get("tool_calls", [])]
        answered = [message["tool_call_id"] for message in found if message["role"] == "tool"]
        assert called == answered != []
        with store.start("x", model="claude-opus") as task:
            task.add_turn(a_turn("y", tools=(ToolCall("Read", "a", "ok", more={"input": {"file": "a"}}),)))
        found = contexts.messages(store, contexts.build(store, task.id))
        assert found[1]["content"][1] == {"type": "tool_use", "id": "turn1-1", "name": "Read", "input": {"file": "a"}}
        assert found[2]["content"][0]["tool_use_id"] == "turn1-1"

    def test_a_payload_is_exact(self, store: FileStore) -> None:
        lines = [{"role": "assistant", "content": [{"type": "thinking", "x": 1.5}]}, {"role": "user", "content": "é"}]
        with store.start("x") as task:
            task.add_turn(a_turn("shown", payload="\n".join(json.dumps(line) for line in lines)))
        assert contexts.messages(store, contexts.build(store, task.id))[1:] == lines

    @pytest.mark.parametrize("form", ["prompt", "messages", "json"])
    def test_never_over_budget(self, store: FileStore, form: str) -> None:
        chance = random.Random(form)
        task = store.start("the request " * 20, title="T")
        task.add_turn(replace(a_turn("the plan " * 30), agent="planner"))
        for number in range(40):
            task.decide(selected="dev", reason=f"reason {number} " * chance.randint(1, 20))
            task.add_turn(a_turn(f"n{number} 数据 " * chance.randint(1, 200)))
        task.close()
        for budget in (100, 150, 300, 1_000, 3_000, 10_000, 100_000):
            found = contexts.build(store, task.id, budget=budget)
            if form == "prompt":
                text = contexts.prompt(store, found, budget)
            else:
                make = contexts.messages if form == "messages" else contexts.as_json
                text = json.dumps(make(store, found, budget))
                assert contexts.tokens(text) <= budget, (budget, contexts.tokens(text))
            if budget >= 3_000 and form == "prompt":
                assert "the plan" in text
                assert "n39" in text
                assert ("Shortened to fit" in text) == (budget < 100_000)

    def test_of_a_large_task_only_what_is_kept_is_read(self, store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
        task = store.start("x")
        for number in range(300):
            task.add_turn(a_turn(f"n{number} " * 50))
        task.close()
        read: list[int] = []
        turn = store.turn
        monkeypatch.setattr(
            store, "turn", lambda prefix, number, row=None: (read.append(number), turn(prefix, number))[1]
        )
        contexts.prompt(store, contexts.build(store, task.id, budget=2_000), 2_000)
        assert len(read) < 40
