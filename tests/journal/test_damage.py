"""Damage is never "ok": it is named, nothing is buried under it, and what can be put right is."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import pytest

from rawko_state.backends.files.store import FileStore
from rawko_state.errors import NotATask
from rawko_state.format.conflict import conflict_in
from rawko_state.format.records import emit_record, scan_bytes
from rawko_state.format.seal import GENESIS
from rawko_state.journal.archive import is_leftover
from rawko_state.journal.layout import parse_name
from rawko_state.journal.source import open_source, packed
from rawko_state.model.entries import Execution, Note, Request, Result, TaskHeader, Turn
from rawko_state.store import TaskFilter
from tests.journal.files import path_of, turn
from tests.support.processes import rawko

QUOTED = "<<<<<<< HEAD\nmine\n=======\nyours\n>>>>>>> branch"


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path, warn=lambda message: None)


def some_task(store: FileStore, turns: int = 3, *, finish: bool = True) -> str:
    task = store.start("Fix it")
    for number in range(turns):
        task.add_turn(turn(f"step {number}"))
    if finish:
        task.finish("success")
    task.close()
    return task.id


def doctor(store: FileStore) -> str:
    done = rawko(store.root, "doctor", code=None)
    assert ("No problems found" in done.stdout) == (done.returncode == 0)
    return done.stdout


class TestDoctor:
    """It never says that No problems found while verify finds something."""

    @pytest.mark.parametrize(
        "what", ["empty gz", "cut gz", "another id", "another status", "cut, and no index", "a folder"]
    )
    def test_it_sees_what_verify_sees(self, store: FileStore, what: str) -> None:
        task = some_task(store)
        path = path_of(store, task)
        if "gz" in what:
            source = open_source(path)
            data = b"".join(packed(source))
            source.close()
            path.unlink()
            path = path.with_name(path.name + ".gz")
            path.write_bytes(data)
            store.history(TaskFilter())
            path.write_bytes(b"" if what == "empty gz" else data[:-20])
        elif what == "another id":
            path.with_name(path.name.replace(task, "zzzzzz")).write_bytes(path.read_bytes())
        elif what == "another status":
            path.write_bytes(path.read_bytes().replace(b"Status: completed", b"Status: failed   ", 1))
        elif what == "a folder":
            (path.parent / "2024-01-01T00-00-00-folder.task").mkdir()
        else:
            path.write_bytes(path.read_bytes()[: scan_bytes(path.read_bytes())[0][1].end])
            store.close()
            (store.root / ".rawko/state/index.db").unlink()
        for file in path.parent.iterdir():
            file.chmod(0o700 if file.is_dir() else 0o600)
        assert "No problems found" not in doctor(store)


class TestLineEnds:
    def test_git_made_them_and_repair_gives_them_back(self, store: FileStore) -> None:
        task = some_task(store)
        path = path_of(store, task)
        whole = path.read_bytes()
        path.write_bytes(whole.replace(b"\n", b"\r\n"))
        assert "does not say what was asked" in doctor(store)
        assert "CRLF" in rawko(store.root, "verify", code=1).stdout
        assert "gave it back its line ends" in rawko(store.root, "verify", "--repair").stdout
        assert path.read_bytes() == whole
        assert store.summary(task).turns == 3
        assert "No problems found" in doctor(store)

    def test_from_the_second_record_on(self, store: FileStore) -> None:
        task = some_task(store)
        path = path_of(store, task)
        whole = path.read_bytes()
        first = scan_bytes(whole)[0][0].end
        spoiled = whole[:first] + whole[first:].replace(b"\n", b"\r\n")
        path.write_bytes(spoiled)
        with pytest.raises(NotATask, match="CRLF"):
            FileStore(store.root, warn=lambda message: None).attach(task).note("x")
        rawko(store.root, "verify", "--repair")
        assert path.read_bytes() == whole

    def test_what_would_not_match_is_left_alone(self, store: FileStore) -> None:
        path = path_of(store, some_task(store))
        spoiled = path.read_bytes().replace(b"step 1", b"step 9").replace(b"\n", b"\r\n")
        path.write_bytes(spoiled)
        rawko(store.root, "verify", "--repair", code=1)
        assert path.read_bytes() == spoiled


class TestCutOff:
    @pytest.mark.parametrize("ask_first", [False, True])
    def test_the_index_knew_more_turns(self, store: FileStore, ask_first: bool) -> None:
        """Cut exactly at the end of a record, so that every seal matches."""
        task = some_task(store, 5, finish=False)
        path = path_of(store, task)
        records, _ = scan_bytes(path.read_bytes())
        path.write_bytes(path.read_bytes()[: records[-3].end])
        if ask_first:
            assert store.summary(task).turns == 3  # the index has caught up, and still knows
        (verdict,) = store.verify(task)
        assert verdict.warnings == ["2 turns that the index knew are missing"]
        assert not verdict.faults
        assert "2 turns that the index knew are missing" in doctor(store)
        with store.attach(task) as opened:
            opened.add_turn(turn("goes on"))  # the file is the truth
        store.reindex()
        assert "2 turns" in rawko(store.root, "verify", task).stdout
        rawko(store.root, "verify", task, "--repair")
        assert "No problems found" in doctor(store)

    def test_it_is_forgotten_when_the_file_is_back(self, store: FileStore) -> None:
        task = some_task(store, 5)
        path = path_of(store, task)
        whole = path.read_bytes()
        path.write_bytes(whole[: scan_bytes(whole)[0][1].end])
        assert "missing" in doctor(store)
        path.write_bytes(whole)
        assert "No problems found" in doctor(store)

    def test_the_headers_copy_knew_that_it_was_finished(self, store: FileStore) -> None:
        task = some_task(store)
        path = path_of(store, task)
        data = path.read_bytes()
        path.write_bytes(data[: scan_bytes(data)[0][-1].offset])
        (store.root / ".rawko/state/index.db").unlink()
        (verdict,) = FileStore(store.root, warn=lambda message: None).verify(task)
        assert verdict.warnings == ["the header says completed, and no record does: the end of the file is missing"]

    def test_an_old_copy_of_a_resumed_task_is_no_such_thing(self, store: FileStore) -> None:
        task = some_task(store)
        with store.resume(task) as again:
            again.add_turn(turn("more"))
            again.close()
        path = path_of(store, task)
        path.write_bytes(path.read_bytes().replace(b"Status: running  ", b"Status: completed", 1))
        (verdict,) = store.verify(task)
        assert not verdict.warnings
        assert "differs from the records" in verdict.faults[0]

    @pytest.mark.parametrize("tail", [b"", b"--- Turn 4: dev ---\n"])
    def test_a_header_that_was_not_written_before_the_plug_was_pulled(self, store: FileStore, tail: bytes) -> None:
        task = some_task(store)
        path = path_of(store, task)
        whole = path.read_bytes()
        path.write_bytes(whole.replace(b"Status: completed", b"Status: running  ", 1) + tail)
        (verdict,) = store.verify(task, repair=True)
        assert verdict.repaired[-1] == "corrected Status and Duration in the header"
        assert path.read_bytes().startswith(whole)
        (verdict,) = store.verify(task)
        assert not verdict.faults

    def test_redaction_makes_a_file_shorter_and_loses_nothing(self, store: FileStore) -> None:
        task = some_task(store, finish=False)
        path = path_of(store, task)
        secret = "ghp_" + "a1B2" * 9
        body, parent = path.read_bytes(), scan_bytes(path.read_bytes())[0][-1].seal
        path.write_bytes(
            body + emit_record([Turn(number=4, agent="dev", content=f"key {secret} " * 50)], parent or "")[0]
        )
        assert store.summary(task).turns == 4
        assert store.redact(task).changed
        (verdict,) = store.verify(task)
        assert not verdict.warnings

    def test_cut_inside_the_header(self, store: FileStore) -> None:
        task = some_task(store)
        path = path_of(store, task)
        whole = path.read_bytes()
        for length in (
            45,
            60,
            120,
            whole.index(b"=== REQUEST") + 5,
        ):  # the last one: with a header that says "completed"
            spoiled = whole[:length]
            path.write_bytes(spoiled)
            (verdict,) = store.verify(task, repair=True)
            assert verdict.faults
            with pytest.raises(NotATask, match="ends before its request"):
                store.resume(task)
            assert path.read_bytes() == spoiled


class TestConflicts:
    def _grown_apart(self, store: FileStore) -> tuple[str, Path, bytes, bytes]:
        """One task that two clones went on with."""
        task = some_task(store, 1, finish=False)
        path = path_of(store, task)
        base = path.read_bytes()
        with store.attach(task) as opened:
            opened.add_turn(turn(f"ours\n{QUOTED}"))
            opened.finish("success", "ours is done")
        ours = path.read_bytes()
        path.write_bytes(base)
        with FileStore(store.root, warn=lambda message: None).attach(task) as opened:
            opened.add_turn(turn("theirs"))
            opened.finish("failure", error="theirs is not")
        return task, path, ours, path.read_bytes()

    def _merged(self, folder: Path, base: bytes, ours: bytes, theirs: bytes) -> bytes:
        for name, data in (("base", base), ("ours", ours), ("theirs", theirs)):
            (folder / name).write_bytes(data)
        done = subprocess.run(["git", "merge-file", "-p", "ours", "base", "theirs"], cwd=folder, capture_output=True)
        assert done.returncode > 0
        return done.stdout

    def test_git_merges_and_repair_keeps_both_sides(
        self, store: FileStore, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        task, path, ours, theirs = self._grown_apart(store)
        base = ours[: scan_bytes(ours)[0][1].end]
        merged = self._merged(tmp_path_factory.mktemp("git"), base, ours, theirs)
        path.write_bytes(merged)
        store = FileStore(store.root, warn=lambda message: None)
        assert "No problems found" not in doctor(store)
        assert "git has left two writings" in rawko(store.root, "verify", code=1).stdout
        for write in (lambda: store.resume(task), lambda: store.attach(task).note("x")):
            with pytest.raises(NotATask, match="git has merged"):
                write()
        assert path.read_bytes() == merged  # nothing is buried in a TORN span
        told = rawko(store.root, "verify", "--repair", code=None).stdout
        child = told.partition("the second one is task ")[2].split()[0]
        assert path.read_bytes() == ours
        found = {each.id: each for each in store.history(TaskFilter())}
        assert found[task].status == "completed"
        assert (found[child].status, found[child].parent) == ("failed", task)
        assert store.turn(child, 2).content == "theirs"
        assert store.turn(task, 2).content == f"ours\n{QUOTED}"
        assert rawko(store.root, "verify").stdout.startswith("✓ 2 files, ")

    def test_a_second_conflict_does_not_overwrite_the_child_of_the_first(
        self, store: FileStore, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        task = some_task(store, 1, finish=False)
        path = path_of(store, task)
        base = path.read_bytes()
        sides = []
        for word in ("ours", "one", "two"):
            path.write_bytes(base)
            with FileStore(store.root, warn=lambda message: None).attach(task) as opened:
                opened.add_turn(turn(f"{word} was here"))
            sides.append(path.read_bytes())
        for other in sides[1:]:
            path.write_bytes(self._merged(tmp_path_factory.mktemp("git"), base, sides[0], other))
            rawko(store.root, "verify", "--repair", code=None)
        everything = b"".join(each.read_bytes() for each in path.parent.iterdir())
        assert all(f"{word} was here".encode() in everything for word in ("ours", "one", "two"))
        assert len(list(path.parent.iterdir())) == 3

    def test_what_was_torn_on_the_other_side_is_kept(
        self, store: FileStore, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        task = some_task(store, 1, finish=False)
        path = path_of(store, task)
        base = path.read_bytes()
        with store.attach(task) as opened:
            opened.add_turn(turn("ours"))
        ours = path.read_bytes()
        path.write_bytes(base + b"--- Turn 2: dev ---\nTORNWORD")
        with FileStore(store.root, warn=lambda message: None).attach(task) as opened:
            opened.add_turn(turn("theirs"))
        path.write_bytes(self._merged(tmp_path_factory.mktemp("git"), base, ours, path.read_bytes()))
        rawko(store.root, "verify", "--repair", code=None)
        assert b"TORNWORD" in b"".join(each.read_bytes() for each in path.parent.iterdir())

    def test_redaction_does_not_bury_it(self, store: FileStore, tmp_path_factory: pytest.TempPathFactory) -> None:
        _, path, ours, theirs = self._grown_apart(store)
        merged = self._merged(tmp_path_factory.mktemp("git"), ours[: scan_bytes(ours)[0][1].end], ours, theirs)
        path.write_bytes(merged)
        rawko(store.root, "redact", "--all", "--yes", code=None)
        rawko(store.root, "redact", parse_name(path.name).id, code=None)  # type: ignore[union-attr]
        assert path.read_bytes() == merged

    def test_both_sides_kept_by_hand_are_shown_and_not_buried(self, store: FileStore) -> None:
        """The markers are deleted, as with merge=union: the second side's first record follows another one than it should."""
        task, path, ours, theirs = self._grown_apart(store)
        common = scan_bytes(ours)[0][1].end
        path.write_bytes(ours + theirs[common:])
        with FileStore(store.root, warn=lambda message: None).attach(task) as opened:
            opened.note("goes on")
        assert b"=== TORN" not in path.read_bytes()
        assert "theirs" in rawko(store.root, "history", "show", task).stdout
        assert "was changed after" in rawko(store.root, "verify", code=1).stdout
        assert "No problems found" not in doctor(store)

    def test_a_last_record_that_was_edited_stays_readable(self, store: FileStore) -> None:
        task = some_task(store, 2, finish=False)
        path = path_of(store, task)
        path.write_bytes(path.read_bytes().replace(b"step 1", b"step 9"))
        with FileStore(store.root, warn=lambda message: None).attach(task) as opened:
            opened.add_turn(turn("goes on"))
        assert b"=== TORN" not in path.read_bytes()
        found = FileStore(store.root, warn=lambda message: None)
        assert found.turn(task, 3).content == "goes on"
        (verdict,) = found.verify(task)
        assert len(verdict.faults) == 1
        assert (found.turn(task, 2).content, found.turn(task, 2).damaged) == ("step 9", True)
        assert "damaged" in doctor(store)

    def test_a_quoted_conflict_is_no_conflict(self, store: FileStore) -> None:
        with store.start(QUOTED) as task:
            task.add_turn(turn(QUOTED))
        (verdict,) = store.verify(task.id)
        assert not verdict.faults
        path = path_of(store, task.id)
        data = path.read_bytes()
        path.write_bytes(data[:-30])  # an append that did not finish, and quotes one
        with store.resume(task.id) as again:
            again.add_turn(turn("goes on"))
        assert not next(iter(store.verify(task.id))).faults

    def test_a_side_that_is_not_whole_is_left_as_it_is(self, store: FileStore) -> None:
        task = some_task(store, 1, finish=False)
        path = path_of(store, task)
        spoiled = path.read_bytes() + b"<<<<<<< HEAD\nx\n=======\ny\n[End 0123456789abcdef]\n>>>>>>> b\n"
        path.write_bytes(spoiled)
        rawko(store.root, "verify", "--repair", code=1)
        assert path.read_bytes() == spoiled

    def test_the_parser_is_linear_and_takes_anything(self) -> None:
        many = b"<<<<<<< a\n=======\n" * 50_000
        assert conflict_in(many + b"[End 0123456789abcdef]\n") is None
        found = conflict_in(b"a\n<<<<<<< x\nb\n||||||| base\nc\n=======\nd\n>>>>>>> y\ne\n")
        assert found is not None
        assert found == (b"a\nb\ne\n", b"a\nd\ne\n", False)


class TestTwoFiles:
    def test_both_forms_of_one_task(self, store: FileStore) -> None:
        """A process was killed between making one and removing the other."""
        task = some_task(store)
        plain = path_of(store, task)
        source = open_source(plain)
        plain.with_name(plain.name + ".gz").write_bytes(b"".join(packed(source)))
        source.close()
        (first, second) = store.verify()
        assert "both there" in (first.warnings + second.warnings)[0]
        assert not first.faults + second.faults
        assert "2 files have this id" in doctor(store)
        rawko(store.root, "verify", "--repair")
        assert [path.name for path in plain.parent.iterdir()] == [plain.name]
        assert "No problems found" in doctor(store)

    def test_a_packed_form_that_holds_something_else_is_kept(self, store: FileStore) -> None:
        task, other = some_task(store), some_task(store, 1)
        plain, beside = path_of(store, task), path_of(store, task).with_name(path_of(store, task).name + ".gz")
        source = open_source(path_of(store, other))
        beside.write_bytes(b"".join(packed(source)))
        source.close()
        name = parse_name(plain.name)
        assert name is not None
        assert not is_leftover(store.journal.layout, name)
        with store.resume(task) as again:
            again.finish("success")
        assert beside.exists()
        assert any("they differ" in fault for verdict in store.verify() for fault in verdict.faults)

    def test_of_two_files_with_one_id_the_one_that_was_created_then_counts(self, store: FileStore) -> None:
        task = some_task(store)
        path = path_of(store, task)
        path.with_name(f"2001-01-01T00-00-00-{task}.task").write_bytes(path.read_bytes())
        assert store.summary(task).file.endswith(path.name)
        assert FileStore(store.root).find(task).filename == path.name
        bad = [verdict.name.filename for verdict in store.verify() if verdict.faults]
        assert bad == [f"2001-01-01T00-00-00-{task}.task"]

    def test_then_the_longer_chain_then_the_name(self, store: FileStore) -> None:
        task = some_task(store)
        path = path_of(store, task)
        data = path.read_bytes()
        records, _ = scan_bytes(data)
        short, long = (path.with_name(f"{year}-01-01T00-00-00-{task}.task") for year in (2001, 2002))
        short.write_bytes(data[: records[1].end])
        long.write_bytes(data)
        path.unlink()
        assert store.summary(task).file.endswith(long.name)
        short.write_bytes(data)
        (store.root / ".rawko/state/index.db").unlink()
        assert FileStore(store.root).summary(task).file.endswith(short.name)


class TestLeases:
    def test_an_empty_one_is_nobodys(self, store: FileStore) -> None:
        """As left by a process that was killed before it had written its name: what its turn had said is not hidden."""
        task = store.start("x")
        live = task.turn("dev")
        live.say("words of a turn that nobody ends")
        task.close()
        lease = store.journal.layout.lease(task.id)
        lease.write_bytes(b"")
        assert store.reconcile() == []  # somebody may be about to write to it
        os.utime(lease, (0, 0))
        assert store.reconcile() == [task.id]
        assert store.turn(task.id, 1).content == "words of a turn that nobody ends"

    def test_it_is_never_shorter_than_it_was(self, store: FileStore) -> None:
        task = store.start("x")
        path = store.journal.layout.lease(task.id)
        size = path.stat().st_size
        assert json.loads(path.read_bytes())["pid"]
        path.write_bytes(b"x" * size)  # a file whose writer died in the middle
        task.close()
        path.write_bytes(b'{"pid": 1, "host": "' + b"h" * 40 + b'", "since": "x"}')
        lease = store.journal.lease(task.id)
        assert path.stat().st_size == size
        assert store.journal.holder(task.id) is not None
        lease.release()


class TestMarked:
    def test_damaged_turns_are_marked_wherever_they_are_shown(self, store: FileStore) -> None:
        task = some_task(store)
        path = path_of(store, task)
        path.write_bytes(path.read_bytes().replace(b"step 1", b"step 9"))
        shown: dict[str, Callable[[], str]] = {
            "show --turn": lambda: rawko(store.root, "history", "show", task, "--turn", "2").stdout,
            "show --turns": lambda: rawko(store.root, "history", "show", task, "--turns", "1-3").stdout,
            "show --json": lambda: rawko(store.root, "history", "show", task, "--turn", "2", "--json").stdout,
            "resume": lambda: rawko(store.root, "resume", task, "--dry-run").stdout,
            "messages": lambda: rawko(store.root, "resume", task, "--dry-run", "--format", "messages").stdout,
            "json": lambda: rawko(store.root, "resume", task, "--dry-run", "--format", "json").stdout,
            "short": lambda: rawko(store.root, "resume", task, "--dry-run", "--budget", "160").stdout,
            "md": lambda: rawko(store.root, "history", "export", task, "--format", "md").stdout,
            "html": lambda: rawko(store.root, "history", "export", task, "--format", "html").stdout,
            "export": lambda: rawko(store.root, "history", "export", task, "--format", "json").stdout,
        }
        for what, show in shown.items():
            assert "damaged" in show().lower(), what
        whole = rawko(store.root, "history", "show", task, "--turn", "1").stdout
        assert "damaged" not in whole

    def test_retention_never_takes_a_damaged_task(self, store: FileStore) -> None:
        long_ago = datetime(2020, 1, 1, tzinfo=timezone.utc)
        task = store.start("x", created=long_ago)
        task.add_turn(Turn(number=1, agent="dev", started=long_ago, content="step 1"))
        task.finish("success", completed=long_ago)
        path = path_of(store, task.id)
        path.write_bytes(path.read_bytes().replace(b"step 1", b"step 9"))
        (store.root / ".rawko/config.yaml").write_text("state:\n  retention:\n    max_age: 1d\n    max_count: 0\n")
        rawko(store.root, "cleanup", "--yes")
        assert path.exists()


class TestOldImports:
    def _old(self, store: FileStore) -> Path:
        """As an earlier version imported a session: sealed records, and a header without Format."""
        store.journal.layout.make()
        created = datetime(2024, 1, 15, 10, 30, tzinfo=timezone.utc)
        header = TaskHeader(id="old", created=created, status="running", writer="detached", source="codex:abc")
        place = Note(kind="imported", context="out", data={"place": 0, "steps": 1})
        data, seal = emit_record([header, Request(text="x", at=created), Execution()], GENESIS)
        for entries in (
            [Turn(number=1, agent="codex", status="complete", content="y")],
            [Result(status="success"), place],
        ):
            made, seal = emit_record(entries, seal)
            data += made
        path = store.journal.layout.tasks / "2024-01-15T10-30-00-old.task"
        path.write_bytes(data)
        return path

    def test_repair_makes_them_whole(self, store: FileStore) -> None:
        path = self._old(store)
        before = path.read_bytes()
        assert b"Status: running" in before
        assert "imported it without Format" in doctor(store)
        rawko(store.root, "history")
        rawko(store.root, "reindex")
        assert path.read_bytes() == before  # no other command rewrites it
        assert "wrote a full header" in rawko(store.root, "verify", "--repair").stdout
        text = path.read_text()
        assert text.startswith("=== TASK old ===\nCreated: 2024-01-15T10:30:00Z\nStatus: completed ")
        assert "\nDuration: " in text
        assert "\nFormat: 1\n" in text
        assert rawko(store.root, "verify").stdout.startswith("✓ 1 file, ")
        assert store.turn("old", 1).content == "y"
        note = store.last_note("old", "imported")
        assert note is not None
        assert note.data == {"place": 0, "steps": 1}
        assert "No problems found" in doctor(store)

    def test_files_written_by_hand_keep_their_bytes(self, store: FileStore, fixtures: Path) -> None:
        store.journal.layout.make()
        data = (fixtures / "format" / "rfc-example.task").read_bytes()
        path = store.journal.layout.tasks / "2024-01-15T10-30-00-abc123.task"
        path.write_bytes(data)
        rawko(store.root, "verify", "--repair")
        assert path.read_bytes() == data


class TestDamagedEnd:
    """A result that was changed proves that the task ended, and not how."""

    def test_it_is_unknown_and_a_repair_leaves_the_header_alone(self, store: FileStore) -> None:
        with store.start("x") as task:
            task.finish("success", "All is well")
        path = next(store.root.glob(".rawko/state/tasks/*.task"))
        path.write_text(path.read_text().replace("All is well", "All is lost"))
        before = path.read_bytes()
        assert rawko(store.root, "history", "--json").returncode == 0
        again = FileStore(store.root)
        again.reindex()
        assert again.summary(task.id).status == "unknown"
        rawko(store.root, "verify", "--repair", code=1)
        assert path.read_bytes() == before
        assert "Status: completed" in path.read_text()
