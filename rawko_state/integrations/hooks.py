"""Hooks: an agent reports events, and its transcript is recorded.

``hook_event`` writes each event to a file of its own in ``live/``. The sweeper, ``sweep``, reads the transcripts named in the
events, from where they were last read. So a missed event costs nothing: the next one finds the same data. Nothing here may fail
the agent. Errors go to ``live/hooks.log`` or, if there is no such folder, to a log in the user's state folder; `rawko doctor`
shows both.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rawko_state.integrations.hook_event import LOCK, process_stat

if TYPE_CHECKING:
    from rawko_state.exchange.transcript import Session
    from rawko_state.store.contract import ProjectStore, Store

EVENTS, LOG, WATCHED = "hook-*.event", "hooks.log", "hooks.sessions"
_DIED: Final = "died"
_OVER: Final = ("SessionEnd", _DIED)
"""Events after which the agent does not work on a session. Others are told when it stops, which may be before it is written."""
ENDS: Final = frozenset(("Stop", "SessionEnd", "SubagentStop", "agent-turn-complete", _DIED))
"""Events after which no more data is expected for now."""
_IDLE: Final = 1.5
_LOOKING: Final = 0.5
_LARGEST_LOG: Final = 1 << 20


def prepared_root(cwd: str | None) -> str:
    """The project that an event belongs to, with its folders made."""
    from rawko_state.backends.select import make_folders

    root = root_of(cwd)
    make_folders(root)
    return str(root)


def root_of(cwd: str | None) -> Path:
    """The project that an event belongs to. Without one, the folder itself becomes a project.

    The home folder never does: it would then contain every repository below it that has not been used with rawko yet.
    """
    from rawko_state.config.project import find_project
    from rawko_state.errors import NoProject

    here = Path(cwd) if cwd and os.path.isdir(cwd) else Path.cwd()
    try:
        return find_project(here)
    except NoProject:
        if Path.home().resolve().is_relative_to(here.resolve()):
            raise NoProject(f"{here} is not a project, so nothing was recorded. Make it one: rawko init") from None
        return here


def complain(cwd: str | None, text: str) -> None:
    """Logs that an event could not be stored, in the project if possible, else for the user."""
    live = None
    with contextlib.suppress(Exception):
        live = root_of(cwd) / ".rawko" / "state" / "live"
    log(live if live is not None and live.is_dir() else users_place(), text)


def users_place() -> Path:
    """The folder for errors that belong to no project."""
    from rawko_state.config import folders

    return folders.user_state()


def log(folder: Path, text: str) -> None:
    """Appends one line to the log. Ignores its own failures."""
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / LOG
        if path.exists() and path.stat().st_size > _LARGEST_LOG:
            path.unlink()
        flat = " ".join(text.split())[:1000]
        with open(path, "a", encoding="utf-8", errors="replace") as stream:
            stream.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {flat}\n")


def trouble(live: Path) -> list[tuple[str, Path]]:
    """The last lines of the logs, each with the path of its log."""
    found = []
    for path in (live / LOG, users_place() / LOG):
        with contextlib.suppress(OSError):
            found += [(line, path) for line in path.read_text(encoding="utf-8", errors="replace").splitlines()[-5:]]
    return found


def sweep(store: ProjectStore, idle: float = _IDLE) -> int:
    """Records reported events until none arrive for a while. Returns the number of events, or 0 at once if another process is
    sweeping."""
    from rawko_state.errors import StorageError

    live = _live(store)
    done = 0
    # No sweeper is started for events that arrive while we hold the lock, so check again after releasing it.
    while True:
        try:
            # A process that checks for a sweeper holds the lock for a moment.
            with store.lock(LOCK, timeout=_LOOKING):
                done += _swept(store, idle)
        except StorageError:
            break  # another sweeper is running
        if not any(live.glob(EVENTS)):
            break
    return done


def _live(store: ProjectStore) -> Path:
    return store.state_folder / "live"


def _swept(store: ProjectStore, idle: float) -> int:
    done = 0
    until = time.monotonic() + idle
    while time.monotonic() < until:
        events = _taken(_live(store))
        if events:
            done += len(events)
            _record(store, events)
            until = time.monotonic() + idle
        else:
            time.sleep(0.05)
    return done


def _taken(live: Path) -> list[dict[str, Any]]:
    """The events that have arrived, including those left by a sweeper that died."""
    events = []
    for path in sorted(live.glob(EVENTS)):
        event = None
        with contextlib.suppress(ValueError):
            event = json.loads(path.read_bytes())
        if isinstance(event, dict):
            events.append({**event, "noted": path})
        else:
            path.unlink(missing_ok=True)
    return events


def _target(files: ProjectStore) -> Store:
    """The store to record to: the server from the settings, if reachable, else the local files."""
    from rawko_state.backends.select import open_store
    from rawko_state.errors import RawkoError

    try:
        store = open_store(files.root)
        if not store.is_local:
            store.check()
            return store
    except RawkoError as error:
        log(_live(files), f"Recorded to the project's files instead: {error}")
    return files


class _Reported(NamedTuple):
    session: Session
    ended: bool
    """No more is expected for now."""
    is_alive: bool
    """The agent still runs."""


def _record(files: ProjectStore, events: list[dict[str, Any]]) -> None:
    from rawko_state.exchange.importing import grow, start
    from rawko_state.exchange.transcript import Unfinished

    store = _target(files)

    sessions: dict[str, _Reported] = {}
    for event in events:
        try:
            for session in _sessions(event):
                if not _is_recorded_otherwise(store, event.get("task"), session):
                    reported = _Reported(session, event.get("event") in ENDS, event.get("event") not in _OVER)
                    sessions[f"{session.source}:{session.key}"] = reported
        except Exception as error:  # one event must not keep the others from being recorded
            log(_live(files), f"{event.get('agent')}: {type(error).__name__}: {error}")
    known: dict[str, str] = {}
    for source in {each.session.source for each in sessions.values()}:
        known |= store.by_source(f"{source}:")
    _watch(files, sessions, events)
    for key, (session, ended, is_alive) in sessions.items():
        wrong: list[str] = []
        try:
            if key in known:
                grow(store, known[key], session, wrong, ended=ended, is_alive=is_alive)
            else:
                start(store, session, wrong, ended=ended, is_alive=is_alive)
        except Exception as error:  # the next event finds the rest
            log(_live(files), f"{session.path}: {type(error).__name__}: {error}")
        # An unfinished last line is not an error here.
        for text in wrong:
            if not isinstance(text, Unfinished):
                log(_live(files), f"{session.path}: {text}")
    for path in {event["noted"] for event in events if event["noted"] is not None}:
        path.unlink(missing_ok=True)


def _watch(files: ProjectStore, sessions: Mapping[str, _Reported], events: list[dict[str, Any]]) -> None:
    """Remembers which processes run the sessions that go on, so that it is noticed when they are gone."""
    watched = _watched(files)
    for event in events:
        key = _key_of(event)
        if key not in sessions:
            continue
        if event["event"] in _OVER or not event.get("process"):
            watched.pop(key, None)
        else:
            watched[key] = event
    _keep_watched(files, watched)


def _key_of(event: Mapping[str, Any]) -> str:
    return f"{event.get('agent')}:{event.get('session_id')}"


def _watched(files: ProjectStore) -> dict[str, dict[str, Any]]:
    try:
        found = json.loads((_live(files) / WATCHED).read_bytes())
        return found if isinstance(found, dict) else {}
    except (OSError, ValueError):
        return {}


def _keep_watched(files: ProjectStore, watched: Mapping[str, Mapping[str, Any]]) -> None:
    path = _live(files) / WATCHED
    if not watched:
        path.unlink(missing_ok=True)
        return
    kept = {key: {name: value for name, value in event.items() if name != "noted"} for key, event in watched.items()}
    new = path.with_suffix(".new")
    new.write_text(json.dumps(kept))
    new.replace(path)


def end_abandoned(files: ProjectStore) -> list[str]:
    """Ends the tasks of sessions whose agent died without a word: as their records say, mostly interrupted. Returns their ids."""
    from rawko_state.errors import StorageError
    from rawko_state.model.status import ENDED

    gone = {key: event for key, event in _watched(files).items() if _is_gone(event)}
    if not gone:
        return []
    try:
        with files.lock(LOCK, timeout=_LOOKING):
            # The sweeper that held the lock may have ended them.
            watched = _watched(files)
            gone = {key: event for key, event in gone.items() if watched.get(key) == event}
            known = files.by_source("")
            ended = {known[key] for key in gone if key in known and files.status(known[key]) in ENDED}
            _record(files, [{**event, "event": _DIED, "process": None, "noted": None} for event in gone.values()])
    except StorageError:
        return []
    known = files.by_source("")
    return [known[key] for key in gone if key in known and known[key] not in ended]


def _is_gone(event: Mapping[str, Any]) -> bool:
    """Whether the process that ran the agent is gone."""
    pid, began = event["process"]
    stat = process_stat(pid)
    return stat is None or stat[2] != began


def _is_recorded_otherwise(store: Store, task_id: object, session: Session) -> bool:
    """Whether `rawko run` records this session. Its task is told which one it is, if it does not know."""
    from rawko_state.exchange.linking import LINKED, is_running
    from rawko_state.model.entries import Note

    if not isinstance(task_id, str) or not is_running(store, task_id):
        return False
    source = f"{session.source}:{session.parent or session.key}"  # a stream has its sub-agents in it
    if store.source(task_id) is None:
        with store.attach(task_id) as task:
            task.add([Note(kind=LINKED, context="out", source=source)])
    return store.source(task_id) == source


def _sessions(event: Mapping[str, Any]) -> list[Session]:
    """The sessions that an event belongs to."""
    from rawko_state.errors import UnsafePath
    from rawko_state.exchange.sources import claude_code, codex
    from rawko_state.exchange.transcript import Trouble

    wrong: list[Trouble] = []
    found: list[Session] = []
    transcript = event.get("transcript")
    if event.get("agent") == "codex":
        thread = str(event.get("session_id") or "")
        if thread and all(c.isalnum() or c in "-_" for c in thread):
            for folder in (codex.home() / "sessions", codex.home() / "archived_sessions"):
                found += codex.found(sorted(folder.rglob(f"rollout-*-{thread}.jsonl")) or [folder / "-"], folder, [])
    elif isinstance(transcript, str) and Path(transcript).is_file():
        # Whoever sends an event could name any file, and its lines would be copied into a task.
        if not Path(transcript).resolve().is_relative_to(claude_code.home().resolve()):
            raise UnsafePath(f"{transcript} is not in {claude_code.home()}, where Claude Code keeps its sessions.")
        found = list(claude_code.found([Path(transcript)], Path(transcript).parent, wrong))
        folder = Path(transcript).with_suffix("") / "subagents"
        if folder.is_dir():
            found += claude_code.found([folder], folder, wrong)
    return found
