"""Tests see nothing of the user's machine and leave nothing on it.

Each test gets an environment made from nothing but a short list, with home, settings and temporary folders of its own. At the end
of a run, the run fails if the user's real folders or the checkout have changed, or if a process that a test started still runs.
"""

from __future__ import annotations

import ipaddress
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.machine import patience
from tests.support.processes import MARK, kill_marked, marked

ROOT: Final = Path(__file__).parent.parent.parent

NOT_TESTED: Final = "NOT TESTED HERE"
_KEPT: Final = ("PATH", "LANG", "SYSTEMROOT", "PATHEXT", "COMSPEC", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONUTF8")
_KEPT_KINDS: Final = ("LC_", "PYTEST_", "RAWKO_TEST_", "RAWKO_HYPOTHESIS", "COV_", "COVERAGE_")

_REAL_HOME: Final = Path(os.path.expanduser("~"))
# Of an agent's folder only what rawko would ever write: the agent itself may be at work while the tests run.
_WATCHED: Final = (
    ".local/state/rawko", ".local/share/rawko", ".config/rawko", ".cache/rawko",
    ".claude/settings.json", ".claude/settings.local.json", ".codex/config.toml", ".codex/hooks.json", ".cowork",
    "Library/Application Support/rawko", "Library/Caches/rawko",
)  # fmt: skip


def environment(home: Path, pycache: Path, mark: str) -> dict[str, str]:
    """The whole environment of a test."""
    kept = {name: value for name, value in os.environ.items() if name.upper() in _KEPT or name.startswith(_KEPT_KINDS)}
    folders = {
        "HOME": home,
        "USERPROFILE": home,
        "XDG_STATE_HOME": home / ".local/state",
        "XDG_DATA_HOME": home / ".local/share",
        "XDG_CONFIG_HOME": home / ".config",
        "XDG_CACHE_HOME": home / ".cache",
        "XDG_RUNTIME_DIR": home / ".run",
        "APPDATA": home / "AppData/Roaming",
        "LOCALAPPDATA": home / "AppData/Local",
        "TMPDIR": home / "tmp",
        "TMP": home / "tmp",
        "TEMP": home / "tmp",
        "CLAUDE_CONFIG_DIR": home / ".claude",
        "CODEX_HOME": home / ".codex",
        "GIT_CONFIG_GLOBAL": home / ".gitconfig",
    }
    return {
        **kept,
        **{name: str(path) for name, path in folders.items()},
        "GIT_CONFIG_NOSYSTEM": "1",
        # Compiled once for all processes of a run; without it each of them would compile the whole package.
        "PYTHONPYCACHEPREFIX": str(pycache),
        "PYTHONUNBUFFERED": "1",
        MARK: mark,
    }


def enter(home: Path, pycache: Path, mark: str) -> None:
    """Makes that this process's environment; but for the temporary folder, which pytest has chosen."""
    make_home(home)
    wanted = environment(home, pycache, mark)
    for name in ("TMPDIR", "TMP", "TEMP"):
        wanted.pop(name)
        if name in os.environ:
            wanted[name] = os.environ[name]
    os.environ.clear()
    os.environ.update(wanted)


def make_home(home: Path) -> None:
    for part in ("tmp", ".run"):
        (home / part).mkdir(mode=0o700, parents=True, exist_ok=True)


def refuse_network(event: str, details: tuple[Any, ...]) -> None:
    """An audit hook: this process talks to nobody but this machine."""
    if event == "socket.connect" and isinstance(details[1], tuple) and not _is_loopback(str(details[1][0])):
        raise RuntimeError(f"a test wants to reach {details[1]!r}: tests use loopback only")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host in ("localhost", "")


def run_mark(config: pytest.Config) -> str:
    """Names this run. All workers of one run have the same."""
    given = getattr(config, "workerinput", {}).get("rawko_mark")
    if given is not None:
        return str(given)
    if not hasattr(config, "_rawko_mark"):
        config._rawko_mark = f"{os.getpid()}-{os.urandom(4).hex()}"  # type: ignore[attr-defined]
    return str(config._rawko_mark)  # type: ignore[attr-defined]


class Watch:
    """A pytest plugin, in the process that leads the run: compares the machine before and after it."""

    def __init__(self, config: pytest.Config) -> None:
        self._mark = run_mark(config)
        self._files = dict(_files())
        self._status = _git_status()
        self._wrong: list[str] = []
        self._not_tested: dict[str, list[str]] = defaultdict(list)

    def pytest_configure_node(self, node: Any) -> None:
        """xdist starts a worker."""
        node.workerinput["rawko_mark"] = self._mark

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and isinstance(report.longrepr, tuple) and NOT_TESTED in report.longrepr[2]:
            self._not_tested[report.longrepr[2].removeprefix("Skipped: ")].append(report.nodeid)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """What was not tested on this machine, and why, so that nobody has to look for it."""
        if self._not_tested:
            terminalreporter.section(NOT_TESTED, yellow=True)
        for reason, tests in sorted(self._not_tested.items()):
            terminalreporter.line(f"{reason}: {len(tests)} tests, such as {tests[0]}")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Iterator[None]:
        try:
            return (yield)
        finally:
            self._wrong = [*self._left_running(), *self._changed()]
            if os.environ.get("RAWKO_TEST_ALL"):
                self._wrong += [f"everything must be tested: {reason}" for reason in self._not_tested]
            if self._wrong:
                session.exitstatus = 1
                for line in self._wrong:
                    print(f"\nTHE RUN FAILS: {line}", file=sys.stderr)

    def _left_running(self) -> Iterator[str]:
        until = time.monotonic() + patience(30)  # what works in the background may end by itself
        while list(marked(self._mark)) and time.monotonic() < until:
            time.sleep(0.1)
        for command in kill_marked(self._mark):
            yield f"a process is still running: {command}"

    def _changed(self) -> Iterator[str]:
        now = dict(_files())
        for path in sorted(self._files.keys() | now.keys()):
            if self._files.get(path) != now.get(path):
                yield f"the user's {path} has changed"
        for line in sorted(set(_git_status()) - set(self._status)):
            yield f"the checkout has changed: {line}"


def _files() -> Iterator[tuple[str, tuple[int, int]]]:
    for name in _WATCHED:
        top = _REAL_HOME / name
        for path in (top, *top.rglob("*")) if top.exists() else ():
            found = path.lstat()
            yield str(path), (found.st_size, found.st_mtime_ns)


def _git_status() -> list[str]:
    if not (ROOT / ".git").exists():
        return []
    try:
        done = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, timeout=300)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.splitlines()
