"""Hands a task over to another agent: natively if it came from there, else with a context for that agent's command line."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rawko_state.errors import RawkoError
from rawko_state.exchange.importing import grow, start
from rawko_state.exchange.sources import SOURCES, session_named, sessions
from rawko_state.exchange.turns import TurnBuilder

if TYPE_CHECKING:
    from rawko_state.exchange.transcript import Session
    from rawko_state.store.contract import Store

NATIVE: Final = ("claude", "codex")
"""Agents whose sessions we can write."""
AGENTS: Final = (*NATIVE, "aider", "opencode", "gemini")
_SOURCES: Final = {
    "claude": "claude-code",
    "codex": "codex",
    "opencode": "opencode",
    "gemini": "gemini",
    "aider": "aider",
}
BUDGET: Final = 25_000
"""Default tokens of context on a command line."""
_LONGEST: Final = 100_000
_GO_ON: Final = "Go on."


@dataclass(frozen=True, slots=True)
class HandOver:
    """How to start an agent, and which session it will have written when it exits."""

    words: list[str]
    native: bool
    session: str | None = None
    """The key of the session that it continues."""
    folder: str | None = None
    """The folder to run it in, if not the current one."""


def native_session(agent: str, source: str | None) -> Session | None:
    """The agent's own session that a task was imported from, if it still exists."""
    kind, _, key = (source or "").partition(":")
    if not key or "/" in key:
        return None
    return session_named(kind, key) if (agent, kind) in (("claude", "claude-code"), ("codex", "codex")) else None


def _run_in(session: Session | None) -> str | None:
    return TurnBuilder(session, 0, (), []).facts.values.get("cwd") if session is not None else None


def plan(
    agent: str,
    source: str | None,
    message: str | None,
    context: str,
    file: Path,
    *,
    terminal: bool,
    write: Callable[[str], str],
    extra: Sequence[str] = (),
) -> HandOver:
    """``file``: where to write a context that is too long for a command line. ``write``: writes the task as a session of the
    agent, and returns the id of that. ``extra``: more words for the agent's command line."""
    if shutil.which(agent) is None:
        raise RawkoError(f"{agent} cannot be run: there is no such command")
    session = native_session(agent, source)
    folder = _run_in(session)
    if agent == "claude" and folder is not None and not os.path.isdir(folder):
        session = None  # Claude Code finds sessions by the folder they were run in, and that folder is gone
    if session is not None:
        words = _resume_words(agent, session.key, message, terminal)
        return HandOver(
            [*words, *extra], True, session.key, folder if folder is not None and os.path.isdir(folder) else None
        )
    if agent in NATIVE:
        session_id = write(agent)
        words = _resume_words(agent, session_id, message, terminal)
        return HandOver([*words, *extra], True, session_id)
    prompt = f"{context}\n\n{message or _GO_ON}"
    if agent == "aider" or len(prompt.encode("utf-8", "replace")) > _LONGEST:
        file.write_text(prompt, encoding="utf-8", errors="replace")
        prompt = f"Read {file} first: it is what has been done so far. Then continue with the task."
    if agent == "aider":
        return HandOver(["aider", "--message-file", str(file), *extra], False)
    if agent == "opencode":
        return HandOver(["opencode", "run", *extra, prompt], False)
    return HandOver(["gemini", *extra, *(["-i"] if terminal else ["-p"]), prompt], False)


def _resume_words(agent: str, session: str, message: str | None, terminal: bool) -> list[str]:
    if agent == "claude":
        more = [message] if message else []
        return (
            ["claude", "--resume", session, *more]
            if terminal
            else ["claude", "-p", "--resume", session, message or _GO_ON]
        )
    more = [message] if message else []
    return ["codex", "resume", session, *more] if terminal else ["codex", "exec", "resume", session, message or _GO_ON]


def run(hand_over: HandOver, env: dict[str, str]) -> int:
    """Runs the agent in our terminal. Ctrl-C goes to the agent."""
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        code = subprocess.run(hand_over.words, env=env, cwd=hand_over.folder).returncode
    except OSError as error:
        raise RawkoError(f"{hand_over.words[0]} cannot be run: {error.strerror}") from None
    finally:
        signal.signal(signal.SIGINT, before)
    return 128 - code if code < 0 else code


@contextlib.contextmanager
def context_file() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="rawko-") as folder:
        yield Path(folder) / "context.md"


def bring_in(
    store: Store, task_id: str, agent: str, hand_over: HandOver, since: float, message: str | None
) -> str | None:
    """Imports what the agent has written, into the task it continued or as one that continues it. Returns that task's id."""
    session = _written(store, agent, hand_over, since)
    if session is None:
        return None
    wrong: list[str] = []
    known = store.by_source(f"{session.source}:").get(f"{session.source}:{session.key}")
    if known is not None:
        grow(store, known, session, wrong)
        return known
    # An agent that was given the context as its prompt was not asked for all of that by a person.
    asked = None if hand_over.session is not None else message or _GO_ON
    return start(store, session, wrong, ended=True, parent=task_id, asked=asked)


def _written(store: Store, agent: str, hand_over: HandOver, since: float) -> Session | None:
    """The session that an agent has written: the one it continued, or the newest of this project since it was started."""
    if hand_over.session is not None:
        return session_named(_SOURCES[agent], hand_over.session)
    if _SOURCES[agent] not in SOURCES:
        return None
    here = (os.path.realpath(store.root), os.path.realpath(os.getcwd()))
    fresh = [
        session
        for session in sessions(_SOURCES[agent], [], store.root, [])
        if session.parent is None and session.path.stat().st_mtime >= since
    ]
    for session in sorted(fresh, key=lambda each: each.path.stat().st_mtime, reverse=True):
        found = TurnBuilder(session, 0, (str(store.root),), [])
        cwd = found.facts.values.get("cwd") or (str(session.folder) if session.folder is not None else None)
        if cwd is not None and os.path.realpath(cwd) in here:
            return session
    return None
