"""Running ``rawko`` and other programs, and leaving none of them behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tests.support.machine import patience, wait_for
from tests.support.warm import Warm

ROOT: Final = Path(__file__).parent.parent.parent
DRIVERS: Final = ROOT / "tests" / "drivers"
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
    ran = rawko_bytes(*where, *words, given=(given or "").encode("utf-8", "surrogateescape"), cwd=cwd, env=env)
    out, err = (data.decode("utf-8").replace("\r\n", "\n") for data in (ran.stdout, ran.stderr))
    done = subprocess.CompletedProcess(ran.args, ran.returncode, out, err)
    assert "Traceback" not in done.stderr, done.stderr
    assert code is None or done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done


def rawko_bytes(
    *words: str, given: bytes = b"", cwd: Path | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """The same, with bytes, and whatever it comes to."""
    whole = {**os.environ, **(env or {})}
    if hasattr(os, "fork") and whole.get("PYTHONPATH") == os.environ.get("PYTHONPATH"):
        run_mark = "-".join(os.environ[MARK].split("-")[:2])
        return WARM.run(words, given, cwd, whole, patience(120), run_mark)
    return subprocess.run([*RAWKO, *words], capture_output=True, input=given, timeout=patience(120), env=whole, cwd=cwd)


class Started:
    """The processes that this one has started, so that none of them outlives its test, and none is blamed on another test."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[Any]] = []

    def watch(self) -> None:
        """From now on. What uses subprocess is seen, whoever calls it."""
        make = subprocess.Popen.__init__

        def made(process: subprocess.Popen[Any], *given: Any, **options: Any) -> None:
            make(process, *given, **options)
            self._processes.append(process)

        subprocess.Popen.__init__ = made  # type: ignore[method-assign]

    def __contains__(self, process: object) -> bool:
        return process in self._processes

    def disown(self, process: subprocess.Popen[Any]) -> None:
        """It is meant to go on."""
        self._processes.remove(process)

    def now(self) -> int:
        """To end only what is started from now on: what wider fixtures have started goes on."""
        return len(self._processes)

    def end(self, since: int) -> list[str]:
        """Kills what still runs, and closes its pipes. Returns what had to be killed."""
        killed = []
        for process in self._processes[since:]:
            if process.poll() is None:
                killed.append(str(process.args))
                process.kill()
                process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
        del self._processes[since:]
        return killed


STARTED: Final = Started()
WARM: Final = Warm()


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


def children(pid: int) -> list[int]:
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True)
    return [int(each) for each in listed.stdout.split()]


def kill_family(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL for a process and all that it has started. It is stopped first, so that it starts no more meanwhile."""
    process.send_signal(signal.SIGSTOP)
    started = children(process.pid)
    for pid in (process.pid, *started):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait(patience(30))
    wait_for(lambda: not any(_is_alive(pid) for pid in started), "the end of all that it had started")


def _is_alive(pid: int) -> bool:
    shown = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()
    return bool(shown) and not shown.startswith("Z")
