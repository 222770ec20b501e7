"""What is kept and what goes: the plan, the trash, packed files, rewriting; and all of them with the process killed in between."""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from rawko_state.store import TaskFilter
from tests.lifecycle.conftest import store  # noqa: F401 - fixtures
from tests.lifecycle.retention import (
    DRIVER,
    SECRET,
    agrees,
    contents,
    filled,
    written_with_secrets,
)
from tests.support.faults import alike, needs_strace, quiet, sample
from tests.support.machine import patience


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
        warm = tmp_path / "warm"
        shutil.copytree(prepare, warm)
        subprocess.run([sys.executable, DRIVER, what, str(warm)], check=True, capture_output=True)
        run = [*command, sys.executable, DRIVER, what, str(first)]
        subprocess.run(run, check=True, capture_output=True, env=alike(tmp_path / "homes/count"))
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
            points = list(span) if every else sample(list(span), 1)
            for point in points:
                folder = tmp_path / f"{call}-{point}"
                shutil.copytree(prepare, folder)
                done = subprocess.run(
                    ["strace", "-f", "-o", str(log), "-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={point}",
                     sys.executable, DRIVER, what, str(folder)], capture_output=True, text=True, timeout=patience(100),
                    env=alike(tmp_path / f"homes/{call}-{point}"))  # fmt: skip
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
        task_id = written_with_secrets(store, prepared)
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
