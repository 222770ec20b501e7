"""Task files in a project: ids, locks, blobs, drafts, hostile paths, and the Python API that writes them."""

from __future__ import annotations

import multiprocessing
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from rawko_state.backends.files.store import FileStore
from rawko_state.errors import (
    AmbiguousTask,
    ChainMoved,
    IllegalMove,
    InvalidValue,
    NewerFormat,
    OutcomeUnknown,
    RawkoError,
    StorageError,
    TaskBusy,
    TaskNotFound,
    UnsafePath,
)
from rawko_state.format.records import scan_bytes
from rawko_state.journal import disk
from rawko_state.journal.journal import Journal
from rawko_state.model.entries import FileTouch, Progress, Question, Section, TaskHeader, ToolCall, Turn
from rawko_state.tasks.task import LiveTurn
from tests.support.machine import patience


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path)


def path_of(store: FileStore, task_id: str) -> Path:
    return store.journal.layout.path(store.find(task_id))


def turn(content: str = "x") -> Turn:
    return Turn(number=1, agent="dev", status="complete", content=content)


def turns_of(store: FileStore, task_id: str) -> list[Turn]:
    with store.reader(task_id) as reader:
        entries = [block.entry() for record in reader.records() for block in record.blocks]
    return [entry for entry in entries if isinstance(entry, Turn)]


class TestWriting:
    def test_a_task_from_start_to_result(self, store: FileStore) -> None:
        with store.start("Fix it", title="t", labels={"a": "b"}) as task:
            task.decide(selected="dev", reason="r")
            with task.turn("dev") as live:
                live.say("one ")
                live.say("two")
                live.tool("filesystem.write", "a.py", "10 bytes", output="ok\n")
                live.progress("half way")
            task.finish("success", "done", files=["a.py"])
        decision, developer = turns_of(store, task.id)
        assert decision.selected == "dev"
        assert (developer.number, developer.content, developer.status) == (2, "one two", "complete")
        assert store.status(task.id) == "completed"
        text = path_of(store, task.id).read_text()
        assert "Status: completed " in text

    def test_an_exception_is_a_failed_task(self, store: FileStore) -> None:
        with pytest.raises(ZeroDivisionError), store.start("x") as task:
            _ = 1 / 0
        assert store.status(task.id) == "failed"
        assert "ZeroDivisionError: division by zero" in path_of(store, task.id).read_text()

    def test_ctrl_c_is_a_cancelled_task(self, store: FileStore) -> None:
        with pytest.raises(KeyboardInterrupt), store.start("x") as task:
            raise KeyboardInterrupt
        assert store.status(task.id) == "cancelled"

    def test_an_exception_in_a_turn_keeps_what_it_said(self, store: FileStore) -> None:
        def speak_and_fail(live: LiveTurn) -> None:
            live.say("so far")
            raise ValueError("no")

        with pytest.raises(ValueError, match="no"), store.start("x") as task, task.turn("dev") as live:
            speak_and_fail(live)
        (only,) = turns_of(store, task.id)
        assert (only.status, only.content, only.reason) == ("failed", "so far", "ValueError: no")

    def test_a_finished_task_takes_notes_but_no_turns(self, store: FileStore) -> None:
        task = store.start("x")
        task.finish("failure", "no")
        again = store.attach(task.id)
        again.note(title="new title", pinned=True, labels={"k": "v"})
        assert (again.state.title, again.state.pinned, again.state.labels) == ("new title", True, {"k": "v"})
        with pytest.raises(IllegalMove):
            again.add_turn(turn())
        with pytest.raises(IllegalMove):
            again.finish("success")

    def test_a_question_waits_for_its_answer(self, store: FileStore) -> None:
        task = store.start("x")
        task.ask("dev", Question("Which?", ("a", "b")))
        assert store.status(task.id) == "waiting"
        other = store.attach(task.id)
        other.answer("a", by="ann")
        assert task.refresh().status == "running"
        with pytest.raises(RawkoError, match="is not waiting for an answer"):
            other.answer("b")

    def test_a_pause_from_another_process_is_seen(self, store: FileStore) -> None:
        task = store.start("x")
        store.attach(task.id).set_status("paused", by="ann")
        assert task.refresh().status == "paused"
        assert "Status: paused" in path_of(store, task.id).read_text()

    def test_files_and_folders_are_private(self, store: FileStore) -> None:
        old = os.umask(0)
        try:
            task = store.start("x")
            live = task.turn("dev")
            live.tool("a", output="y" * 20_000)
            live.end()
        finally:
            os.umask(old)
        for folder, folders, files in os.walk(store.root / ".rawko"):
            for name in folders:
                assert stat.S_IMODE(os.stat(Path(folder) / name).st_mode) == 0o700
            for name in files:
                assert stat.S_IMODE(os.stat(Path(folder) / name).st_mode) == 0o600

    def test_an_append_is_one_write_and_one_sync(self, store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
        task = store.start("x")
        task.add_turn(turn())
        calls: list[str] = []
        write, sync = disk._write_at, disk._data_sync
        monkeypatch.setattr(disk, "_write_at", lambda *a: (calls.append("write"), write(*a))[1])
        monkeypatch.setattr(disk, "_data_sync", lambda *a: (calls.append("sync"), sync(*a))[1])
        task.add_turn(turn())
        assert calls == ["write", "sync"]

    def test_a_hand_written_file_is_gone_on_with(self, store: FileStore, fixtures: Path) -> None:
        store.journal.layout.make()
        path = store.journal.layout.tasks / "2024-01-15T10-30-00-abc123.task"
        for ending in (b"", b"\n", b"\n\n"):
            original = (fixtures / "format" / "rfc-example.task").read_bytes().rstrip(b"\n") + ending
            path.write_bytes(original)
            with store.resume("abc123") as task:
                task.add_turn(turn("more"))
            data = path.read_bytes()
            assert data.startswith(original), "its bytes, header included, stay as they were"
            assert not scan_bytes(data)[1]
            assert turns_of(store, "abc123")[-1].number == 8
            assert store.status("abc123") == "completed"

    def test_a_file_of_a_later_format_is_read_and_never_appended_to(self, store: FileStore, fixtures: Path) -> None:
        store.journal.layout.make()
        path = store.journal.layout.tasks / "2031-01-01T00-00-00-n3w3r1.task"
        data = (fixtures / "format" / "later-version.task").read_bytes()
        path.write_bytes(data)
        assert turns_of(store, "n3w3r1")[0].content == "fine"
        with pytest.raises(NewerFormat):
            store.attach("n3w3r1").note("x")
        assert path.read_bytes() == data


class TestIds:
    def test_any_prefix_that_names_one_task_names_it(self, store: FileStore) -> None:
        journal = store.journal
        for task_id in ("abc123", "abd456", "xyz789"):
            journal.create(TaskHeader(id=task_id, status="running"), [], lease=False)
        assert store.find("x").id == "xyz789"
        assert store.find("abc123").id == "abc123"
        with pytest.raises(AmbiguousTask, match="abc123, abd456"):
            store.find("ab")
        with pytest.raises(TaskNotFound, match="Closest: xyz789"):
            store.find("xyz788")

    def test_an_id_is_never_given_twice(self, store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
        wanted = iter(["same00", "same00", "same00", "other1"])
        monkeypatch.setattr("rawko_state.journal.journal.new_id", lambda: next(wanted))
        first = store.start("x", detached=True)
        second = store.start("x", detached=True)
        assert (first.id, second.id) == ("same00", "other1")

    @pytest.mark.parametrize("name", ["../../x", "/etc/passwd", "", "a/b", "a\nb", "..", "a" * 65, "\x00"])
    def test_hostile_ids_are_refused(self, store: FileStore, name: str) -> None:
        store.start("x", detached=True)
        with pytest.raises(TaskNotFound):
            store.find(name)

    def test_names_that_are_no_task_are_passed_over(self, store: FileStore) -> None:
        store.start("x", detached=True)
        (store.journal.layout.tasks / "2024-01-15T10-30-00-a\nb.task").write_text("x")
        (store.journal.layout.tasks / "notes.txt").write_text("x")
        assert len(list(store.journal.layout.names())) == 1
        assert len(list(store.journal.layout.strangers())) == 2


class TestHostilePaths:
    NAME = "2024-01-15T10-30-00-abc123.task"

    @pytest.fixture(autouse=True)
    def _folders(self, store: FileStore) -> None:
        store.journal.layout.make()

    def test_a_link_in_place_of_a_task_file(self, store: FileStore, tmp_path: Path) -> None:
        secret = tmp_path / "secret"
        secret.write_text("s")
        (store.journal.layout.tasks / self.NAME).symlink_to(secret)
        self._refused(store)
        assert secret.read_text() == "s"

    def test_a_hard_link_in_place_of_a_task_file(self, store: FileStore, tmp_path: Path) -> None:
        secret = tmp_path / "secret"
        secret.write_text("s")
        os.link(secret, store.journal.layout.tasks / self.NAME)
        self._refused(store)
        assert secret.read_text() == "s"

    def test_a_pipe_in_place_of_a_task_file(self, store: FileStore) -> None:
        os.mkfifo(store.journal.layout.tasks / self.NAME)
        self._refused(store)

    def test_a_folder_in_place_of_a_task_file(self, store: FileStore) -> None:
        (store.journal.layout.tasks / self.NAME).mkdir()
        self._refused(store)

    def _refused(self, store: FileStore) -> None:
        with pytest.raises(UnsafePath):
            store.attach("abc123")
        with pytest.raises(UnsafePath):
            store.reader("abc123")
        (verdict,) = store.verify("abc123")
        assert verdict.faults

    @pytest.mark.parametrize("folder", ["tasks", "live", "blobs"])
    def test_a_link_in_place_of_a_folder(self, store: FileStore, tmp_path: Path, folder: str) -> None:
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        path = store.journal.layout.state / folder
        path.rmdir()
        path.symlink_to(elsewhere)
        with pytest.raises(UnsafePath):
            store.start("x")
        assert list(elsewhere.iterdir()) == []

    def test_a_link_in_place_of_a_lease_or_draft(self, store: FileStore, tmp_path: Path) -> None:
        victim = tmp_path / "victim"
        victim.write_text("v")
        task = store.start("x")
        store.journal.layout.draft(task.id).symlink_to(victim)
        with pytest.raises(StorageError):
            task.turn("dev")
        task.close()
        store.journal.layout.lease(task.id).symlink_to(victim)
        with pytest.raises(StorageError):
            store.journal.lease(task.id)
        assert victim.read_text() == "v"


def _hold(root: str, task_id: str, ready: object, stop: object) -> None:
    task = FileStore(root).resume(task_id)
    ready.set()  # type: ignore[attr-defined]
    stop.wait(patience(20))  # type: ignore[attr-defined]
    task.close()


class TestLease:
    def test_a_second_runner_is_told_who_runs_it(self, store: FileStore) -> None:
        task = store.start("x")
        with pytest.raises(TaskBusy, match=f"process {os.getpid()}"):
            store.resume(task.id)

    def test_a_second_runner_waits_when_asked(self, store: FileStore, tmp_path: Path) -> None:
        task = store.start("x")
        task.close()
        context = multiprocessing.get_context("spawn")
        ready, stop = context.Event(), context.Event()
        holder = context.Process(target=_hold, args=(str(tmp_path), task.id, ready, stop))
        holder.start()
        try:
            assert ready.wait(patience(20))
            with pytest.raises(TaskBusy, match=f"process {holder.pid}"):
                store.resume(task.id)
            stop.set()
            store.resume(task.id, wait=10).close()
        finally:
            holder.join()

    def test_what_a_dead_process_held_is_free_at_once(self, store: FileStore, tmp_path: Path) -> None:
        code = (
            "import sys, time; from rawko_state.backends.files.store import FileStore;"
            "t = FileStore(sys.argv[1]).start('x'); print(t.id, flush=True); time.sleep(60)"
        )
        writer = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        task_id = writer.stdout.readline().strip()
        assert store.status(task_id) == "running"
        writer.kill()
        writer.wait()
        writer.stdout.close()
        assert store.status(task_id) == "interrupted"
        store.resume(task_id, wait=0).close()

    def test_a_forked_child_does_not_keep_the_lease(self, store: FileStore) -> None:
        task = store.start("x")
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.read(reader, 1)
            os._exit(0)
        try:
            task.close()
            store.resume(task.id).close()
        finally:
            os.write(writer, b"x")
            os.waitpid(child, 0)
            os.close(reader)
            os.close(writer)

    def test_a_detached_task_is_never_interrupted(self, store: FileStore) -> None:
        task = store.start("x", detached=True)
        task.close()
        assert store.status(task.id) == "running"


class TestChainMoved:
    def test_a_conditional_append_is_refused_when_the_file_has_grown(self, store: FileStore) -> None:
        task = store.start("x")
        tail = task.seal
        store.attach(task.id).note("in between")
        with pytest.raises(ChainMoved):
            task.add_turn(turn(), expect=tail)
        task.add_turn(turn(), expect=task.seal)

    def test_a_file_that_was_replaced_is_noticed(self, store: FileStore) -> None:
        task = store.start("x")
        path = path_of(store, task.id)
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(data)
        with pytest.raises(ChainMoved, match="replaced"):
            task.add_turn(turn())
        assert path.read_bytes() == data

    def test_a_file_that_was_cut_or_removed_or_edited_is_noticed(self, store: FileStore) -> None:
        task = store.start("x")
        task.add_turn(turn())
        path = path_of(store, task.id)
        data = path.read_bytes()
        with open(path, "r+b") as stream:
            stream.truncate(len(data) - 5)
        with pytest.raises(ChainMoved):
            task.add_turn(turn())
        with open(path, "r+b") as stream:
            stream.write(data[:-3] + (b"1]\n" if data[-3:-2] == b"0" else b"0]\n"))
        with pytest.raises(ChainMoved):
            task.add_turn(turn())
        path.unlink()
        with pytest.raises(ChainMoved, match="no longer exists"):
            task.add_turn(turn())

    def test_writers_take_in_each_others_records(self, store: FileStore) -> None:
        one = store.start("x", detached=True)
        two = store.attach(one.id)
        for number in range(5):
            one.add_turn(turn(f"one {number}"))
            two.add_turn(turn(f"two {number}"))
        assert [t.number for t in turns_of(store, one.id)] == list(range(1, 11))


class TestUnknownOutcome:
    def test_a_failed_sync_says_the_seal_and_a_retry_can_look_for_it(
        self, store: FileStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        task = store.start("x")

        def fail(descriptor: int) -> None:
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as patch:
            patch.setattr(disk, "_data_sync", fail)
            with pytest.raises(OutcomeUnknown) as caught:
                task.add_turn(turn("doubtful"))
        assert str(path_of(store, task.id)) in str(caught.value)
        assert task.holds(caught.value.seal)
        task.add_turn(turn("next"))
        assert [t.content for t in turns_of(store, task.id)] == ["doubtful", "next"]


class TestBlobs:
    def test_long_output_is_a_file_of_its_own_and_comes_back(self, store: FileStore) -> None:
        long = "line\n" * 10_000 + "\ud800 \x00 end"
        task = store.start("x")
        task.add_turn(Turn(number=1, agent="d", tools=(ToolCall("a", output=long), ToolCall("b", output="short"))))
        first, second = (call for call in turns_of(store, task.id)[0].tools if isinstance(call, ToolCall))
        assert first.output is None
        assert store.journal.output_of(first) == long
        assert store.journal.output_of(second) == "short"
        assert len(path_of(store, task.id).read_bytes()) < 2000

    def test_the_same_output_is_kept_once(self, store: FileStore) -> None:
        task = store.start("x")
        for _ in range(3):
            task.add_turn(Turn(number=1, agent="d", tools=(ToolCall("a", output="z" * 20_000),)))
        assert len(list(store.journal.layout.blobs.iterdir())) == 1

    def test_a_missing_or_changed_blob_is_a_fault(self, store: FileStore) -> None:
        task = store.start("x")
        task.add_turn(Turn(number=1, agent="d", tools=(ToolCall("a", output="z" * 20_000),)))
        (blob,) = store.journal.layout.blobs.iterdir()
        blob.write_text("y" * 20_000)
        (verdict,) = store.verify(task.id)
        assert "missing or changed" in verdict.faults[0]
        (call,) = turns_of(store, task.id)[0].tools
        assert isinstance(call, ToolCall)
        with pytest.raises(StorageError, match="does not match its name"):
            store.journal.output_of(call)
        task.add_turn(Turn(number=1, agent="d", tools=(ToolCall("a", output="z" * 20_000),)))
        assert store.journal.output_of(call) == "z" * 20_000

    def test_a_blob_and_its_name_are_synced_before_the_record(
        self, store: FileStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        task = store.start("x")
        task.add_turn(turn())
        order: list[str] = []
        sync, folder = disk.sync, disk.sync_folder
        monkeypatch.setattr(disk, "sync", lambda d, p, s: (order.append(p.parent.name), sync(d, p, s))[1])
        monkeypatch.setattr(disk, "sync_folder", lambda p, s="": (order.append(f"folder {p.name}"), folder(p, s))[1])
        task.add_turn(Turn(number=1, agent="d", tools=(ToolCall("a", output="z" * 20_000),)))
        assert order == ["live", "folder blobs", "tasks"]


class TestDrafts:
    def test_what_a_closed_turn_said_becomes_an_interrupted_turn(self, store: FileStore) -> None:
        task = store.start("x")
        live = task.turn("dev", model="m1")
        live.say("so far ")
        live.tool("filesystem.write", "a.py", "ok")
        live.begin_tool("shell.exec", "rm -r build", more={"input": {"command": "rm -r build"}})
        task.close()
        store.resume(task.id).close()
        (only,) = turns_of(store, task.id)
        assert (only.status, only.content, only.model) == ("interrupted", "so far ", "m1")
        done, unfinished = only.tools
        assert isinstance(done, ToolCall)
        assert isinstance(unfinished, ToolCall)
        assert (done.result, unfinished.result) == ("ok", "may have run")
        assert unfinished.more == {"input": {"command": "rm -r build"}, "unfinished": True}
        store.resume(task.id).close()
        assert len(turns_of(store, task.id)) == 1, "only once"

    def test_a_draft_whose_turn_is_in_the_file_is_not_taken_twice(
        self, store: FileStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As if the process had died between the append and the removal of the draft."""
        task = store.start("x")
        live = task.turn("dev")
        live.say("once")
        monkeypatch.setattr(type(live._draft), "discard", lambda self: self.leave())
        live.end()
        task.close()
        assert store.journal.layout.draft(task.id).exists()
        store.resume(task.id).close()
        assert [t.content for t in turns_of(store, task.id)] == ["once"]
        assert not store.journal.layout.draft(task.id).exists()

    def test_a_torn_last_line_of_a_draft_costs_that_line_only(self, store: FileStore) -> None:
        task = store.start("x")
        live = task.turn("dev")
        live.say("whole")
        task.close()
        with open(store.journal.layout.draft(task.id), "ab") as stream:
            stream.write(b'{"kind": "text", "te')
        store.resume(task.id).close()
        assert turns_of(store, task.id)[0].content == "whole"

    def test_one_turn_at_a_time(self, store: FileStore) -> None:
        task = store.start("x")
        task.turn("dev")
        with pytest.raises(RawkoError, match="end the turn of"):
            task.turn("other")

    def test_a_file_is_read_written_or_deleted(self, store: FileStore) -> None:
        with pytest.raises(InvalidValue):
            store.start("x").turn("dev").touch("chmod", "a")


class TestLargeAndOdd:
    def test_fields_of_megabytes_count(self, store: FileStore) -> None:
        task = store.start("q" * 3_000_000)
        task.finish("failure", "s" * 2_000_000, error="after the long field", duration_ms=5)
        assert store.status(task.id) == "failed"
        (verdict,) = store.verify(task.id)
        assert verdict.faults == []
        store.close()
        for path in store.journal.layout.state.glob("index.db*"):
            path.unlink()
        found = store.summary(task.id)
        assert (found.status, found.duration_ms, len(found.request or "")) == ("failed", 5, 2000)

    @pytest.mark.parametrize(
        "turn",
        [
            Turn(number=1, agent="a" * 70_000),
            Turn(number=1, agent="a", duration_ms=-5),
            Turn(number=1, agent="a", tool_calls=-1),
            Turn(number=1, agent="a", tokens={"IN": 1}),
            Turn(number=1, agent="a", progress=(Progress("x", "two words"),)),
            Turn(number=1, agent="a", files=(FileTouch("chmod", "x"),)),
            Turn(number=1, agent="a", reason="r" * 5_000_000),
            Turn(number=1, agent="a", state=float("nan")),
        ],
    )
    def test_what_could_not_be_read_back_is_refused_before_it_is_written(self, store: FileStore, turn: Turn) -> None:
        task = store.start("x")
        before = path_of(store, task.id).read_bytes()
        with pytest.raises(InvalidValue):
            task.add_turn(turn)
        assert path_of(store, task.id).read_bytes() == before

    def test_numbers_that_no_database_holds_harm_nothing(self, store: FileStore) -> None:
        task = store.start("x")
        for _ in range(12):
            task.add_turn(Turn(number=1, agent="a", tokens={"in": 10**18 - 1}))
        snapshot = Section("Snapshot", '{"ref": "\\ud800", "metadata": ' + "[" * 50 + "]" * 50 + "}")
        task.add_turn(Turn(number=1, agent="a", sections=(snapshot, Section("Snapshot", "[" * 100_000))))
        task.finish("success")
        assert store.summary(task.id).turns == 13
        assert store.reindex() == []

    def test_a_draft_is_kept_whatever_became_of_its_task(self, store: FileStore) -> None:
        task = store.start("x")
        task.turn("dev").say("precious words")
        store.attach(task.id).set_status("cancelled")
        task.close()
        store.resume(task.id).close()
        assert turns_of(store, task.id)[0].content == "precious words"

    def test_a_draft_that_cannot_be_a_turn_is_kept_as_a_note(self, store: FileStore) -> None:
        task = store.start("x")
        task.turn("dev").say("precious words")
        task.close()
        path = store.journal.layout.draft(task.id)
        path.write_bytes(path.read_bytes().replace(b'"agent": "dev"', b'"agent": "d\\u0000v"'))
        store.resume(task.id).close()
        assert "precious words" in path_of(store, task.id).read_text()

    def test_a_live_turn_refuses_what_it_could_not_write(self, store: FileStore) -> None:
        task = store.start("x")
        with pytest.raises(InvalidValue):
            task.turn("a\x00b")
        live = task.turn("dev")
        with pytest.raises(InvalidValue):
            live.tool("x", more={"n": float("inf")})
        with pytest.raises(InvalidValue):
            live.tool("x", more={"args": "hidden"})
        live.say("and goes on")
        live.end()
        assert turns_of(store, task.id)[0].content == "and goes on"


def test_a_journal_of_another_folder_is_another_journal(tmp_path: Path) -> None:
    one, two = Journal(tmp_path / "a"), Journal(tmp_path / "b")
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one.create(TaskHeader(id="abc123", status="running"), [], lease=False)
    assert list(two.layout.names()) == []
