"""Hands a task over to another agent: natively if it came from there, else with a context for that agent's command line."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rawko_state.errors import RawkoError
from rawko_state.exchange.importing import grow, start
from rawko_state.exchange.sources import aider, codex, session_named
from rawko_state.exchange.turns import TurnBuilder

if TYPE_CHECKING:
    from rawko_state.exchange.transcript import Session
    from rawko_state.store.contract import Store

AGENTS: Final = ("claude", "codex", "aider")
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
    """The key of the session that it continues or begins."""
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


def plan(agent: str, source: str | None, message: str | None, context: str, file: Path, *, terminal: bool) -> HandOver:
    """``file``: where to write a context that is too long for a command line."""
    if shutil.which(agent) is None:
        raise RawkoError(f"{agent} cannot be run: there is no such command")
    session = native_session(agent, source)
    folder = _run_in(session)
    if agent == "claude" and folder is not None and not os.path.isdir(folder):
        session = None  # Claude Code finds sessions by the folder they were run in, and that folder is gone
    if session is not None:
        more = [message] if message else []
        if agent == "claude":
            words = (
                ["claude", "--resume", session.key, *more]
                if terminal
                else ["claude", "-p", "--resume", session.key, message or _GO_ON]
            )
        else:
            words = (
                ["codex", "resume", session.key, *more]
                if terminal
                else ["codex", "exec", "resume", session.key, message or _GO_ON]
            )
        return HandOver(words, True, session.key, folder if folder is not None and os.path.isdir(folder) else None)
    prompt = context if not message else f"{context}\n\n{message}"
    if agent == "aider" or len(prompt.encode("utf-8", "replace")) > _LONGEST:
        file.write_text(prompt, encoding="utf-8", errors="replace")
        prompt = f"Read {file} first: it is what has been done so far. Then go on with the task."
    if agent == "claude":
        key = str(uuid.uuid4())
        return HandOver(["claude", *([] if terminal else ["-p"]), "--session-id", key, prompt], False, key)
    if agent == "codex":
        return HandOver(["codex", *([] if terminal else ["exec"]), prompt], False)
    return HandOver(["aider", "--message-file", str(file)], False)


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


def bring_in(store: Store, task_id: str, agent: str, hand_over: HandOver, since: float) -> str | None:
    """Imports what the agent has written, into the task it continued or as a child of it. Returns that task's id, if any."""
    session = _written(store, agent, hand_over, since)
    if session is None:
        return None
    wrong: list[str] = []
    known = store.by_source(f"{session.source}:").get(f"{session.source}:{session.key}")
    if known is not None:
        grow(store, known, session, wrong)
        return known
    return start(store, session, wrong, ended=True, parent=task_id)


def _written(store: Store, agent: str, hand_over: HandOver, since: float) -> Session | None:
    if agent == "claude":
        return session_named("claude-code", hand_over.session or "")
    if agent == "codex":
        if hand_over.session is not None:
            return session_named("codex", hand_over.session)
        day = time.localtime(since)
        folder = codex.home() / "sessions" / time.strftime("%Y/%m/%d", day)
        fresh = sorted(
            (path for path in folder.glob("rollout-*.jsonl") if path.stat().st_mtime >= since), key=os.path.getmtime
        )
        for session in codex.found(fresh[::-1], Path(), []) if fresh else ():
            cwd = TurnBuilder(session, 0, (str(store.root),), []).facts.values.get("cwd")
            if cwd is not None and os.path.realpath(cwd) in (os.path.realpath(store.root), os.getcwd()):
                return session
        return None
    found = list(aider.found([], store.root, []))
    return found[-1] if found and found[-1].path.stat().st_mtime >= since else None
