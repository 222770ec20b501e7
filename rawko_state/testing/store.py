"""Tests for every store: the contract of ``store/contract.py``, as commands and integrations rely on it."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from rawko_state.errors import (
    AmbiguousTask,
    ChainMoved,
    IllegalMove,
    InvalidValue,
    NoAnswer,
    RawkoError,
    Stopped,
    TaskBusy,
    TaskNotFound,
)
from rawko_state.format.records import scan_bytes
from rawko_state.lifecycle.resuming import newest_to_resume, snapshot_at
from rawko_state.model.entries import (
    Entry,
    Execution,
    Note,
    Parent,
    Question,
    Request,
    Result,
    TaskHeader,
    ToolCall,
    Turn,
)
from rawko_state.model.names import name_for
from rawko_state.store import TaskFilter
from rawko_state.store.contract import Store

__all__ = ["StoreConformance"]

_TEXTS = (
    "plain",
    "",
    "\n",
    "a\r\nb\rc",
    "=== TASK abc123 ===\n[End 0123456789abcdef]\n--- Turn 7: evil ---\n[Content]",
    "nul \x00 and a lone surrogate \ud800",
    "\u2028 \x85 \x0c 日本語 ✓",
    "x" * 70_000,
)


def _bytes(store: Store, task_id: str) -> bytes:
    with store.reader(task_id) as reader:
        return bytes(reader.fetch(0, reader.size))


def said(number: int = 1, **more: Any) -> Turn:
    return Turn(number=number, agent="dev", status="complete", **more)


def _asked(store: Store, task_id: str) -> list[str]:
    return [said.text for said in store.said(task_id) if said.kind == "request"]


def _ids(store: Store, **wanted: Any) -> list[str]:
    return [task.id for task in store.history(TaskFilter(**wanted))]


class StoreConformance:
    """Subclass it and supply ``store`` and ``another``."""

    # Writing and reading

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
        assert _asked(another, task.id) == ["Fix the login"]
        assert another.status(task.id) == "completed"
        assert another.find(task.id[:4]).id == task.id
        assert another.files(task.id) == [(0, "write", "a.py")]
        (run,) = another.runs(task.id)
        assert (run.run, run.status, run.summary) == (1, "completed", "It works")

    @pytest.mark.parametrize("text", _TEXTS)
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
        data = _bytes(another, task.id)
        records, problems = scan_bytes(data)
        assert problems == []
        assert [record.kind for record in records] == ["sealed"] * 7
        assert b"\nStatus: failed " in data
        (verdict,) = another.verify(task.id)
        assert verdict.faults == []
        kinds = [type(entry).__name__ for _, entry in another.entries(task.id)]
        assert kinds == ["TaskHeader", "Request", "Execution", *["Turn"] * 5, "Result"]

    def test_any_span_of_the_bytes(self, store: Store) -> None:
        with store.start("x") as task:
            task.add_turn(said(content="y" * 1000))
            task.add_turn(said(content="z" * 1000))
        whole = _bytes(store, task.id)
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
        for ask in (store.summary, store.status, store.reader, store.attach, store.find, store.delete, store.resume):
            with pytest.raises(TaskNotFound):
                ask("zzzzzz9")
        with pytest.raises(TaskNotFound):
            list(store.events("zzzzzz9"))
        with pytest.raises(RawkoError):
            store.turn(first.id, 7)

    def test_a_prefix_that_names_several(self, store: Store) -> None:
        data = _bytes(store, store.start("x", detached=True).id)
        made = scan_bytes(data)[0]
        assert made
        for name in ("abc111", "abc222"):
            store.add_file(f"2024-01-15T10-30-00-{name}.task", b"=== TASK x ===\nStatus: completed\n")
        with pytest.raises(AmbiguousTask):
            store.find("abc")
        assert store.find("abc1").id == "abc111"

    # Lists

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
        assert _ids(another) == ids[::-1]
        assert _ids(another, limit=2) == [ids[5], ids[4]]
        assert _ids(another, limit=2, after=ids[4]) == [ids[3], ids[2]]
        assert _ids(another, reverse=True, after=ids[4]) == [ids[5]]
        assert _ids(another, status=("failed",)) == [ids[4], ids[2], ids[0]]
        assert _ids(another, status=("running",)) == [ids[5]]
        assert _ids(another, agent="agent1") == [ids[4], ids[1]]
        assert _ids(another, agent="agent*", limit=1) == [ids[5]]
        assert _ids(another, labels=(("n", "1"),)) == [ids[5], ids[3], ids[1]]
        assert _ids(another, labels=(("n", None), ("n", "0"))) == [ids[4], ids[2], ids[0]]
        assert _ids(another, since=at + timedelta(days=4)) == [ids[5], ids[4]]
        assert _ids(another, until=at + timedelta(days=1)) == [ids[0]]
        assert _ids(another, file="src/3.py") == [ids[3]]
        assert _ids(another, file="src") == ids[4::-1]
        assert _ids(another, file="src/[12].py") == [ids[2], ids[1]]
        assert _ids(another, branch="dev/*") == [ids[5], ids[4], ids[3]]
        assert _ids(another, ids=(ids[1], ids[2])) == [ids[2], ids[1]]
        assert (
            _ids(another, sort="completed", after=_ids(another, sort="completed")[2])
            == _ids(another, sort="completed")[3:]
        )
        with pytest.raises(InvalidValue):
            another.history(TaskFilter(after="nosuch"))
        stats = another.stats(TaskFilter())
        assert (stats.tasks, stats.turns) == (6, 6)
        assert stats.by_status == {"completed": 2, "failed": 3, "running": 1}
        assert stats.by_file["src/3.py"] == 1

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

    def test_erased_for_good(self, store: Store, another: Store) -> None:
        kept, gone = (store.start(text, detached=True) for text in ("kept", "gone"))
        for task in (kept, gone):
            task.finish("success")
        assert store.erase(gone.id) == gone.id
        assert _ids(another) == [kept.id]
        assert another.trash() == []
        store.delete(kept.id)
        assert store.erase(kept.id) == kept.id
        assert another.trash() == []
        with pytest.raises(TaskNotFound):
            store.erase("nosuch")

    def test_search_is_fresh_to_the_last_append(self, store: Store, another: Store) -> None:
        task = store.start("Fix the tokenValidation in auth/sso.rs", detached=True)
        other = store.start("Something else", detached=True)
        task.add_turn(said(content="The clock skew is ignored."))

        def found(query: str, **wanted: Any) -> list[str]:
            return [hit.task.id for hit in another.search(query, TaskFilter(sort="relevance", **wanted)).hits]

        assert found("skew") == [task.id]
        assert found('"clock skew"') == [task.id]
        assert found('"skew clock"') == []
        assert found("token validation sso") == [task.id]
        assert found("valid*") == [task.id]
        assert found("skew OR else") in ([task.id, other.id], [other.id, task.id])
        assert found("NOT skew") == [other.id]
        assert found("skew", status=("failed",)) == []
        (hit,) = another.search("skew").hits
        assert (hit.kind, hit.turn, hit.agent) == ("turn", 1, "dev")
        assert [hit.excerpt[first:last] for first, last in hit.highlights] == ["skew"]
        other.add_turn(said(content="another skew"))
        assert set(found("skew")) == {task.id, other.id}
        assert another.search("skevv").suggestion in ("skew", None)

    # The chain

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
        (verdict,) = store.verify(task.id)
        assert verdict.faults == []

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

    # The task lifecycle

    def test_a_lease_keeps_others_out(self, store: Store, another: Store) -> None:
        task = store.start("x")
        with pytest.raises(TaskBusy):
            another.resume(task.id)
        assert task.id in another.alive()
        assert another.status(task.id) == "running"
        task.close()
        assert another.status(task.id) == "interrupted"
        assert newest_to_resume(another) == task.id
        resumed = another.resume(task.id)
        assert store.status(task.id) == "running"
        resumed.finish("success")
        assert store.status(task.id) == "completed"

    def test_borrowed_leases(self, store: Store) -> None:
        task = store.start("x", detached=True)
        token = store.take_lease(task.id)
        with pytest.raises(TaskBusy):
            store.take_lease(task.id)
        assert store.take_lease(task.id, token) == token
        store.release_lease(task.id, token)
        store.release_lease(task.id, store.take_lease(task.id))

    def test_a_live_turn_is_followed_and_ends_as_one_record(self, store: Store, another: Store) -> None:
        task = store.start("x")
        turn = task.turn("dev")
        turn.say("Hello ")
        key = turn.begin_tool("shell.exec", "ls")
        turn.progress("half of it")
        live = [event for event in another.events(task.id) if event.live]
        assert [(event.kind, event.text) for event in live] == [
            ("text", "Hello "),
            ("tool", "shell.exec"),
            ("progress", "half of it"),
        ]
        turn.end_tool(key, "exit 0")
        turn.say("world")
        turn.end()
        after = list(another.events(task.id, live[-1].cursor))
        assert [event.text for event in after if event.kind == "turn"] == ["Hello world"]
        assert [event.replaces for event in after if event.kind == "turn"] == [True]
        task.finish("success")
        assert another.turn(task.id, 1).content == "Hello world"
        assert [event.kind for event in another.events(task.id)][-1] == "final"

    def test_cursors_neither_miss_nor_double(self, store: Store, another: Store) -> None:
        task = store.start("x", detached=True)
        for number in range(4):
            task.add_turn(said(content=str(number)))
        task.finish("success")
        whole = list(another.events(task.id))
        for at in range(len(whole)):
            assert list(another.events(task.id, whole[at].cursor)) == whole[at + 1 :]
        assert list(another.events(task.id, another.now(task.id))) == []
        assert another.cursors()[task.id] == another.now(task.id)

    def test_follow_ends_with_the_task(self, store: Store, another: Store) -> None:
        task = store.start("x")
        seen: list[str] = []

        def follow() -> None:
            seen.extend(event.text or "" for event in another.follow(task.id) if event is not None)
            another.close()

        thread = threading.Thread(target=follow)
        thread.start()
        for number in range(5):
            task.add_turn(said(content=f"turn {number}"))
        task.finish("success", "done")
        thread.join(20)
        assert not thread.is_alive()
        assert [text for text in seen if text.startswith("turn")] == [f"turn {number}" for number in range(5)]
        assert seen[-1] == "completed"

    def test_what_a_writer_left_becomes_an_interrupted_turn(self, store: Store, another: Store) -> None:
        task = store.start("x")
        turn = task.turn("dev")
        turn.say("Not finis")
        turn.begin_tool("shell.exec", "rm -r build")
        task.close()  # leaves the draft
        with another.resume(task.id) as resumed:
            left = another.turn(task.id, 1)
            assert (left.status, left.content) == ("interrupted", "Not finis")
            (call,) = left.tools
            assert not isinstance(call, str)
            assert call.result == "may have run"
            resumed.add_turn(said(content="Finished."))
        assert store.summary(task.id).turns == 2

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

    def test_pause_and_cancel_reach_the_writer(self, store: Store, another: Store) -> None:
        task = store.start("x")
        turn = task.turn("dev")
        turn.say("one ")
        with another.attach(task.id) as other:
            other.set_status("cancelled", by="ann", reason="enough")
        with pytest.raises(Stopped) as stopped:
            turn.say("two")
        assert (stopped.value.status, stopped.value.by, stopped.value.reason) == ("cancelled", "ann", "enough")
        with pytest.raises(Stopped):
            turn.end()
        task.close()
        assert store.status(task.id) == "cancelled"
        assert store.turn(task.id, 1).content == "one two"

    def test_runs_forks_and_notes(self, store: Store, another: Store) -> None:
        with store.start("first") as task:
            task.add_turn(said(content="1"))
        with store.resume(task.id, message="second") as again:
            again.add_turn(said(content="2"))
        summary = another.summary(task.id)
        assert (summary.runs, summary.turns, summary.status) == (2, 2, "completed")
        assert _asked(another, task.id) == ["first", "second"]
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

    # Secrets

    def test_secrets_do_not_get_in(self, store: Store, another: Store) -> None:
        secret = "ghp_" + "a1B2" * 9
        task = store.start(f"use {secret}", detached=True)
        task.add_turn(said(content=f"I used {secret}.", payload=f'{{"key": "{secret}"}}'))
        assert secret.encode() not in _bytes(another, task.id)
        assert "[redacted:" in (another.turn(task.id, 1).content or "")

    # Copying whole tasks between stores

    def test_a_task_is_placed_byte_for_byte(self, store: Store, another: Store) -> None:
        data = (
            b"=== TASK abc123 ===\nCreated: 2024-01-15T10:30:00Z\nStatus: completed\nDuration: 45.2s\n\n"
            b"=== REQUEST ===\nUser: Fix it\n\n=== EXECUTION ===\n\n--- Turn 1: dev ---\nStatus: complete\n\n[Content]\nDone.\n"
        )
        name = store.add_file("2024-01-15T10-30-00-abc123.task", data)
        assert name is not None
        assert name.id == "abc123"
        assert _bytes(another, "abc123") == data
        assert another.summary("abc123").status == "completed"
        assert store.add_file("2024-01-15T10-30-00-abc123.task", data) is None
        with pytest.raises(RawkoError):
            store.add_file("2024-01-15T10-30-00-abc123.task", data + b"more\n")
        with pytest.raises(InvalidValue):
            store.add_file("../evil.task", data)
        with another.resume("abc123", message="more") as task:
            task.add_turn(said(content="Again."))
        assert _bytes(store, "abc123").startswith(data)
        (verdict,) = store.verify("abc123")
        assert verdict.faults == []

    def test_a_torn_end_is_kept_and_marked(self, store: Store, another: Store) -> None:
        with store.start("x") as task:
            task.add_turn(said(content="y"))
        data = _bytes(store, task.id)
        torn = data.replace(task.id.encode(), b"tornid") + b"--- Turn 2: dev ---\n[Content]\nhalf a tu"
        whole = torn[: len(data)]
        store.add_file("2024-01-15T10-30-00-tornid.task", torn)
        assert _bytes(another, "tornid") == torn
        kinds = [kind for kind, _ in another.entries("tornid")]
        assert kinds[-1] in ("tail", "damaged")
        with another.attach("tornid") as mended:
            mended.note("after")
        assert _bytes(store, "tornid").startswith(torn)
        assert whole in _bytes(store, "tornid")

    # Retention

    def test_the_trash_gives_back_byte_for_byte(self, store: Store, another: Store) -> None:
        with store.start("x") as task, task.turn("dev") as turn:
            turn.tool("t", "", output="long " * 10_000)
        data = _bytes(store, task.id)
        assert store.delete(task.id[:5]) == task.id
        assert _ids(another) == []
        with pytest.raises(TaskNotFound, match="in the trash"):
            another.summary(task.id)
        (thrown,) = another.trash()
        assert (thrown.id, thrown.rule) == (task.id, "deleted")
        assert another.restore(task.id) == [task.id]
        assert _bytes(store, task.id) == data
        assert store.blobs_of(task.id)
        (kept,) = store.retention_rows()
        assert (kept.id, kept.exempt) == (task.id, True)
        assert list(store.move_to_trash([(kept, "max_age")])) == []
        store.delete(task.id)
        assert [each.id for each in another.empty_trash()] == [task.id]
        assert another.trash() == []
        assert another.restore() == []

    def test_what_is_being_run_or_has_changed_is_not_discarded(self, store: Store, another: Store) -> None:
        running = store.start("x")
        with pytest.raises(TaskBusy):
            another.delete(running.id)
        with store.start("y") as done:
            pass
        (before,) = another.retention_rows(done.id)
        with store.attach(done.id) as noted:
            noted.note("changed")
        assert list(another.move_to_trash([(before, "max_age")])) == []
        (now,) = another.retention_rows(done.id)
        assert list(another.move_to_trash([(now, "max_age")])) == [done.id]
        running.finish("success")

    def test_redaction_afterwards(self, store: Store, another: Store) -> None:
        secret = "ghp_" + "a1B2" * 9
        data = f"=== TASK abc123 ===\nStatus: completed\n\n=== REQUEST ===\nUser: use {secret}\n".encode()
        store.add_file("2024-01-15T10-30-00-abc123.task", data)
        if secret.encode() in _bytes(store, "abc123"):  # a server has already removed it
            found = another.redact("abc123", dry_run=True)
            assert sum(found.rules.values()) == 1
            assert another.redact("abc123").changed >= 1
        assert secret.encode() not in _bytes(store, "abc123")

    def test_names_from_elsewhere_are_found(self, store: Store, another: Store) -> None:
        task = store.start("x", source="codex:7f9a", detached=True)
        assert another.by_source("codex:") == {"codex:7f9a": task.id}
        assert another.source(task.id) == "codex:7f9a"
        with store.import_lock():
            pass

    # Everything besides tasks

    def test_a_store_says_what_it_is(self, store: Store) -> None:
        assert store.where
        assert isinstance(store.is_local, bool)
        assert store.redactor.text("nothing secret") == "nothing secret"
        store.check()
        assert store.strangers() == []
        with store as same:
            assert same is store

    def test_a_task_from_its_first_record(self, store: Store, another: Store) -> None:
        header = TaskHeader(id="", status="running", title="Mine", source="elsewhere:1")
        with store.create(header, [Request(text="x"), Execution()], detached=True) as task:
            task.add_turn(said(content="said"))
        assert another.summary(task.id).title == "Mine"
        assert another.by_source("elsewhere:") == {"elsewhere:1": task.id}

    def test_a_whole_task_from_its_records(self, store: Store, another: Store) -> None:
        created = datetime(2024, 1, 15, 10, 30, tzinfo=timezone.utc)
        name = name_for(created, "brought1")
        header = TaskHeader(id=name.id, status="running", created=created, format=1)
        secret = "ghp_" + "a1B2" * 9
        records: list[list[Entry]] = [
            [header, Request(text="x"), Execution()],
            [said(content=f"with {secret}")],
            [Result(status="success")],
        ]
        assert store.add_task(name, records) is True
        assert store.add_task(name, records) is False
        assert another.status("brought1") == "completed"
        assert secret not in str(another.turn("brought1", 1).content)
        assert another.task_ids() == ["brought1"]

    def test_many_tasks_by_the_bulk_writer(self, store: Store) -> None:
        writer = store.bulk_writer()
        if writer is None:
            return  # add_task() does it
        names = [
            name_for(datetime(2024, 1, 15, 10, 30, number, tzinfo=timezone.utc), f"bulk{number}") for number in range(3)
        ]
        written = []
        for name in names:
            header = TaskHeader(id=name.id, status="running", created=name.created, format=1)
            written.append(writer.write(name, [[header, Request(text="x"), Execution()], [Result(status="success")]]))
        assert all(each is not None for each in written)
        writer.index(written)
        assert [store.status(name.id) for name in names] == ["completed"] * 3

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

    def test_who_follows_many_tasks_at_once(self, store: Store, another: Store) -> None:
        task = store.start("x")
        reader = another.event_reader(task.id)
        assert [event.kind for event in reader.poll()][:2] == ["status", "request"]
        assert list(reader.poll()) == []
        assert task.id in another.active()
        task.add_turn(said(content="said"))
        assert [event.text for event in reader.poll() if event.kind == "turn"] == ["said"]
        again = another.event_reader(task.id, reader.cursor)
        assert list(again.poll()) == []
        another.pace().wait(True)
        task.finish("success")

    def test_upkeep(self, store: Store) -> None:
        with store.start("x") as task:
            task.add_turn(said(content="said", tools=(ToolCall("shell.exec", "ls", "ok", None, "long " * 10_000),)))
            task.finish("success")
        assert store.reconcile() == []
        assert store.freed_bytes([task.id]) == {task.id: 50_000}
        was_due = store.begin_redacting()
        assert store.redact(task.id).changed == 0
        store.end_redacting(changed=False, was_due=was_due)
        with store.daily() as mine:
            assert isinstance(mine, bool)
        (row,) = store.retention_rows(task.id)
        assert isinstance(store.pack(row), bool)
        assert store.turn(task.id, 1).content == "said"
        assert store.unflushed() >= 0
        assert store.flush_due() in (None, "now", "background")
        assert store.flush(wait=True) >= 0
        assert [hit.task.id for hit in store.search("said").hits] == [task.id]

    def test_health(self, store: Store, another: Store) -> None:
        task = store.start("x", detached=True)
        task.add_turn(said(content="said"))
        assert all(isinstance(size, int) for size in store.disk().values())
        count, where, faults = store.health()
        assert (count, faults) == (1, [])
        assert where
        assert store.concerns() == []
        before = store.summary(task.id)
        assert store.reindex() == []
        assert store.summary(task.id) == before
        assert [hit.task.id for hit in another.search("said").hits] == [task.id]
        task.add_turn(said(content="goes on"))
        assert another.turn(task.id, 2).content == "goes on"
