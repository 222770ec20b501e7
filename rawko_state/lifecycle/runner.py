"""Running a command that goes on with a task, and recording what it does.

The command gets the context on its standard input and in a file, and the task in its environment. If the first line that it
prints is one of ``rawko record``'s protocol, its output is taken as that; else it is plain text, which becomes a turn. Its exit
code decides how the run ends, unless it has recorded a result itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

from rawko_state.errors import RawkoError, Stopped
from rawko_state.model.status import FINISHED

if TYPE_CHECKING:
    from rawko_state.backends.recorder import Recorder
    from rawko_state.backends.session import Task


def run(
    command: str,
    task: Task,
    recorder: Recorder,
    context: str,
    *,
    root: Path,
    agent: str,
    show: Callable[[bytes], None],
    tell: Callable[[str], None],
) -> int:
    """Runs it to its end and returns its exit code. ``show`` gets plain output, ``tell`` lines that could not be taken."""
    words = shlex.split(command)
    if not words:
        raise RawkoError("no command to run")
    with _context_file(context) as path:
        env = {
            **os.environ,
            "RAWKO_TASK": task.id,
            "RAWKO_NEXT_AGENT": agent,
            "RAWKO_CONTEXT": str(path),
            "RAWKO_PROJECT": str(root),
        }
        try:
            process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
        except OSError as error:
            raise RawkoError(f"{words[0]} cannot be run: {error.strerror}") from None
        assert process.stdin is not None
        assert process.stdout is not None
        feeding = threading.Thread(target=_feed, args=(process.stdin, context.encode("utf-8", "replace")), daemon=True)
        feeding.start()
        try:
            _record(process.stdout, task, recorder, agent, show, tell)
        except (Stopped, KeyboardInterrupt):
            _end(process)
            raise
        finally:
            process.stdout.close()
            code = process.wait()
            feeding.join()
    code = 128 - code if code < 0 else code
    if task.state.status not in FINISHED and task.refresh().status not in FINISHED:
        if code:
            task.finish("failure", error=f"{words[0]} ended with exit code {code}")
        else:
            task.finish("success")
    return code


@contextlib.contextmanager
def _context_file(context: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="rawko-") as folder:
        path = Path(folder) / "context.md"
        descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as stream:
            stream.write(context)
        yield path


def _feed(stream: IO[bytes], data: bytes) -> None:
    with contextlib.suppress(OSError):  # a command need not read it
        stream.write(data)
    with contextlib.suppress(OSError):
        stream.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()


def _record(
    stream: IO[bytes],
    task: Task,
    recorder: Recorder,
    agent: str,
    show: Callable[[bytes], None],
    tell: Callable[[str], None],
) -> None:
    """Protocol or plain text, as the first line says."""
    first = stream.readline()
    while first and not first.strip():
        first = stream.readline()
    if first and _is_protocol(first):
        for number, line in enumerate(_and_then(first, stream), 1):
            if line.strip():
                try:
                    recorder.take(line)
                except Stopped:
                    raise
                except RawkoError as error:
                    tell(f"line {number} of the command's output: {error}")
        recorder.end_turn()
        return
    if not first:
        return
    with task.turn(agent) as turn:
        for line in _and_then(first, stream):
            show(line)
            turn.say(line.decode("utf-8", "replace"))


def _and_then(first: bytes, stream: IO[bytes]) -> Iterator[bytes]:
    yield first
    yield from iter(lambda: stream.readline(1 << 20), b"")


def _is_protocol(line: bytes) -> bool:
    from rawko_state.backends.recorder import TYPES

    try:
        found = json.loads(line)
    except ValueError:
        return False
    return isinstance(found, dict) and found.get("type") in TYPES
