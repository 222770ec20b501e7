"""Runs a command that continues a task, and records what it does.

The command gets the context on standard input and in a file, and the task in its environment. If its first line of output is in
the ``rawko record`` protocol, the output is read as that; otherwise it is plain text and becomes a turn. The exit code decides
how the run ends, unless the command has recorded a result itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from rawko_state.errors import RawkoError, Stopped
from rawko_state.format.fair_json import shallow
from rawko_state.model.status import RUNNING

_LOOK_EVERY: Final = 0.3
_LONGEST: Final = 32 << 20

if TYPE_CHECKING:
    from rawko_state.tasks.lines import Recorder
    from rawko_state.tasks.task import Task


def checked(command: str) -> list[str]:
    """The words of a command; raises RawkoError if it cannot be run."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise RawkoError(f"Can't parse the command {command!r}: {error}.") from None
    if not words:
        raise RawkoError("No command given.")
    if shutil.which(words[0]) is None:
        raise RawkoError(f"Command not found: {words[0]}.")
    return words


def run(
    command: str,
    task: Task,
    recorder: Recorder,
    context: str,
    *,
    root: Path,
    agent: str,
    show: Callable[[bytes], None],
    warn: Callable[[str], None],
) -> int:
    """Runs the command to completion and returns its exit code. ``show`` receives plain output, ``warn`` a message for each line
    that was rejected; if there were any, the exit code is not 0."""
    words = checked(command)
    with _context_file(context) as path:
        env = {
            **os.environ,
            "RAWKO_TASK": task.id,
            "RAWKO_NEXT_AGENT": agent,
            "RAWKO_CONTEXT": str(path),
            "RAWKO_PROJECT": str(root),
        }
        try:
            process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, start_new_session=True
            )
        except OSError as error:
            raise RawkoError(f"Can't run {words[0]}: {error.strerror}.") from None
        assert process.stdin is not None
        assert process.stdout is not None
        feeding = threading.Thread(target=_feed, args=(process.stdin, context.encode("utf-8", "replace")), daemon=True)
        feeding.start()
        try:
            refused = _record(_lines(process.stdout.fileno(), task.check), task, recorder, agent, show, warn)
            while process.poll() is None:  # it has closed its output, but is still running
                task.check()
                time.sleep(_LOOK_EVERY)
        except BaseException:
            _end(process)
            raise
        finally:
            process.stdout.close()
            feeding.join(1)
    code = process.returncode
    code = 128 - code if code < 0 else code or int(refused)
    # If the command recorded a result itself, or asks a question, keep that status.
    if task.state.status == RUNNING and task.refresh().status == RUNNING:
        if code:
            task.finish("failure", error=f"{words[0]} exited with code {code}")
        else:
            task.finish("success")
    else:
        task.close()
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
    """Terminates the process and its children."""
    for number in (signal.SIGTERM, getattr(signal, "SIGKILL", signal.SIGTERM)):
        with contextlib.suppress(OSError):
            if hasattr(os, "killpg"):
                os.killpg(process.pid, number)
            else:
                process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(3)
            return


def _lines(descriptor: int, idle: Callable[[], None]) -> Iterator[bytes]:
    """Yields lines as they arrive; a line too long for memory is split. Calls ``idle`` while waiting."""
    buffer = b""
    while True:
        ready, _, _ = select.select([descriptor], [], [], _LOOK_EVERY)
        if not ready:
            idle()
            continue
        piece = os.read(descriptor, 1 << 16)
        if not piece:
            break
        buffer += piece
        if b"\n" in piece or len(buffer) > _LONGEST:
            *whole, buffer = buffer.split(b"\n")
            yield from (line + b"\n" for line in whole)
            if len(buffer) > _LONGEST:
                yield buffer
                buffer = b""
    if buffer:
        yield buffer


def _record(
    lines: Iterator[bytes],
    task: Task,
    recorder: Recorder,
    agent: str,
    show: Callable[[bytes], None],
    warn: Callable[[str], None],
) -> bool:
    """Records protocol lines or plain text, depending on the first line. Returns whether a line was rejected."""
    first = next((line for line in lines if line.strip()), b"")
    if not first:
        return False
    if not _is_protocol(first):
        with task.turn(agent) as turn:
            for line in chain((first,), lines):
                show(line)
                turn.say(line.decode("utf-8", "replace"))
        return False
    refused = False
    for number, line in enumerate(chain((first,), lines), 1):
        if line.strip():
            try:
                recorder.take(line)
            except Stopped:
                raise
            except (RawkoError, RecursionError, UnicodeError, OverflowError) as error:
                refused = True
                warn(f"Line {number} of the command's output: {error}")
    recorder.end_turn()
    return refused


def _is_protocol(line: bytes) -> bool:
    from rawko_state.tasks.lines import TYPES

    try:
        found = json.loads(shallow(line))
    except ValueError:
        return False
    kind = found.get("type") if isinstance(found, dict) else None
    return isinstance(kind, str) and kind in TYPES
