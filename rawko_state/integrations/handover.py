"""Hands a task over to another agent: as a session of its own if it can open one, else with a context on its command line.

What the agent does is recorded as the next run of the same task.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rawko_state.errors import RawkoError
from rawko_state.exchange.importing import grow
from rawko_state.exchange.linking import latest_session, mark_recorded
from rawko_state.exchange.sources import session_named, sessions
from rawko_state.exchange.turns import TurnBuilder
from rawko_state.model.frozen import Frozen

if TYPE_CHECKING:
    from rawko_state.exchange.transcript import Session
    from rawko_state.store.contract import Store

NATIVE: Final = ("claude", "codex")
"""Agents whose sessions we can write."""
AGENTS: Final = (*NATIVE, "aider", "opencode", "gemini")
SOURCES: Final = {
    "claude": "claude-code",
    "codex": "codex",
    "opencode": "opencode",
    "gemini": "gemini",
    "aider": "aider",
    "qwen": "qwen",
    "pi": "pi",
    "copilot": "copilot",
    "cline": "cline",
}
"""The importers of agents, by their commands."""
_CONTINUED: Final = frozenset(("claude", "codex", "opencode"))
"""Agents that can go on with a session by its name."""
BUDGET: Final = 25_000
"""Default tokens of context on a command line."""
_LONGEST: Final = 100_000
_GO_ON: Final = "Continue."


class HandOver(Frozen):
    """How to start an agent, and which session it will have written when it exits."""

    words: list[str]
    native: bool
    session: str | None = None
    """The key of the session that it continues."""
    folder: str | None = None
    """The folder to run it in, if not the current one."""


def check(agent: str) -> None:
    if shutil.which(agent) is None:
        raise RawkoError(f"Command not found: {agent}. Install it, or name another command with --with.")


def own_session(store: Store, task_id: str, agent: str) -> Session | None:
    """The agent's own session that has all of a task, if it still exists. The task is brought up to date with its last session
    first, as people also go on without us."""
    kind, _, key = (latest_session(store, task_id) or "").partition(":")
    if not key or "/" in key or kind not in SOURCES.values():
        return None
    session = session_named(kind, key)
    if session is not None:
        with contextlib.suppress(RawkoError):  # it was changed: what the task has is still there
            grow(store, task_id, session, [])
    return session if SOURCES[agent] == kind and agent in _CONTINUED else None


def _run_in(session: Session | None) -> str | None:
    return TurnBuilder(session, 0, (), []).facts.values.get("cwd") if session is not None else None


def plan(
    agent: str,
    session: Session | None,
    message: str | None,
    context: Callable[[], str],
    file: Path,
    *,
    terminal: bool,
    write: Callable[[str], str],
    extra: Sequence[str] = (),
) -> HandOver:
    """``session``: the agent's own that has all of the task. ``file``: where to write a context that is too long for a command
    line. ``write``: writes the task as a session of the agent, and returns the id of that. ``extra``: more words for the agent's
    command line."""
    folder = _run_in(session)
    if agent == "claude" and folder is not None and not os.path.isdir(folder):
        session = None  # Claude Code finds sessions by the folder they were run in, and that folder is gone
    if session is not None:
        words = _resume_words(agent, session.key, message, terminal, extra)
        return HandOver(words, True, session.key, folder if folder is not None and os.path.isdir(folder) else None)
    if agent in NATIVE:
        session_id = write(agent)
        return HandOver(_resume_words(agent, session_id, message, terminal, extra), True, session_id)
    prompt = f"{context()}\n\n{message or _GO_ON}"
    if agent == "aider" or len(prompt.encode("utf-8", "replace")) > _LONGEST:
        file.write_text(prompt, encoding="utf-8", errors="replace")
        prompt = f"Read {file} first: it is what has been done so far. Then: {message or _GO_ON}"
    if agent == "aider":
        return HandOver(["aider", "--message-file", str(file), *extra], False)
    if agent == "opencode":
        return HandOver(["opencode", "run", *extra, prompt], False)
    return HandOver(["gemini", *extra, *(["-i"] if terminal else ["-p"]), prompt], False)


def _resume_words(agent: str, session: str, message: str | None, terminal: bool, extra: Sequence[str]) -> list[str]:
    said = [message] if message else [] if terminal else [_GO_ON]
    if agent == "opencode":
        # Its terminal takes no message.
        whole = terminal and not message
        return ["opencode", *([] if whole else ["run"]), "--session", session, *extra, *([] if whole else said)]
    if agent == "claude":
        return ["claude", *([] if terminal else ["-p"]), "--resume", session, *said, *extra]
    return ["codex", *([] if terminal else ["exec"]), "resume", session, *said, *extra]


def run(hand_over: HandOver, env: dict[str, str]) -> int:
    """Runs the agent in our terminal. Ctrl-C goes to the agent."""
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        code = subprocess.run(hand_over.words, env=env, cwd=hand_over.folder).returncode
    except OSError as error:
        raise RawkoError(f"Can't run {hand_over.words[0]}: {error.strerror}.") from None
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
    """Adds what the agent has written to the task. Returns the id of the task that has it; None if there is nothing."""
    session = _written(store, agent, hand_over, since)
    if session is None:
        return None
    source = f"{session.source}:{session.key}"
    known = store.by_source(source).get(source)
    if known is None:
        mark_recorded(store, task_id, session, place=0)
        known = task_id
    # An agent that was given the context as its prompt was not asked for all of that by a person.
    asked = None if hand_over.session is not None else message or _GO_ON
    before = store.summary(known).turns
    is_more, _ = grow(store, known, session, [], asked=asked, dry_run=True)
    if is_more:
        grow(store, known, session, [], asked=asked)
    return known if hand_over.session is None or store.summary(known).turns > before else None


def _written(store: Store, agent: str, hand_over: HandOver, since: float) -> Session | None:
    """The session that an agent has written: the one it continued, or the newest of this project since it was started."""
    if hand_over.session is not None:
        return session_named(SOURCES[agent], hand_over.session)
    return next(iter(written_since(store, agent, since)), None)


def written_since(store: Store, agent: str, since: float) -> list[Session]:
    """The sessions that an agent has begun in this project since a time, the newest first."""
    here = (os.path.realpath(store.root), os.path.realpath(os.getcwd()))
    found: list[tuple[float, Session]] = []
    for session in sessions(SOURCES[agent], [], store.root, []):
        if session.parent is not None or session.path.stat().st_mtime < since:
            continue
        facts = TurnBuilder(session, 0, (str(store.root),), []).facts
        cwd = facts.values.get("cwd") or (str(session.folder) if session.folder is not None else None)
        # Some agents keep many sessions in one file, and write times without fractions.
        began = facts.first.timestamp() if facts.first is not None else since
        if cwd is None or os.path.realpath(cwd) not in here or began < since - 1:
            continue
        found.append((began, session))
    return [session for _, session in sorted(found, key=lambda each: each[0], reverse=True)]
