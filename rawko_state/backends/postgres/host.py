"""The host of a PostgreSQL server: its workspaces, and the server's own tables in the schema ``rawko``."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from rawko_state.backends.postgres.connection import Postgres, mapped
from rawko_state.backends.postgres.names import DEFAULT, check_workspace, schema_of, workspace_of
from rawko_state.backends.postgres.store import PostgresStore
from rawko_state.index.group_commit import Statement
from rawko_state.index.server_state import StateTables, server_tables
from rawko_state.index.userdb import RegistryTables, now, registry_tables
from rawko_state.store.hosting import Token

SCHEMA: Final = "rawko"
_TOKENS: Final = "tokens"
_REMEMBERED: Final = 2.0
_MOST: Final = 10_000


class PostgresServerState(StateTables):
    """Server state in PostgreSQL, next to the workspaces."""

    scope = "server"
    _mark = "%s"

    def _at(self, table: str) -> str:
        return f"{SCHEMA}.{table}"

    def _connection(self) -> Any:
        return self.postgres.connection

    joins_writes = True

    def _write(self, statements: Sequence[Statement], *, durable: bool) -> None:
        def write() -> None:
            with self.postgres.transaction(durable=durable) as connection:
                for statement, values in statements:
                    connection.execute(statement, values)

        self.postgres.retrying(write)

    def __init__(self, postgres: Postgres) -> None:
        self.postgres = postgres
        postgres.prepare(SCHEMA, PG_MIGRATIONS)
        self._tokens, self._requests, self._audit, self._workspaces = server_tables(postgres.db, SCHEMA)
        self._known: dict[str, tuple[Token, float]] = {}
        """Tokens that were looked up, and until when that holds."""
        self._open_until = self._closed = 0.0

    @contextlib.contextmanager
    def mapped(self) -> Iterator[None]:
        _ = self.postgres.connection
        with mapped(self.postgres.name):
            yield

    def close(self) -> None:
        self.postgres.close()

    # Tokens, remembered for a moment. A change to them is notified to all servers; the time limit is for the case that a
    # notification is lost.

    def recalls(self, text: str | None) -> bool:
        now = time.monotonic()
        if text is None:
            return bool(self._closed) or now < self._open_until
        found = self._known.get(text)
        return found is not None and now < found[1]

    def token(self, text: str) -> Token | None:
        found = self._known.get(text)
        if found is not None and time.monotonic() < found[1]:
            return found[0]
        until = time.monotonic() + _REMEMBERED
        token = super().token(text)
        if token is None:
            self._known.pop(text, None)
        else:
            if len(self._known) >= _MOST:
                self._known.clear()
            self._known[text] = (token, until)
        return token

    def has_tokens(self, *, valid: bool = False) -> bool:
        if valid:
            return super().has_tokens(valid=True)
        if self._closed or time.monotonic() < self._open_until:
            return bool(self._closed)
        until = time.monotonic() + _REMEMBERED
        if super().has_tokens():
            self._closed = 1.0  # for good
        else:
            self._open_until = until
        return bool(self._closed)

    def create_token(self, role: str, workspace: str | None = None, note: str | None = None) -> str:
        made = super().create_token(role, workspace, note)
        self._changed_tokens()
        return made

    def revoke_token(self, key: str) -> bool:
        found = super().revoke_token(key)
        self._changed_tokens()
        return found

    def _changed_tokens(self) -> None:
        self.forget_tokens()
        self.postgres.notifier.notify(SCHEMA, _TOKENS)

    def forget_tokens(self) -> None:
        self._known.clear()
        self._open_until = 0.0

    def workspaces(self) -> list[dict[str, Any]]:
        with self.mapped():
            return list(self._workspaces.select().order_by(self._workspaces.name).dicts())

    def has_workspace(self, name: str) -> bool:
        with self.mapped():
            return bool(self._workspaces.select().where(self._workspaces.name == name).exists())

    def create_workspace(self, name: str, external_id: str | None = None) -> bool:
        """False if it already exists."""
        check_workspace(name)
        with self.mapped():
            if self.has_workspace(name):
                return False
            self._workspaces.insert(name=name, external_id=external_id, created_at=now()).on_conflict_ignore().execute()
            return True

    def drop_workspace(self, name: str) -> None:
        """Deletes a workspace with everything in it, permanently."""
        check_workspace(name)
        with self.postgres.transaction() as connection:
            connection.execute(f'DROP SCHEMA IF EXISTS "{schema_of(name)}" CASCADE')
            self._workspaces.delete().where(self._workspaces.name == name).execute()
            self._tokens.delete().where(self._tokens.workspace == name).execute()


class PostgresRegistry(RegistryTables):
    """Small values, repositories, agents and runtimes of one workspace."""

    def __init__(self, postgres: Postgres, schema: str) -> None:
        self._postgres = postgres
        self._kv, self._repos, self._agents, self._runtimes = registry_tables(postgres.db, schema)

    @contextlib.contextmanager
    def mapped(self) -> Iterator[None]:
        _ = self._postgres.connection
        with mapped(self._postgres.name):
            yield


class PostgresHost:
    kind = "postgres"
    default = DEFAULT
    is_notified = True

    def __init__(self, url: str, root: Path, warn: Callable[[str], None], listen: str | None = None) -> None:
        self.root, self._warn = root, warn
        self.postgres = Postgres(url, listen)
        try:
            self.state = PostgresServerState(self.postgres)
        except BaseException:
            self.postgres.close_all()
            raise

    def names(self) -> list[str]:
        return [row["name"] for row in self.state.workspaces()]

    def workspaces(self) -> list[dict[str, Any]]:
        return self.state.workspaces()

    def create_workspace(self, name: str, external_id: str | None = None) -> bool:
        return self.state.create_workspace(name, external_id)

    def drop_workspace(self, name: str) -> None:
        self.state.drop_workspace(name)

    def has(self, name: str) -> bool:
        check_workspace(name)
        return self.state.has_workspace(name)

    def open(self, name: str) -> tuple[PostgresStore, PostgresRegistry]:
        store = PostgresStore(self.postgres, name, root=self.root, warn=self._warn)
        return store, PostgresRegistry(self.postgres, schema_of(name))

    def check(self) -> None:
        with mapped(self.postgres.name):
            self.postgres.connection.execute(f"SELECT 1 FROM {SCHEMA}.tokens LIMIT 1")

    def listen(self, stop: threading.Event, changed: Callable[[str, str], None]) -> None:
        def heard(payload: str) -> None:
            schema, *ids = payload.split(" ")
            if payload == "*" or schema == SCHEMA:
                self.state.forget_tokens()
            if schema == SCHEMA:
                return
            if payload == "*":
                changed("*", "*")
            for task_id in ids:
                changed(workspace_of(schema), task_id)

        self.postgres.listen(stop, heard)

    def close(self) -> None:
        self.state.close()
        self.postgres.close_all()


_1_SERVER: Final = """
CREATE TABLE {s}.tokens (
    id text PRIMARY KEY, hash text NOT NULL, role text NOT NULL, workspace text, note text, scope text NOT NULL,
    created_at text NOT NULL, revoked_at text
);
CREATE TABLE {s}.requests (
    scope text NOT NULL, who text NOT NULL, key text NOT NULL, body text NOT NULL, task text, seal text, status integer,
    answer text, at text NOT NULL, PRIMARY KEY (scope, who, key)
);
CREATE INDEX idx_requests_at ON {s}.requests (at);
CREATE TABLE {s}.audit (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, at text NOT NULL, scope text NOT NULL, who text NOT NULL,
    action text NOT NULL, workspace text, task text, status integer NOT NULL, peer text NOT NULL
);
CREATE TABLE {s}.workspaces (name text PRIMARY KEY, external_id text, created_at text NOT NULL);
"""
PG_MIGRATIONS: Final = (("server", _1_SERVER),)
