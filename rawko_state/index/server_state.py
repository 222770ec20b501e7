"""The server's own state (``store.hosting.ServerState``) in Peewee tables; with files, in the user's state.db."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import secrets
from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Final

from rawko_state.errors import InvalidValue
from rawko_state.index import database
from rawko_state.index.group_commit import GroupCommit, Statement
from rawko_state.index.orm import Sqlite, p
from rawko_state.index.userdb import UserState, default_path, now
from rawko_state.late import late
from rawko_state.store.hosting import ROLES, AuditEntry, KeyedRequest, StoredRequest, Token

REMEMBERED: Final = timedelta(days=2)
"""How long a request can be repeated without being executed again."""
_REQUEST: Final = ("scope", "who", "key", "body", "task", "seal", "status", "answer", "at")
_TOKEN = late(r"rawko_([0-9a-f]{12})_([0-9A-Za-z_-]{43})")


class StateTables(ABC):
    """The state in either database. ``scope`` separates the projects of one user."""

    scope: str
    _tokens: Any
    _requests: Any
    _audit: Any

    @abstractmethod
    def mapped(self) -> contextlib.AbstractContextManager[None]:
        """Maps the database's errors to ours."""

    @abstractmethod
    def close(self) -> None: ...

    # Tokens

    def create_token(self, role: str, workspace: str | None = None, note: str | None = None) -> str:
        """Returns the token, which is shown once."""
        if role not in ROLES:
            raise InvalidValue(f"Unknown role: {role!r}. Use {', '.join(ROLES)}.")
        key, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
        with self.mapped():
            self._tokens.insert(
                id=key,
                hash=_hash(secret),
                role=role,
                workspace=workspace,
                note=note,
                scope=self.scope,
                created_at=now(),
            ).execute()
        return f"rawko_{key}_{secret}"

    def token(self, text: str) -> Token | None:
        """Looks up a token; None if it is unknown or was revoked."""
        match = _TOKEN.fullmatch(text)
        if match is None:
            return None
        row = self._token_row(match[1])
        # Compare even if there is no row, so that timing reveals nothing.
        right = hmac.compare_digest(_hash(match[2]), row["hash"] if row else "0" * 64)
        return _token(row) if row and right and row["revoked_at"] is None else None

    def signed(self, key: str, text: str) -> tuple[Token, str] | None:
        """A valid token by its id, and a signature of a text that only its holder could have asked for: made with what is stored
        of its secret, so it ends with the token."""
        row = self._token_row(key)
        if row is None or row["revoked_at"] is not None:
            return None
        return _token(row), hmac.new(row["hash"].encode(), text.encode(), hashlib.sha256).hexdigest()

    def recalls(self, text: str | None) -> bool:
        """A local read takes less time than handing it to another thread."""
        return True

    def tokens(self) -> list[Token]:
        with self.mapped():
            query = self._tokens.select().where(self._tokens.scope == self.scope)
            return [_token(row) for row in query.order_by(self._tokens.created_at).dicts()]

    def _token_row(self, key: str) -> dict[str, Any] | None:
        """Runs directly on the connection, because every request needs it."""
        columns = ("id", "hash", "role", "workspace", "note", "created_at", "revoked_at")
        with self.mapped():
            statement = f"SELECT {', '.join(columns)} FROM {self._at('tokens')} WHERE id = {self._mark} AND scope = {self._mark}"
            found = self._connection().execute(statement, (key, self.scope)).fetchone()
        return dict(zip(columns, found, strict=True)) if found else None

    @abstractmethod
    def _connection(self) -> Any:
        """The driver's own connection."""

    def _at(self, table: str) -> str:
        return table

    _mark = "?"

    def has_tokens(self, *, valid: bool = False) -> bool:
        """Whether a token was ever created: from then on one is required, even if all were revoked. With ``valid``, whether a
        valid one exists."""
        with self.mapped():
            wanted = f"scope = {self._mark}{' AND revoked_at IS NULL' if valid else ''}"
            statement = f"SELECT 1 FROM {self._at('tokens')} WHERE {wanted} LIMIT 1"
            return self._connection().execute(statement, (self.scope,)).fetchone() is not None

    def revoke_token(self, key: str) -> bool:
        with self.mapped():
            mine = (self._tokens.id == key) & (self._tokens.scope == self.scope) & self._tokens.revoked_at.is_null(True)
            return bool(self._tokens.update(revoked_at=now()).where(mine).execute())

    # Idempotent requests

    def request(self, who: str, key: str) -> StoredRequest | None:
        table = self._requests
        with self.mapped():
            mine = (table.scope == self.scope) & (table.who == who) & (table.key == key)
            row = table.select().where(mine).dicts().first()
        return StoredRequest(row["body"], row["task"], row["seal"], row["status"], row["answer"]) if row else None

    joins_writes = False

    @abstractmethod
    def _write(self, statements: Sequence[Statement], *, durable: bool) -> None:
        """Runs statements as one transaction, or as part of the current one."""

    def with_record(
        self, task: str, seal: str, key: KeyedRequest | None, audit: AuditEntry | None, *, durable: bool = True
    ) -> None:
        statements: list[Statement] = []
        if key is not None:
            status = key.status if self.joins_writes else None
            values = (self.scope, key.who, key.key, key.body, task, seal, status, key.answer, now())
            statements.append((self._insert("requests", _REQUEST), values))
        if audit is not None:
            statements.append(self._audit_statement(audit))
        self._write(statements, durable=durable)

    def finished(self, key: KeyedRequest | None, audit: Sequence[AuditEntry], *, durable: bool = True) -> None:
        statements = [self._audit_statement(entry) for entry in audit]
        if key is not None:
            statement = (
                f"{self._insert('requests', _REQUEST)} ON CONFLICT (scope, who, key)"
                " DO UPDATE SET status = excluded.status, answer = excluded.answer"
            )
            values = (self.scope, key.who, key.key, key.body, None, None, key.status, key.answer, now())
            statements.append((statement, values))
        if statements:
            self._write(statements, durable=durable)

    def _audit_statement(self, entry: AuditEntry) -> Statement:
        return self._insert("audit", ("at", "scope", *entry._fields)), (now(), self.scope, *entry)

    def _insert(self, table: str, columns: Sequence[str]) -> str:
        marks = ", ".join(self._mark for _ in columns)
        return f"INSERT INTO {self._at(table)} ({', '.join(columns)}) VALUES ({marks})"

    def forget_request(self, who: str, key: str) -> None:
        table = self._requests
        with self.mapped():
            table.delete().where((table.scope == self.scope) & (table.who == who) & (table.key == key)).execute()

    # Audit log

    def audited(self, limit: int, workspace: str | None, before: int | None = None) -> list[dict[str, Any]]:
        """Newest first."""
        table = self._audit
        with self.mapped():
            query = table.select().where(table.scope == self.scope)
            if workspace is not None:
                query = query.where(table.workspace == workspace)
            if before is not None:
                query = query.where(table.id < before)
            rows = query.order_by(table.id.desc()).limit(limit).dicts()
            return [{name: value for name, value in row.items() if name != "scope"} for row in rows]

    def tidy(self, audit_age: float | None = None) -> None:
        """Deletes requests that are too old to be repeated, and audit entries older than ``audit_age`` seconds."""
        with self.mapped():
            self._requests.delete().where(self._requests.at < _ago(REMEMBERED)).execute()
            if audit_age is not None:
                old = (self._audit.scope == self.scope) & (self._audit.at < _ago(timedelta(seconds=audit_age)))
                self._audit.delete().where(old).execute()


class FileServerState(StateTables):
    """The state in the user's state.db; its scope is the project."""

    def __init__(self, root: Path, path: Path | None = None) -> None:
        self.scope = str(root)
        self.path = path or default_path()
        UserState(self.path).close()  # creates it, and rejects a newer one
        pragmas = {"journal_mode": "wal", "synchronous": "full", "busy_timeout": 5000}
        self.db = Sqlite(str(self.path), pragmas)
        self._tokens, self._requests, self._audit, _ = server_tables(self.db)
        with self.mapped():
            self.db.create_tables([self._tokens, self._requests, self._audit], safe=True)
        self.group = GroupCommit(self._connection, self.mapped)

    def mapped(self) -> contextlib.AbstractContextManager[None]:
        return database.mapped(str(self.path))

    def _connection(self) -> Any:
        return self.db.connection()  # type: ignore[no-untyped-call]

    def _write(self, statements: Sequence[Statement], *, durable: bool) -> None:
        self.group.write(statements, durable=durable)

    def close(self) -> None:
        with contextlib.suppress(p.PeeweeException):
            self.db.close()


def _ago(age: timedelta) -> str:
    return (datetime.now(timezone.utc) - age).strftime("%Y-%m-%dT%H:%M:%S")


def _hash(secret: str) -> str:
    """A token is 256 random bits, so a slow hash is not needed to prevent guessing."""
    return hashlib.sha256(secret.encode()).hexdigest()


def _token(row: dict[str, Any]) -> Token:
    return Token(row["id"], row["role"], row["workspace"], row["note"], row["created_at"], row["revoked_at"])


def server_tables(db: p.Database, within: str | None = None) -> tuple[Any, Any, Any, Any]:
    class Bound(p.Model):
        class Meta:
            database = db
            schema = within
            legacy_table_names = False

    class TokenRow(Bound):
        id = p.TextField(primary_key=True)
        hash = p.TextField()
        role = p.TextField()
        workspace = p.TextField(null=True)
        note = p.TextField(null=True)
        scope = p.TextField()
        created_at = p.TextField()
        revoked_at = p.TextField(null=True)

        class Meta:
            table_name = "tokens"

    class RequestRow(Bound):
        scope = p.TextField()
        who = p.TextField()
        key = p.TextField()
        body = p.TextField()
        task = p.TextField(null=True)
        seal = p.TextField(null=True)
        status = p.IntegerField(null=True)
        answer = p.TextField(null=True)
        at = p.TextField()

        class Meta:
            table_name = "requests"
            primary_key = p.CompositeKey("scope", "who", "key")

    class AuditRow(Bound):
        at = p.TextField()
        scope = p.TextField()
        who = p.TextField()
        action = p.TextField()
        workspace = p.TextField(null=True)
        task = p.TextField(null=True)
        status = p.IntegerField()
        peer = p.TextField()

        class Meta:
            table_name = "audit"

    class WorkspaceRow(Bound):
        name = p.TextField(primary_key=True)
        external_id = p.TextField(null=True)
        created_at = p.TextField()

        class Meta:
            table_name = "workspaces"

    return TokenRow, RequestRow, AuditRow, WorkspaceRow
