"""Requests that are done once, however often they are sent: by a key that the client chooses.

Before a record is written for such a request, its seal is kept with the key: in the same transaction on PostgreSQL, else in a
database that is synced before the file is written to. So after a crash at any point it can be told, by looking for the seal,
whether the request was done.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable
from typing import Any

from rawko_state.errors import TaskNotFound
from rawko_state.server.operations import Call, Operation
from rawko_state.server.problems import Refused
from rawko_state.server.writing import told_again


class Once:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy: set[tuple[str, str]] = set()

    def do(self, operation: Operation, call: Call, work: Callable[[], Any]) -> tuple[Any, bool]:
        """The answer, and whether it is one that was given before."""
        key = call.headers.get("idempotency-key")
        if not key or not operation.changes:
            return work(), False
        if len(key) > 200 or not key.isascii() or not key.isprintable():
            raise Refused(400, "BadKey", "an Idempotency-Key is at most 200 printable characters")
        who = f"{call.place.name}/{call.who.id}"
        with self._lock:
            if (who, key) in self._busy:
                raise Refused(409, "InProgress", "this request is being done just now; ask again", {"Retry-After": "1"})
            self._busy.add((who, key))
        try:
            return self._do(operation, call, work, who, key)
        finally:
            with self._lock:
                self._busy.discard((who, key))

    def _do(self, operation: Operation, call: Call, work: Callable[[], Any], who: str, key: str) -> tuple[Any, bool]:
        digest = _digest(operation, call)
        kept = call.db.request(who, key)
        if kept is not None:
            if kept.body != digest:
                raise Refused(422, "KeyUsed", "this Idempotency-Key was used for another request")
            if kept.answer is not None:
                return json.loads(kept.answer), True
            if kept.task is not None and kept.seal is not None:
                try:
                    before = told_again(call, kept.task, kept.seal)
                except TaskNotFound:
                    before = None
                if before is not None:
                    call.task = kept.task
                    return before, True
            call.db.forget_request(who, key)  # it was never done
        call.intend = lambda task, seal: call.db.intend(who, key, digest, task, seal)
        answer = work()
        if not hasattr(answer, "pieces"):
            call.db.answered(who, key, digest, operation.status, json.dumps(answer))
        return answer, False


def _digest(operation: Operation, call: Call) -> str:
    digest = hashlib.sha256(f"{operation.method} {operation.path} {sorted(call.params.items())!r}\n".encode())
    digest.update((call.headers.get("if-match") or "").encode("utf-8", "replace"))
    if call.upload is not None:
        with open(call.upload, "rb") as stream:
            while piece := stream.read(1 << 20):
                digest.update(piece)
    digest.update(call.body)
    return digest.hexdigest()
