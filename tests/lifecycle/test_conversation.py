"""The context tells what happened in the order in which it happened, with what the task is to keep in mind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rawko_state.backends.files.store import FileStore
from rawko_state.errors import InvalidValue
from rawko_state.lifecycle import context as contexts
from rawko_state.model.entries import Turn
from rawko_state.tasks.task import Task
from tests.support.processes import rawko


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path, warn=lambda message: None)


def said(text: str) -> Turn:
    return Turn(number=1, agent="dev", status="complete", content=text)


def two_runs(store: FileStore) -> Task:
    task = store.start("first request", sections={"System Prompt": "Be brief.", "Preferences": '{"lang": "en"}'})
    task.add_turn(said("first answer"))
    task.note("a remark for everybody", in_context=True, by="ann")
    task.note("aside", in_context=False)
    task.finish("success")
    task = store.resume(task.id, message="second request")
    task.add_turn(said("second answer"))
    task.finish("success")
    return task


IN_ORDER = ["first request", "first answer", "a remark for everybody", "second request", "second answer"]


def in_order(text: str, parts: list[str]) -> bool:
    places = [text.find(part) for part in parts]
    return -1 not in places and places == sorted(places)


class TestOrder:
    @pytest.mark.parametrize("budget", [None, 400])
    def test_of_a_prompt(self, store: FileStore, budget: int | None) -> None:
        task = two_runs(store)
        text = contexts.prompt(store, contexts.build(store, task.id, budget=budget), budget)
        assert in_order(text, IN_ORDER)
        assert "aside" not in text
        assert budget is None or contexts.tokens(text) <= budget

    @pytest.mark.parametrize("budget", [None, 400])
    def test_of_messages(self, store: FileStore, budget: int | None) -> None:
        task = two_runs(store)
        found = contexts.messages(store, contexts.build(store, task.id, budget=budget), budget)
        spoken = [message for message in found if message["role"] != "system"]
        assert [message["content"] for message in spoken] == IN_ORDER
        assert [message["role"] for message in spoken] == ["user", "assistant", "user", "user", "assistant"]
        assert budget is not None or found[0] == {"role": "system", "content": "Be brief."}

    def test_of_a_fork(self, store: FileStore) -> None:
        task = two_runs(store)
        fork = store.fork(task.id, 2, message="another way")
        fork.add_turn(said("fork answer"))
        fork.close()
        text = contexts.prompt(store, contexts.build(store, fork.id))
        assert in_order(text, [*IN_ORDER, "another way", "fork answer"])
        plain = store.fork(task.id, 1)
        plain.close()
        text = contexts.prompt(store, contexts.build(store, plain.id))
        assert text.count("\nfirst request\n") == 1
        assert in_order(text, ["\nfirst request\n", "first answer"])
        assert "second request" not in text

    def test_up_to_a_turn(self, store: FileStore) -> None:
        task = two_runs(store)
        text = contexts.prompt(store, contexts.build(store, task.id, 1))
        assert "first answer" in text
        assert "second" not in text

    def test_arbiter_is_not_next_where_there_is_none(self, store: FileStore) -> None:
        task = two_runs(store)
        assert "Do what the user asks for next." in rawko(store.root, "resume", task.id).stdout
        empty = rawko(store.root, "task", "start", "nothing yet").stdout.strip()
        assert "arbiter" not in rawko(store.root, "resume", empty).stdout


class TestMemory:
    def test_the_header_says_it_and_notes_change_it(self, store: FileStore) -> None:
        task = two_runs(store)
        assert store.memory(task.id) == {"system_prompt": "Be brief.", "preferences": {"lang": "en"}}
        with store.attach(task.id) as opened:
            opened.remember(preferences={"lang": "de"}, important_steps=["a", "b"])
            opened.remember(preferences={"lang": "fr"}, by="ann")
        found = store.memory(task.id)
        assert found["preferences"] == {"lang": "fr"}
        assert found["important_steps"] == ["a", "b"]
        rawko(store.root, "task", "note", task.id, "--kind", "summary", "--data", '"all done"')
        assert store.memory(task.id)["summary"] == "all done"
        store.reindex()
        assert list(store.memory(task.id)) == ["system_prompt", "preferences", "summary", "important_steps"]
        text = rawko(store.root, "resume", task.id).stdout
        assert in_order(
            text, ["## System prompt", "Be brief.", "## Preferences", '"fr"', "## Important steps", "\nfirst request\n"]
        )
        assert json.loads(rawko(store.root, "resume", task.id, "--format", "json").stdout)["memory"] == store.memory(
            task.id
        )

    def test_nothing_else_is_remembered(self, store: FileStore) -> None:
        task = store.start("x")
        for what in ({}, {"mood": "good"}):
            with pytest.raises(InvalidValue, match="A task remembers"):
                task.remember(**what)
        assert "not JSON" in rawko(store.root, "task", "note", task.id, "--data", "{", code=2).stderr
        task.close()


class TestGoingOn:
    def test_a_finished_task_is_reopened_by_a_message_or_open_only(self, store: FileStore) -> None:
        task = two_runs(store).id
        before = store.journal.layout.path(store.find(task)).read_bytes()
        for words in (("resume", task), ("resume", task, "--print"), ("resume", task, "--format", "json")):
            rawko(store.root, *words)
        assert "-m" in rawko(store.root, "resume", task, "--with", "true", code=1).stderr
        assert store.journal.layout.path(store.find(task)).read_bytes() == before
        assert "rawko resume" in rawko(store.root, "task", "turn", task, "x", "--agent", "a", code=1).stderr
        rawko(store.root, "resume", "--open", task)
        assert store.status(task) == "running"
        rawko(store.root, "task", "finish", task)
        rawko(store.root, "resume", task, "-m", "third")
        assert [each.text for each in store.said(task) if each.kind == "request"][-1] == "third"

    def test_a_turn_from_the_shell_goes_on_with_an_interrupted_task(self, store: FileStore) -> None:
        task = store.start("x")
        task.close()
        assert store.status(task.id) == "interrupted"
        rawko(store.root, "task", "turn", task.id, "y", "--agent", "dev")
        assert store.status(task.id) == "running"
        assert b"=== RESUMED " in store.journal.layout.path(store.find(task.id)).read_bytes()
        rawko(store.root, "pause", task.id)
        rawko(store.root, "task", "turn", task.id, "z", "--agent", "dev")
        assert store.status(task.id) == "running"

    def test_a_pipe_goes_on_with_a_task_by_its_id(self, store: FileStore) -> None:
        task = store.start("x")
        task.close()
        line = json.dumps({"type": "turn", "agent": "dev", "content": "more"})
        told = rawko(store.root, "record", task.id, given=line + "\n").stdout
        assert json.loads(told)["turn"] == 1
        assert store.turn(task.id, 1).content == "more"

    def test_an_absent_author_is_unknown_user(self, store: FileStore) -> None:
        task = two_runs(store)
        assert [run.by for run in store.runs(task.id)] == ["unknown_user", "unknown_user"]
        shown = json.loads(rawko(store.root, "history", "show", task.id, "--json").stdout)
        assert [request["by"] for request in shown["requests"]] == ["unknown_user", "unknown_user"]
        assert "by" not in shown["turns"][0]  # an agent's
        (first, *_) = [event for event in store.events(task.id) if event.kind == "request"]
        assert first.data["by"] == "unknown_user"
