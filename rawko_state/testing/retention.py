"""Tests for cleaning up: trash, redaction afterwards, verification, whole tasks from elsewhere."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from rawko_state.errors import (
    InvalidValue,
    RawkoError,
    TaskBusy,
    TaskNotFound,
)
from rawko_state.model.entries import (
    Entry,
    Execution,
    Request,
    Result,
    TaskHeader,
    ToolCall,
)
from rawko_state.model.names import name_for
from rawko_state.store.contract import Store
from rawko_state.testing.common import bytes_of, listed, said


class RetentionConformance:
    """Level ``retention``. Subclass it and supply ``store`` and ``another``."""

    def test_erased_for_good(self, store: Store, another: Store) -> None:
        kept, gone = (store.start(text, detached=True) for text in ("kept", "gone"))
        for task in (kept, gone):
            task.finish("success")
        assert store.erase(gone.id) == gone.id
        assert listed(another) == [kept.id]
        assert another.trash() == []
        store.delete(kept.id)
        assert store.erase(kept.id) == kept.id
        assert another.trash() == []
        with pytest.raises(TaskNotFound):
            store.erase("nosuch")

    def test_a_task_is_placed_byte_for_byte(self, store: Store, another: Store) -> None:
        data = (
            b"=== TASK abc123 ===\nCreated: 2024-01-15T10:30:00Z\nStatus: completed\nDuration: 45.2s\n\n"
            b"=== REQUEST ===\nUser: Fix it\n\n=== EXECUTION ===\n\n--- Turn 1: dev ---\nStatus: complete\n\n[Content]\nDone.\n"
        )
        name = store.add_file("2024-01-15T10-30-00-abc123.task", data)
        assert name is not None
        assert name.id == "abc123"
        assert bytes_of(another, "abc123") == data
        assert another.summary("abc123").status == "completed"
        assert store.add_file("2024-01-15T10-30-00-abc123.task", data) is None
        with pytest.raises(RawkoError):
            store.add_file("2024-01-15T10-30-00-abc123.task", data + b"more\n")
        with pytest.raises(InvalidValue):
            store.add_file("../evil.task", data)
        with another.resume("abc123", message="more") as task:
            task.add_turn(said(content="Again."))
        assert bytes_of(store, "abc123").startswith(data)
        (verdict,) = store.verify("abc123")
        assert verdict.faults == []

    def test_a_torn_end_is_kept_and_marked(self, store: Store, another: Store) -> None:
        with store.start("x") as task:
            task.add_turn(said(content="y"))
        data = bytes_of(store, task.id)
        torn = data.replace(task.id.encode(), b"tornid") + b"--- Turn 2: dev ---\n[Content]\nhalf a tu"
        whole = torn[: len(data)]
        store.add_file("2024-01-15T10-30-00-tornid.task", torn)
        assert bytes_of(another, "tornid") == torn
        kinds = [kind for kind, _ in another.entries("tornid")]
        assert kinds[-1] in ("tail", "damaged")
        with another.attach("tornid") as mended:
            mended.note("after")
        assert bytes_of(store, "tornid").startswith(torn)
        assert whole in bytes_of(store, "tornid")

    def test_the_trash_gives_back_byte_for_byte(self, store: Store, another: Store) -> None:
        with store.start("x") as task, task.turn("dev") as turn:
            turn.tool("t", "", output="long " * 10_000)
        data = bytes_of(store, task.id)
        assert store.delete(task.id[:5]) == task.id
        assert listed(another) == []
        with pytest.raises(TaskNotFound, match="in the trash"):
            another.summary(task.id)
        (thrown,) = another.trash()
        assert (thrown.id, thrown.rule) == (task.id, "deleted")
        assert another.restore(task.id) == [task.id]
        assert bytes_of(store, task.id) == data
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
        if secret.encode() in bytes_of(store, "abc123"):  # a server has already removed it
            found = another.redact("abc123", dry_run=True)
            assert sum(found.rules.values()) == 1
            assert another.redact("abc123").changed >= 1
        assert secret.encode() not in bytes_of(store, "abc123")

    def test_names_from_elsewhere_are_found(self, store: Store, another: Store) -> None:
        task = store.start("x", source="codex:7f9a", detached=True)
        assert another.by_source("codex:") == {"codex:7f9a": task.id}
        assert another.source(task.id) == "codex:7f9a"
        with store.import_lock():
            pass

    def test_a_store_says_what_it_is(self, store: Store) -> None:
        assert store.where
        assert isinstance(store.is_local, bool)
        assert store.redactor.text("nothing secret") == "nothing secret"
        store.check()
        assert store.strangers() == []
        with store as same:
            assert same is store

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
        assert store.task_ids() == []  # nothing is said to be there before it is durable
        assert writer.commit() == set()
        writer.index(written)
        assert [store.status(name.id) for name in names] == ["completed"] * 3
        writer.write(names[0], [[header, Request(text="y"), Execution()]])
        assert writer.commit() == {names[0].id}
        assert store.status(names[0].id) == "completed"

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

    def test_a_deleted_task_is_not_found_by_its_key(self, store: Store, another: Store) -> None:
        with store.open_task("k:1", "x") as task:
            pass
        another.delete(task.id)
        assert another.find_source("k:1") is None
        with another.open_task("k:1", "x") as made:
            assert made.is_new
            assert made.id != task.id

    def test_a_task_that_is_not_there_is_not_deleted(self, store: Store) -> None:
        with pytest.raises(TaskNotFound):
            store.delete("zzzzzz9")

    def test_a_sound_chain_is_verified(self, store: Store, another: Store) -> None:
        with store.start("x") as task:
            task.add_turn(said(content="one"))
        (verdict,) = another.verify(task.id)
        assert (verdict.faults, verdict.turns) == ([], 1)
