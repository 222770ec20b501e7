"""Idempotent requests: with a key chosen by the client, a request is done once, however often it is sent.

The key of a request is stored with the record that the request writes: on PostgreSQL in the same transaction, otherwise in a
database that is synced before the file is written. So after a crash at any point, the seal shows whether the request was done.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable
from typing import Any

from rawko_state.errors import RawkoError, TaskNotFound
from rawko_state.server.operations import DRAFT, Call, Operation
from rawko_state.server.problems import Refused
from rawko_state.store.hosting import KeyedRequest, StoredRequest


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
            raise Refused(400, "BadKey", "Idempotency-Key must be at most 200 printable characters.")
        who = f"{call.workspace.name}/{call.who.id}"
        with self._lock:
            if (who, key) in self._busy:
                raise _in_progress()
            self._busy.add((who, key))
        try:
            call.key = KeyedRequest(who, key, _digest(operation, call), operation.status)
            return self._do(operation, call, work)
        finally:
            with self._lock:
                self._busy.discard((who, key))

    def _do(self, operation: Operation, call: Call, work: Callable[[], Any]) -> tuple[Any, bool]:
        if not operation.records:
            found, _ = self._earlier(call)
            if found is not None:
                return found
        for last in (False, True):
            try:
                return work(), False
            except RawkoError:
                # If the request was done before, its record or its key is in the way of doing it again.
                if not operation.records and not call.seals:
                    raise
                found, stale = self._earlier(call)
                if found is not None:
                    return found
                if last or not stale:
                    raise
        raise AssertionError("not reached")

    def _earlier(self, call: Call) -> tuple[tuple[Any, bool] | None, bool]:
        """The earlier answer, if the request was done before. Otherwise, whether a server died just before doing it: then its key
        was in the way, and is removed."""
        assert call.key is not None
        kept = call.state.request(call.key.who, call.key.key)
        if kept is None:
            return None, False
        if kept.body != call.key.body:
            raise Refused(422, "KeyUsed", "This Idempotency-Key was already used for a different request.")
        if kept.status is None and not self._was_done(call, kept):
            call.state.forget_request(call.key.who, call.key.key)
            return None, True
        call.task = kept.task or call.task
        return (json.loads(kept.answer) if kept.answer is not None else None, True), False

    @staticmethod
    def _was_done(call: Call, kept: StoredRequest) -> bool:
        if kept.task is None or kept.seal is None:
            return False
        if kept.seal.startswith(DRAFT):
            at = int(kept.seal.removeprefix(DRAFT))
            there = b"".join(call.store.draft_lines(kept.task))
            return bool(call.lines) and there[at : at + len(call.lines)] == call.lines
        try:
            return call.store.holds(kept.task, kept.seal)
        except TaskNotFound:
            return False


def _in_progress() -> Refused:
    return Refused(409, "InProgress", "This request is still being processed. Try again.", {"Retry-After": "1"})


def _digest(operation: Operation, call: Call) -> str:
    digest = hashlib.sha256(f"{operation.method} {operation.path} {sorted(call.params.items())!r}\n".encode())
    digest.update((call.headers.get("if-match") or "").encode("utf-8", "replace"))
    if call.upload is not None:
        with open(call.upload, "rb") as stream:
            while piece := stream.read(1 << 20):
                digest.update(piece)
    digest.update(call.body)
    return digest.hexdigest()
