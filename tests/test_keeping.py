"""What is kept and what goes: the plan, the trash, packed files, rewriting; and all of them with the process killed in between."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rawko_state.backends.files.store import FileStore
from rawko_state.errors import RawkoError, StorageError, TaskBusy, TaskNotFound
from rawko_state.format.values import write_time
from rawko_state.journal import source as source_module
from rawko_state.journal.reader import open_reader
from rawko_state.lifecycle.cleanup import carry_out, planned
from rawko_state.lifecycle.retention import AGE, COUNT, Policy, plan, policy_of
from rawko_state.model import status as words
from rawko_state.model.entries import Parent, ToolCall, Turn
from rawko_state.store import RetentionRow, TaskFilter
from tests.faults import needs_strace, quiet, sample
from tests.support.machine import patience

DRIVER = str(Path(__file__).parent / "keeping_driver.py")
NOW = datetime(2026, 6, 1, tzinfo=timezone.utc)
DAY = 86_400
SECRET = "ghp_16C7e42F292c6912E7710c838347Ae178B4a"


def ago(days: float) -> str:
    return write_time(NOW - timedelta(days=days))


def kept(task_id: str, days: float | None = 0.0, status: str = "completed", **more: object) -> RetentionRow:
    values: dict[str, object] = {
        "pinned": False,
        "exempt": False,
        "parent": None,
        "file": f"{task_id}.task",
        "size": 100,
        "mtime_ns": 1,
    }
    return RetentionRow(task_id, None if days is None else ago(days), status, **{**values, **more})  # type: ignore[arg-type]


def ids(chosen: object) -> dict[str, str]:
    return {task.id: rule for task, rule in chosen.removals}  # type: ignore[attr-defined]


class TestPlan:
    def test_without_limits_nothing_goes(self) -> None:
        assert plan([kept("a", 9999), kept("b", 5000, "failed")], Policy(), NOW).removals == ()

    def test_by_age_then_by_count_oldest_first(self) -> None:
        tasks = [kept("e", 40), kept("d", 31), kept("c", 3), kept("b", 2), kept("a", 1)]
        chosen = plan(tasks, Policy(max_age=30 * DAY, max_count=2), NOW)
        assert [(task.id, rule) for task, rule in chosen.removals] == [("e", AGE), ("d", AGE), ("c", COUNT)]

    def test_protected_tasks_count_and_stay(self) -> None:
        tasks = [kept("p", 90, pinned=True), kept("r", 90, "running"), kept("w", 90, "waiting"), kept("s", 90, "paused"),
                 kept("f", 90, "failed"), kept("i", 90, "interrupted"), kept("x", 90, exempt=True), kept("o", 90), kept("n", 1)]  # fmt: skip
        assert ids(plan(tasks, Policy(max_age=30 * DAY, max_count=3), NOW)) == {"o": AGE, "n": COUNT}
        assert ids(plan(tasks, Policy(max_age=30 * DAY, keep_failed=False), NOW)) == {"f": AGE, "i": AGE, "o": AGE}
        assert ids(plan(tasks, Policy(max_count=0, min_keep=1), NOW)) == {"o": COUNT}

    def test_what_a_kept_task_was_forked_from_stays(self) -> None:
        tasks = [kept("old", 90), kept("mid", 60, parent="old"), kept("new", 1, parent="mid"), kept("other", 70)]
        chosen = plan(tasks, Policy(max_age=30 * DAY), NOW)
        assert ids(chosen) == {"other": AGE}
        assert chosen.protected["old"] == "parent of mid"

    def test_a_cycle_of_parents_ends(self) -> None:
        tasks = [kept("a", 90, parent="b"), kept("b", 90, parent="a"), kept("c", 1, parent="a")]
        assert ids(plan(tasks, Policy(max_age=DAY), NOW)) == {}

    def test_a_task_without_a_time_is_never_old(self) -> None:
        assert plan([kept("a", None)], Policy(max_age=1), NOW).removals == ()

    tasks = st.lists(
        st.builds(
            kept,
            st.text(alphabet="abcdef", min_size=1, max_size=3),
            st.one_of(st.none(), st.floats(0, 100)),
            st.sampled_from([*sorted(words.STATUSES), "later-word"]),
            pinned=st.booleans(),
            exempt=st.booleans(),
            parent=st.one_of(st.none(), st.text(alphabet="abcdef", min_size=1, max_size=3)),
        ),
        unique_by=lambda task: task.id,
        max_size=30,
    )
    policies = st.builds(
        Policy,
        max_age=st.one_of(st.none(), st.integers(0, 120 * DAY)),
        max_count=st.one_of(st.none(), st.integers(0, 30)),
        keep_failed=st.booleans(),
        min_keep=st.integers(0, 12),
        compress_after=st.one_of(st.none(), st.integers(0, 120 * DAY)),
    )

    @given(tasks, policies, st.randoms(use_true_random=False))
    def test_no_rule_takes_what_is_protected_and_the_plan_is_the_same_for_the_same_input(
        self, tasks: list[RetentionRow], policy: Policy, chance: object
    ) -> None:
        chosen = plan(tasks, policy, NOW)
        shuffled = list(tasks)
        chance.shuffle(shuffled)  # type: ignore[attr-defined]
        assert plan(shuffled, policy, NOW) == chosen
        taken = ids(chosen)
        newest = sorted(tasks, key=lambda task: (task.last or "9999", task.id), reverse=True)[: policy.min_keep]
        parents = {task.parent for task in tasks if task.id not in taken}
        for task, rule in chosen.removals:
            assert not task.pinned
            assert not task.exempt
            assert task.status in ("completed", "failed", "cancelled", "interrupted")
            assert not (policy.keep_failed and task.status in ("failed", "interrupted"))
            assert task not in newest
            assert task.id not in parents
            if rule == AGE:
                assert policy.max_age is not None
                assert task.last is not None
                assert task.last < ago(policy.max_age / DAY)
            else:
                assert policy.max_count is not None
        if policy.max_count is not None:
            assert len(tasks) - len(taken) >= min(
                policy.max_count, len(tasks) - sum(rule == AGE for rule in taken.values())
            )
        if policy.max_age is None and policy.max_count is None:
            assert not taken
        for task in chosen.packings:
            assert task.status in words.FINISHED
            assert task.id not in taken


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FileStore]:
    opened = quiet(tmp_path)
    yield opened
    opened.close()


def filled(store: FileStore, count: int, text: str = "hello") -> list[str]:
    found = []
    for number in range(count):
        with store.start(f"task {number}", created=NOW - timedelta(days=count - number)) as task:
            task.add_turn(
                Turn(
                    number=1,
                    agent="dev",
                    content=f"{text} {number}",
                    tools=(ToolCall("x", output=f"{text} {number} " * 3000),),
                )
            )
            task.finish("success", completed=NOW - timedelta(days=count - number))
            found.append(task.id)
    return found


def contents(root: Path, folder: str = "tasks") -> dict[str, bytes]:
    place = root / ".rawko/state" / folder
    return {path.name: path.read_bytes() for path in place.iterdir() if path.is_file()} if place.exists() else {}


def agrees(store: FileStore) -> None:
    """The index says what the files say."""
    live = store.sync.fresh().dump()
    store.reindex()
    assert store.sync.fresh().dump() == live


class TestTrash:
    def test_there_and_back_byte_for_byte_with_long_outputs(self, store: FileStore, tmp_path: Path) -> None:
        made = filled(store, 4)
        before, blobs = contents(tmp_path), contents(tmp_path, "blobs")
        assert len(blobs) == 4
        done = carry_out(store, Policy(max_count=1), planned(store, Policy(max_count=1), NOW))
        assert done.removed == dict.fromkeys(made[:3], COUNT)
        assert len(contents(tmp_path)) == len(contents(tmp_path, "blobs")) == 1
        assert [summary.id for summary in store.history(TaskFilter())] == made[3:]
        assert {hit.task.id for hit in store.search("hello").hits} == {made[3]}
        agrees(store)
        with pytest.raises(TaskNotFound, match="in the trash"):
            store.summary(made[0])
        assert store.restore(made[1][:4] if sum(m.startswith(made[1][:4]) for m in made) == 1 else made[1]) == [made[1]]
        assert sorted(store.restore()) == sorted([made[0], made[2]])
        assert contents(tmp_path) == before
        assert contents(tmp_path, "blobs") == blobs
        agrees(store)
        # What was brought back is left alone.
        assert ids(planned(store, Policy(max_count=0), NOW)) == {made[3]: COUNT}

    def test_a_shared_output_stays_until_the_last_task_goes(self, store: FileStore, tmp_path: Path) -> None:
        for _ in range(2):
            with store.start("x") as task:
                task.add_turn(Turn(number=1, agent="d", tools=(ToolCall("x", output="shared " * 5000),)))
        first, second = (summary.id for summary in store.history(TaskFilter()))
        assert store.freed_bytes([first]) == {first: 0}
        assert sum(store.freed_bytes([first, second]).values()) == 35_000
        store.delete(first)
        assert len(contents(tmp_path, "blobs")) == 1
        store.empty_trash()
        assert len(contents(tmp_path, "blobs")) == 1
        store.delete(second)
        assert len(contents(tmp_path, "blobs")) == 0
        assert len(contents(tmp_path, "trash/blobs")) == 1
        store.empty_trash()
        assert contents(tmp_path, "trash/blobs") == {}

    def test_it_empties_after_its_own_age_and_not_before(self, store: FileStore) -> None:
        (made,) = filled(store, 1)
        store.delete(made)
        assert store.empty_trash(datetime.now(timezone.utc) - timedelta(days=1)) == []
        assert [each.id for each in store.trash()] == [made]
        assert [each.id for each in store.empty_trash(datetime.now(timezone.utc) + timedelta(days=1))] == [made]
        assert store.trash() == []
        with pytest.raises(TaskNotFound):
            store.restore(made)

    def test_emptying_stops_when_its_time_is_up_the_oldest_first(
        self, store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("rawko_state.backends.files.trash._AT_LEAST", 1)
        made = filled(store, 3)
        for task_id in made:
            store.delete(task_id)
        log = tmp_path / ".rawko/state/trash/log.jsonl"
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        for number, line in enumerate(lines):
            line["at"] = ago(100 - number)
        log.write_text("".join(json.dumps(line) + "\n" for line in lines))
        times = iter([True, True, False])  # before the trash, and before its second and third task
        policy = Policy(max_age=10**9)
        done = carry_out(store, policy, planned(store, policy), proceed=lambda: next(times))
        assert [each.id for each in done.deleted] == made[:2]
        assert [each.id for each in store.trash()] == made[2:]
        assert len(contents(tmp_path, "trash/blobs")) == 1

    def test_what_changed_since_the_plan_or_is_being_run_stays(self, store: FileStore) -> None:
        made = filled(store, 3)
        chosen = planned(store, Policy(max_count=0), NOW)
        with store.attach(made[0]) as task:
            task.note("still needed", pinned=True)
        running = store.resume(made[1])
        assert carry_out(store, Policy(max_count=0), chosen).removed == {made[2]: COUNT}
        with pytest.raises(TaskBusy):
            store.delete(made[1])
        running.close()

    def test_an_open_writer_finds_that_its_task_is_gone_and_loses_nothing(self, store: FileStore) -> None:
        (made,) = filled(store, 1)
        task = store.attach(made)
        store.delete(made)
        with pytest.raises(RawkoError, match="is gone"):
            task.note("too late")
        task.close()

    def test_a_task_that_comes_there_a_second_time_replaces_nothing(self, store: FileStore, tmp_path: Path) -> None:
        (made,) = filled(store, 1)
        ((name, data),) = contents(tmp_path).items()
        store.delete(made)
        store.add_file(name, data)
        store.delete(made)
        assert len(store.trash()) == 2
        assert store.restore() == [made]
        assert len(store.trash()) == 1
        with pytest.raises(RawkoError, match="another task"):
            store.restore(made)

    def test_a_fork_says_that_its_parent_is_gone(self, store: FileStore) -> None:
        from rawko_state.lifecycle.context import build, prompt

        (made,) = filled(store, 1)
        fork = store.fork(made, 1, message="go on", detached=True)
        fork.close()
        assert "hello 0" in prompt(store, build(store, fork.id))
        store.delete(made)
        assert "gone" in prompt(store, build(store, fork.id))

    def test_many_processes_clean_up_at_once(self, tmp_path: Path) -> None:
        store = quiet(tmp_path)
        made = filled(store, 40)
        before = contents(tmp_path)
        processes = [subprocess.Popen([sys.executable, DRIVER, "cleanup", str(tmp_path)]) for _ in range(4)]
        assert [process.wait(patience(60)) for process in processes] == [0] * 4
        assert contents(tmp_path) == {}
        assert sorted(store.restore()) == sorted(made)
        assert contents(tmp_path) == before
        agrees(store)


class TestPacked:
    def long(self, store: FileStore, tmp_path: Path) -> tuple[str, bytes]:
        with store.start("a long one", title="Long") as task:
            for number in range(60):
                task.add_turn(Turn(number=1, agent="dev", content=f"turn{number}x " + f"{number:05d} words " * 1500))
        (data,) = contents(tmp_path).values()
        assert len(data) > 3 * source_module.MEMBER
        return task.id, data

    def pack(self, store: FileStore, task_id: str) -> Path:
        assert store.pack(store.retention_rows(task_id)[0])
        return store.journal.layout.path(store.find(task_id))

    def test_everything_works_on_it(self, store: FileStore, tmp_path: Path) -> None:
        task_id, data = self.long(store, tmp_path)
        before = store.summary(task_id)
        rows = store.sync.fresh().dump()
        cursor = [event.cursor for event in store.events(task_id)][30]
        after_cursor = [event.text for event in store.events(task_id, cursor)]
        store.flush()
        path = self.pack(store, task_id)
        assert path.name.endswith(".task.gz")
        assert len(path.read_bytes()) < len(data) / 5
        assert list(contents(tmp_path)) == [path.name]
        assert gzip.decompress(path.read_bytes()) == data
        assert store.summary(task_id).turns == before.turns
        assert store.turn(task_id, 41).content.startswith("turn40x")  # type: ignore[union-attr]
        assert [hit.turn for hit in store.search("turn40x", turns=True).hits] == [41]
        assert [event.text for event in store.events(task_id, cursor)] == after_cursor
        assert [verdict.faults for verdict in store.verify()] == [[]]
        assert store.status(task_id) == "completed"
        changed = {"file_path", "file_size"}
        columns = store.sync.index().tables.columns
        for one, other in zip(rows["tasks"], store.sync.fresh().dump()["tasks"], strict=True):
            assert {name for name, a, b in zip(columns, one, other, strict=True) if a != b} == changed
        agrees(store)
        assert [hit.turn for hit in store.search("turn40x", turns=True).hits] == [41]

    def test_packing_reads_nothing_anew_into_the_index(
        self, store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from rawko_state.backends.files import ingest as intake

        task_id, _ = self.long(store, tmp_path)
        store.flush()
        self.pack(store, task_id)
        monkeypatch.setattr(intake, "one_file", lambda *a, **k: pytest.fail("read again"))
        assert store.history(TaskFilter())[0].id == task_id
        assert store.unflushed() == 0

    def test_resuming_unpacks_it(self, store: FileStore, tmp_path: Path) -> None:
        task_id, data = self.long(store, tmp_path)
        self.pack(store, task_id)
        with store.resume(task_id, message="more") as task:
            task.add_turn(Turn(number=1, agent="dev", content="again"))
        ((name, after),) = contents(tmp_path).items()
        assert name.endswith(".task")
        assert after[300:].startswith(data[300:])
        agrees(store)

    def test_a_follower_goes_on_through_packing_and_unpacking(self, store: FileStore, tmp_path: Path) -> None:
        task_id, _ = self.long(store, tmp_path)
        reader = store.event_reader(task_id)
        seen = len(list(reader.poll()))
        assert seen
        self.pack(store, task_id)
        assert list(reader.poll()) == []
        with store.attach(task_id) as task:
            task.note("unpacked")
        assert [event.kind for event in reader.poll()] == ["note"]

    def test_one_turn_unpacks_one_or_two_members(
        self, store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        task_id, _ = self.long(store, tmp_path)
        self.pack(store, task_id)
        store.turn(task_id, 1)
        unpacked: list[int] = []
        real = source_module.PackedBytes._member

        def member(self: source_module.PackedBytes, number: int) -> bytes:
            unpacked.append(number)
            return real(self, number)

        monkeypatch.setattr(source_module.PackedBytes, "_member", member)
        store.turn(task_id, 41)
        assert len(set(unpacked)) <= 2

    def test_zgrep_and_zcat(self, store: FileStore, tmp_path: Path) -> None:
        if shutil.which("zgrep") is None:
            pytest.skip("NOT TESTED HERE: needs zgrep")
        task_id, data = self.long(store, tmp_path)
        path = self.pack(store, task_id)
        assert subprocess.run(["zcat", path], capture_output=True, check=True).stdout == data
        assert (
            subprocess.run(["zgrep", "-c", "turn40x", path], capture_output=True, check=True, text=True).stdout == "1\n"
        )

    def test_a_file_that_somebody_else_compressed(self, store: FileStore, tmp_path: Path) -> None:
        task_id, data = self.long(store, tmp_path)
        (path,) = (tmp_path / ".rawko/state/tasks").iterdir()
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(data[:100_000]) + gzip.compress(data[100_000:]))
        path.unlink()
        assert store.turn(task_id, 41).content.startswith("turn40x")  # type: ignore[union-attr]
        assert store.turn(task_id, 2).content.startswith("turn1x")  # type: ignore[union-attr]
        assert [verdict.faults for verdict in store.verify()] == [[]]
        with store.attach(task_id) as task:
            task.note("unpacked")
        assert next(iter(contents(tmp_path).values()))[300:].startswith(data[300:])

    @settings(max_examples=60)
    @given(st.integers(0, 5000), st.binary(min_size=1, max_size=4))
    def test_a_damaged_one_is_said_to_be(self, at: int, junk: bytes) -> None:
        """Whatever stands in it: an error of ours, or the right text."""
        import tempfile

        text = b"=== TASK abc ===\n" + bytes(range(32, 127)) * 100
        with tempfile.TemporaryDirectory() as folder:
            plain = Path(folder) / "2026-01-01T00-00-00-abc.task"
            plain.write_bytes(text)
            opened = source_module.open_source(plain)
            packed = bytearray(b"".join(source_module.packed(opened)))
            opened.close()
            at %= len(packed)
            packed[at : at + len(junk)] = junk
            path = plain.with_name(plain.name + ".gz")
            path.write_bytes(packed)
            plain.unlink()
            try:
                with open_reader(path) as reader:
                    got = reader.fetch(0, 1 << 20)
                    assert got == text or reader.size != len(text)
            except StorageError:
                pass

    def test_killed_between_its_two_forms_the_plain_one_counts(self, store: FileStore, tmp_path: Path) -> None:
        (made,) = filled(store, 1)
        ((name, data),) = contents(tmp_path).items()
        path = self.pack(store, made)
        (path.parent / name).write_bytes(data)
        os.chmod(path.parent / name, 0o600)
        assert not store.find(made).packed
        assert len(store.history(TaskFilter())) == 1
        with store.attach(made) as task:
            task.note("x")
        assert store.pack(store.retention_rows(made)[0])
        assert list(contents(tmp_path)) == [path.name]
        assert b"=== NOTE ===" in gzip.decompress(path.read_bytes())


class TestRewriting:
    def written_with_secrets(self, store: FileStore, tmp_path: Path) -> str:
        """As a version wrote it that did not redact."""
        store.__dict__["redactor"] = _Nothing()
        with store.start(f"deploy with {SECRET}", title="Deploy") as task:
            task.add_turn(Turn(number=1, agent="dev", content="nothing here"))
            with task.turn("dev") as turn:
                turn.say(f"=== NOTE ===\nusing {SECRET} now")
                turn.tool("shell.exec", f"curl -H 'Authorization: token {SECRET}'", "ok", output=f"{SECRET}\n" * 2000)
            task.finish("success", f"done with {SECRET}")
        del store.__dict__["redactor"]
        store.flush()
        return task.id

    def nowhere(self, root: Path) -> None:
        for path in (root / ".rawko").rglob("*"):
            if path.is_file():
                assert SECRET.encode() not in path.read_bytes(), path
                assert SECRET.lower().encode()[4:] not in path.read_bytes().lower(), path

    def test_dry_run_then_for_good(self, tmp_path: Path) -> None:
        store = quiet(tmp_path)
        task_id = self.written_with_secrets(store, tmp_path)
        before = contents(tmp_path)
        looked = store.redact(task_id, dry_run=True)
        assert looked.rules["github-token"] >= 4
        assert contents(tmp_path) == before
        found = store.redact(task_id, by="kim")
        assert found.rules == looked.rules
        assert found.changed == 3
        store.reindex()
        self.nowhere(tmp_path)
        assert [verdict.faults for verdict in store.verify()] == [[]]
        summary = store.summary(task_id)
        assert (summary.status, summary.turns, summary.title) == ("completed", 2, "Deploy")
        assert re.search(r"using \[redacted:github-token:....\] now", store.turn(task_id, 2).content or "")  # type: ignore[union-attr]
        (text,) = contents(tmp_path).values()
        assert b"=== NOTE ===\n" in text
        assert b"Kind: redacted" in text
        assert store.redact(task_id).changed == 0
        agrees(store)
        with store.resume(task_id, message="more") as task:
            task.add_turn(Turn(number=1, agent="dev", content="again"))
        assert [verdict.faults for verdict in store.verify()] == [[]]

    def test_a_packed_one(self, tmp_path: Path) -> None:
        store = quiet(tmp_path)
        task_id = self.written_with_secrets(store, tmp_path)
        assert store.pack(store.retention_rows(task_id)[0])
        assert store.redact(task_id).changed == 3
        store.reindex()
        ((name, data),) = contents(tmp_path).items()
        assert name.endswith(".gz")
        assert SECRET.encode() not in gzip.decompress(data)
        assert [verdict.faults for verdict in store.verify()] == [[]]

    def test_torn_and_damaged_and_unsealed(self, tmp_path: Path) -> None:
        store = quiet(tmp_path)
        task_id = self.written_with_secrets(store, tmp_path)
        (path,) = (tmp_path / ".rawko/state/tasks").iterdir()
        data = path.read_bytes().replace(b"nothing here", b"nothing HERE " + SECRET.encode(), 1)
        path.write_bytes(data + b"\n--- Turn 3: dev ---\n[Content]\nhalf of " + SECRET.encode() + b" and")
        unsealed = path.with_name("2024-01-15T10-30-00-abc123.task")
        unsealed.write_bytes(
            b"=== TASK abc123 ===\nStatus: completed\n\n=== REQUEST ===\nUser: use " + SECRET.encode() + b"\n"
        )
        problems = len(next(iter(store.verify(task_id))).faults)
        assert problems
        for each in (task_id, "abc123"):
            assert store.redact(each).changed
        assert SECRET.encode() not in path.read_bytes() + unsealed.read_bytes()
        assert b"half of [redacted:github-token:" in path.read_bytes()
        assert b"Kind: redacted" in unsealed.read_bytes()
        faults = next(iter(store.verify(task_id))).faults
        assert [fault for fault in faults if "seal" in fault]
        assert not [fault for fault in faults if "torn" in fault]

    def test_one_that_is_being_run_is_refused(self, store: FileStore) -> None:
        task = store.start("x")
        with pytest.raises(TaskBusy):
            store.redact(task.id)
        task.close()

    def test_an_open_writer_is_told(self, tmp_path: Path) -> None:
        store = quiet(tmp_path)
        task_id = self.written_with_secrets(store, tmp_path)
        task = store.attach(task_id)
        store.redact(task_id)
        with pytest.raises(RawkoError, match="replaced by another file"):
            task.note("x")
        task.close()


class _Nothing:
    """A redactor that finds nothing."""

    def __init__(self) -> None:
        self.rules, self.patterns, self.literals = (), {}, {}  # type: ignore[var-annotated]
        self.in_runs, self.anywhere = {}, {}  # type: ignore[var-annotated]

    def text(self, text: str) -> str:
        return text

    entry = value = text

    def spans(self, text: str) -> list[object]:
        return []

    def replaced(self, text: str, spans: object, start: int = 0, end: int | None = None) -> str:
        return text[start:end]


@needs_strace
class TestKilledAnywhere:
    """At every system call that changes a file, in turn: whole here or whole there, and the index agrees."""

    CALLS = ("openat", "pwrite64", "fdatasync", "fsync", "rename", "unlink", "flock", "utimensat", "mkdir")

    def sweep(self, tmp_path: Path, what: str, prepare: Path, every: bool) -> Iterator[Path]:
        first = tmp_path / "first"
        shutil.copytree(prepare, first)
        log = tmp_path / "trace"
        command = [
            "strace",
            "-f",
            "-o",
            str(log),
            "-e",
            "trace=" + ",".join((*self.CALLS, "access", "faccessat2", "faccessat")),
        ]
        subprocess.run([*command, sys.executable, DRIVER, what, str(first)], check=True, capture_output=True)
        seen: Counter[str] = Counter()
        begin: dict[str, int] = {}
        spans: dict[str, range] = {}
        for line in log.read_text().splitlines():
            match = re.match(r"\d+\s+(\w+)\(", line)
            if not match:
                continue
            seen[match[1]] += 1
            if "rawko-begin" in line:
                begin = dict(seen)
            elif "rawko-end" in line:
                spans = {name: range(begin.get(name, 0) + 1, seen[name] + 1) for name in self.CALLS}
        assert any(len(span) for span in spans.values())
        for call, span in spans.items():
            points = list(span) if every else sample(list(span), 2)
            for point in points:
                folder = tmp_path / f"{call}-{point}"
                shutil.copytree(prepare, folder)
                done = subprocess.run(
                    ["strace", "-f", "-o", str(log), "-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={point}",
                     sys.executable, DRIVER, what, str(folder)], capture_output=True, text=True, timeout=patience(100))  # fmt: skip
                assert "killed by SIGKILL" in log.read_text(), (call, point, done.stderr)
                yield folder
                shutil.rmtree(folder)

    def whole(self, folder: Path) -> dict[str, bytes]:
        """Every task, wherever it is, by its plain name. None may be missing or in two places that differ."""
        found: dict[str, bytes] = {}
        for place in ("tasks", "trash"):
            for name, data in contents(folder, place).items():
                if ".task" in name:
                    data = gzip.decompress(data) if name.endswith(".gz") else data
                    name = name.removesuffix(".gz")
                    assert found.setdefault(name, data) == data
        return found

    @pytest.mark.parametrize("what", ["cleanup", "restore", "pack"])
    def test_each_task_is_whole_in_one_place(self, tmp_path: Path, what: str, every: bool) -> None:
        prepared = tmp_path / "prepared"
        prepared.mkdir()
        store = quiet(prepared)
        made = filled(store, 3)
        before, blobs = contents(prepared), contents(prepared, "blobs")
        if what == "restore":
            for task_id in made:
                store.delete(task_id)
        store.close()
        for folder in self.sweep(tmp_path, what, prepared, every):
            assert self.whole(folder) == before, folder
            after = quiet(folder)
            here = {name.id for name in after.journal.layout.names()}
            assert {summary.id for summary in after.history(TaskFilter())} == here
            assert not [fault for verdict in after.verify() for fault in verdict.faults if "second file" not in fault]
            after.restore()
            assert self.whole(folder) == before
            assert set(contents(folder, "blobs")) == set(blobs)
            agrees(after)
            after.close()

    def test_rewriting_is_all_or_nothing(self, tmp_path: Path, every: bool) -> None:
        prepared = tmp_path / "prepared"
        prepared.mkdir()
        store = quiet(prepared)
        task_id = TestRewriting().written_with_secrets(store, prepared)
        (before,) = contents(prepared).values()
        store.close()
        for folder in self.sweep(tmp_path, "redact", prepared, every):
            (data,) = contents(folder).values()
            assert data == before or SECRET.encode() not in data
            after = quiet(folder)
            assert [verdict.faults for verdict in after.verify()] == [[]]
            after.redact(task_id)
            after.reindex()
            assert SECRET.encode() not in next(iter(contents(folder).values()))
            agrees(after)
            after.close()


def rawko(root: Path, *args: str, code: int | None = 0, given: str | None = None) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "rawko_state", "-C", str(root), *args], capture_output=True, text=True, input=given
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert code is None or done.returncode == code, (done.stdout, done.stderr)
    return done


def configure(root: Path, text: str) -> None:
    (root / ".rawko" / "config.yaml").write_text(
        "state:\n  retention:\n" + "".join(f"    {line}\n" for line in text.split(", "))
    )


class TestCommand:
    def test_without_settings_nothing_is_removed(self, store: FileStore, tmp_path: Path) -> None:
        filled(store, 3)
        assert "nothing is ever removed" in rawko(tmp_path, "cleanup", "--yes").stdout
        assert len(contents(tmp_path)) == 3

    def test_dry_run_clean_restore(self, store: FileStore, tmp_path: Path) -> None:
        made = filled(store, 4)
        configure(tmp_path, "max_age: 30d, max_count: 2, min_keep: 1")
        shown = rawko(tmp_path, "cleanup", "--dry-run").stdout
        assert len(contents(tmp_path)) == 4
        assert f"{made[0]}  " in shown
        assert " max_age " in shown
        told = json.loads(rawko(tmp_path, "cleanup", "--dry-run", "--json").stdout)
        assert [each["id"] for each in told["removed"]] == made[:3]
        assert all(each["bytes"] > 20_000 for each in told["removed"])
        done = rawko(tmp_path, "cleanup")  # no terminal: it does not ask
        assert "3 tasks moved to the trash" in done.stdout
        assert [each["id"] for each in json.loads(rawko(tmp_path, "cleanup", "--trash", "--json").stdout)["trash"]]
        assert rawko(tmp_path, "cleanup", "--restore", made[0]).stdout == f"{made[0]}\n"
        rawko(tmp_path, "cleanup", "--restore")
        assert len(contents(tmp_path)) == 4
        assert "nothing to do" in rawko(tmp_path, "cleanup").stdout
        assert "no task" in rawko(tmp_path, "cleanup", "--restore", "zzz", code=1).stderr

    def test_a_bad_settings_file_stops_it(self, store: FileStore, tmp_path: Path) -> None:
        filled(store, 2)
        configure(tmp_path, "max_count: 0, max_age: soon")
        done = rawko(tmp_path, "cleanup", "--yes", code=1)
        assert "config.yaml:4: state.retention.max_age: expected a duration" in done.stderr
        assert len(contents(tmp_path)) == 2

    def test_it_asks_on_a_terminal(self, store: FileStore, tmp_path: Path) -> None:
        if sys.platform == "win32":
            pytest.skip("NOT TESTED HERE: needs a pseudo-terminal")
        import pty

        filled(store, 2)
        configure(tmp_path, "max_count: 0")

        def answer(text: bytes, *given: str) -> bytes:
            parent, child = pty.openpty()
            process = subprocess.Popen(
                [sys.executable, "-m", "rawko_state", "-C", str(tmp_path), "cleanup", *given],
                stdin=child,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            os.close(child)
            os.write(parent, text)
            out = process.communicate(timeout=patience(60))[0]
            os.close(parent)
            return out

        assert b"Do this? [y/N]" in answer(b"n\n")
        assert b"2 to the trash, 0 to be packed, 0 in the trash to be deleted. Do this? [y/N]" in answer(
            b"n\n", "--json"
        )
        assert len(contents(tmp_path)) == 2
        answer(b"y\n")
        assert len(contents(tmp_path)) == 0
        assert b"for good? [y/N]" in answer(b"n\n", "--empty-trash", "--json")
        assert len(store.trash()) == 2
        answer(b"", "--empty-trash", "--json", "--yes")
        assert store.trash() == []

    def test_once_a_day_in_passing_with_one_line(self, store: FileStore, tmp_path: Path) -> None:
        filled(store, 3)
        configure(tmp_path, "max_count: 1")
        done = rawko(tmp_path, "history")
        assert len(done.stdout.splitlines()) == 4, "the command itself is as it was"
        assert done.stderr.count("\n") == 1
        assert "cleanup: 2 tasks moved to the trash by max_count" in done.stderr
        filled(store, 2)
        assert rawko(tmp_path, "history").stderr == ""
        assert len(contents(tmp_path)) == 3
        stamp = tmp_path / ".rawko/state/live/cleanup.lock"
        with store.daily() as mine:
            assert not mine
        os.utime(stamp, (time.time() - DAY - 1,) * 2)
        assert "2 tasks moved" in rawko(tmp_path, "stats").stderr

    def test_a_bad_settings_file_never_fails_another_command(self, store: FileStore, tmp_path: Path) -> None:
        filled(store, 2)
        configure(tmp_path, "max_count: minus")
        done = rawko(tmp_path, "history")
        assert "no cleanup today" in done.stderr
        assert len(contents(tmp_path)) == 2
        assert rawko(tmp_path, "history").stderr == ""

    def test_deleting_by_hand_and_packing_by_settings(self, store: FileStore, tmp_path: Path) -> None:
        made = filled(store, 2)
        assert "is in the trash" in rawko(tmp_path, "task", "delete", made[0]).stderr
        assert "in the trash" in rawko(tmp_path, "history", "show", made[0], code=1).stderr
        configure(tmp_path, "compress_after: 7d")
        assert "1 task packed" in rawko(tmp_path, "cleanup", "--yes").stdout
        assert "hello 1" in rawko(tmp_path, "history", "show", made[1]).stdout
        assert made[1] in rawko(tmp_path, "history", "--search", "hello").stdout
        exported = json.loads(rawko(tmp_path, "history", "export", made[1]).stdout)
        assert exported["file"].endswith(".task")
        rawko(tmp_path, "cleanup", "--empty-trash")
        assert "no task" in rawko(tmp_path, "history", "show", made[0], code=1).stderr

    def test_redact_and_export(self, tmp_path: Path) -> None:
        store = quiet(tmp_path)
        task_id = TestRewriting().written_with_secrets(store, tmp_path)
        for form in ("json", "jsonl", "task"):
            assert "rawko redact" in rawko(tmp_path, "history", "export", task_id, "--format", form, code=1).stderr
            assert (
                SECRET
                in rawko(tmp_path, "history", "export", task_id, "--format", form, "--as-is").stdout.replace(
                    "\\n", "\n"
                )
                or form != "task"
            )
        for form in ("md", "html"):
            assert SECRET not in rawko(tmp_path, "history", "export", task_id, "--format", form).stdout
        assert "github-token" in rawko(tmp_path, "redact", "--dry-run").stdout
        told = json.loads(rawko(tmp_path, "redact", "--json").stdout)
        assert told["tasks"][0]["id"] == task_id
        TestRewriting().nowhere(tmp_path)
        assert "0 of 1 tasks" in rawko(tmp_path, "redact").stderr
        rawko(tmp_path, "history", "export", task_id)

    def test_policy_of_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from rawko_state.config.settings import load

        monkeypatch.setenv("RAWKO_STATE_RETENTION_MAX_AGE", "2w")
        monkeypatch.setenv("RAWKO_STATE_RETENTION_KEEP_FAILED", "no")
        assert policy_of(load(None)) == Policy(max_age=14 * DAY, keep_failed=False)


class TestParents:
    def test_cleanup_keeps_what_a_fork_refers_to(self, store: FileStore) -> None:
        made = filled(store, 2)
        fork = store.start("fork", parent=Parent(made[0], 1), detached=True)
        fork.finish("success")
        chosen = planned(store, Policy(max_count=1), NOW)
        assert ids(chosen) == {made[1]: COUNT}


class TestOddOnes:
    """What a review came upon."""

    def shared(self, store: FileStore) -> list[str]:
        for _ in range(2):
            with store.start("x") as task:
                task.add_turn(Turn(number=1, agent="d", tools=(ToolCall("x", output="shared " * 5000),)))
        return [summary.id for summary in store.history(TaskFilter())]

    def whole(self, store: FileStore) -> None:
        assert [verdict.faults for verdict in store.verify()] == [[]] * len(list(store.journal.layout.names()))

    def test_a_plan_from_before_a_restore_takes_nothing_that_was_restored(self, store: FileStore) -> None:
        made = filled(store, 2)
        old = planned(store, Policy(max_count=0), NOW)
        assert carry_out(store, Policy(), old).removed
        store.restore()
        assert carry_out(store, Policy(), old).removed == {}
        assert store.delete(made[0]) == made[0]

    def test_while_a_file_cannot_be_read_no_blob_is_deleted(self, store: FileStore, tmp_path: Path) -> None:
        first, second = self.shared(store)
        assert store.pack(store.retention_rows(first)[0])
        path = store.journal.layout.path(store.find(first))
        data = path.read_bytes()
        path.write_bytes(data[:-5])
        store.close()
        (tmp_path / ".rawko/state/index.db").unlink()
        again = quiet(tmp_path)
        again.delete(second)
        again.empty_trash()
        path.write_bytes(data)
        self.whole(again)

    def test_of_two_forms_the_packed_one_never_comes_back(self, store: FileStore, tmp_path: Path) -> None:
        (made,) = filled(store, 1)
        ((name, data),) = contents(tmp_path).items()
        assert store.pack(store.retention_rows(made)[0])
        plain = tmp_path / ".rawko/state/tasks" / name
        plain.write_bytes(data)
        os.chmod(plain, 0o600)
        with store.attach(made) as task:
            task.note("IMPORTANT")
        assert list(contents(tmp_path)) == [name]
        store.delete(made)
        assert contents(tmp_path) == {}
        store.restore(made)
        assert b"IMPORTANT" in next(iter(contents(tmp_path).values()))

    def test_a_leftover_goes_with_its_task(self, store: FileStore, tmp_path: Path) -> None:
        (made,) = filled(store, 1)
        ((name, data),) = contents(tmp_path).items()
        assert store.pack(store.retention_rows(made)[0])
        (tmp_path / ".rawko/state/tasks" / name).write_bytes(data)
        store.sync.fresh()
        store.delete(made)
        assert contents(tmp_path) == {}

    @pytest.mark.parametrize("cut", [0, 10, 40, -4, -1])
    def test_a_foreign_archive_that_was_cut_off_is_said_to_be(self, store: FileStore, tmp_path: Path, cut: int) -> None:
        (made,) = filled(store, 1)
        ((name, data),) = contents(tmp_path).items()
        path = tmp_path / ".rawko/state/tasks" / name
        path.with_name(name + ".gz").write_bytes(gzip.compress(data)[:cut])
        path.unlink()
        (verdict,) = store.verify()
        assert "damaged" in verdict.faults[0]
        with pytest.raises(StorageError, match="damaged"):
            store.reader(made)

    @pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
    def test_a_member_that_claims_too_much_is_read_piece_by_piece(self, store: FileStore, tmp_path: Path) -> None:
        import struct
        import zlib

        packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
        body = b"".join(packer.compress(b"\0" * (1 << 20)) for _ in range(256)) + packer.flush()
        size = 256 << 20
        crc = 0
        for _ in range(256):
            crc = zlib.crc32(b"\0" * (1 << 20), crc)
        head = struct.pack("<4sIBBH2sHII", b"\x1f\x8b\x08\x04", 0, 0, 255, 12, b"RK", 8, 24 + len(body) + 8, size)
        store.journal.layout.make()
        path = tmp_path / ".rawko/state/tasks/2026-01-01T00-00-00-bomb01.task.gz"
        path.write_bytes(head + body + struct.pack("<II", crc, size))
        # Not ru_maxrss, which a child inherits from the process that started it.
        code = (
            "from rawko_state.backends.files.store import FileStore;"
            f" list(FileStore({str(tmp_path)!r}).verify());"
            " print(*[line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')])"
        )
        done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=patience(120))
        assert int(done.stdout) < 150_000

    def test_dry_runs_change_nothing(self, store: FileStore, tmp_path: Path) -> None:
        filled(store, 3)
        configure(tmp_path, "max_count: 0")
        before = contents(tmp_path)
        for words_ in (
            ("redact", "--dry-run"),
            ("cleanup", "--dry-run"),
            ("import", "jsonl", "--dry-run", str(tmp_path)),
        ):
            rawko(tmp_path, *words_, code=None)
        assert contents(tmp_path) == before
        assert "no dry run" in rawko(tmp_path, "cleanup", "--restore", "--dry-run", code=2).stderr
        assert "one at a time" in rawko(tmp_path, "cleanup", "--trash", "--empty-trash", code=2).stderr

    def test_a_cleanup_in_passing_does_not_wait_for_others(self, store: FileStore, tmp_path: Path) -> None:
        from rawko_state.journal.locks import gate

        filled(store, 3)
        configure(tmp_path, "max_count: 0")
        with gate(tmp_path / ".rawko/state/live/blobs.lock", shared=True):
            # With a patience of an hour instead of its own, the command would still be waiting when the test's limit comes.
            rawko(tmp_path, "history")
        assert store.history(TaskFilter()) == []

    def test_what_killed_processes_left_beside_goes(self, store: FileStore, tmp_path: Path) -> None:
        filled(store, 1)
        live = tmp_path / ".rawko/state/live"
        dead = subprocess.Popen(["true"])
        dead.wait()
        for name in (f"new-{dead.pid}-abc", f"new-{os.getpid()}-abc", "new-something"):
            (live / name).write_text("x")
        rawko(tmp_path, "history")
        assert sorted(path.name for path in live.glob("new-*")) == sorted([f"new-{os.getpid()}-abc", "new-something"])

    def test_odd_lines_in_the_trashs_log(self, store: FileStore, tmp_path: Path) -> None:
        (made,) = filled(store, 1)
        store.delete(made)
        log = tmp_path / ".rawko/state/trash/log.jsonl"
        entry = json.loads(log.read_text())
        log.write_text(json.dumps({**entry, "blobs": 7, "at": []}) + "\n[]\nnonsense\n")
        assert [each.id for each in store.trash()] == [made]
        assert made in rawko(tmp_path, "cleanup", "--restore").stdout

    def test_redaction_that_was_stopped_before_its_end_is_ended_the_next_time(self, tmp_path: Path) -> None:
        store = quiet(tmp_path)
        task_id = TestRewriting().written_with_secrets(store, tmp_path)
        (tmp_path / ".rawko/state/live/reindex.due").touch()
        store.redact(task_id)
        store.close()
        rawko(tmp_path, "redact")
        TestRewriting().nowhere(tmp_path)

    def test_redaction_that_was_killed_before_the_old_outputs_went_is_ended_the_next_time(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = quiet(tmp_path)
        task_id = TestRewriting().written_with_secrets(store, tmp_path)
        clean = store.journal.put_blob(b"nobody refers to this, and it has no secret")
        (tmp_path / ".rawko/state/live/reindex.due").touch()
        with monkeypatch.context() as patched:
            patched.setattr("rawko_state.backends.files.redaction._drop", lambda *given: None)
            store.redact(task_id)
        store.close()
        assert any(SECRET.encode() in data for data in contents(tmp_path, "blobs").values())
        rawko(tmp_path, "redact")
        TestRewriting().nowhere(tmp_path)
        assert clean.sha256 in contents(tmp_path, "blobs")
        self.whole(quiet(tmp_path))

    def test_outputs_that_a_killed_emptying_left_in_the_trash_go_with_the_next(
        self, store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first, second, third = filled(store, 3)
        store.delete(first)
        with monkeypatch.context() as patched:
            patched.setattr("rawko_state.journal.trash.delete_blobs", lambda *given: None)
            store.empty_trash()
        assert len(contents(tmp_path, "trash/blobs")) == 1
        store.delete(second)
        store.delete(third)
        log = tmp_path / ".rawko/state/trash/log.jsonl"
        told = log.read_text()
        log.write_text(told.replace(f"-{third}.task", "-elsewh.task"))
        store.empty_trash(datetime.now(timezone.utc) - timedelta(days=1))
        assert len(contents(tmp_path, "trash/blobs")) == 3
        log.write_text(told)
        store.restore(third)
        store.empty_trash()
        assert contents(tmp_path, "trash/blobs") == {}
        assert len(contents(tmp_path, "blobs")) == 1
        self.whole(store)

    def test_an_output_that_is_no_text(self, tmp_path: Path) -> None:
        store = quiet(tmp_path)
        task_id = TestRewriting().written_with_secrets(store, tmp_path)
        with store.start("y") as task:
            blob = store.journal.put_blob(b"\xff\xfe" + SECRET.encode() + b"\xff" * 20_000)
            task.add_turn(Turn(number=1, agent="d", tools=(ToolCall("x", blob=blob),)))
        rawko(tmp_path, "redact")
        assert store.redact(task_id, dry_run=True).rules == {}
        assert all(SECRET.encode() not in data for data in contents(tmp_path, "blobs").values())
        self.whole(quiet(tmp_path))

    def test_a_torn_tail_is_looked_at_too(self, store: FileStore, tmp_path: Path) -> None:
        (made,) = filled(store, 1)
        (path,) = (tmp_path / ".rawko/state/tasks").iterdir()
        path.write_bytes(path.read_bytes() + b"--- Turn 9: dev ---\n[Content]\n" + SECRET.encode())
        assert store.redact(made, dry_run=True).rules == {"github-token": 1}


class TestDoctor:
    def test_it_looks_at_the_users_key_and_at_the_settings(self, store: FileStore, tmp_path: Path) -> None:
        filled(store, 1)
        assert "all is well" in rawko(tmp_path, "doctor").stdout
        key = Path(os.environ["XDG_STATE_HOME"]) / "rawko/secret"
        for path in (key, key.with_name("state.db")):
            path.chmod(0o644)
            said = rawko(tmp_path, "doctor", code=1).stdout
            assert f"chmod 600 {path}" in said
            path.chmod(0o600)
        configure(tmp_path, "max_ag: 3d")
        assert "did you mean 'state.retention.max_age'?" in rawko(tmp_path, "doctor", code=1).stdout

    def test_the_list_of_projects_has_no_passwords(self, store: FileStore, tmp_path: Path) -> None:
        filled(store, 1)
        for given_words in (("init", "-q"), ("remote", "add", "origin", "https://bob:hunter2Zebra@example.org/x.git")):
            subprocess.run(["git", "-C", str(tmp_path), *given_words], check=True)
        rawko(tmp_path, "projects", "add", str(tmp_path))
        listed = rawko(tmp_path, "projects", "list", "--json").stdout
        state = Path(os.environ["XDG_STATE_HOME"]) / "rawko/state.db"
        assert "hunter2Zebra" not in listed
        for path in state.parent.glob("state.db*"):
            assert b"hunter2Zebra" not in path.read_bytes()
