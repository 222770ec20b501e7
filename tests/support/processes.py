"""Running ``rawko`` and other programs, and leaving none of them behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.support.machine import patience

RAWKO: Final = (sys.executable, "-m", "rawko_state")
MARK: Final = "RAWKO_TEST_MARK"
"""Every process that a test starts has this in its environment: which run, and which test."""


def rawko(
    root: Path | None,
    *words: str,
    code: int | None = 0,
    given: str | None = None,
    cwd: Path | None = None,
    **env: str,
) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end. ``code`` None: any exit status will do. No traceback, whatever happens."""
    where = () if root is None else ("-C", str(root))
    done = subprocess.run(
        [*RAWKO, *where, *words],
        capture_output=True,
        text=True,
        input=given if given is not None else "",
        timeout=patience(120),
        env={**os.environ, **env},
        cwd=cwd,
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert code is None or done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done


def marked(mark: str) -> Iterator[tuple[int, str]]:
    """The processes whose mark begins like this, and their commands. Linux only; elsewhere none are seen."""
    wanted = f"{MARK}={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*") if sys.platform == "linux" else ():
        pid = int(folder.name)
        try:
            if pid != os.getpid() and wanted in b"\0" + (folder / "environ").read_bytes():
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                if command:  # a zombie has none
                    yield pid, command
        except OSError:
            continue  # it has ended, or is somebody else's


def kill_marked(mark: str) -> list[str]:
    """Kills them. Returns their commands."""
    found = list(marked(mark))
    for pid, _ in found:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return [command for _, command in found]
