"""What stands around a real PostgreSQL: pgbouncer in front of it, and a standby that takes over. From Debian's packages."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest

from tests.support.machine import patience, wait_for
from tests.support.processes import MARK, kill_family

PROGRAMS = Path("/usr/lib/postgresql/15/bin")


def _nobody() -> dict[str, Any]:
    """Neither program runs as root."""
    if os.geteuid() != 0:
        return {}
    import pwd

    found = pwd.getpwnam("nobody")
    return {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": []}


def _folder(prefix: str) -> Path:
    made = Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))
    if _nobody():
        os.chown(made, _nobody()["user"], _nobody()["group"])
    return made


class Pgbouncer:
    """In transaction mode, with few connections behind it, so that clients really share them."""

    def __init__(self, database: str, mark: str) -> None:
        program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
        if program is None:
            pytest.skip("NOT TESTED HERE: needs pgbouncer (apt-get install pgbouncer)")
        behind = urlsplit(database)
        host = parse_qs(behind.query).get("host", [behind.hostname or "localhost"])[0]
        self._folder = _folder("rawko-pgb-")
        settings = self._folder / "pgbouncer.ini"
        settings.write_text(
            f"[databases]\n* = host={host} port={behind.port or 5432} user={behind.username or 'postgres'}\n"
            f"[pgbouncer]\nlisten_port = 6432\nlisten_addr =\nunix_socket_dir = {self._folder}\nauth_type = any\n"
            "pool_mode = transaction\nmax_client_conn = 500\ndefault_pool_size = 6\nserver_lifetime = 3600\n"
            "ignore_startup_parameters = extra_float_digits\n"
        )
        settings.chmod(0o644)
        self._log = open(self._folder / "log", "wb")  # noqa: SIM115 - open as long as the process
        self._process = subprocess.Popen(
            [program, str(settings)],
            stdout=self._log,
            stderr=self._log,
            env={"PATH": os.environ["PATH"], MARK: mark},
            **_nobody(),
        )
        self.uri = f"postgresql://postgres@{behind.path}?host={self._folder}&port=6432"
        wait_for(lambda: is_up(self.uri), "pgbouncer", 60)

    def stop(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(patience(30))
        self._log.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def is_up(uri: str) -> bool:
    with (
        contextlib.suppress(psycopg.OperationalError),
        psycopg.connect(uri, connect_timeout=5, prepare_threshold=None) as found,
    ):
        return found.execute("SELECT 1").fetchone() is not None
    return False


class Pair:
    """A primary and a standby with synchronous replication: what is committed is on both."""

    def __init__(self) -> None:
        if not (PROGRAMS / "pg_basebackup").exists():
            pytest.skip("NOT TESTED HERE: needs Debian's postgresql-15")
        self._folder = _folder("rawko-pair-")
        self._log = open(self._folder / "log", "wb")  # noqa: SIM115 - open as long as the processes
        self._run("initdb", "--no-sync", "--auth=trust", "-U", "postgres", "-D", str(self._folder / "one"))
        self.primary = self._start("one", 5433, "synchronous_standby_names=*")
        with psycopg.connect(self._uri(5433), autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET synchronous_commit TO on")
            connection.execute("SET synchronous_commit TO local")
            connection.execute("SELECT pg_create_physical_replication_slot('two')")
        connection_to = f"host={self._folder} port=5433 user=postgres application_name=two"
        self._run(
            "pg_basebackup",
            "-D",
            str(self._folder / "two"),
            "-R",
            "-S",
            "two",
            "-X",
            "stream",
            "-c",
            "fast",
            "-d",
            connection_to,
        )
        self.standby = self._start("two", 5434)
        wait_for(self._is_in_step, "the standby", 60)

    @property
    def uri(self) -> str:
        return f"postgresql://postgres@/postgres?host={self._folder},{self._folder}&port=5433,5434"

    def _uri(self, port: int) -> str:
        return f"postgresql://postgres@/postgres?host={self._folder}&port={port}"

    def _start(self, name: str, port: int, *settings: str) -> subprocess.Popen[bytes]:
        given = [word for setting in ("fsync=off", "max_connections=100", *settings) for word in ("-c", setting)]
        where = ["-D", str(self._folder / name), "-h", "", "-k", str(self._folder), "-p", str(port)]
        process = subprocess.Popen(
            [str(PROGRAMS / "postgres"), *where, *given],
            cwd=self._folder,
            stdout=self._log,
            stderr=self._log,
            **_nobody(),
        )
        wait_for(lambda: is_up(self._uri(port)), "PostgreSQL", 120)
        return process

    def _run(self, program: str, *words: str) -> None:
        done = subprocess.run([str(PROGRAMS / program), *words], cwd=self._folder, capture_output=True, **_nobody())
        assert done.returncode == 0, done.stderr.decode()

    def _is_in_step(self) -> bool:
        with psycopg.connect(self._uri(5433), autocommit=True) as connection:
            found = connection.execute("SELECT sync_state FROM pg_stat_replication").fetchone()
        return found is not None and found[0] == "sync"

    def fail_over(self, meanwhile: Callable[[], None]) -> None:
        """Kills the primary with all that it started, and promotes the standby."""
        kill_family(self.primary)
        meanwhile()
        self._run("pg_ctl", "promote", "-w", "-D", str(self._folder / "two"))

    def stop(self) -> None:
        for process in (self.primary, self.standby):
            if process.poll() is None:
                kill_family(process)
        self._log.close()
        shutil.rmtree(self._folder, ignore_errors=True)
