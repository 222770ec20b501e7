"""Many workspaces on one PostgreSQL: the time to create, list, open and migrate them, and the memory of a server that serves them all.

    python bench/workspaces.py                1,000 of them
    python bench/workspaces.py --number 100

Each workspace is a schema with 24 tables. PostgreSQL is started from a Python package, or RAWKO_TEST_POSTGRES names one.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path


def memory(pid: int) -> float:
    """Resident memory in MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=1000)
    number = parser.parse_args().number
    os.environ["HOME"] = tempfile.mkdtemp(prefix="rawko-bench-home-")
    from server import postgres

    from rawko_state.backends.postgres.host import PostgresHost
    from rawko_state.server.feeds import Hub
    from rawko_state.server.workspaces import Workspaces

    with postgres() as (url, _), tempfile.TemporaryDirectory() as root:
        host = PostgresHost(url, Path(root), print)
        connection = host.postgres.connection
        begun = time.perf_counter()
        for each in range(number):
            host.create_workspace(f"w{each}")
            host.open(f"w{each}")
        made = time.perf_counter() - begun
        size = connection.execute("SELECT pg_database_size(current_database())").fetchone()[0]
        print(
            f"{number} workspaces: created in {made:.1f} s ({made / number * 1000:.0f} ms each), {size / number / 1e6:.2f} MB of database each"
        )
        begun = time.perf_counter()
        assert len(host.names()) == number
        print(f"  listed in {(time.perf_counter() - begun) * 1000:.0f} ms")
        host.close()
        before = memory(os.getpid())
        host = PostgresHost(url, Path(root), print)
        workspaces = Workspaces(host, Hub(notified=True).changed)
        begun = time.perf_counter()
        for workspace in workspaces.all():
            with workspace.store.start("x", detached=True) as task:
                task.say("hello")
        took = time.perf_counter() - begun
        print(
            f"  opened and written to, each: {took:.1f} s ({took / number * 1000:.0f} ms each), {memory(os.getpid()) - before:.0f} MB of memory"
        )
        begun = time.perf_counter()
        for workspace in workspaces.all():
            workspace.store.reconcile()
        print(f"  what a server does for all of them every 15 s: {time.perf_counter() - begun:.1f} s")
        begun = time.perf_counter()
        workspaces.check()
        print(f"  readiness: {time.perf_counter() - begun:.2f} s")
        workspaces.close()


if __name__ == "__main__":
    main()
