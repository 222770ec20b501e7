"""Crashes and failing disks: what was acknowledged is there, byte for byte, and the next writer goes on."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from rawko_state.backends.files.store import FileStore
from rawko_state.errors import NotATask, OutcomeUnknown, RawkoError, StorageError
from rawko_state.format.records import emit_record, scan_bytes
from rawko_state.format.seal import GENESIS
from rawko_state.model.entries import Execution, Request, TaskHeader, Turn
from tests.support.faults import (
    DRIVER,
    Image,
    acknowledged,
    check_and_go_on,
    counted,
    injected,
    needs_root,
    needs_strace,
    quiet,
    sample,
)
from tests.support.machine import patience


def hundred_turns() -> tuple[bytes, list[int]]:
    """A sealed file of 100 turns, and where its records end."""
    header = TaskHeader(id="abc123", status="running", format=1)
    data, seal = emit_record([header, Request(text="x"), Execution()], GENESIS)
    ends = [len(data)]
    for number in range(1, 101):
        more, seal = emit_record([Turn(number=number, agent="dev", status="complete", content=f"turn {number}.")], seal)
        data += more
        ends.append(len(data))
    return data, ends


class TestTruncation:
    def test_every_cut_keeps_all_records_before_it(self, every: bool) -> None:
        data, ends = hundred_turns()
        for cut in range(len(data) + 1) if every else sorted(random.Random(2).sample(range(len(data) + 1), 600)):
            records, _ = scan_bytes(data[:cut])
            sealed = [record for record in records if record.kind == "sealed"]
            whole = sum(end <= cut for end in ends)
            # A seal that lacks only its LF is complete.
            assert len(sealed) == whole + (cut + 1 in ends and cut > 0), cut
            rest = [record for record in records if record.kind != "sealed"]
            assert sum(record.length for record in rest) == cut - (sealed[-1].end if sealed else 0)
            assert all(record.kind in ("tail", "unsealed") for record in rest)

    def test_a_writer_goes_on_after_any_cut(self, tmp_path: Path, every: bool) -> None:
        data, ends = hundred_turns()
        store = quiet(tmp_path)
        store.journal.layout.make()
        path = store.journal.layout.tasks / "2024-01-15T10-30-00-abc123.task"
        near = {end + d for end in ends[:4] for d in range(-30, 30)} | set(range(200))
        cuts = range(len(data) + 1) if every else sorted(c for c in near if 0 <= c <= len(data))
        for cut in cuts:
            path.write_bytes(data[:cut])
            if cut + 1 < ends[0]:
                # Nothing says what was asked: to go on would bury what is left of it.
                with pytest.raises(NotATask):
                    store.resume("abc123")
                continue
            task = store.resume("abc123")
            task.add_turn(Turn(number=1, agent="dev", status="complete", content="after the cut."))
            task.close()
            now = path.read_bytes()
            assert now[:cut] == data[:cut]
            records, problems = scan_bytes(now)
            # Of a file that was cut in its header it is also said that it has none.
            assert not [p for p in problems if p.code in ("seal", "torn")], (cut, problems)
            assert all(record.kind in ("sealed", "torn") for record in records)
            last = records[-1].blocks[0].entry()
            assert isinstance(last, Turn)
            assert last.content == "after the cut."
            assert last.number == sum(end <= cut + 1 for end in ends[1:]) + 1

    def test_every_flipped_bit_of_a_hundred_turns_is_noticed(self, every: bool) -> None:
        data, ends = hundred_turns()
        places = range(len(data)) if every else random.Random(1).sample(range(len(data)), 150)
        for at in places:
            for bit in range(8):
                flipped = bytearray(data)
                flipped[at] ^= 1 << bit
                records, problems = scan_bytes(bytes(flipped))
                entries = [block.entry() for record in records for block in record.blocks]
                readable = {e.content for e in entries if isinstance(e, Turn)}
                in_copies = b"Status: " in data[max(0, at - 40) : at] or b"Duration: " in data[max(0, at - 30) : at]
                assert problems or (in_copies and at < ends[0]), (at, bit)
                assert len(readable) >= 98, (at, bit)


@pytest.fixture(scope="module")
def spans(tmp_path_factory: pytest.TempPathFactory) -> dict[str, range]:
    return counted(tmp_path_factory.mktemp("count"))


@needs_strace
class TestKilledAtEverySystemCall:
    def test_a_whole_run_does_what_it_says(self, tmp_path: Path) -> None:
        lines = subprocess.run(
            [sys.executable, DRIVER, "steps", str(tmp_path / "p")], stdout=subprocess.PIPE, text=True, check=True
        ).stdout.splitlines()
        assert len(acknowledged(lines)) == 10
        check_and_go_on(tmp_path / "p", lines)

    @pytest.mark.parametrize(
        "call", ["pwrite64", "fdatasync", "fsync", "rename", "unlink", "ftruncate", "mkdir", "flock", "openat"]
    )
    def test_sigkill(self, call: str, tmp_path: Path, spans: dict[str, range], every: bool) -> None:
        points = list(spans[call])
        assert points, f"the driver makes no {call}"
        for number in points if every else sample(points, 4):
            folder = tmp_path / str(number)
            folder.mkdir()
            lines, fired = injected(folder, call, f"signal=KILL:when={number}", bpf=False)
            assert fired, f"no kill at {call} {number}"
            check_and_go_on(folder / "p", lines)


@needs_strace
class TestFailingSystemCalls:
    @pytest.mark.parametrize(
        ("call", "error"),
        [
            ("pwrite64", "ENOSPC"), ("pwrite64", "EIO"), ("pwrite64", "EDQUOT"), ("fdatasync", "EIO"), ("fdatasync", "ENOSPC"),
            ("fsync", "EIO"), ("rename", "EROFS"), ("openat", "EROFS"), ("openat", "EMFILE"), ("mkdir", "EROFS"),
            ("unlink", "EROFS"), ("ftruncate", "EIO"), ("flock", "EIO"),
        ],
    )  # fmt: skip
    @pytest.mark.parametrize("lasting", ["", "+"], ids=["once", "lasting"])
    def test_errors(
        self, call: str, error: str, lasting: str, tmp_path: Path, spans: dict[str, range], every: bool
    ) -> None:
        points = list(spans[call])
        for number in points if every else sample(points, 2):
            folder = tmp_path / f"{number}{lasting}"
            folder.mkdir()
            lines, fired = injected(folder, call, f"error={error}:when={number}{lasting}", bpf=True)
            assert fired, f"no {error} at {call} {number}"
            for line in lines:
                if line.startswith("error "):
                    assert str(folder) in line, f"an error that names no file: {line}"
            check_and_go_on(folder / "p", lines)

    def test_a_fault_during_recovery_loses_nothing(self, tmp_path: Path, every: bool) -> None:
        """Two writers in a row fail while they close the torn tail that the one before left."""
        data, _ = hundred_turns()
        store = quiet(tmp_path)
        store.journal.layout.make()
        path = store.journal.layout.tasks / "2024-01-15T10-30-00-abc123.task"
        for cut in (len(data) - 10, len(data) - 40):
            path.write_bytes(data[:cut])
            limit = cut
            for extra in (5, 21, 40):
                limit = path.stat().st_size + extra
                _with_file_limit(limit, lambda: store.resume("abc123"))
            now = path.read_bytes()
            assert now[:cut] == data[:cut]
            task = store.resume("abc123")
            task.finish("success")
            assert not scan_bytes(path.read_bytes())[1]


def _with_file_limit(limit: int, action: object) -> None:
    """Runs the action with files that cannot grow past ``limit``: the system makes the write short, then refuses."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        with pytest.raises(StorageError):
            action()  # type: ignore[operator]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, old)


class TestShortWrites:
    def test_a_full_disk_costs_no_turn_and_the_writer_goes_on_when_there_is_room(self, tmp_path: Path) -> None:
        store = quiet(tmp_path)
        task = store.start("x")
        task.add_turn(Turn(number=1, agent="d", status="complete", content="one."))
        path = store.journal.layout.path(store.find(task.id))
        for extra in range(0, 120, 7):
            size = path.stat().st_size
            turn = Turn(number=1, agent="d", status="complete", content="never finished.")
            _with_file_limit(size + extra, lambda turn=turn: task.add_turn(turn))
        task.add_turn(Turn(number=1, agent="d", status="complete", content="two."))
        task.finish("success")
        (verdict,) = store.verify(task.id)
        assert verdict.faults == []
        assert verdict.turns == 2
        assert verdict.torn > 0

    @needs_root
    def test_a_really_full_file_system(self, tmp_path: Path) -> None:
        mount = tmp_path / "small"
        mount.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(mount)], check=True)
        try:
            store = quiet(mount)
            task = store.start("x")
            kept, trouble = 0, ""
            while not trouble and kept < 1000:
                try:
                    task.add_turn(Turn(number=1, agent="d", status="complete", content="z" * 1000 + "."))
                    kept += 1
                except StorageError as error:
                    trouble = str(error)
            assert "No space left" in trouble
            assert kept > 5
            subprocess.run(["mount", "-o", "remount,size=1m", str(mount)], check=True)
            task.add_turn(Turn(number=1, agent="d", status="complete", content="after."))
            task.finish("success")
            (verdict,) = store.verify(task.id)
            assert verdict.faults == []
            assert verdict.turns == kept + 1
        finally:
            subprocess.run(["umount", "--lazy", str(mount)], check=True)


@needs_root
class TestPowerCuts:
    def _cut(self, image: Image, name: str, count: int, *mode: str) -> tuple[FileStore, list[str]]:
        """Runs the driver, cuts the power after so many acknowledgements, switches it on again. Returns what it had said."""
        project = image.mount / name
        project.mkdir()
        os.sync()
        writer = subprocess.Popen([sys.executable, DRIVER, mode[0], str(project), *mode[1:]], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        first = [writer.stdout.readline().decode().strip() for _ in range(count)]
        os.kill(writer.pid, signal.SIGSTOP)
        image.cut_power()
        os.kill(writer.pid, signal.SIGKILL)
        lines = [*first, *writer.stdout.read().decode().splitlines()]
        writer.wait()
        writer.stdout.close()
        image.down()
        image.up()
        return quiet(project), acknowledged(lines)

    def _round(self, image: Image, name: str, count: int, *unsafe: str) -> tuple[int, int]:
        """One cut. Returns how many tokens were acknowledged, and how many of those are lost."""
        store, (task_id, *tokens) = self._cut(image, name, count, "stream", *unsafe)
        try:
            task = store.resume(task_id)
        except RawkoError:
            store.close()
            if unsafe:
                return len(tokens), len(tokens)
            raise
        task.finish("success")
        text = store.journal.layout.path(store.find(task.id)).read_bytes()
        (verdict,) = store.verify(task.id)
        store.close()
        if not unsafe:
            assert verdict.faults == []
        return len(tokens), sum(text.count(token.encode()) != 1 for token in tokens)

    def test_a_task_that_was_only_started_is_there(self, tmp_path: Path) -> None:
        image = Image(tmp_path, "64M")
        try:
            for number in range(5):
                store, (task_id,) = self._cut(image, f"p{number}", 1, "start")
                assert store.status(task_id) == "interrupted"
                store.close()
        finally:
            image.away()

    def test_no_acknowledged_turn_is_lost_and_a_control_without_sync_loses_some(
        self, tmp_path: Path, every: bool
    ) -> None:
        image = Image(tmp_path, "256M")
        try:
            chance = random.Random(7)
            said = 0
            for number in range(100 if every else 12):
                count, lost = self._round(image, f"p{number}", chance.randrange(1, 30))
                assert lost == 0, f"round {number}: {lost} of {count} acknowledged turns are lost"
                said += count
            assert said > 100
            assert sum(self._round(image, f"c{number}", 10, "unsafe")[1] for number in range(5)) > 0
        finally:
            image.away()

    def test_a_failed_sync_is_never_taken_for_success(self, tmp_path: Path) -> None:
        """Writeback that fails takes synced neighbours along, and later syncs return 0 all the same. What was acknowledged
        before is saved by the next writer; what this kernel does with blocks that failed once is not in our hands."""
        small = tmp_path / "small"
        small.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=14m", "tmpfs", str(small)], check=True)
        image = Image(small, "64M", "-J", "size=4", "-b", "4096", "-E", "lazy_itable_init=0,lazy_journal_init=0")
        try:
            store = quiet(image.mount)
            task = store.start("x")
            kept, seal = 0, ""
            try:
                for _ in range(2000):
                    task.add_turn(Turn(number=1, agent="d", status="complete", content=os.urandom(8000).hex() + "."))
                    kept += 1
            except OutcomeUnknown as error:
                seal = error.seal
            except StorageError:
                pass
            assert seal, "the disk never failed"
            subprocess.run(["mount", "-o", "remount,size=100m", str(small)], check=True)
            again = quiet(image.mount).attach(task.id)
            again.add_turn(Turn(number=1, agent="d", status="complete", content="after."))
            again.close()
            task.close()
            Path("/proc/sys/vm/drop_caches").write_text("3")
            (verdict,) = quiet(image.mount).verify(task.id)
            assert kept > 100
            assert verdict.turns >= kept
        finally:
            image.away()
            subprocess.run(["umount", "--lazy", str(small)], check=True)


class TestManyWriters:
    def _run(self, commands: list[list[str]], kills: int) -> list[str]:
        writers = [subprocess.Popen([sys.executable, DRIVER, *c], stdout=subprocess.PIPE, text=True) for c in commands]
        chance = random.Random(3)
        for _ in range(kills):
            time.sleep(chance.uniform(0.05, 0.25))
            victim = chance.choice(writers)
            victim.kill()
        lines: list[str] = []
        for writer in writers:
            out, _ = writer.communicate(timeout=patience(250))
            lines += [line for line in out.splitlines() if line.endswith(".")]
        return [line[4:] for line in lines if line.startswith("ack ")]

    def _check(self, project: Path, acknowledged: list[str]) -> None:
        store = quiet(project)
        tokens: Counter[str] = Counter()
        for name in store.journal.layout.names():
            with store.journal.reader(name) as reader:
                for record in reader.records():
                    for block in record.blocks if record.counts else ():
                        entry = block.entry()
                        if isinstance(entry, Turn):
                            tokens[f"{name.id} {entry.content}"] += 1
        missing = [line for line in acknowledged if tokens[line] != 1]
        assert not missing
        assert all(count == 1 for count in tokens.values())
        bad = [v for v in store.verify(repair=True) if v.faults and not v.repaired]
        assert not bad
        assert all(not v.faults for v in store.verify())

    def test_eight_processes_with_tasks_of_their_own(self, tmp_path: Path, every: bool) -> None:
        count = 200 if every else 25
        lines = self._run([["many", str(tmp_path), str(count)]] * 8, kills=3)
        assert len(lines) > 5 * count
        self._check(tmp_path, lines)

    def test_eight_processes_appending_to_one_task(self, tmp_path: Path, every: bool) -> None:
        task = quiet(tmp_path).start("shared", detached=True)
        task.close()
        count = 200 if every else 40
        lines = self._run([["one", str(tmp_path), task.id, str(count)]] * 8, kills=3)
        assert len(lines) > count
        self._check(tmp_path, lines)
        with quiet(tmp_path).reader(task.id) as reader:
            numbers = [
                entry.number
                for record in reader.records()
                for block in record.blocks
                if isinstance(entry := block.entry(head_only=True), Turn)
            ]
        assert numbers == list(range(1, len(numbers) + 1))

    def test_sixteen_threads_with_one_task_in_processes_that_are_killed(self, tmp_path: Path, every: bool) -> None:
        task = quiet(tmp_path).start("shared", detached=True)
        task.close()
        count = 50 if every else 5
        lines = self._run([["threads", str(tmp_path), task.id, str(count)]] * 3, kills=2)
        assert len(lines) >= 16 * count
        self._check(tmp_path, lines)
