"""The part of a hook that an agent waits for: notes that something happened, and makes sure that a sweeper runs.

It runs at every tool call of an agent, so it imports as little as a program can. It notes references only (the session, its
transcript, the folder), never what was said: that is read from the transcript by the sweeper, and redacted on the way.
"""

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

AGENTS = ("claude-code", "codex")
LOCK = "hooks.lock"
_LARGEST = 64 << 20
_SHELLS = (b"sh", b"bash", b"dash", b"zsh", b"fish", b"ash", b"ksh", b"busybox")
_NAMES = {
    "session_id": ("session_id", "thread-id", "thread_id"),
    "transcript": ("agent_transcript_path", "transcript_path"),
    "cwd": ("cwd",),
    "event": ("hook_event_name", "type"),
}


def run(agent: str, event: str | None = None) -> None:
    """Notes an event, given as JSON on standard input or as an argument. Never fails: an agent must not be disturbed."""
    cwd = None
    try:
        text = event if event is not None else sys.stdin.buffer.read(_LARGEST).decode("utf-8", "replace")
        said = _parsed(text.strip())
        if not isinstance(said, dict):
            raise ValueError("not an object")
        cwd = said.get("cwd") if isinstance(said.get("cwd"), str) else None
        note_event(agent, said)
    except Exception as error:
        from contextlib import suppress

        with suppress(Exception):
            from rawko_state.integrations.hooks import complain

            complain(cwd, f"{agent}: {type(error).__name__}: {error}")


def note_event(agent: str, event: dict[str, object], *, sweeper: bool = True) -> None:
    """Stores an event durably, and starts a sweeper unless one is running."""
    said = {name: _first(event, keys) for name, keys in _NAMES.items()}
    root = _root_of(said["cwd"])
    live = os.path.join(root, ".rawko", "state", "live")
    # Set by `rawko run`, which records what the agent streams.
    noted = {**said, "agent": agent, "task": os.environ.get("RAWKO_TASK"), "process": _agent_process()}
    line = _written(noted)
    # The event file appears atomically, so that the sweeper never reads or deletes one that is still being written.
    name = os.path.join(live, f"hook-{time.time_ns():020d}-{os.getpid()}")
    descriptor = os.open(f"{name}.new", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)
    os.rename(f"{name}.new", f"{name}.event")
    if sweeper and not _is_swept(live):
        _start(root)


class _Reading:
    """What the parser of `json` asks for."""

    def __init__(self) -> None:
        self.strict = True
        self.object_hook = self.object_pairs_hook = None
        self.parse_float, self.parse_int, self.parse_constant = float, int, float
        self.memo: dict[str, str] = {}


def _parsed(text: str) -> object:
    """The value in a JSON text. `json` itself loads `re`, which takes longer than all else that a hook does."""
    try:
        from _json import make_scanner
    except ImportError:  # another Python
        import json

        return json.loads(text)
    try:
        value, end = make_scanner(_Reading())(text, 0)  # type: ignore[arg-type]
    except StopIteration:
        raise ValueError("not JSON") from None
    if end != len(text):
        raise ValueError("more than one value")
    return value


def _written(noted: "Mapping[str, object]") -> bytes:
    """A line with a flat JSON object of texts, lists of numbers and nothing."""
    try:
        from _json import encode_basestring_ascii as quoted
    except ImportError:
        from json.encoder import encode_basestring_ascii as quoted
    values = (
        "null" if value is None else quoted(value) if isinstance(value, str) else value for value in noted.values()
    )
    parts = (f"{quoted(name)}: {value}" for name, value in zip(noted, values, strict=True))
    return f"{{{', '.join(parts)}}}\n".encode()


def _first(event: dict[str, object], keys: tuple[str, ...]) -> str | None:
    for key in keys:
        value = event.get(key)
        if isinstance(value, str):
            return value
    return None


def _agent_process() -> list[int] | None:
    """The process that runs the agent: the nearest ancestor that is no shell. With the time it began, as a process id may be
    given again. None where the system does not tell."""
    pid = os.getppid()
    while pid > 1:
        stat = process_stat(pid)
        if stat is None:
            return None
        name, parent, began = stat
        if name not in _SHELLS:
            return [pid, began]
        pid = parent
    return None


def process_stat(pid: int) -> tuple[bytes, int, int] | None:
    """The name of a process, its parent, and when it began; None if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:
            head, _, rest = stream.read().rpartition(b")")
    except OSError:
        return None
    fields = rest.split()
    return None if fields[0] in (b"Z", b"X") else (head.partition(b"(")[2], int(fields[1]), int(fields[19]))


def _root_of(cwd: str | None) -> str:
    """The project that an event belongs to, by the same rules as for commands."""
    if "RAWKO_DIR" not in os.environ:
        folder = os.path.realpath(cwd) if cwd and os.path.isdir(cwd) else os.getcwd()
        while True:
            if os.path.isdir(os.path.join(folder, ".rawko")):
                if os.path.isdir(os.path.join(folder, ".rawko", "state", "live")):
                    return folder
                break
            if folder == os.path.dirname(folder):
                break
            folder = os.path.dirname(folder)
    from rawko_state.integrations.hooks import prepared_root

    return prepared_root(cwd)


def _is_swept(live: str) -> bool:
    if os.name == "nt":
        return False
    import fcntl

    try:
        descriptor = os.open(os.path.join(live, LOCK), os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _start(root: str) -> None:
    """Starts a sweeper in the background, detached: the agent must not wait for it or see its output."""
    words = [sys.executable, "-m", "rawko_state", "-C", root, "hook", "sweep"]
    if hasattr(os, "fork"):
        if os.fork() == 0:
            try:
                os.setsid()
                null = os.open(os.devnull, os.O_RDWR)
                for standard in (0, 1, 2):
                    os.dup2(null, standard)
                os.execv(words[0], words)
            finally:
                os._exit(0)
        return
    import subprocess

    subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
