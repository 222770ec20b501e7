"""Idempotent requests: with a key chosen by the client, a request is done once, however often it is sent.

Before a record is written for such a request, its seal is stored with the key: on PostgreSQL in the same transaction, otherwise
in a database that is synced before the file is written. So after a crash at any point, looking for the seal shows whether the
request was done.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Callable
from typing import Any

from rawko_state.errors import RawkoError, StorageError, TaskNotFound
from rawko_state.server.operations import Call, Operation
from rawko_state.server.problems import Refused
from rawko_state.server.writing import done_before
from rawko_state.store.hosting import StoredRequest


class Idempotency:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy: set[tuple[str, str]] = set()

    def do(self, operation: Operation, call: Call, work: Callable[[], Any]) -> tuple[Any, bool]:
        """The answer, and whether it is a replay of an earlier one."""
        key = call.headers.get("idempotency-key")
        if not key or not operation.changes:
            return work(), False
        if len(key) > 200 or not key.isascii() or not key.isprintable():
            raise Refused(400, "BadKey", "an Idempotency-Key is at most 200 printable characters")
        who = f"{call.workspace.name}/{call.who.id}"
        with self._lock:
            if (who, key) in self._busy:
                raise _in_progress()
            self._busy.add((who, key))
        try:
            return self._do(operation, call, work, who, key)
        finally:
            with self._lock:
                self._busy.discard((who, key))

    def _do(self, operation: Operation, call: Call, work: Callable[[], Any], who: str, key: str) -> tuple[Any, bool]:
        digest = _digest(operation, call)
        kept = call.state.request(who, key)
        if kept is not None:
            found = self._replayed(call, kept, digest)
            if found is not None:
                return found
            call.state.forget_request(who, key)  # it was never done
        intended: list[str] = []

        def intend(task: str, seal: str) -> None:
            intended.append(seal)
            call.state.intend(who, key, digest, task, seal)

        call.intend = intend
        try:
            answer = work()
        except StorageError:
            kept = call.state.request(who, key) if intended else None
            found = self._replayed(call, kept, digest) if kept is not None else None
            if found is not None:
                return found  # it was done after all, or by another server first
            if kept is not None and kept.seal not in intended:
                raise _in_progress() from None
            raise
        if not hasattr(answer, "pieces"):
            with contextlib.suppress(RawkoError):  # it is done; if it is sent again, the seal shows that
                call.state.answered(who, key, digest, operation.status, json.dumps(answer))
        return answer, False

    @staticmethod
    def _replayed(call: Call, kept: StoredRequest, digest: str) -> tuple[Any, bool] | None:
        """The answer that was given, or would have been; None if the request was not done."""
        if kept.body != digest:
            raise Refused(422, "KeyUsed", "this Idempotency-Key was used for another request")
        if kept.answer is not None:
            return json.loads(kept.answer), True
        if kept.task is None or kept.seal is None:
            return None
        try:
            before = done_before(call, kept.task, kept.seal)
        except TaskNotFound:
            return None
        if before is None:
            return None
        call.task = kept.task
        return before, True


def _in_progress() -> Refused:
    return Refused(409, "InProgress", "this request is being done just now; ask again", {"Retry-After": "1"})


def _digest(operation: Operation, call: Call) -> str:
    digest = hashlib.sha256(f"{operation.method} {operation.path} {sorted(call.params.items())!r}\n".encode())
    digest.update((call.headers.get("if-match") or "").encode("utf-8", "replace"))
    if call.upload is not None:
        with open(call.upload, "rb") as stream:
            while piece := stream.read(1 << 20):
                digest.update(piece)
    digest.update(call.body)
    return digest.hexdigest()
