"""Peewee, without unused drivers, and with connections that get closed.

Peewee imports every database driver it finds, and importing psycopg alone takes longer than a command does. So the drivers are
hidden while Peewee is imported, and psycopg is added when PostgreSQL is used.
"""

from __future__ import annotations

import sqlite3
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final, cast

from rawko_state.forking import renew_after_fork
from rawko_state.index.connections import Connections

_DRIVERS: Final = ("psycopg", "psycopg2", "psycopg2cffi", "pymysql", "MySQLdb")

_hidden = [name for name in _DRIVERS if "peewee" not in sys.modules and name not in sys.modules]
for _name in _hidden:
    sys.modules[_name] = cast("ModuleType", None)  # makes its import fail
try:
    import peewee as p
finally:
    for _name in _hidden:
        sys.modules.pop(_name, None)

__all__ = ["Borrowed", "Sqlite", "p", "use_psycopg"]


def use_psycopg() -> None:
    """Does what Peewee's import would have done with psycopg visible."""
    peewee: Any = p
    if peewee.psycopg is not None:
        return
    import psycopg
    from psycopg.pq import TransactionStatus
    from psycopg.types.json import Json, Jsonb

    peewee.psycopg, peewee.Json_pg3, peewee.Jsonb_pg3 = psycopg, Json, Jsonb
    adapter = peewee.Psycopg3Adapter
    adapter.txn_idle, adapter.txn_inerror = TransactionStatus.IDLE, TransactionStatus.INERROR
    adapter.txn_unknown = TransactionStatus.UNKNOWN


_MEMORY: Final = ":memory:"


class Sqlite(p.SqliteDatabase):
    """A SQLite database with one connection per thread. A database in memory has one connection that all threads share."""

    def __init__(self, path: str | None, pragmas: dict[str, Any], timeout: float = 5.0) -> None:
        self.connections = Connections(self)
        super().__init__(
            path or _MEMORY,
            pragmas=pragmas,
            timeout=timeout,
            thread_safe=path is not None,
            check_same_thread=False,  # other threads close the connections of ended ones
        )
        renew_after_fork(self)

    def after_fork(self) -> None:
        self.connections.disown()
        peewee: Any = self
        peewee._lock = threading.Lock()
        peewee._state.reset()

    def _connect(self) -> Any:
        made = cast("Any", super())._connect()
        self.connections.add(made)
        return made

    def _close(self, conn: Any) -> None:
        self.connections.remove(conn)
        conn.close()

    def close(self) -> bool:
        """Closes this thread's connection, and those of threads that have ended."""
        closed = bool(super().close())
        self.connections.close_ended()
        return closed


class Borrowed(p.SqliteDatabase):
    """Peewee on connections that somebody else opens and closes."""

    def __init__(self, connection: Callable[[], sqlite3.Connection]) -> None:
        super().__init__(None)
        self._borrow = connection

    def cursor(self, named_cursor: Any = None) -> sqlite3.Cursor:
        return self._borrow().cursor()
