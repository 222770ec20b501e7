"""opencode: ``~/.local/share/opencode/opencode.db``, and the stream of ``opencode run --format json``.

Messages and their parts are rows that opencode inserts when they begin and updates until they end. They are read in the order
of their beginning. A place says when the last row that was read began, how many there were, and whether the last answer was
still under way; then it says when that was last updated. So what has begun since is new, and of that answer what has ended since.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from rawko_state.exchange.sources.messages import asked_of
from rawko_state.exchange.transcript import (
    LONGEST_LINE,
    Aside,
    Call,
    Output,
    Session,
    Step,
    Trouble,
    counts,
    dollars,
    files,
    mapping,
    object_of,
    objects,
    only,
    safely,
    text_of,
    text_or_none,
    time_of,
)
from rawko_state.format.diffs import compared, overwritten, patch_of, replacement
from rawko_state.format.fair_json import shallow
from rawko_state.model.entries import Diff
from rawko_state.model.frozen import replace

_WAIT: Final = 2.0
"""Seconds to wait for a database that is locked."""
_TRIES: Final = 5
_LARGEST_COPY: Final = 4 << 30
_COUNTED: Final = 1 << 10
_LATER: Final = (1 << 33) - 1
"""The most milliseconds from the beginning of a row to its last update that a place can say."""
_PARTS: Final = frozenset(("step-start", "step-finish", "snapshot", "agent", "file", "subtask", "retry"))
_WRITES: Final = frozenset(("edit", "write", "multiedit", "patch", "apply_patch"))
_UNTITLED: Final = ("New session - ", "Child session - ")
_EVENTS: Final = {
    "text": "text",
    "reasoning": "reasoning",
    "tool_use": "tool",
    "step_start": "",
    "step_finish": "step-finish",
}


def home() -> Path:
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "opencode"


def _databases() -> list[Path]:
    """The database in use; pre-releases have one of their own beside it."""
    named = os.environ.get("OPENCODE_DB")
    return [home() / named] if named and named != ":memory:" else sorted(home().glob("opencode*.db"))


def found(paths: list[Path], root: Path, wrong: list[Trouble]) -> Iterator[Session]:
    for path in files(paths, _databases(), "opencode*.db", wrong):
        try:
            with _opened(path) as database:
                sessions = [_session(path, row) for row in database.execute(_SESSIONS)]
        except (sqlite3.Error, OSError, _Unread) as error:
            wrong.append(Trouble(path, f"cannot be read: {error}"))
            continue
        yield from sessions


def named(key: str) -> Session | None:
    for path in _databases():
        with contextlib.suppress(sqlite3.Error, OSError, _Unread), _opened(path) as database:
            for row in database.execute(f"{_SESSIONS} WHERE id = ?", (key,)):
                return _session(path, row)
    return None


_SESSIONS: Final = "SELECT id, parent_id, directory, agent FROM session"


def _session(path: Path, row: sqlite3.Row) -> Session:
    key, parent, folder, agent = (text_or_none(row[name]) for name in ("id", "parent_id", "directory", "agent"))
    return Session(
        "opencode",
        key or str(row["id"]),
        path,
        _read,
        parent,
        folder=None if folder is None else Path(folder),
        agent=(agent or "agent") if parent else "opencode",
    )


# The database


class _Unread(Exception):
    """A database that keeps changing while it is copied."""


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that reads only, and leaves no file beside the database."""
    connection = sqlite3.connect(_address(path), uri=True, timeout=_WAIT)
    try:
        connection.row_factory = sqlite3.Row
        connection.text_factory = lambda given: given.decode("utf-8", "surrogateescape")
        yield connection
    finally:
        connection.close()


def _address(path: Path) -> str:
    log = path.with_name(path.name + "-wal")
    with open(path, "rb") as stream:
        uses_log = stream.read(20)[18:] == b"\x02\x02"
    if not uses_log:
        return f"file:{quote(str(path))}?mode=ro"
    if not log.exists() or not log.stat().st_size:
        # All of it is in the one file. Opened in the usual way, it would get others beside it.
        return f"file:{quote(str(path))}?mode=ro&immutable=1"
    if path.stat().st_size > _LARGEST_COPY and path.with_name(path.name + "-shm").exists():
        return f"file:{quote(str(path))}?mode=ro"
    return f"file:{quote(_copied(path, log))}?mode=ro"


_copies: dict[Path, tuple[int, object, Path, Callable[[], object]]] = {}
"""The copy of each database: the process that made it, what it was made from, where it is, and what removes it."""


def _copied(path: Path, log: Path) -> str:
    """A copy of a database with its log. Reading the original would write to the index of its log, or make one."""
    import shutil
    from multiprocessing import util  # its finalizers run in worker processes too, each in the process that made it

    made = _copies.get(path)
    # A log that was taken into the database is written from its beginning again, and does not grow.
    about = log.stat()
    state = _state(path, log), about.st_size, about.st_mtime_ns
    if made is not None and (made[1] == state or made[0] != os.getpid()):
        return str(made[2])
    if made is not None:
        made[3]()
    folder = tempfile.mkdtemp(prefix="rawko-")
    remove = util.Finalize(None, shutil.rmtree, (folder,), {"ignore_errors": True}, exitpriority=1)
    copy = Path(folder) / "opencode.db"
    for _ in range(_TRIES):
        before = _state(path, log)
        shutil.copyfile(path, copy)
        shutil.copyfile(log, copy.with_name("opencode.db-wal"))
        if _state(path, log) == before:
            _copies[path] = os.getpid(), state, copy, remove
            return str(copy)
    remove()
    raise _Unread("it changed while it was copied; try again")


def _state(path: Path, log: Path) -> tuple[int, int, bytes]:
    """What changes when the log is taken into the database. That the log grows does not matter to a copy of both."""
    found = path.stat()
    with open(log, "rb") as stream:
        return found.st_size, found.st_mtime_ns, stream.read(32)


# A session


class _Row(NamedTuple):
    """A message or one of its parts, without its content."""

    began: int
    is_part: bool
    id: str
    message: str
    updated: int


def _read(session: Session, start: int, wrong: list[str]) -> Iterator[tuple[int, Step]]:
    try:
        with _opened(session.path) as database:
            yield from _steps(database, session, start, wrong)
    except (sqlite3.Error, OSError, _Unread) as error:
        wrong.append(f"cannot be read: {error}")


def _steps(database: sqlite3.Connection, session: Session, start: int, wrong: list[str]) -> Iterator[tuple[int, Step]]:
    database.execute("BEGIN")  # all that follows sees the same state
    about = database.execute("SELECT * FROM session WHERE id = ?", (session.key,)).fetchone()
    if about is None:
        wrong.append(f"session {session.key} is gone")
        return
    rows = _rows(database, session.key)
    reader = _Reader(database, session, wrong)
    since, before, open_for = start >> 43, start >> 33 & _COUNTED - 1, start & _LATER
    known = sum(row.began <= since for row in rows) if start else 0
    if start and known % _COUNTED != before:
        wrong.append("messages from before the last import were removed or changed; what is new is added")
    head = _facts(database, session, about)
    place = start & ~_LATER
    if not start:
        yield 0, replace(head, raw=_raw("session", dict(about)))
    for row in rows[:known] if open_for else ():
        if reader.ended(row) >= since + open_for:
            yield place, replace(reader.step_of(row), facts=head.facts)
    under_way = reader.under_way(rows)
    for number, row in enumerate(rows[known:], known + 1):
        place = row.began << 43 | number % _COUNTED << 33
        if number == len(rows) and under_way:
            place |= min(max(1, under_way + 1 - row.began), _LATER)
        step = reader.step_of(row)
        if number == known + 1:
            step = replace(step, facts=head.facts, title=head.title)
        yield place, step


def _rows(database: sqlite3.Connection, key: str) -> list[_Row]:
    found = [
        _Row(_number(began), bool(is_part), str(id), str(message), _number(updated))
        for began, is_part, id, message, updated in database.execute(
            "SELECT time_created, 0, id, id, time_updated FROM message WHERE session_id = ?1 "
            "UNION ALL SELECT time_created, 1, id, message_id, time_updated FROM part WHERE session_id = ?1",
            (key,),
        )
    ]
    return sorted(found)


def _number(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < 1 << 42 else 0


def _raw(table: str, columns: Mapping[str, Any]) -> str:
    """A row as an object in one line. Its ``data`` is JSON already, and stays as it is."""
    plain = {name: value.hex() if isinstance(value, bytes) else value for name, value in columns.items()}
    data = plain.pop("data", None)
    text = json.dumps({"table": table, **plain}, ensure_ascii=False)
    if data is None:
        return text
    with contextlib.suppress(ValueError):
        if isinstance(data, str) and "\n" not in data and json.loads(shallow(data)) is not None:
            return f'{text[:-1]}, "data": {data}}}'
    return f'{text[:-1]}, "data": {json.dumps(data, ensure_ascii=False)}}}'


def _facts(database: sqlite3.Connection, session: Session, about: sqlite3.Row) -> Step:
    """What is known of the whole session, as a step without a record."""
    columns = dict(about)
    title = text_or_none(columns.get("title"))
    title = None if title is None or title.startswith(_UNTITLED) else title
    model = _json(columns.get("model"))
    facts = only(
        session=session.key,
        cwd=columns.get("directory"),
        version=columns.get("version"),
        title=title,
        model=model.get("id"),
        provider=model.get("providerID"),
        call=_call_of_parent(database, session),
    )
    return Step("", time_of(columns.get("time_created")), title=title, facts=facts)


def _call_of_parent(database: sqlite3.Connection, session: Session) -> str | None:
    """The call that started a sub-agent."""
    if session.parent is None:
        return None
    rows = database.execute(
        "SELECT data FROM part WHERE session_id = ? AND instr(data, ?) ORDER BY id", (session.parent, session.key)
    )
    for row in rows:
        data = _json(row[0])
        if mapping(mapping(data.get("state")).get("metadata")).get("sessionId") == session.key:
            return text_or_none(data.get("callID"))
    return None


def _json(text: object) -> dict[str, Any]:
    try:
        return mapping(json.loads(shallow(text))) if isinstance(text, str) else {}
    except ValueError:
        return {}


@dataclass(slots=True)
class _Message:
    """What the parts of a message need to know of it."""

    id: str
    data: dict[str, Any]

    @property
    def is_users(self) -> bool:
        return self.data.get("role") == "user"

    @property
    def ended(self) -> int:
        """When it ended; 0 if it has not."""
        if self.is_users:
            return 1
        return _number(mapping(self.data.get("time")).get("completed")) or (1 if self.data.get("error") else 0)

    def outcome(self) -> dict[str, Any]:
        """How an answer leaves the conversation: as fields of a step."""
        error = mapping(self.data.get("error"))
        if error.get("name") == "MessageAbortedError":
            return {"aborted": True, "working": False}
        if error:
            said = text_or_none(mapping(error.get("data")).get("message"))
            return {"failed": said or text_or_none(error.get("name")) or "an error", "working": False}
        goes_on = not self.ended or self.data.get("finish") in ("tool-calls", "unknown", None)
        return {"working": goes_on}


class _Reader:
    def __init__(self, database: sqlite3.Connection, session: Session, wrong: list[str]) -> None:
        self._database, self._session, self._wrong = database, session, wrong
        self._messages: dict[str, _Message] = {}
        self._turn: str | None = None
        self._asked: set[str] = set()
        self._agent = session.agent

    def under_way(self, rows: list[_Row]) -> int:
        """When the last answer was last updated, if it or one of its parts has not ended; else 0."""
        answers = [row for row in rows if not row.is_part and not self._message(row.id).is_users]
        last = [row for row in rows if answers and row.message == answers[-1].id]
        return max(row.updated for row in last) if any(not self.ended(row) for row in last) else 0

    def ended(self, row: _Row) -> int:
        """When a row got its last content; 0 if it has not yet."""
        if not row.is_part:
            return self._message(row.id).ended
        data = _json(self._content("part", row.id)[1])
        if data.get("type") == "tool":
            state = mapping(data.get("state"))
            done = state.get("status") in ("completed", "error")
            return (_number(mapping(state.get("time")).get("end")) or 1) if done else 0
        if data.get("type") in ("text", "reasoning") and "time" in data:
            return _number(mapping(data.get("time")).get("end"))
        return 1

    def _message(self, key: str) -> _Message:
        if key not in self._messages:
            data = _json(self._content("message", key)[1])
            keep = ("role", "time", "error", "finish", "modelID", "providerID", "agent", "mode", "summary")
            self._messages[key] = _Message(key, {name: data[name] for name in keep if name in data})
        return self._messages[key]

    def _content(self, table: str, key: str) -> tuple[str, str]:
        """A row as one line, and its content."""
        row = self._database.execute(
            f"SELECT *, length(data) AS size FROM (SELECT * FROM {table} WHERE id = ?)", (key,)
        ).fetchone()
        columns = dict(row) if row is not None else {"id": key}
        size = columns.pop("size", 0)
        if isinstance(size, int) and size > LONGEST_LINE:
            columns["data"] = None
        data = columns.get("data")
        return _raw(table, columns), data if isinstance(data, str) else ""

    def step_of(self, row: _Row) -> Step:
        line, text = self._content("part" if row.is_part else "message", row.id)
        return replace(safely(lambda data: self._row(row, data), text), raw=line)

    def _row(self, row: _Row, text: str) -> Step:
        data, message = object_of(text), self._message(row.message)
        at = time_of(row.began)
        if message.is_users:
            return self._of_user(row, data, at)
        if data.get("role") not in ("assistant", None) and not row.is_part:
            return Step(text, at, unknown=f"message/{data.get('role')}")
        said = _part(data, at)
        if not row.is_part:
            tokens, cost = _tokens(data.get("tokens")), dollars(data.get("cost"))
            is_told = message.ended or any(tokens.values())  # until an answer has ended, they are 0
            said = Step("", at, tokens=tokens, cost=cost) if is_told else Step("", at)
        if row.is_part and data.get("type") == "patch":
            said = replace(said, touches=self._written(data, message))
        if self._turn == message.id:
            return said
        if not message.ended and not self._has_content(message.id):
            return Step("", at, working=True)  # an answer that has not begun is no turn
        self._turn = message.id
        model = text_or_none(message.data.get("modelID"))
        return replace(said, turn=message.id, agent=self._agent, model=model, **message.outcome())

    def _has_content(self, key: str) -> bool:
        parts = (_json(row[0]) for row in self._database.execute("SELECT data FROM part WHERE message_id = ?", (key,)))
        return any(part.get("type") == "tool" or text_or_none(part.get("text")) for part in parts)

    def _of_user(self, row: _Row, data: Mapping[str, Any], at: Any) -> Step:
        """A prompt is told with the first of its texts, all of them together."""
        kind = data.get("type")
        if kind == "compaction":
            how = " automatically" if data.get("auto") else ""
            return Step("", at, aside=Aside("compacted", f"The conversation was compacted{how}."))
        if (
            not row.is_part
            or row.message in self._asked
            or kind not in ("text", "file", "subtask")
            or data.get("synthetic")
        ):
            known = not row.is_part or kind in (*_PARTS, "text", "tool", "patch", "reasoning")
            return Step("", at, unknown=None if known else f"part/{kind}")
        texts = [
            part
            for part in (
                _json(each[0])
                for each in self._database.execute(
                    "SELECT data FROM part WHERE message_id = ? ORDER BY id", (row.message,)
                )
            )
            if not part.get("synthetic")
        ]
        said = [
            text_of(part.get("text") or part.get("prompt")) for part in texts if part.get("type") in ("text", "subtask")
        ]
        prompt = "\n".join(each for each in said if each)
        if not prompt:
            prompt = "\n".join(f"[{part.get('filename') or 'file'}]" for part in texts if part.get("type") == "file")
        self._asked.add(row.message)
        self._turn = None
        return Step("", at, prompt=prompt, aborted=False, working=True)

    def _written(self, data: Mapping[str, Any], message: _Message) -> tuple[tuple[str, str], ...]:
        """The files that differ after a step, whatever changed them."""
        listed = data.get("files")
        paths = [path for path in listed if isinstance(path, str)] if isinstance(listed, list) else []
        asked = next((each for each in reversed(self._messages.values()) if each.is_users), None)
        diffs = objects(mapping(asked.data.get("summary")).get("diffs")) if asked is not None else []
        gone = tuple(str(diff.get("file")) for diff in diffs if diff.get("status") == "deleted")
        return tuple(("delete" if gone and path.endswith(gone) else "write", path) for path in paths)


def _tokens(given: object) -> dict[str, int]:
    """Input is without what came from the cache, and output without reasoning, unless the total says otherwise."""
    about = mapping(given)
    tokens = counts(about, {"input": "in", "output": "out", "reasoning": "reasoning"})
    tokens |= counts(about.get("cache"), {"read": "cache_read", "write": "cache_write"})
    thought = tokens.get("reasoning", 0)
    total = counts(about, {"total": "all"}).get("all")
    if thought and "out" in tokens and total != sum(tokens.values()) - thought:
        tokens["out"] += thought
    return tokens


def _part(data: Mapping[str, Any], at: Any) -> Step:
    kind = data.get("type")
    if kind == "text":
        return Step("", at, text=text_or_none(data.get("text")))
    if kind == "reasoning":
        return Step("", at, thinking=text_or_none(data.get("text")))
    if kind == "tool":
        return _tool(data, at)
    return Step("", at, unknown=None if kind in _PARTS or kind in ("patch", "compaction") else f"part/{kind}")


def _tool(data: Mapping[str, Any], at: Any) -> Step:
    """A call, and its result if there is one yet."""
    state, name, key = mapping(data.get("state")), str(data.get("tool")), str(data.get("callID"))
    given, about = mapping(state.get("input")), mapping(state.get("metadata"))
    path = text_or_none(given.get("filePath"))
    touches: tuple[tuple[str, str], ...] = ()
    if path is not None and name in _WRITES:
        touches = (("write", path),)
    elif path is not None and name == "read":
        touches = (("read", path),)
    call = Call(
        key, name, asked_of(given), touches, _asked_for(path, given) if path is not None and name in _WRITES else ()
    )
    status = state.get("status")
    if status not in ("completed", "error"):
        return Step("", at, calls=(call,))
    failed = status == "error" or (name == "bash" and about.get("exit") not in (0, None))
    text = text_of(state.get("error") if status == "error" else state.get("output"))
    diffs = () if failed else _diffs(name, path, given, about)
    code = about.get("exit")
    output = Output(key, text, failed, diffs, exit_code=code if type(code) is int else None)
    return Step("", at, calls=(call,), outputs=(output,))


def _asked_for(path: str, given: Mapping[str, Any]) -> tuple[Diff, ...]:
    """What a call would change. An edit does not say where in the file."""
    if isinstance(given.get("content"), str):
        return (overwritten(path, given["content"]),)
    pairs = [(edit.get("oldString"), edit.get("newString")) for edit in objects(given.get("edits")) or [dict(given)]]
    return tuple(replacement(path, old, new) for old, new in pairs if isinstance(old, str) and isinstance(new, str))


def _diffs(name: str, path: str | None, given: Mapping[str, Any], about: Mapping[str, Any]) -> tuple[Diff, ...]:
    """What a call changed, as its result says."""
    made: list[Diff] = []
    for file in objects(about.get("files")) if name in ("patch", "apply_patch") else ():
        target = text_or_none(file.get("movePath")) or text_or_none(file.get("filePath"))
        old = text_or_none(file.get("filePath"))
        for diff in patch_of(target, file.get("patch") or file.get("diff")) if target is not None else ():
            kind = file.get("type")
            made.append(replace(diff, old=None if kind == "add" else old, new=None if kind == "delete" else target))
    if made or path is None or name not in _WRITES:
        return tuple(made)
    if name == "write" and about.get("exists") is False and isinstance(given.get("content"), str):
        return (compared(path, None, given["content"]),)
    created = name == "edit" and given.get("oldString") == ""
    shown = about.get("diff") or mapping(about.get("filediff")).get("patch")
    return patch_of(path, shown, created=created)


# The stream


class Stream:
    """Reads ``opencode run --format json``: parts, each when it has ended."""

    def step_of(self, line: str) -> Step:
        record = object_of(line)
        kind, at = str(record.get("type")), time_of(record.get("timestamp"))
        facts = only(session=record.get("sessionID"))
        part = mapping(record.get("part"))
        if kind == "error":
            error = mapping(record.get("error"))
            if error.get("name") == "MessageAbortedError":
                return Step(line, at, aborted=True, facts=facts)
            said = text_or_none(mapping(error.get("data")).get("message")) or text_or_none(error.get("name"))
            return Step(line, at, failed=said or "an error", facts=facts)
        if kind not in _EVENTS:
            return Step(line, at, facts=facts, unknown=kind)
        step = _part(part, at)
        if kind == "step_finish":
            step = replace(step, tokens=_tokens(part.get("tokens")), cost=dollars(part.get("cost")))
        return replace(step, raw=line, turn=text_or_none(part.get("messageID")), agent="opencode", facts=facts)
