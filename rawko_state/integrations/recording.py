"""Runs a command as it would run without us and records it: agents' event streams as turns, all other output as text."""

from __future__ import annotations

import codecs
import contextlib
import itertools
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

from rawko_state.errors import RawkoError, Stopped
from rawko_state.exchange.sources import claude_code, codex
from rawko_state.exchange.transcript import Step, safely, stated
from rawko_state.format.fair_json import shallow
from rawko_state.integrations.steps import Steps
from rawko_state.model.status import FINISHED

if TYPE_CHECKING:
    from rawko_state.exchange.transcript import Session
    from rawko_state.store.contract import Store
    from rawko_state.tasks.live_turn import LiveTurn
    from rawko_state.tasks.task import Task

_LOOK_EVERY: Final = 0.3
_PIECE: Final = 1 << 16
_LONGEST: Final = 64 << 20
_CLAUDE: Final = frozenset(("system", "assistant", "user", "result", "stream_event"))
_COPILOT: Final = ("session.", "user.", "assistant.", "system.", "tool.", "hook.", "mcp.", "permission.")
_CLINE: Final = ("hook_event", "agent_event", "run_start", "run_result", "error")


_PROMPT_BEHIND: Final = {
    "claude": ("-p", "--print"),
    "gemini": ("-p", "--prompt", "-i", "--prompt-interactive"),
    "qwen": ("-p", "--prompt", "-i", "--prompt-interactive"),
    "pi": ("-p", "--print"),
    "copilot": ("-p", "--prompt"),
    "aider": ("-m", "--message"),
}
_PROMPT_LAST: Final = {"codex": "exec", "opencode": "run", "cline": "--json"}
"""Agents whose prompt is the last word, if this one is there too."""
_SWITCHES: Final = frozenset(
    (
        "-p",
        "--print",
        "--verbose",
        "--dangerously-skip-permissions",
        "--continue",
        "-c",
        "--include-partial-messages",
        "--yolo",
    )
)
"""Options without a value."""


def prompt_in(words: Sequence[str]) -> str | None:
    """What an agent is asked for on its command line; None if that is not certain."""
    name = os.path.basename(words[0])
    for word, following in itertools.pairwise(words):
        if word in _PROMPT_BEHIND.get(name, ()) and not following.startswith("-"):
            return following
    if len(words) < 3:
        return None
    is_last = _PROMPT_LAST.get(name) in words[1:-1] or any(word in _PROMPT_BEHIND.get(name, ()) for word in words[1:-1])
    # Behind an option, the last word may be its value.
    is_free = name in _PROMPT_LAST or not words[-2].startswith("-") or words[-2] in _SWITCHES
    is_text = not words[-1].startswith("-") and " " in words[-1].strip()
    return words[-1] if is_last and is_free and is_text else None


class Recording:
    """Records the output of a command, in pieces of any size. The first line decides how it is recorded."""

    def __init__(self, store: Store, task: Task, agent: str, *, terminal: bool) -> None:
        self._store, self._task, self._agent, self._terminal = store, task, agent, terminal
        self.steps = Steps(store, task, agent)
        self._step_of: Callable[[str], Step] | None = None
        self._known = False
        self._broken: str | None = None
        self._line = b""
        self._text: LiveTurn | None = None
        self._decode = codecs.getincrementaldecoder("utf-8")("replace")

    def take(self, piece: bytes) -> None:
        """Never fails the command: if recording fails, that is reported once, and the output still passes through."""
        if self._broken is None:
            self._guarded(lambda: self._take(piece))

    def idle(self) -> None:
        """Nothing has come for a while. An agent may have named its session meanwhile, in a file."""
        step_of = self._step_of
        if self._broken is None and step_of is not None and self.steps.session is None:
            self._guarded(lambda: self.steps.take(safely(step_of, "")))

    def finish(self) -> None:
        if self._broken is None:
            self._guarded(self.end)

    def is_text(self) -> bool:
        return self._step_of is None

    def discard_text(self) -> None:
        """Drops what was printed: the agent's own session has more."""
        self._line = b""
        if self._text is not None:
            self._text.discard()
            self._text = None

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Stopped:
            raise
        except Exception as error:
            self._broken = f"{type(error).__name__}: {error}"
            print(f"warning: Recording stopped: {self._broken} The command continues.", file=sys.stderr)
            with contextlib.suppress(Exception):
                self._task.note(f"recording stopped: {self._broken}", kind="trouble")

    def _take(self, piece: bytes) -> None:
        if self._known and self._step_of is None:
            self._say(piece)
            return
        self._line += piece
        *lines, self._line = self._line.split(b"\n")
        for number, line in enumerate(lines):
            if not self._known and line.strip():
                stream, self._known = _stream(line, self._agent), True
                if stream is not None:
                    source, self._step_of = stream
                    self.steps = Steps(self._store, self._task, self._agent, source)
                else:
                    self._say(b"\n".join([*lines[number:], self._line]))
                    self._line = b""
                    return
            if line.strip() and self._step_of is not None:
                self.steps.take(safely(self._step_of, line.rstrip(b"\r").decode("utf-8", "surrogateescape")))
        # A JSON stream begins with a brace. Anything else is recorded as it arrives, even without a line break.
        begun = self._line.lstrip()
        if len(self._line) > _LONGEST or (not self._known and begun and not begun.startswith(b"{")):
            self._plain()

    def _plain(self) -> None:
        """Treats the output as plain text from here on."""
        if self._line.strip():
            self._known, self._step_of = True, None
            line, self._line = self._line, b""
            self._say(line)

    def _say(self, piece: bytes) -> None:
        text = self._decode.decode(piece)
        text = text.replace("\r\n", "\n") if self._terminal else text
        if self._text is None:
            if not text.strip():
                return
            self._text = self._task.turn(self._agent)
        self._text.say(text)

    def end(self) -> None:
        if self._line.strip():
            if self._step_of is not None:
                self.steps.take(safely(self._step_of, self._line.decode("utf-8", "surrogateescape")))
            else:
                self._plain()
        self.steps.leave()
        if self._text is not None:
            self._text.end()
            self._text = None


def _stream(line: bytes, agent: str) -> tuple[str, Callable[[str], Step]] | None:
    """Whose stream begins with this line, and how its lines are read; None for plain text."""
    try:
        record: Any = json.loads(shallow(line))
    except ValueError:
        return None
    kind = record.get("type") if isinstance(record, dict) else None
    if not isinstance(kind, str):
        return None
    if kind.startswith(("thread.", "turn.", "item.")):
        return "codex", codex.Reader().step_of
    if kind in _CLAUDE and ("session_id" in record or "message" in record):
        if "qwen_code_version" in record:
            from rawko_state.exchange.sources import qwen

            return "qwen", qwen.Stream(agent).step_of
        return "claude-code", lambda text: claude_code.step_of(text, agent)
    return _another(kind, record)


def _another(kind: str, record: dict[str, Any]) -> tuple[str, Callable[[str], Step]] | None:
    """As above, for agents whose readers are loaded when they are needed."""
    if kind == "init" and "session_id" in record:
        from rawko_state.exchange.sources import gemini

        return "gemini", gemini.Reader().step_of
    if "sessionID" in record and ("part" in record or "error" in record):
        from rawko_state.exchange.sources import opencode

        return "opencode", opencode.Stream().step_of
    if kind == "session" and "version" in record and "cwd" in record:
        from rawko_state.exchange.sources import pi

        return "pi", pi.Reader().step_of
    if kind.startswith(_COPILOT) and "data" in record and "timestamp" in record:
        from rawko_state.exchange.sources import copilot

        return "copilot", copilot.Stream().step_of
    if kind in _CLINE and "ts" in record:
        from rawko_state.exchange.sources import cline

        return "cline", cline.Stream().step_of
    return None


def run(words: list[str], store: Store, task: Task, agent: str, env: dict[str, str]) -> int:
    """Runs the command to completion and returns its exit code: 128 plus the signal number if a signal ended it."""
    terminal = sys.stdout.isatty() and os.name != "nt"
    recording = Recording(store, task, agent, terminal=terminal)
    output = _Output(terminal)
    since = time.time()
    try:
        try:
            process = subprocess.Popen(words, stdout=output.writing, env=env)
        except OSError as error:
            raise RawkoError(f"Can't run {words[0]}: {error.strerror}.") from None
        finally:
            os.close(output.writing)
        with _signals(process, output.reading if terminal else None):
            try:
                _pass_through(process, output.reading, recording, task)
                output.close()
                while process.poll() is None:  # it has closed its output, or nobody reads ours
                    task.check()
                    time.sleep(0.05)
            except BaseException:
                _stop(process)
                raise
    finally:
        output.close()
    code = process.returncode
    session = _own_session(store, task, words[0], since) if recording.is_text() else None
    if session is not None:
        recording.discard_text()
    recording.finish()
    if session is not None:
        with contextlib.suppress(RawkoError, OSError):  # an import finds the rest
            _bring_in(store, task, session)
    code = 128 - code if code < 0 else code
    steps = recording.steps
    if task.refresh().status not in FINISHED:
        outcome, trouble = _outcome(words[0], code, steps)
        used = steps.whole()
        task.finish(outcome, error=trouble, tokens=used.tokens, cost=stated(used.cost, used.tokens))
    with contextlib.suppress(RawkoError, OSError):  # at worst the session is imported once more
        steps.settle()
    return code


def _own_session(store: Store, task: Task, command: str, since: float) -> Session | None:
    """The session that an agent has written while it printed text, or nothing: the one that its hooks told of, else the only one
    of this project that began meanwhile."""
    from rawko_state.exchange.sources import session_named
    from rawko_state.integrations import handover

    source, _, key = (store.source(task.id) or "").partition(":")
    if key:
        return session_named(source, key)
    agent = os.path.basename(command)
    if agent not in handover.SOURCES:
        return None
    try:
        known = store.by_source(f"{handover.SOURCES[agent]}:")
        found = handover.written_since(store, agent, since)
    except (RawkoError, OSError):
        return None
    new = [session for session in found if f"{session.source}:{session.key}" not in known]
    return new[0] if len(new) == 1 else None


def _bring_in(store: Store, task: Task, session: Session) -> None:
    """Records the run as the agent's own session tells it."""
    from rawko_state.exchange.importing import added
    from rawko_state.exchange.linking import link
    from rawko_state.exchange.turns import TurnBuilder

    source = f"{session.source}:{session.key}"
    if store.source(task.id) != source:
        link(store, task, source)
    builder = TurnBuilder(session, 0, (str(store.root),), [])
    began = builder.facts.first or datetime.now(timezone.utc)
    for record in builder.more(began, running=True, requested=store.summary(task.id).request):
        added(task, record)


def _outcome(command: str, code: int, steps: Steps) -> tuple[str, str | None]:
    """How the run ended, in the agent's own words if it has any."""
    if code in (130, 143) or (steps.aborted and not steps.failed and not code):
        return "cancelled", f"{command} was stopped"
    if code > 128 and not steps.failed:  # Gemini CLI ends with what is left of 400, the status of HTTP
        return "interrupted", f"{command} was ended by signal {code - 128}"
    if code or steps.failed:
        return "failure", steps.failed or f"{command} ended with exit code {code}"
    if steps.cut_off:
        return "interrupted", f"{command} ended while a tool was running"
    return "success", None


def _pass_through(process: subprocess.Popen[bytes], reading: int, recording: Recording, task: Task) -> None:
    out = sys.stdout.buffer
    while True:
        ready, _, _ = select.select([reading], [], [], _LOOK_EVERY)
        if not ready:
            task.check()
            recording.idle()
            if process.poll() is not None:
                return  # a child process of the command holds its output open
            continue
        try:
            piece = os.read(reading, _PIECE)
        except OSError:  # a pty whose other end is closed
            piece = b""
        if not piece:
            return
        try:
            out.write(piece)
            out.flush()
        except (BrokenPipeError, ValueError):
            return  # our reader is gone: let the command notice, as it would without us
        recording.take(piece)


class _Output:
    """The destination of the command's output: a pty if our output is a terminal, else a pipe."""

    def __init__(self, terminal: bool) -> None:
        if terminal:
            import pty
            import tty

            self.reading, self.writing = pty.openpty()
            _same_size(self.writing)
            tty.setraw(self.writing)  # pass its output on unchanged
        else:
            self.reading, self.writing = os.pipe()
        self._open = True

    def close(self) -> None:
        if self._open:
            self._open = False
            os.close(self.reading)


def _same_size(descriptor: int) -> None:
    import fcntl
    import termios

    with contextlib.suppress(OSError):
        size = fcntl.ioctl(sys.stdout.fileno(), termios.TIOCGWINSZ, b"\0" * 8)
        fcntl.ioctl(descriptor, termios.TIOCSWINSZ, size)


@contextlib.contextmanager
def _signals(process: subprocess.Popen[bytes], terminal: int | None) -> Iterator[None]:
    """Forwards signals that only we receive; the command gets Ctrl-C by itself. We keep running until it has ended."""

    def forward(number: int, frame: object) -> None:
        with contextlib.suppress(OSError):
            process.send_signal(number)

    # Ctrl-C in a terminal reaches both processes; a signal from a program reaches only us.
    asked = sys.stdin is not None and sys.stdin.isatty()
    wanted: dict[int, Any] = {signal.SIGINT: (lambda number, frame: None) if asked else forward}
    for name in ("SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"):
        if hasattr(signal, name):
            wanted[getattr(signal, name)] = forward
    if terminal is not None:
        wanted[signal.SIGWINCH] = lambda number, frame: _same_size(terminal)
    before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, getattr(signal, "SIGKILL", signal.SIGTERM)):
        with contextlib.suppress(OSError):
            process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(3)
            return
