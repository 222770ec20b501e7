"""Several processes on one port."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rawko_state.errors import InvalidValue
from rawko_state.server.run import Options, run
from tests.server.clients import Client
from tests.support.machine import patience, wait_for
from tests.support.processes import children


def _is_healthy(port: int) -> bool:
    try:
        return Client(port)("GET", "/healthz")[0] == 200
    except OSError:
        return False


@pytest.mark.skipif(sys.platform == "win32", reason="NOT TESTED HERE: needs fork")
def test_workers_share_a_port_and_are_replaced(database: str, project: Path) -> None:
    words = [sys.executable, "-m", "rawko_state", "-C", str(project), "serve", "--quiet", "--port", "0"]
    process = subprocess.Popen([*words, "--database", database, "--workers", "2"], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        line = process.stderr.readline()
        assert "serving" in line, line
        port = int(line.rsplit(":", 1)[1])
        wait_for(lambda: len(children(process.pid)) == 2 and _is_healthy(port))
        ask = Client(port)
        task = ask.start()
        seals = {ask("POST", f"tasks/{task}/turns", {"agent": "a"})[1]["seal"] for _ in range(10)}
        assert len(seals) == 10
        first = children(process.pid)[0]
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: first not in children(process.pid) and len(children(process.pid)) == 2)
        wait_for(lambda: _is_healthy(port))
        left = children(process.pid)
    finally:
        process.terminate()
        process.wait(patience(60))
        log = process.stderr.read().splitlines()
        process.stderr.close()
    assert process.returncode == 0
    assert [line for line in log if f"worker {first} ended (signal 9)" in json.loads(line)["message"]], log
    assert not [pid for pid in left if Path(f"/proc/{pid}").exists()]


def test_files_have_one_process(project: Path) -> None:
    with pytest.raises(InvalidValue, match="database"):
        run(Options(project, workers=2), lambda message: None)
