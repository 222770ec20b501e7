"""Runs ``rawko`` in processes that are forked from one which has loaded it already: a tenth of the time of a fresh start.

Each command is a process of its own all the same, with its own environment, folder, standard streams and exit status. What is
about starting itself (modules loaded, signals while starting, a command that goes on in the background) uses a fresh one.

As a program this is the process that is forked from: it reads requests from a socket, and ends with its parent.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import pkgutil
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from typing import Any, Final

_SIZE: Final = struct.Struct("!I")


class Warm:
    """The parent's side."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._path: str | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def _started(self, mark: str) -> str:
        from tests.support.processes import MARK, STARTED

        with self._lock:
            if self._path is None:
                folder = tempfile.mkdtemp(prefix="rawko-warm-", dir="/tmp")
                self._path = f"{folder}/socket"
                self._process = subprocess.Popen(
                    [sys.executable, __file__, self._path],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env={**os.environ, MARK: mark},
                    cwd="/",
                )
                STARTED.disown(self._process)
                assert self._process.stdout is not None
                assert self._process.stdout.readline() == b"ready\n"
            return self._path

    def run(
        self, words: tuple[str, ...], given: bytes, cwd: Path | None, env: dict[str, str], timeout: float, mark: str
    ) -> subprocess.CompletedProcess[bytes]:
        path = self._started(mark)
        with contextlib.ExitStack() as stack:
            connection = stack.enter_context(socket.socket(socket.AF_UNIX))
            connection.connect(path)
            # Files, and not pipes, so that nobody has to read while the command writes.
            streams = [stack.enter_context(tempfile.TemporaryFile(dir="/tmp")) for _ in range(3)]
            streams[0].write(given)
            streams[0].seek(0)
            request = json.dumps({"words": words, "cwd": str(cwd or os.getcwd()), "env": env}).encode()
            socket.send_fds(connection, [_SIZE.pack(len(request))], [stream.fileno() for stream in streams])
            connection.sendall(request)
            connection.settimeout(timeout)
            pid = _SIZE.unpack(_exactly(connection, _SIZE.size))[0]
            try:
                code = struct.unpack("!i", _exactly(connection, 4))[0]
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                raise
            for stream in streams[1:]:
                stream.seek(0)
            out, err = (stream.read() for stream in streams[1:])
        return subprocess.CompletedProcess([*words], code, out, err)

    def stop(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait(30)
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = self._path = None


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionError("the warm process has gone")
        data += piece
    return data


# The process that is forked from


def _serve(path: str) -> None:
    import rawko_state.cli

    for module in pkgutil.iter_modules(rawko_state.cli.__path__):
        with contextlib.suppress(ImportError):  # an extra that is not installed
            importlib.import_module(f"rawko_state.cli.{module.name}")
    for name in (
        "rawko_state.backends.files.store",
        "rawko_state.backends.files.writer",
        "rawko_state.backends.remote.store",
        "yaml",
    ):
        importlib.import_module(name)
    with contextlib.suppress(ImportError):
        importlib.import_module("rawko_state.backends.postgres.store")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen(16)
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for the tests; this one ends with them
    running: dict[int, socket.socket] = {}
    print("ready", flush=True)
    while True:
        ready, _, _ = select.select([listening, woken, 0], [], [])
        if woken in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(woken, 1024)
            _report(running)
        if listening in ready:
            connection, _ = listening.accept()
            pid = _fork(connection, [listening, *running.values()], (woken, wake))
            with contextlib.suppress(OSError):
                connection.sendall(_SIZE.pack(pid))
            running[pid] = connection
        if 0 in ready and not os.read(0, 1):
            os.unlink(path)
            os.rmdir(os.path.dirname(path))
            return


def _report(running: dict[int, socket.socket]) -> None:
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            connection = running.pop(pid, None)
            if connection is not None:
                with contextlib.suppress(OSError):
                    connection.sendall(struct.pack("!i", os.waitstatus_to_exitcode(status)))
                connection.close()


def _fork(connection: socket.socket, others: list[socket.socket], wakers: tuple[int, int]) -> int:
    head, streams, _, _ = socket.recv_fds(connection, _SIZE.size, 3)
    request = json.loads(_exactly(connection, _SIZE.unpack(head)[0]))
    pid = os.fork()
    if pid:
        for stream in streams:
            os.close(stream)
        return pid
    code = 70
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for each in (connection, *others):
            each.close()
        for descriptor in wakers:
            os.close(descriptor)
        code = _run(request, streams)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _run(request: dict[str, Any], streams: list[int]) -> int:
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    os.chdir(request["cwd"])
    tempfile.tempdir = None
    sys.argv = ["rawko", *request["words"]]
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), encoding="utf-8")
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False)), encoding="utf-8")
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(io.FileIO(2, "w", closefd=False)),
        encoding="utf-8",
        errors="backslashreplace",
        line_buffering=True,
    )
    from rawko_state.cli import main

    code: Any = 0
    try:
        main()
    except SystemExit as stop:
        code = stop.code
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    import atexit

    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return code if isinstance(code, int) else 0 if code is None else 1


if __name__ == "__main__":
    _serve(sys.argv[1])
