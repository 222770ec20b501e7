"""``state.db``: per-user data that is not derived from task files, in the platform's state folder.

It holds small values by scope and key; the projects, agents and runtimes that rawko was used with; and what was imported from
other agents' files, so that these need not be opened again. The last two can be lost without harm: they are collected again.
"""

from __future__ import annotations

import contextlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from rawko_state.errors import IndexNewer, InvalidValue
from rawko_state.index.database import mapped
from rawko_state.index.orm import Sqlite, p
from rawko_state.store.hosting import Imported, Project

VERSION: Final = 2


def now() -> str:
    """The current time, in the format of the sources' tables."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


class RegistryTables(ABC):
    """Small values, repositories, agents and runtimes, of a user or of a server."""

    _kv: Any
    _repos: Any
    _agents: Any
    _runtimes: Any

    @abstractmethod
    def mapped(self) -> contextlib.AbstractContextManager[None]:
        """Maps the database's errors to ours."""

    # Small values

    def get(self, scope: str, key: str) -> str | None:
        with self.mapped():
            found = self._kv.select(self._kv.v).where((self._kv.scope == scope) & (self._kv.k == key)).tuples().first()
        return found[0] if found else None

    def set(self, scope: str, key: str, value: str) -> None:
        for text in (scope, key, value):
            if "\x00" in text or not text.isprintable():
                raise InvalidValue("Scope, key and value must each be one line of printable text.")
        with self.mapped():
            self._kv.insert(scope=scope, k=key, v=value).on_conflict(
                conflict_target=[self._kv.scope, self._kv.k], update={self._kv.v: value}
            ).execute()

    def delete(self, scope: str, key: str) -> bool:
        with self.mapped():
            return bool(self._kv.delete().where((self._kv.scope == scope) & (self._kv.k == key)).execute())

    def items(self, scope: str | None = None) -> list[tuple[str, str, str]]:
        with self.mapped():
            query = self._kv.select(self._kv.scope, self._kv.k, self._kv.v).order_by(self._kv.scope, self._kv.k)
            if scope is not None:
                query = query.where(self._kv.scope == scope)
            return [(row[0], row[1], row[2]) for row in query.tuples()]

    # Repositories

    def projects(self) -> list[Project]:
        """Most recently used first."""
        repos = self._repos
        with self.mapped():
            query = repos.select(repos.root_path, repos.vcs, repos.remote_url, repos.default_branch, repos.seen_at)
            return [Project(*row) for row in query.order_by(repos.seen_at.desc(), repos.root_path).tuples()]

    def saw_project(self, root: str, vcs: str, remote: str | None, branch: str | None) -> None:
        repos = self._repos
        with self.mapped():
            repos.insert(root_path=root, vcs=vcs, remote_url=remote, default_branch=branch, seen_at=now()).on_conflict(
                conflict_target=[repos.root_path],
                update={repos.vcs: vcs, repos.remote_url: remote, repos.default_branch: branch, repos.seen_at: now()},
            ).execute()

    # Agents and runtimes

    def saw_agent(self, name: str, version: str, metadata: dict[str, Any] | None = None) -> None:
        with self.mapped():
            text = json.dumps(metadata) if metadata else None
            self._agents.insert(name=name, version=version, metadata=text).on_conflict_ignore().execute()

    def agents(self) -> list[tuple[str, str]]:
        with self.mapped():
            query = self._agents.select(self._agents.name, self._agents.version)
            return [(row[0], row[1]) for row in query.order_by(self._agents.name, self._agents.version).tuples()]

    def agent_rows(self) -> list[dict[str, Any]]:
        """Every agent that was seen, with all columns."""
        with self.mapped():
            return list(self._agents.select().order_by(self._agents.name, self._agents.version).dicts())

    def saw_runtime(self, kind: str, devcontainer: str | None, metadata: dict[str, Any] | None = None) -> None:
        table = self._runtimes
        text = json.dumps(metadata) if metadata else None
        with self.mapped():
            same = (table.type == kind) & (
                table.devcontainer_path.is_null(True)
                if devcontainer is None
                else table.devcontainer_path == devcontainer
            )
            if not table.update(metadata=text).where(same).execute():
                table.insert(type=kind, devcontainer_path=devcontainer, metadata=text).execute()

    def runtimes(self) -> list[dict[str, Any]]:
        with self.mapped():
            return list(self._runtimes.select().order_by(self._runtimes.id).dicts())

    def repos(self) -> list[dict[str, Any]]:
        """The repositories, with all columns."""
        with self.mapped():
            return list(self._repos.select().order_by(self._repos.id).dicts())

    def saw_repo(self, vcs: str, remote: str, branch: str | None) -> None:
        """Records a repository by its URL: a server has no folder for it."""
        table = self._repos
        with self.mapped():
            found = {"vcs": vcs, "default_branch": branch, "seen_at": now()}
            if not table.update(**found).where(table.remote_url == remote).execute():
                table.insert(remote_url=remote, **found).execute()


class UserState(RegistryTables):
    """The per-user database."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or default_path()
        with mapped(str(self.path)):
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            pragmas = {"journal_mode": "wal", "synchronous": "full", "foreign_keys": 1, "busy_timeout": 3000}
            self.db = Sqlite(str(self.path), pragmas)
            self.db.connect()
            self._kv, self._repos, self._agents, self._runtimes, self._imports = _tables_for(self.db)
            version = self.db.pragma("user_version")
            if version > VERSION:
                raise IndexNewer(
                    f"{self.path} was made by a newer rawko (version {version}; this one knows {VERSION}). Update rawko."
                )
            if version < VERSION:
                with self.db.atomic("IMMEDIATE"):
                    tables = [self._kv, self._repos, self._agents, self._runtimes, self._imports]
                    self.db.create_tables(tables, safe=True)
                    self.db.pragma("user_version", VERSION)

    @contextlib.contextmanager
    def mapped(self) -> Iterator[None]:
        with mapped(str(self.path)):
            try:
                yield
            except (UnicodeError, OverflowError) as error:
                raise InvalidValue(f"A value can't be stored: {error}.") from None

    def close(self) -> None:
        self.db.close()

    def __enter__(self) -> UserState:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def forget_project(self, root: str) -> bool:
        with mapped(str(self.path)):
            self._imports.delete().where(self._imports.root == root).execute()
            return bool(self._repos.delete().where(self._repos.root_path == root).execute())

    # Imports

    def imported(self, root: str, source: str) -> dict[str, Imported]:
        """The imported sessions, by key."""
        table = self._imports
        with mapped(str(self.path)):
            query = table.select(table.key, table.size, table.mtime_ns, table.task)
            # Straight from the cursor: there is a row for each session ever imported.
            found = self.db.execute(query.where((table.root == root) & (table.source == source)))  # type: ignore[no-untyped-call]
            return {row[0]: Imported(row[1], row[2], row[3]) for row in found}

    def saw_imported(self, root: str, source: str, seen: Iterable[tuple[str, Imported]]) -> None:
        table = self._imports
        rows = [{"root": root, "source": source, "key": key, **each._asdict()} for key, each in seen]
        with mapped(str(self.path)), self.db.atomic("IMMEDIATE"):
            for start in range(0, len(rows), 100):
                table.replace_many(rows[start : start + 100]).execute()


class ProjectRegistry(RegistryTables):
    """The part of a user's registry that belongs to one project. A server of its files shows nothing else to others."""

    def __init__(self, user: UserState, root: Path) -> None:
        self._user, self._root = user, str(root)
        self._kv, self._repos, self._agents, self._runtimes = user._kv, user._repos, user._agents, user._runtimes

    def mapped(self) -> contextlib.AbstractContextManager[None]:
        return self._user.mapped()

    def _scope(self, scope: str) -> str:
        return f"{scope}@{self._root}"

    def get(self, scope: str, key: str) -> str | None:
        return self._user.get(self._scope(scope), key)

    def set(self, scope: str, key: str, value: str) -> None:
        self._user.set(self._scope(scope), key, value)

    def delete(self, scope: str, key: str) -> bool:
        return self._user.delete(self._scope(scope), key)

    def items(self, scope: str | None = None) -> list[tuple[str, str, str]]:
        found = self._user.items(None if scope is None else self._scope(scope))
        end = f"@{self._root}"
        return [(row[0].removesuffix(end), row[1], row[2]) for row in found if row[0].endswith(end)]

    def repos(self) -> list[dict[str, Any]]:
        """The repositories reported to this server, and the project's own; without their folders."""
        found = [row for row in self._user.repos() if row["root_path"] in (None, self._root)]
        return [{**row, "root_path": None} for row in found]


def _tables_for(database: p.Database) -> tuple[Any, ...]:
    return (*registry_tables(database), _imports_for(database))


def registry_tables(db: p.Database, within: str | None = None) -> tuple[Any, Any, Any, Any]:
    """The models of kv, repos, agents and runtimes; ``within`` a schema, if the database has schemas."""

    class Bound(p.Model):
        class Meta:
            database = db
            schema = within
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
        created_at = p.TextField(default=now)
        seen_at = p.TextField(default=now)

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

    return KeyValue, Repo, Agent, Runtime


def _imports_for(db: p.Database) -> Any:
    class Import(p.Model):
        root = p.TextField()
        source = p.TextField()
        key = p.TextField()
        size = p.IntegerField()
        mtime_ns = p.IntegerField()
        task = p.TextField(null=True)

        class Meta:
            database = db
            legacy_table_names = False
            table_name = "imports"
            primary_key = p.CompositeKey("root", "source", "key")

    return Import


def default_path() -> Path:
    from rawko_state.config import folders

    return folders.user_state() / "state.db"
