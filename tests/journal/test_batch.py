"""Tasks that are written together: all of an acknowledged batch is there after a crash, and of any other only whole files are."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from rawko_state.journal import batch, disk
from tests.support.faults import DRIVER, Image, acknowledged, alike, needs_root, needs_strace, quiet, sample
from tests.support.machine import patience

CALLS = ("syncfs", "fdatasync", "fsync", "rename", "pwrite64", "flock", "unlink")


def check(project: Path, lines: list[str]) -> None:
    """Every acknowledged task is there, and each one that is there is whole, with its blob."""
    store = quiet(project)
    names = {name.id for name in store.journal.layout.names()}
    assert names.issuperset(acknowledged(lines)), set(acknowledged(lines)) - names
    assert [verdict.faults for verdict in store.verify() if verdict.faults] == []
    for task_id in names:
        (call,) = store.turn(task_id, 1).tools
        assert not isinstance(call, str)
        assert store.journal.output_of(call) == f"{task_id} " * 3_000
    store.close()


def traced(folder: Path, *fault: str, bpf: bool = False) -> tuple[list[str], str]:
    log = folder / "trace"
    command = ["strace", "-f", "-o", str(log), "-e", "trace=openat," + ",".join(CALLS), *fault]
    done = subprocess.run(
        [*command, *(["--seccomp-bpf"] if bpf else []), sys.executable, DRIVER, "batch", str(folder / "p"), "3"],
        capture_output=True,
        text=True,
        timeout=patience(100),
        env=alike(folder),
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout.splitlines(), log.read_text()


@pytest.fixture(scope="module")
def spans(tmp_path_factory: pytest.TempPathFactory) -> dict[str, range]:
    """Which occurrences of each system call are of the batches."""
    folder = tmp_path_factory.mktemp("count")
    lines, log = traced(folder)
    assert len(acknowledged(lines)) == 15
    check(folder / "p", lines)
    seen: Counter[str] = Counter()
    first: dict[str, int] = {}
    for line in log.splitlines():
        match = re.match(r"\d+\s+(\w+)\(", line)
        seen[match[1] if match else ""] += 1
        if "/nonexistent-rawko-begin" in line:
            first = dict(seen)
        if "/nonexistent-rawko-end" in line:
            break
    return {call: range(first.get(call, 0) + 1, seen[call] + 1) for call in CALLS}


@needs_strace
class TestBatches:
    def test_one_sync_of_all_content_and_one_of_each_folder(self, spans: dict[str, range]) -> None:
        """Of a batch of five tasks and five blobs: thirteen syncs less than one after the other."""
        if disk._has_sync_of_all(os.stat("/tmp").st_dev):
            assert (len(spans["syncfs"]), len(spans["fdatasync"]), len(spans["fsync"])) == (3, 0, 6)
        else:
            assert (len(spans["syncfs"]), len(spans["fdatasync"]), len(spans["fsync"])) == (0, 30, 6)

    @pytest.mark.parametrize("call", ["sync", "fsync", "rename", "pwrite64", "flock"])
    def test_sigkill(self, call: str, tmp_path: Path, spans: dict[str, range], every: bool) -> None:
        call = call if call != "sync" else "syncfs" if len(spans["syncfs"]) else "fdatasync"
        points = list(spans[call])
        assert points, f"the driver makes no {call}"
        for number in points if every else sample(points, 1):
            folder = tmp_path / str(number)
            folder.mkdir()
            lines, log = traced(folder, "-e", f"inject={call}:signal=KILL:when={number}")
            assert "killed by SIGKILL" in log
            check(folder / "p", lines)

    @pytest.mark.parametrize("call", ["sync", "fsync", "rename", "pwrite64"])
    def test_a_failing_call_is_reported_and_nothing_is_acknowledged_that_may_be_lost(
        self, call: str, tmp_path: Path, spans: dict[str, range], every: bool
    ) -> None:
        call = call if call != "sync" else "syncfs" if len(spans["syncfs"]) else "fdatasync"
        points = list(spans[call])
        for number in points if every else sample(points, 1):
            folder = tmp_path / str(number)
            folder.mkdir()
            lines, log = traced(folder, "-e", f"inject={call}:error=EIO:when={number}", bpf=True)
            assert "(INJECTED)" in log
            assert any(line.startswith("error ") for line in lines)
            assert len(acknowledged(lines)) == 10  # the other two batches
            check(folder / "p", lines)
            assert not list((folder / "p" / ".rawko" / "state" / "live").glob("new-*"))


class TestLostSyncs:
    def test_after_a_failed_sync_nothing_of_the_batch_counts(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A second sync would succeed without the pages that the first one lost."""
        from rawko_state.errors import StorageError
        from rawko_state.journal.journal import Journal

        layout = Journal(tmp_path).layout
        layout.make()
        monkeypatch.setattr(batch, "_OPEN", 2)
        failing = [True]

        def fails_once(files: object) -> None:
            if failing.pop() if failing else False:
                raise StorageError("cannot sync", "x", 5)

        monkeypatch.setattr(disk, "sync_many", fails_once)
        together = batch.Batch(layout)
        together.put_blob("a")
        with pytest.raises(StorageError):
            together.put_blob("b")
        with pytest.raises(StorageError):
            together.commit()
        assert list(layout.blobs.iterdir()) == []

    def test_where_no_call_syncs_all_each_file_is_synced(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(disk, "_has_sync_of_all", lambda device: False)
        synced: list[int] = []
        monkeypatch.setattr(disk, "_data_sync", synced.append)
        files = [(os.open(tmp_path / str(n), os.O_RDWR | os.O_CREAT), tmp_path / str(n)) for n in range(5)]
        disk.sync_many(files)
        assert synced == [descriptor for descriptor, _ in files]
        for descriptor, _ in files:
            os.close(descriptor)


@needs_root
class TestPowerCutsOfBatches:
    def test_no_acknowledged_task_is_lost(self, tmp_path: Path, every: bool) -> None:
        image = Image(tmp_path, "128M")
        try:
            for number in range(20 if every else 4):
                project = image.mount / f"p{number}"
                project.mkdir()
                os.sync()
                command = [sys.executable, DRIVER, "batch", str(project), "3", "wait"]
                writer = subprocess.Popen(command, stdout=subprocess.PIPE, env=alike(tmp_path))
                assert writer.stdout is not None
                lines = [writer.stdout.readline().decode().strip() for _ in range(5 * (number % 3 + 1))]
                os.kill(writer.pid, signal.SIGSTOP)
                image.cut_power()
                os.kill(writer.pid, signal.SIGKILL)
                lines += writer.stdout.read().decode().splitlines()
                writer.wait()
                writer.stdout.close()
                image.down()
                image.up()
                assert len(acknowledged(lines)) >= 5
                check(project, lines)
        finally:
            image.away()
