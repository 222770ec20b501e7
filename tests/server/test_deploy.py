"""What docs/howto/deploy.md shows is run as it stands there, on loopback."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from tests.server.clients import Client
from tests.support.machine import patience, wait_for
from tests.support.serving import Served

DEPLOY = Path(__file__).parent.parent.parent / "docs" / "howto" / "deploy.md"


def _block(language: str, holding: str) -> str:
    blocks = re.findall(rf"```{language}\n(.*?)```", DEPLOY.read_text(), re.S)
    return next(block for block in blocks if holding in block)


@pytest.mark.every
def test_the_systemd_unit_is_valid(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("NOT TESTED HERE: needs systemd-analyze")
    unit = tmp_path / "rawko.service"
    # The program is not installed here; everything else is checked as it stands.
    unit.write_text(_block("ini", "[Service]").replace("/opt/rawko/bin/rawko", "/bin/true").replace("User=rawko\n", ""))
    done = subprocess.run([program, "verify", "--man=no", str(unit)], capture_output=True, text=True)
    assert "rawko.service" not in done.stderr, done.stderr
    assert done.returncode == 0, done.stderr


@pytest.mark.every
def test_requests_and_streams_pass_nginx(server: Served, tmp_path: Path) -> None:
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is None:
        pytest.skip("NOT TESTED HERE: needs nginx (apt-get install nginx-light)")
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    shown = _block("nginx", "upstream rawko")
    here = (
        re.sub(r"server 127\.0\.0\.1:8737; server 127\.0\.0\.1:8738;", f"server 127.0.0.1:{server.port};", shown)
        .replace("listen 443 ssl;", f"listen 127.0.0.1:{port};")
        .replace("tasks.example.com", "localhost")
    )
    (tmp_path / "nginx.conf").write_text(
        f"daemon off;\npid {tmp_path}/pid;\nerror_log {tmp_path}/log;\nevents {{}}\nhttp {{\naccess_log off;\n"
        + "".join(
            f"{kind}_temp_path {tmp_path}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        + here
        + "}\n"
    )
    process = subprocess.Popen(
        [program, "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf")], stderr=subprocess.PIPE
    )
    try:
        wait_for(lambda: _answers(port), "nginx")
        ask = Client(port)
        task = ask("POST", "tasks", {"request": "x"}, Host="localhost")[1]["task"]
        assert ask("POST", f"tasks/{task}/turns", {"agent": "a"}, Host="localhost")[0] == 201
        with socket.create_connection(("127.0.0.1", port), timeout=patience(30)) as connection:
            connection.sendall(f"GET /api/v1/tasks/{task}/events/stream HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            seen = b""
            while b"event: hello" not in seen:
                piece = connection.recv(1 << 16)
                assert piece, seen
                seen += piece
    finally:
        process.terminate()
        process.wait(patience(30))
        assert process.stderr is not None
        process.stderr.close()


def _answers(port: int) -> bool:
    try:
        return Client(port)("GET", "/healthz", Host="localhost")[0] == 200
    except OSError:
        return False
