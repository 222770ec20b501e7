"""Cowork: ``~/.cowork/sessions.db``, and the older JSON snapshots in ``~/.cowork/sessions/*.json``. Neither is written to."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from rawko_state.exchange.sources.messages import Reader
from rawko_state.exchange.transcript import Session, Step, Trouble, safely, time_of, words
from rawko_state.format.fair_json import shallow

_MESSAGES: Final = 10**9
"""A place is the number of messages times this, plus the number of the last event."""
_SESSION_ID = re.compile(rb'"session_?[Ii]d"\s*:\s*"([\w.-]{1,200})"')
_PEEKED: Final = 1 << 16
_LARGEST: Final = 256 << 20


def found(paths: list[Path], root: Path, wrong: list[Trouble]) -> Iterator[Session]:
    home = Path.home() / ".cowork"
    for path in paths or [home / "sessions.db", home / "sessions"]:
        if path.is_dir():
            for file in sorted(path.glob("*.json")):
                yield _snapshot(file)
            if (path / "sessions.db").is_file():
                yield from _database(path / "sessions.db", wrong)
        elif path.suffix == ".json" and path.is_file():
            yield _snapshot(path)
        elif path.is_file():
            yield from _database(path, wrong)
        elif paths:
            wrong.append(Trouble(path, "No such file or folder"))


def _snapshot(path: Path) -> Session:
    """By the id that it states, as a copy may have another name."""
    try:
        with open(path, "rb") as stream:
            named = _SESSION_ID.search(stream.read(_PEEKED))
    except OSError:
        named = None
    key = named[1].decode() if named is not None else path.stem
    return Session("cowork", key, path, _read_snapshot, agent="cowork")


def _open(path: Path) -> sqlite3.Connection:
    # Without a WAL file nobody is writing to the database, so SQLite need not create any files beside it.
    still = "" if path.with_name(path.name + "-wal").exists() else "&immutable=1"
    connection = sqlite3.connect(f"file:{quote(str(path))}?mode=ro{still}", uri=True)
    connection.row_factory = sqlite3.Row
    return connection


def _database(path: Path, wrong: list[Trouble]) -> Iterator[Session]:
    try:
        connection = _open(path)
        try:
            key = _key(connection, "sessions")
            ids = [str(row[0]) for row in connection.execute(f'SELECT "{key}" FROM sessions ORDER BY 1')]
        finally:
            connection.close()
    except (sqlite3.Error, LookupError) as error:
        wrong.append(Trouble(path, f"cannot be read: {error}"))
        return
    for session in ids:
        yield Session("cowork", session, path, _read_database, at=session, agent="cowork")


def _key(connection: sqlite3.Connection, table: str) -> str:
    names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
    for name in ("session_id", "id"):
        if name in names:
            return name
    raise LookupError(f"No sessions in it: table {table} is missing")


def _row(row: sqlite3.Row) -> dict[str, Any]:
    return {name: row[name] if not isinstance(row[name], bytes) else row[name].hex() for name in row.keys()}  # noqa: SIM118


def _read_database(session: Session, start: int, wrong: list[str]) -> Iterator[tuple[int, Step]]:
    connection = _open(session.path)
    try:
        key = _key(connection, "sessions")
        meta = connection.execute(f'SELECT * FROM sessions WHERE "{key}" = ?', (session.at,)).fetchone()
        state_key = _key(connection, "session_state")
        state = connection.execute(f'SELECT * FROM session_state WHERE "{state_key}" = ?', (session.at,)).fetchone()
        events = list(connection.execute("SELECT * FROM session_events WHERE session_id = ? AND seq > ? ORDER BY seq",
                                         (session.at, start % _MESSAGES)))  # fmt: skip
    except (sqlite3.Error, LookupError) as error:
        wrong.append(f"cannot be read: {error}")
        return
    finally:
        connection.close()
    whole = {"session": _row(meta) if meta else {}, "state": _row(state) if state else {}}
    messages = _parsed(whole["state"].pop("messages_json", "[]"), wrong)
    last = start % _MESSAGES
    if events:
        number = events[-1]["seq"]
        last = number if isinstance(number, int) and 0 <= number < _MESSAGES else last
    yield from _steps(session, start, whole, messages, last, wrong)
    place = max(start, len(messages) * _MESSAGES + last)
    for event in events:
        row = _row(event)
        yield (
            place,
            Step(json.dumps({"event": row}, ensure_ascii=False), time_of(row.get("ts") or row.get("created_at"))),
        )


def _read_snapshot(session: Session, start: int, wrong: list[str]) -> Iterator[tuple[int, Step]]:
    try:
        if session.path.stat().st_size > _LARGEST:
            raise ValueError("Too large for a session snapshot")
        whole = json.loads(shallow(session.path.read_text(encoding="utf-8", errors="surrogateescape")))
        if not isinstance(whole, dict):
            raise ValueError("not an object")
    except ValueError as error:
        wrong.append(f"Not a session snapshot: {error}")
        return
    messages: Any = whole.pop("messages", None)
    for name in ("context", "session", "state"):
        inner = whole.get(name)
        if messages is None and isinstance(inner, dict):
            messages = inner.pop("messages", None)
    yield from _steps(session, start, whole, messages if isinstance(messages, list) else [], 0, wrong)


def _parsed(text: object, wrong: list[str]) -> list[Any]:
    try:
        found = json.loads(shallow(str(text or "[]")))
        return found if isinstance(found, list) else []
    except ValueError as error:
        wrong.append(f"its messages are not JSON: {error}")
        return []


def _steps(
    session: Session, start: int, whole: Mapping[str, Any], messages: list[Any], last: int, wrong: list[str]
) -> Iterator[tuple[int, Step]]:
    reader = Reader(session.agent)
    done = start // _MESSAGES
    if len(messages) < done:
        wrong.append(f"It has {len(messages)} messages, fewer than the {done} imported before; left unchanged")
        return
    if not start:
        yield (
            last,
            Step(json.dumps(whole, ensure_ascii=False), _created(whole), title=_title(whole), facts=_facts(whole)),
        )
    for number, message in enumerate(messages):
        raw = json.dumps(message, ensure_ascii=False)
        if number >= done:
            yield (number + 1) * _MESSAGES + last, safely(lambda text: reader.step_of(text, _object(text)), raw)


def _object(text: str) -> dict[str, Any]:
    found = json.loads(text)
    return found if isinstance(found, dict) else {}


def _inner(whole: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = whole.get("session")
    return inner if isinstance(inner, dict) else whole


def _created(whole: Mapping[str, Any]) -> datetime | None:
    """The start time that the session gives, inside or beside its own object."""
    names = ("created_at", "createdAt", "created", "started_at", "startedAt")
    return next((time_of(part[name]) for part in (_inner(whole), whole) for name in names if part.get(name)), None)


def _title(whole: Mapping[str, Any]) -> str | None:
    title = _inner(whole).get("title")
    return title if isinstance(title, str) else None


def _facts(whole: Mapping[str, Any]) -> dict[str, str]:
    names = {
        "working_directory": "cwd",
        "workingDirectory": "cwd",
        "cwd": "cwd",
        "model": "model",
        "provider": "provider",
    }
    return {names[name]: value for name, value in words(_inner(whole), *names).items()}
