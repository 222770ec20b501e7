"""The bytes of one workspace's tasks in PostgreSQL, and what local stores keep in files: drafts, blobs, leases and the trash.

The rows of ``record_bytes`` are the task file, split after every record: concatenated, they are its bytes. The header's two
copied values are overwritten in the first row, as they are in a file.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from rawko_state.backends.postgres.connection import BLOBS, mapped
from rawko_state.backends.postgres.rows import PostgresDatabase
from rawko_state.errors import TaskBusy

_PIECE: Final = 1 << 20


class Thrown(NamedTuple):
    """A task in the trash."""

    key: int
    id: str
    filename: str
    at: datetime
    rule: str
    size: int
    blobs: tuple[str, ...]


class Matching(NamedTuple):
    """A document that a search may want."""

    task: str
    created: str | None
    offset: int
    length: int
    data: bytes
    """Its bytes, as far as they are in one row."""


class TaskTables:
    """Tables in addition to those that every database has."""

    def __init__(self, rows: PostgresDatabase) -> None:
        self.rows, self._at, self._name = rows, rows.at, rows.name

    def _ask(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with mapped(self._name):
            return self.rows.postgres.retrying(lambda: self.rows.connection.execute(statement, values).fetchall())

    def _do(self, statement: str, values: Sequence[Any] = ()) -> None:
        with mapped(self._name):
            self.rows.postgres.retrying(lambda: self.rows.connection.execute(statement, values))

    def notify(self, task_id: str) -> None:
        """Notifies listeners soon that a task has changed durably."""
        self.rows.postgres.notifier.notify(self.rows.schema, task_id)

    # Ids

    def ids_like(self, prefix: str) -> list[tuple[str, str]]:
        """Up to nine tasks whose id starts with ``prefix``, with their files."""
        return [
            (row[0], row[1])
            for row in self._ask(
                f"SELECT id, file_path FROM {self._at('tasks')} WHERE id >= %s AND id < %s ORDER BY id LIMIT 9",
                (prefix, prefix + "\U0010ffff"),
            )
        ]

    def ids(self) -> list[str]:
        """Ids in order of file name."""
        return [row[0] for row in self._ask(f"SELECT id FROM {self._at('tasks')} ORDER BY file_path, id")]

    # Bytes

    def size(self, task_id: str) -> int | None:
        found = self._ask(f"SELECT file_size FROM {self._at('tasks')} WHERE id = %s", (task_id,))
        return int(found[0][0]) if found else None

    def stamp(self, task_id: str) -> tuple[int, int, int] | None:
        """The task's version, size and time of last change."""
        query = f"SELECT fold_base, file_size, file_mtime_ns FROM {self._at('tasks')} WHERE id = %s"
        found = self._ask(query, (task_id,))
        return (int(found[0][0]), int(found[0][1]), int(found[0][2])) if found else None

    def fetch(self, task_id: str, offset: int, length: int) -> bytes:
        """Exactly that many bytes, or fewer at the end."""
        if length <= 0:
            return b""
        table = self._at("record_bytes")
        pieces = self._ask(
            f'SELECT substring(data FROM greatest(1, %(at)s - "offset" + 1)::int'
            f' FOR (least("offset" + length, %(end)s) - greatest("offset", %(at)s))::int)'
            f' FROM {table} WHERE task_id = %(id)s AND "offset" < %(end)s AND "offset" >= coalesce('
            f'(SELECT max("offset") FROM {table} WHERE task_id = %(id)s AND "offset" <= %(at)s), 0)'
            f' AND "offset" + length > %(at)s ORDER BY "offset"',
            {"id": task_id, "at": offset, "end": offset + length},  # type: ignore[arg-type]
        )
        return b"".join(bytes(row[0]) for row in pieces)

    def turn(self, task_id: str, number: int) -> tuple[int, int, int, bytes] | None:
        """Whether a turn's record is damaged, its offset and length, and its bytes as far as they are in one row."""
        rows = self._ask(
            f'SELECT a.damaged, a."offset", a.length, substring(b.data FROM (a."offset" - b."offset" + 1)::int FOR a.length::int)'
            f" FROM {self._at('task_agents')} a JOIN LATERAL (SELECT * FROM {self._at('record_bytes')} r"
            f' WHERE r.task_id = a.task_id AND r."offset" <= a."offset" ORDER BY r."offset" DESC LIMIT 1) b ON true'
            f' WHERE a.task_id = %s AND a.turn = %s ORDER BY a."offset" LIMIT 1',
            (task_id, number),
        )
        return (rows[0][0], rows[0][1], rows[0][2], bytes(rows[0][3])) if rows else None

    def put_bytes(self, task_id: str, offset: int, data: bytes) -> None:
        """Appends bytes to a task, in rows of limited size."""
        statement = f'INSERT INTO {self._at("record_bytes")} (task_id, "offset", length, data) VALUES (%s, %s, %s, %s)'
        for start in range(0, len(data), _PIECE):
            piece = data[start : start + _PIECE]
            self._do(statement, (task_id, offset + start, len(piece), piece))

    def overwrite(self, task_id: str, offset: int, data: bytes) -> None:
        """Overwrites bytes of the header."""
        self._do(
            f"UPDATE {self._at('record_bytes')} SET data = overlay(data PLACING %s FROM %s)"
            ' WHERE task_id = %s AND "offset" = 0 AND length >= %s',
            (data, offset + 1, task_id, offset + len(data)),
        )

    # Additional tables for searches and queries

    def put_words(self, task_id: str, documents: Iterable[tuple[int, int, Sequence[str]]]) -> None:
        """Stores each document's position and the words it can be found by."""
        statement = (
            f'INSERT INTO {self._at("documents")} (task_id, "offset", length, words)'
            " VALUES (%s, %s, %s, array_to_tsvector(string_to_array(%s, E'\\n'))) ON CONFLICT DO NOTHING"
        )
        for offset, length, words in documents:
            self._do(statement, (task_id, offset, length, "\n".join(words)))

    def holding(self, query: str) -> Iterator[Matching]:
        """All documents that match a tsquery, task by task, with their bytes. They come one after another from one statement,
        however many there are."""
        with mapped(self._name), self.rows.connection.cursor() as cursor:
            for row in cursor.stream(
                f'SELECT d.task_id, t.created_at, d."offset", d.length,'
                f' substring(b.data FROM (d."offset" - b."offset" + 1)::int FOR d.length::int)'
                f" FROM {self._at('documents')} d JOIN {self._at('tasks')} t ON t.id = d.task_id"
                f" LEFT JOIN LATERAL (SELECT * FROM {self._at('record_bytes')} r WHERE r.task_id = d.task_id"
                f' AND r."offset" <= d."offset" ORDER BY r."offset" DESC LIMIT 1) b ON true'
                f' WHERE d.words @@ %s::tsquery ORDER BY d.task_id, d."offset"',
                (query,),
            ):
                yield Matching(row[0], row[1], row[2], row[3], bytes(row[4] or b""))

    def words_like(self, prefix: str, most: int = 1000) -> list[str]:
        """Indexed words that start with ``prefix``."""
        rows = self._ask(
            "SELECT DISTINCT word FROM (SELECT unnest(tsvector_to_array(words)) AS word"
            f" FROM {self._at('documents')} WHERE words @@ %s::tsquery LIMIT 200000) found"
            " WHERE word >= %s AND word < %s LIMIT %s",
            (f"{quoted(prefix)}:*", prefix, prefix + "\U0010ffff", most),
        )
        return [row[0] for row in rows]

    def put_state(self, task_id: str, turn: int, state: str | None, payload: str | None) -> None:
        self._do(
            f"INSERT INTO {self._at('task_states')} VALUES (%s, %s, %s::jsonb, %s::jsonb) ON CONFLICT DO NOTHING",
            (task_id, turn, state, payload),
        )

    # Blobs

    def put_blob(self, sha256: str, data: bytes) -> None:
        statement = f"INSERT INTO {self._at('blobs')} VALUES (%s, %s, %s) ON CONFLICT DO NOTHING"
        self._do(statement, (sha256, len(data), data))

    def blob(self, sha256: str) -> bytes | None:
        found = self._ask(f"SELECT data FROM {self._at('blobs')} WHERE sha256 = %s", (sha256,))
        return bytes(found[0][0]) if found else None

    def keep_blobs(self) -> None:
        """Until the transaction ends, no blob is deleted: a record that names some is about to be written."""
        with mapped(self._name):
            self.rows.postgres.lock_row(self.rows.schema, BLOBS, shared=True)

    def lock_blobs(self) -> None:
        """Until the transaction ends, no new record can name a blob."""
        with mapped(self._name):
            self.rows.postgres.lock_row(self.rows.schema, BLOBS)

    def drop_unused_blobs(self, blobs: Iterable[str]) -> None:
        """Deletes the given blobs, except those that a task or the trash refers to. Call inside a transaction."""
        self.lock_blobs()
        self._do(
            f"DELETE FROM {self._at('blobs')} b WHERE sha256 = ANY(%s)"
            f" AND NOT EXISTS (SELECT 1 FROM {self._at('task_blobs')} u WHERE u.sha256 = b.sha256)"
            f" AND NOT EXISTS (SELECT 1 FROM {self._at('trash')} t WHERE b.sha256 = ANY(t.blobs))",
            (list(blobs),),
        )

    # Drafts

    def begin_draft(self, task_id: str) -> int:
        """Returns a key that distinguishes this draft from later ones."""
        self._do(f"DELETE FROM {self._at('drafts')} WHERE task_id = %s", (task_id,))
        return int(self._ask(f"INSERT INTO {self._at('drafts')} (task_id) VALUES (%s) RETURNING key", (task_id,))[0][0])

    def add_to_draft(self, task_id: str, data: bytes, key: int | None = None) -> bool:
        """Returns whether the draft exists; with ``key``, whether that very draft does."""
        found = self._ask(
            f"UPDATE {self._at('drafts')} SET size = size + %(more)s WHERE task_id = %(id)s"
            " AND (%(key)s::bigint IS NULL OR key = %(key)s) RETURNING size",
            {"more": len(data), "id": task_id, "key": key},  # type: ignore[arg-type]
        )
        if not found:
            return False
        self._do(
            f"INSERT INTO {self._at('draft_pieces')} VALUES (%s, %s, %s)", (task_id, found[0][0] - len(data), data)
        )
        return True

    def extend_draft(self, task_id: str, data: bytes, token: str) -> tuple[bool, bool, str | None]:
        """Adds to the draft if this token holds the lease, in one statement that does not wait for the disk. Returns whether it
        does, whether there is a draft, and the task's last seal."""
        row = self._ask(
            f"WITH held AS (SELECT 1 FROM {self._at('leases')} WHERE task_id = %(id)s AND token = %(token)s"
            f" AND expires >= clock_timestamp()), grown AS (UPDATE {self._at('drafts')} SET size = size + %(more)s"
            " WHERE task_id = %(id)s AND EXISTS (SELECT 1 FROM held) RETURNING size),"
            f" piece AS (INSERT INTO {self._at('draft_pieces')} SELECT %(id)s, size - %(more)s, %(data)s FROM grown)"
            " SELECT EXISTS (SELECT 1 FROM held), EXISTS (SELECT 1 FROM grown),"
            f" (SELECT tail_seal FROM {self._at('tasks')} WHERE id = %(id)s), set_config('synchronous_commit', 'off', true)",
            {"id": task_id, "token": token, "more": len(data), "data": data},  # type: ignore[arg-type]
        )[0]
        return bool(row[0]), bool(row[1]), row[2]

    def draft_stamp(self, task_id: str) -> tuple[int, int] | None:
        found = self._ask(f"SELECT key, size FROM {self._at('drafts')} WHERE task_id = %s", (task_id,))
        return (found[0][0], found[0][1]) if found else None

    def draft_from(self, task_id: str, start: int) -> bytes:
        rows = self._ask(
            f"SELECT start, data FROM {self._at('draft_pieces')} WHERE task_id = %s AND start + length(data) > %s"
            " ORDER BY start",
            (task_id, start),
        )
        return b"".join(bytes(data)[max(0, start - at) :] for at, data in rows)

    def drop_draft(self, task_id: str, key: int | None = None) -> None:
        self._do(
            f"DELETE FROM {self._at('drafts')} WHERE task_id = %(id)s AND (%(key)s::bigint IS NULL OR key = %(key)s)",
            {"id": task_id, "key": key},  # type: ignore[arg-type]
        )

    def drafted(self) -> set[str]:
        return {row[0] for row in self._ask(f"SELECT task_id FROM {self._at('drafts')}")}

    # Leases

    def take_lease(self, task_id: str, token: str | None, holder: str, seconds: float) -> str:
        """Takes or renews the lease. Raises TaskBusy if another holder's lease has not expired."""
        mine = token or secrets.token_hex(16)
        found = self._ask(
            # The clock is read in VALUES: a distributed engine takes no volatile function in DO UPDATE.
            f"INSERT INTO {self._at('leases')} AS l (task_id, token, holder, since, expires)"
            " VALUES (%s, %s, %s, clock_timestamp(), clock_timestamp() + make_interval(secs => %s))"
            " ON CONFLICT (task_id) DO UPDATE SET token = excluded.token, holder = excluded.holder,"
            " since = CASE WHEN l.token = excluded.token THEN l.since ELSE excluded.since END, expires = excluded.expires"
            " WHERE l.token = excluded.token OR l.expires < excluded.since RETURNING token",
            (task_id, mine, holder, seconds),
        )
        if not found:
            raise TaskBusy(task_id, self.holder(task_id))
        return mine

    def check_lease(self, task_id: str, token: str) -> None:
        query = f"SELECT 1 FROM {self._at('leases')} WHERE task_id = %s AND token = %s AND expires >= clock_timestamp()"
        if not self._ask(query, (task_id, token)):
            raise TaskBusy(task_id, self.holder(task_id) or "nobody", reason="lost")

    def release_lease(self, task_id: str, token: str) -> None:
        self._do(f"DELETE FROM {self._at('leases')} WHERE task_id = %s AND token = %s", (task_id, token))

    def holder(self, task_id: str) -> str | None:
        found = self._ask(
            f"SELECT holder, since FROM {self._at('leases')} WHERE task_id = %s AND expires >= clock_timestamp()",
            (task_id,),
        )
        return f"{found[0][0]}, since {found[0][1]:%Y-%m-%dT%H:%M:%SZ}" if found else None

    def alive(self) -> set[str]:
        query = f"SELECT task_id FROM {self._at('leases')} WHERE expires >= clock_timestamp()"
        return {row[0] for row in self._ask(query)}

    def abandoned(self) -> list[str]:
        """Tasks whose writer let its lease expire or left a draft behind."""
        rows = self._ask(
            f"SELECT task_id FROM {self._at('leases')} WHERE expires < clock_timestamp() UNION"
            f" SELECT d.task_id FROM {self._at('drafts')} d LEFT JOIN {self._at('leases')} l ON l.task_id = d.task_id"
            " WHERE l.task_id IS NULL"
        )
        return sorted(row[0] for row in rows)

    # The trash

    def throw(self, task_id: str, filename: str, rule: str, by: str | None, size: int, blobs: Sequence[str]) -> None:
        """Copies the bytes to the trash and deletes the task's rows."""
        key = self._ask(
            f'INSERT INTO {self._at("trash")} (task_id, filename, rule, "by", size, blobs)'
            " VALUES (%s, %s, %s, %s, %s, %s) RETURNING key",
            (task_id, filename, rule, by, size, list(blobs)),
        )[0][0]
        self._do(
            f'INSERT INTO {self._at("trash_bytes")} SELECT %s, "offset", data FROM {self._at("record_bytes")}'
            " WHERE task_id = %s",
            (key, task_id),
        )
        self.rows.forget(task_id)

    def thrown(self) -> list[Thrown]:
        rows = self._ask(
            f"SELECT key, task_id, filename, at, rule, size, blobs FROM {self._at('trash')} ORDER BY key DESC"
        )
        return [Thrown(row[0], row[1], row[2], row[3], row[4], row[5], tuple(row[6])) for row in rows]

    def lock_thrown(self, key: int) -> bool:
        """Whether it is still in the trash. It stays there until the transaction ends."""
        return bool(self._ask(f"SELECT 1 FROM {self._at('trash')} WHERE key = %s FOR UPDATE", (key,)))

    def thrown_bytes(self, key: int) -> Iterator[bytes]:
        offsets = self._ask(f'SELECT "offset" FROM {self._at("trash_bytes")} WHERE key = %s ORDER BY "offset"', (key,))
        for (offset,) in offsets:
            query = f'SELECT data FROM {self._at("trash_bytes")} WHERE key = %s AND "offset" = %s'
            yield bytes(self._ask(query, (key, offset))[0][0])

    def replace_thrown(self, key: int, pieces: Iterable[bytes], size: int, blobs: Sequence[str]) -> None:
        """Replaces the bytes of a task in the trash."""
        self._do(f"DELETE FROM {self._at('trash_bytes')} WHERE key = %s", (key,))
        offset = 0
        for piece in pieces:
            self._do(f"INSERT INTO {self._at('trash_bytes')} VALUES (%s, %s, %s)", (key, offset, piece))
            offset += len(piece)
        self._do(f"UPDATE {self._at('trash')} SET size = %s, blobs = %s WHERE key = %s", (size, list(blobs), key))

    def drop_thrown(self, key: int) -> None:
        self._do(f"DELETE FROM {self._at('trash')} WHERE key = %s", (key,))

    def exempt(self) -> set[str]:
        return {row[0] for row in self._ask(f"SELECT task_id FROM {self._at('exempt')}")}

    def set_exempt(self, task_id: str) -> None:
        self._do(f"INSERT INTO {self._at('exempt')} VALUES (%s) ON CONFLICT DO NOTHING", (task_id,))

    def sizes(self) -> dict[str, int]:
        """Sizes in bytes, by purpose."""
        tables = {"tasks": "record_bytes", "blobs": "blobs", "index": "task_agents", "search": "documents"}
        return {
            name: int(self._ask("SELECT pg_total_relation_size(%s)", (self._at(table),))[0][0])
            for name, table in tables.items()
        }


def quoted(word: str) -> str:
    """Quotes a word for a tsquery."""
    return "'" + word.replace("\\", "\\\\").replace("'", "''") + "'"


def holder_name() -> str:
    """Identifies this process to others."""
    import socket

    return f"process {os.getpid()} on {socket.gethostname()}"
