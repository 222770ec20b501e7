"""``state.db``: what is not derived from task files, per user, at the platform's state folder."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, Final

import peewee as p

from rawko_state.errors import IndexNewer, InvalidValue
from rawko_state.index.database import mapped

VERSION: Final = 1


class UserState:
    """The per-user database: small values under a scope and a key."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or default_path()
        with mapped(str(self.path)):
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            pragmas = {"journal_mode": "wal", "synchronous": "full", "foreign_keys": 1, "busy_timeout": 3000}
            self.db = p.SqliteDatabase(str(self.path), pragmas=pragmas)
            self.db.connect()
            self._kv = _kv_for(self.db)
            version = self.db.pragma("user_version")
            if version > VERSION:
                raise IndexNewer(f"{self.path} is of version {version}; this rawko knows up to {VERSION}")
            if version < VERSION:
                with self.db.atomic("IMMEDIATE"):
                    self.db.create_tables([self._kv], safe=True)
                    self.db.pragma("user_version", VERSION)

    def close(self) -> None:
        self.db.close()

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


def _kv_for(database: p.Database) -> Any:
    class KeyValue(p.Model):
        scope = p.TextField()
        k = p.TextField()
        v = p.TextField(null=True)

        class Meta:
            table_name = "kv"
            primary_key = p.CompositeKey("scope", "k")

    KeyValue._meta.set_database(database)
    return KeyValue


def default_path() -> Path:
    import platformdirs

    return Path(platformdirs.user_state_dir("rawko")) / "state.db"
