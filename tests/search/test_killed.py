"""Search: what counts as a match, that folding changes nothing but the time, and that nothing can break it."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from rawko_state.backends.files.store import FileStore
from tests.search.searching import (
    DRIVER,
    ids,
    said,
)
from tests.support.faults import needs_strace
from tests.support.machine import patience


class TestKilled:
    @needs_strace
    @pytest.mark.parametrize(
        "call", ["openat", "write", "rename", "unlink", "unlinkat", "pwrite64", "mkdir", "flock", "close"]
    )
    def test_a_fold_killed_anywhere(self, tmp_path: Path, every: bool, call: str) -> None:
        project = tmp_path / "p"
        project.mkdir()
        store = FileStore(project, warn=lambda message: None)
        found = [said(store, f"needle n{number}") for number in range(3)]
        log = tmp_path / "trace"
        count = subprocess.run(
            ["strace", "-f", "-c", "-o", str(log), "-e", f"trace={call}", sys.executable, DRIVER, "fold", str(project)],
            capture_output=True,
            text=True,
        )
        assert count.stdout == "folded\n", count.stderr
        total = sum(int(line.split()[3]) for line in log.read_text().splitlines() if line.split()[-1:] == [call])
        found.append(said(store, "needle and more"))
        # The fold is what the process does last; most of what comes before are imports.
        points = range(max(1, total - 120), total + 1)
        chosen = list(points) if every else random.Random(call).sample(list(points), len(points))
        killed = 0
        for point in chosen:
            if killed >= 2 and not every:
                break  # an earlier fold leaves less to do, so not every point is reached
            found.append(said(store, f"needle p{point}"))
            subprocess.run(
                [
                    "strace", "-f", "-o", str(log), "-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={point}",
                    sys.executable, DRIVER, "fold", str(project),
                ],
                capture_output=True,
            )  # fmt: skip
            killed += "killed by SIGKILL" in log.read_text()
            assert sorted(ids(store, "needle")) == sorted(found)
        assert killed or not total
        store.flush(wait=True)
        assert store.unflushed() == 0
        assert sorted(ids(store, "needle")) == sorted(found)
        assert not list((project / ".rawko/state/search").glob("*.tmp"))
        store.close()

    def test_two_folds_writers_and_searches_at_once(self, tmp_path: Path) -> None:
        project = tmp_path / "p"
        project.mkdir()
        FileStore(project).start("x").close()
        running = [
            subprocess.Popen(
                [sys.executable, DRIVER, what, str(project), str(seed)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            for what, seed in (("write", 1), ("write", 2), ("folds", 1), ("folds", 2), ("searches", 1))
        ]
        for process in running:
            _, err = process.communicate(timeout=patience(200))
            assert process.returncode == 0, err.decode()
            assert err == b"", err.decode()
        store = FileStore(project)
        for _ in range(2):
            assert len(store.search("needle", turns=True).hits) == 60
            store.flush(wait=True)
        store.close()
