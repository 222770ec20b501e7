"""Peewee, without drivers that nobody asked for.

Peewee imports the driver of every database that it finds, and psycopg alone takes longer than a command does. So it is imported
with those out of its sight, and is given psycopg when PostgreSQL is used.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, Final, cast

_DRIVERS: Final = ("psycopg", "psycopg2", "psycopg2cffi", "pymysql", "MySQLdb")

_hidden = [name for name in _DRIVERS if "peewee" not in sys.modules and name not in sys.modules]
for _name in _hidden:
    sys.modules[_name] = cast("ModuleType", None)  # an import of it fails
try:
    import peewee as p
finally:
    for _name in _hidden:
        sys.modules.pop(_name, None)

__all__ = ["p", "use_psycopg"]


def use_psycopg() -> None:
    """What Peewee would have done at its import, had it seen psycopg."""
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
