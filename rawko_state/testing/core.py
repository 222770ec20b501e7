"""Tests for the core of a store: it keeps tasks, and tells what is in them."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta, timezone

import pytest

from rawko_state.errors import (
    AmbiguousTask,
    ChainMoved,
    IllegalMove,
    InvalidValue,
    NoAnswer,
    RawkoError,
    TaskNotFound,
)
from rawko_state.format.records import scan_bytes
from rawko_state.lifecycle.resuming import snapshot_at
from rawko_state.model.entries import (
    Execution,
    Note,
    Parent,
    Question,
    Request,
    TaskHeader,
    Turn,
)
from rawko_state.store import TaskFilter
from rawko_state.store.contract import Store
from rawko_state.testing.common import TEXTS, asked, bytes_of, listed, said
from rawko_state.testing.keys import KeyConformance
from rawko_state.testing.reads import ReadConformance


class CoreConformance(KeyConformance, ReadConformance):
    """Level ``core``. Subclass it and supply ``store`` and ``another``."""

    def test_a_task_is_there_when_its_call_has_returned(self, store: Store, another: Store) -> None:
        with store.start("Fix the login", title="Login", labels={"team": "auth"}, model="m1", branch="main") as task:
            task.decide(selected="dev", reason="small")
            done = task.add_turn(said(content="Fixed.", tokens={"in": 3, "out": 4}))
            assert done.state.turns == 2
            task.finish("success", "It works", files=["a.py"])
        summary = another.summary(task.id)
        assert (summary.status, summary.turns, summary.runs, summary.title) == ("completed", 2, 1, "Login")
        assert (summary.request, summary.summary, dict(summary.labels)) == (
            "Fix the login",
            "It works",
            {"team": "auth"},
        )
        assert (summary.tokens_in, summary.tokens_out, summary.agents) == (3, 4, ("arbiter", "dev"))
        assert another.turn(task.id, 2).content == "Fixed."
        assert asked(another, task.id) == ["Fix the login"]
        assert another.status(task.id) == "completed"
        assert another.find(task.id[:4]).id == task.id
        assert another.files(task.id) == [(0, "write", "a.py")]
        (run,) = another.runs(task.id)
        assert (run.run, run.status, run.summary) == (1, "completed", "It works")

    @pytest.mark.parametrize("text", TEXTS)
    def test_every_text_comes_back_exactly(self, store: Store, another: Store, text: str) -> None:
        with store.start("x") as task:
            task.add_turn(said(content=text, payload=text, state={"text": text}))
        turn = another.turn(task.id, 1)
        assert (turn.content, turn.payload, turn.state) == (text, text, {"text": text})

    def test_the_bytes_are_one_chain(self, store: Store, another: Store) -> None:
        with store.start("x") as task:
            for number in range(5):
                task.add_turn(said(content=str(number)))
            task.finish("failure", error="no")
        data = bytes_of(another, task.id)
        records, problems = scan_bytes(data)
        assert problems == []
        assert [record.kind for record in records] == ["sealed"] * 7
        assert b"\nStatus: failed " in data
        kinds = [type(entry).__name__ for _, entry in another.entries(task.id)]
        assert kinds == ["TaskHeader", "Request", "Execution", *["Turn"] * 5, "Result"]

    def test_any_span_of_the_bytes(self, store: Store) -> None:
        with store.start("x") as task:
            task.add_turn(said(content="y" * 1000))
            task.add_turn(said(content="z" * 1000))
        whole = bytes_of(store, task.id)
        with store.reader(task.id) as reader:
            for offset in (0, 1, 100, len(whole) // 2, len(whole) - 1, len(whole)):
                for length in (0, 1, 17, 1500, len(whole)):
                    assert reader.fetch(offset, length) == whole[offset : offset + length]

    def test_long_outputs_are_kept_apart(self, store: Store, another: Store) -> None:
        output = "line\n" * 10_000
        with store.start("x") as task, task.turn("dev") as turn:
            turn.tool("shell.exec", "make", "exit 0", output=output)
        (call,) = another.turn(task.id, 1).tools
        assert not isinstance(call, str)
        assert call.blob is not None
        assert call.output is None
        assert another.turn_output(call) == output
        assert list(another.blobs_of(task.id).values()) == [output.encode()]

    def test_a_task_that_is_not_there(self, store: Store) -> None:
        first = store.start("x", detached=True)
        for ask in (store.summary, store.status, store.reader, store.attach, store.find, store.resume):
            with pytest.raises(TaskNotFound):
                ask("zzzzzz9")
        with pytest.raises(RawkoError):
            store.turn(first.id, 7)

    def test_a_prefix_that_names_several(self, store: Store) -> None:
        data = bytes_of(store, store.start("x", detached=True).id)
        made = scan_bytes(data)[0]
        assert made
        for name in ("abc111", "abc222"):
            store.add_file(f"2024-01-15T10-30-00-{name}.task", b"=== TASK x ===\nStatus: completed\n")
        with pytest.raises(AmbiguousTask):
            store.find("abc")
        assert store.find("abc1").id == "abc111"

    def test_lists_filter_and_sort(self, store: Store, another: Store) -> None:
        at = datetime(2026, 1, 1, tzinfo=timezone.utc)
        ids = []
        for number in range(6):
            task = store.start(
                f"request {number}",
                created=at + timedelta(days=number),
                labels={"n": str(number % 2)},
                branch="main" if number < 3 else "dev/x",
                detached=True,
            )
            day = at + timedelta(days=number)
            task.add_turn(Turn(number=1, agent=f"agent{number % 3}", status="complete", started=day))
            if number != 5:
                task.finish("success" if number % 2 else "failure", files=[f"src/{number}.py"], completed=day)
            else:
                task.close()
            ids.append(task.id)
        assert listed(another) == ids[::-1]
        assert listed(another, limit=2) == [ids[5], ids[4]]
        assert another.count(TaskFilter(limit=2, after=ids[4])) == 6
        assert listed(another, limit=2, after=ids[4]) == [ids[3], ids[2]]
        assert listed(another, reverse=True, after=ids[4]) == [ids[5]]
        assert listed(another, status=("failed",)) == [ids[4], ids[2], ids[0]]
        assert listed(another, status=("running",)) == [ids[5]]
        assert listed(another, agent="agent1") == [ids[4], ids[1]]
        assert listed(another, agent="agent*", limit=1) == [ids[5]]
        assert listed(another, labels=(("n", "1"),)) == [ids[5], ids[3], ids[1]]
        assert listed(another, labels=(("n", None), ("n", "0"))) == [ids[4], ids[2], ids[0]]
        assert listed(another, since=at + timedelta(days=4)) == [ids[5], ids[4]]
        assert listed(another, until=at + timedelta(days=1)) == [ids[0]]
        assert listed(another, file="src/3.py") == [ids[3]]
        assert listed(another, file="src") == ids[4::-1]
        assert listed(another, file="src/[12].py") == [ids[2], ids[1]]
        assert listed(another, branch="dev/*") == [ids[5], ids[4], ids[3]]
        assert listed(another, ids=(ids[1], ids[2])) == [ids[2], ids[1]]
        assert (
            listed(another, sort="completed", after=listed(another, sort="completed")[2])
            == listed(another, sort="completed")[3:]
        )
        with pytest.raises(InvalidValue):
            another.history(TaskFilter(after="nosuch"))

    def test_what_was_said_between_turns_and_is_to_be_kept_in_mind(self, store: Store, another: Store) -> None:
        task = store.start("first", by="ann", sections={"Preferences": '{"a": 1}'}, detached=True)
        task.add_turn(said(content="x"))
        task.note("mind this", in_context=True)
        task.note("not this")
        task.remember(summary="so far", preferences={"a": 2})
        task.close()
        found = another.said(task.id)
        assert [(each.kind, each.text) for each in found] == [("request", "first"), ("note", "mind this")]
        assert found[0].by == "ann"
        assert found[0].offset < found[1].offset
        assert another.memory(task.id) == {"preferences": {"a": 2}, "summary": "so far"}

    def test_of_two_writers_with_one_tail_one_wins(self, store: Store, another: Store) -> None:
        task = store.start("x", detached=True)
        seal = task.seal
        task.add_turn(said(content="first"), expect=seal)
        late = another.attach(task.id)
        with pytest.raises(ChainMoved):
            late.add_turn(said(content="second"), expect=seal)
        late.add_turn(said(content="third"), expect=late.seal)
        assert store.summary(task.id).turns == 2

    def test_many_writers_lose_and_double_nothing(self, store: Store, another: Store) -> None:
        task = store.start("x", detached=True)
        trouble: list[BaseException] = []

        def write(which: Store, name: str) -> None:
            try:
                mine = which.attach(task.id)
                for number in range(10):
                    mine.add_turn(said(content=f"{name}-{number}."))
                mine.close()
            except BaseException as error:
                trouble.append(error)
            finally:
                which.close() if threading.current_thread() is not threading.main_thread() else None

        threads = [
            threading.Thread(target=write, args=(which, name))
            for which, name in ((store, "a"), (another, "b"), (store, "c"))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert trouble == []
        turns = [store.turn(task.id, number).content for number in range(1, 31)]
        assert sorted(map(str, turns)) == sorted(f"{name}-{number}." for name in "abc" for number in range(10))
        assert [turn for turn in turns if str(turn).startswith("a")] == [f"a-{number}." for number in range(10)]
        records, problems = scan_bytes(bytes_of(store, task.id))
        assert (problems, {record.kind for record in records}) == ([], {"sealed"})

    def test_the_table_of_moves_holds(self, store: Store) -> None:
        task = store.start("x", detached=True)
        task.finish("success")
        again = store.attach(task.id)
        with pytest.raises(IllegalMove):
            again.add_turn(said())
        with pytest.raises(IllegalMove):
            again.set_status("paused")
        with pytest.raises(InvalidValue):
            again.finish("perhaps")

    def test_a_record_can_be_asked_for_by_its_seal(self, store: Store) -> None:
        task = store.start("x", detached=True)
        done = task.add_turn(said(content="y"))
        assert task.holds(done.seal)
        assert not task.holds("0" * 15 + "1")

    def test_questions_wait_for_answers(self, store: Store, another: Store) -> None:
        task = store.start("x")
        task.ask("dev", Question("Which one?", ("postgres", "sqlite"), default="sqlite"))
        assert another.status(task.id) == "waiting"
        asked = another.open_question(task.id)
        assert asked is not None
        assert asked.question is not None
        assert asked.question.choices == ("postgres", "sqlite")
        with another.attach(task.id) as answering:
            with pytest.raises(InvalidValue):
                answering.answer("oracle")
            answering.answer("2", by="ann")
        assert task.wait_for_answer(5, number=1) == "sqlite"
        assert another.turn(task.id, 2).by == "ann"
        with pytest.raises(NoAnswer):
            task.answer("again")
        task.finish("success")

    def test_runs_forks_and_notes(self, store: Store, another: Store) -> None:
        with store.start("first") as task:
            task.add_turn(said(content="1"))
        with store.resume(task.id, message="second") as again:
            again.add_turn(said(content="2"))
        summary = another.summary(task.id)
        assert (summary.runs, summary.turns, summary.status) == (2, 2, "completed")
        assert asked(another, task.id) == ["first", "second"]
        with another.fork(task.id, 1, message="otherwise") as fork:
            fork.add_turn(said(content="3"))
        assert store.summary(fork.id).parent == f"{task.id}@1"
        assert store.turn(fork.id, 2).content == "3"
        assert [child[0] for child in another.children(task.id)] == [fork.id]
        with pytest.raises(InvalidValue):
            store.fork(task.id, 9)
        with another.attach(task.id) as noted:
            noted.note("n", title="T", labels={"a": "b"}, pinned=True, kind="mine", data={"k": [1]})
        summary = store.summary(task.id)
        assert (summary.title, dict(summary.labels), summary.pinned) == ("T", {"a": "b"}, True)
        note = store.last_note(task.id, "mine")
        assert isinstance(note, Note)
        assert note.data == {"k": [1]}
        rows, total = store.turn_rows(task.id)
        assert ([row.turn for row in rows], total) == ([1, 2], 2)
        child = store.start("sub", parent=Parent(task.id), detached=True)
        assert child.id in [found[0] for found in another.children(task.id)]

    def test_snapshots_are_found_again(self, store: Store, another: Store) -> None:
        with store.start("x") as task:
            task.add_turn(said(), snapshot={"provider": "zfs", "ref": "tank@1"})
            task.add_turn(said())
        (made,) = another.snapshots(task.id)
        assert (made["turn"], made["provider"], made["ref"]) == (1, "zfs", "tank@1")
        found = snapshot_at(another, task.id, 2)
        assert found is not None
        assert found["ref"] == "tank@1"

    def test_secrets_do_not_get_in(self, store: Store, another: Store) -> None:
        secret = "ghp_" + "a1B2" * 9
        task = store.start(f"use {secret}", detached=True)
        task.add_turn(said(content=f"I used {secret}.", payload=f'{{"key": "{secret}"}}'))
        assert secret.encode() not in bytes_of(another, task.id)
        assert "[redacted:" in (another.turn(task.id, 1).content or "")

    def test_a_task_from_its_first_record(self, store: Store, another: Store) -> None:
        header = TaskHeader(id="", status="running", title="Mine", source="elsewhere:1")
        with store.create(header, [Request(text="x"), Execution()], detached=True) as task:
            task.add_turn(said(content="said"))
        assert another.summary(task.id).title == "Mine"
        assert another.by_source("elsewhere:") == {"elsewhere:1": task.id}

    def test_in_a_session_the_answers_are_the_same(self, store: Store) -> None:
        with store.start("x", detached=True) as task:
            for number in range(3):
                task.add_turn(said(content=f"turn {number}"))
        rows, _ = store.turn_rows(task.id)
        with store.reading(), store.reading():
            assert [store.turn(task.id, row.turn, row=row).content for row in rows] == ["turn 0", "turn 1", "turn 2"]
            assert store.turn(task.id, 2).content == "turn 1"
            assert store.summary(task.id).turns == 3
        task = store.attach(task.id)
        task.add_turn(said(content="turn 3"))
        task.close()
        assert store.summary(task.id).turns == 4
