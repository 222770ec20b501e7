"""``state.db``: what is not derived from task files, per user, at the platform's state folder.

Small values under a scope and a key; the projects, agents and runtimes that rawko was used with; and what has been brought in
from other agents' files, so that these need not be opened again. The latter two can be lost without harm: they are learned anew.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

import peewee as p

from rawko_state.errors import IndexNewer, InvalidValue
from rawko_state.index.database import mapped

VERSION: Final = 2
_NOW: Final = p.SQL("strftime('%Y-%m-%dT%H:%M:%fZ', 'now')")


class Project(NamedTuple):
    """A folder that rawko was used in."""

    root: str
    vcs: str
    remote: str | None
    branch: str | None
    seen: str


class Imported(NamedTuple):
    """A session of another agent that was looked at: its file as it was, and what became of it."""

    size: int
    mtime_ns: int
    task: str | None
    """None: it does not belong to the project."""


class UserState:
    """The per-user database."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or default_path()
        with mapped(str(self.path)):
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            pragmas = {"journal_mode": "wal", "synchronous": "full", "foreign_keys": 1, "busy_timeout": 3000}
            self.db = p.SqliteDatabase(str(self.path), pragmas=pragmas)
            self.db.connect()
            self._kv, self._repos, self._agents, self._runtimes, self._imports = _tables_for(self.db)
            version = self.db.pragma("user_version")
            if version > VERSION:
                raise IndexNewer(f"{self.path} is of version {version}; this rawko knows up to {VERSION}")
            if version < VERSION:
                with self.db.atomic("IMMEDIATE"):
                    tables = [self._kv, self._repos, self._agents, self._runtimes, self._imports]
                    self.db.create_tables(tables, safe=True)
                    self.db.pragma("user_version", VERSION)

    def close(self) -> None:
        self.db.close()

    def __enter__(self) -> UserState:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Small values

    def get(self, scope: str, key: str) -> str | None:
        with mapped(str(self.path)):
            found = self._kv.select(self._kv.v).where((self._kv.scope == scope) & (self._kv.k == key)).tuples().first()
        return found[0] if found else None

    def set(self, scope: str, key: str, value: str) -> None:
        for text in (scope, key, value):
            if "\x00" in text or not text.isprintable():
                raise InvalidValue("a scope, key or value is printable text on one line")
        with mapped(str(self.path)):
            self._kv.replace(scope=scope, k=key, v=value).execute()

    def delete(self, scope: str, key: str) -> bool:
        with mapped(str(self.path)):
            return bool(self._kv.delete().where((self._kv.scope == scope) & (self._kv.k == key)).execute())

    def items(self, scope: str | None = None) -> list[tuple[str, str, str]]:
        with mapped(str(self.path)):
            query = self._kv.select(self._kv.scope, self._kv.k, self._kv.v).order_by(self._kv.scope, self._kv.k)
            if scope is not None:
                query = query.where(self._kv.scope == scope)
            return [(row[0], row[1], row[2]) for row in query.tuples()]

    # Projects

    def projects(self) -> list[Project]:
        """The last used first."""
        repos = self._repos
        with mapped(str(self.path)):
            query = repos.select(repos.root_path, repos.vcs, repos.remote_url, repos.default_branch, repos.seen_at)
            return [Project(*row) for row in query.order_by(repos.seen_at.desc(), repos.root_path).tuples()]

    def saw_project(self, root: str, vcs: str, remote: str | None, branch: str | None) -> None:
        repos = self._repos
        with mapped(str(self.path)):
            repos.insert(root_path=root, vcs=vcs, remote_url=remote, default_branch=branch, seen_at=_NOW).on_conflict(
                conflict_target=[repos.root_path],
                update={repos.vcs: vcs, repos.remote_url: remote, repos.default_branch: branch, repos.seen_at: _NOW},
            ).execute()

    def forget_project(self, root: str) -> bool:
        with mapped(str(self.path)):
            self._imports.delete().where(self._imports.root == root).execute()
            return bool(self._repos.delete().where(self._repos.root_path == root).execute())

    # Agents and runtimes

    def saw_agent(self, name: str, version: str, metadata: dict[str, Any] | None = None) -> None:
        with mapped(str(self.path)):
            text = json.dumps(metadata) if metadata else None
            self._agents.insert(name=name, version=version, metadata=text).on_conflict_ignore().execute()

    def agents(self) -> list[tuple[str, str]]:
        with mapped(str(self.path)):
            query = self._agents.select(self._agents.name, self._agents.version)
            return [(row[0], row[1]) for row in query.order_by(self._agents.name, self._agents.version).tuples()]

    # What was brought in

    def imported(self, root: str, source: str) -> dict[str, Imported]:
        """By the session's key."""
        table = self._imports
        with mapped(str(self.path)):
            query = table.select(table.key, table.size, table.mtime_ns, table.task)
            found = query.where((table.root == root) & (table.source == source)).tuples()
            return {row[0]: Imported(row[1], row[2], row[3]) for row in found}

    def saw_imported(self, root: str, source: str, seen: Iterable[tuple[str, Imported]]) -> None:
        table = self._imports
        rows = [{"root": root, "source": source, "key": key, **each._asdict()} for key, each in seen]
        with mapped(str(self.path)), self.db.atomic("IMMEDIATE"):
            for start in range(0, len(rows), 100):
                table.replace_many(rows[start : start + 100]).execute()


def _tables_for(database: p.Database) -> tuple[Any, ...]:
    class Bound(p.Model):
        class Meta:
            database: p.Database | None = None
            legacy_table_names = False

    class KeyValue(Bound):
        scope = p.TextField()
        k = p.TextField()
        v = p.TextField(null=True)

        class Meta:
            table_name = "kv"
            primary_key = p.CompositeKey("scope", "k")

    class Repo(Bound):
        vcs = p.TextField()
        root_path = p.TextField(null=True, unique=True)
        remote_url = p.TextField(null=True)
        default_branch = p.TextField(null=True)
        created_at = p.TextField(default=_NOW)
        seen_at = p.TextField(default=_NOW)

        class Meta:
            table_name = "repos"

    class Agent(Bound):
        name = p.TextField()
        version = p.TextField()
        metadata = p.TextField(null=True)

        class Meta:
            table_name = "agents"
            indexes = ((("name", "version"), True),)

    class Runtime(Bound):
        type = p.TextField()
        devcontainer_path = p.TextField(null=True)
        metadata = p.TextField(null=True)

        class Meta:
            table_name = "runtimes"

    class Import(Bound):
        root = p.TextField()
        source = p.TextField()
        key = p.TextField()
        size = p.IntegerField()
        mtime_ns = p.IntegerField()
        task = p.TextField(null=True)

        class Meta:
            table_name = "imports"
            primary_key = p.CompositeKey("root", "source", "key")

    tables = (KeyValue, Repo, Agent, Runtime, Import)
    database.bind(tables, bind_refs=False, bind_backrefs=False)
    return tables


def default_path() -> Path:
    import platformdirs

    return Path(platformdirs.user_state_dir("rawko")) / "state.db"
