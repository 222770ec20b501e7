"""Making things go wrong, and looking at what is left. Shared by the crash tests."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from rawko_state.backends.files.store import FileStore
from rawko_state.model.entries import Turn
from tests.support import hermetic
from tests.support.machine import patience
from tests.support.processes import DRIVERS, MARK

DRIVER = str(DRIVERS / "crash.py")


def needs(condition: bool, what: str) -> pytest.MarkDecorator:
    """Skips loudly elsewhere; in CI a missing tool fails the run, as the test would prove nothing."""
    return pytest.mark.skipif(not condition, reason=f"NOT TESTED HERE: needs {what}")


needs_strace = needs(sys.platform == "linux" and shutil.which("strace") is not None, "Linux and strace")
needs_root = needs(
    sys.platform == "linux" and hasattr(os, "geteuid") and os.geteuid() == 0 and shutil.which("mkfs.ext4") is not None,
    "Linux, root and mkfs.ext4 (loop mounts)",
)

CALLS = (
    "openat", "mkdir", "pwrite64", "write", "fdatasync", "fsync", "flock", "rename", "unlink", "ftruncate", "close", "lstat",
)  # fmt: skip


def alike(folder: Path) -> dict[str, str]:
    """Every run begins with an empty home, the counting one too, and compiles nothing: so all of them make the same calls."""
    home = folder / "home"
    hermetic.make_home(home)
    pycache = Path(os.environ["PYTHONPYCACHEPREFIX"])
    return {**hermetic.environment(home, pycache, os.environ[MARK]), "PYTHONDONTWRITEBYTECODE": "1"}


def counted(folder: Path) -> dict[str, range]:
    """For each system call of a whole run of the driver's steps: which occurrences lie between its two marks."""
    log = folder / "trace"
    subprocess.run([sys.executable, DRIVER, "steps", str(folder / "warm")], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(
        [
            "strace",
            "-f",
            "-o",
            str(log),
            "-e",
            "trace=" + ",".join(CALLS),
            sys.executable,
            DRIVER,
            "steps",
            str(folder / "p"),
        ],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=alike(folder),
    )
    seen: Counter[str] = Counter()
    first: dict[str, int] = {}
    found: dict[str, range] = {}
    for line in log.read_text().splitlines():
        match = re.match(r"\d+\s+(\w+)\(", line)
        if not match:
            continue
        call = match[1]
        seen[call] += 1
        if "/nonexistent-rawko-begin" in line:
            first = dict(seen)
        elif "/nonexistent-rawko-end" in line:
            found = {name: range(first.get(name, 0) + 1, seen[name] + 1) for name in seen}
    return {name: span for name, span in found.items() if len(span)}


def sample(points: list[int], count: int) -> list[int]:
    """So many of them, the first and the last among them; of one, the middle."""
    if len(points) <= count:
        return points
    if count == 1:
        return [points[len(points) // 2]]
    return [points[round(number * (len(points) - 1) / (count - 1))] for number in range(count)]


def injected(folder: Path, call: str, fault: str, *, bpf: bool) -> tuple[list[str], bool]:
    """Runs the driver's steps with a fault. Returns what it acknowledged, and whether the fault was made."""
    log = folder / "trace"
    command = ["strace", "-f", "-o", str(log), "-e", f"trace={call}", "-e", f"inject={call}:{fault}"]
    if bpf:
        command.append("--seccomp-bpf")
    done = subprocess.run(
        [*command, sys.executable, DRIVER, "steps", str(folder / "p")],
        capture_output=True,
        text=True,
        timeout=patience(100),
        env=alike(folder),
    )
    assert "Traceback" not in done.stderr, done.stderr
    text = log.read_text()
    return done.stdout.splitlines(), "(INJECTED)" in text or "killed by SIGKILL" in text


def quiet(project: Path) -> FileStore:
    """A store that keeps trouble with its index to itself: these tests are about the files."""
    return FileStore(project, warn=lambda message: None)


def acknowledged(lines: list[str]) -> list[str]:
    return [line[4:] for line in lines if line.startswith("ack ") and line != "ack "]


def check_and_go_on(project: Path, lines: list[str]) -> None:
    """Every acknowledged token is there once, nothing unfinished is shown as finished, the next writer goes on."""
    store = quiet(project)
    tokens = acknowledged(lines)
    # When the name itself could not be synced, the outcome is unknown, and a file may be there unacknowledged.
    names = list(store.journal.layout.names())
    if "request-token-0" not in tokens:
        assert len(names) <= 2
        return
    # Of a start whose outcome was unknown, another file may be there.
    (task_id,) = [line[5:] for line in lines if line.startswith("task ")] or [names[0].id]
    name = next(n for n in names if n.id == task_id)
    path = store.journal.layout.path(name)
    before = path.read_bytes()
    task = (
        store.attach(name.id) if store.status(name.id) in ("completed", "failed") else store.resume(name.id, by="check")
    )
    if task.state.status == "running":
        task.add_turn(Turn(number=1, agent="d", status="complete", content="token-after."))
        task.finish("success")
    task.close()
    after = path.read_bytes()
    header = 200  # the copied values stand there
    assert after[header : len(before)] == before[header:], "nothing that was there has changed"
    # A writer that died between its result and the copy of it in the header leaves that to the next repair.
    (verdict,) = store.verify(name.id, repair=True)
    assert all("Status or Duration" in fault for fault in verdict.faults), verdict.faults
    (verdict,) = store.verify(name.id)
    assert verdict.faults == []
    believed = "".join(
        after[block.offset : block.offset + block.length].decode()
        for record in store.journal.reader(name).records()
        if record.counts
        for block in record.blocks
    )
    for token in tokens:
        assert believed.count(token) == 1 or token.startswith("request"), (
            f"{token} is there {believed.count(token)} times"
        )
    unknown = [line[8:] for line in lines if line.startswith("unknown ")]
    for token in unknown:
        assert believed.count(token) <= 1, f"{token} was doubled"
    _only_whole_turns(store, name.id)


def _only_whole_turns(store: FileStore, task_id: str) -> None:
    """A turn that says it is complete ends its text as it was meant to end."""
    with store.reader(task_id) as reader:
        for record in reader.records():
            for block in record.blocks if record.counts else ():
                entry = block.entry()
                if isinstance(entry, Turn) and entry.status == "complete" and entry.content:
                    assert entry.content.rstrip(" ").endswith("."), entry


class Image:
    """A file system in a file, which can lose its power."""

    def __init__(self, folder: Path, size: str, *options: str) -> None:
        self.image, self.mount = folder / "image", folder / "mount"
        self.mount.mkdir()
        subprocess.run(["truncate", "-s", size, str(self.image)], check=True)
        subprocess.run(["mkfs.ext4", "-q", "-F", *options, str(self.image)], check=True)
        self.up()

    def up(self) -> None:
        subprocess.run(["mount", "-o", "loop", str(self.image), str(self.mount)], check=True)

    def down(self) -> None:
        subprocess.run(["umount", str(self.mount)], check=True)

    def away(self) -> None:
        """At the end. Lazily, as a failed test may still hold a file open, and must leave no mount behind."""
        subprocess.run(["umount", "--lazy", str(self.mount)], check=False)

    def cut_power(self) -> None:
        """EXT4_IOC_SHUTDOWN without flushing: what was not synced is gone."""
        import fcntl
        import struct

        descriptor = os.open(self.mount, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, 0x8004587D, struct.pack("I", 2))
        finally:
            os.close(descriptor)
