"""One task on a server, open for writing: records are sent as bytes, on the condition that the previous one is still the last."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rawko_state.backends.leases import LEASE, ExpiringLease
from rawko_state.errors import ChainMoved, RawkoError, ServerRefused, TaskBusy
from rawko_state.format.reader import TaskReader
from rawko_state.format.records import emit_blocks
from rawko_state.model.appended import Appended, Position
from rawko_state.model.entries import Turn
from rawko_state.model.state import TaskState
from rawko_state.store.wire import from_wire
from rawko_state.tasks.draft import Draft, DraftContent, draft_content
from rawko_state.tasks.writer import BeforeWrite, Make, Writer

if TYPE_CHECKING:
    from rawko_state.backends.remote.store import RemoteStore

_BLOCKS = "text/plain; charset=utf-8"


class _DraftSink:
    """Sends each line. Sends all of them again if the server restarted and lost the lease or the draft."""

    def __init__(self, store: RemoteStore, task_id: str, token: str, heard: Callable[[str], None]) -> None:
        """``heard`` is called with the task's last seal whenever the server says it."""
        self._store, self._http, self._id, self._token, self._heard = store, store.http, task_id, token, heard
        self._path = store.http.path("tasks", task_id, "draft", token=token)
        self._sent: list[bytes] = []

    def write(self, data: bytes, *, durable: bool) -> None:
        begun = bool(self._sent)
        self._sent.append(data)
        try:
            self._http.ask("POST" if begun else "PUT", self._path, body=data)
            if self._http.last_seal is not None:
                self._heard(self._http.last_seal)
        except (TaskBusy, ServerRefused) as error:
            if isinstance(error, ServerRefused) and error.status != 409:
                raise
            self._store.take_lease(self._id, self._token, LEASE)  # raises TaskBusy if another process holds it by now
            self._http.ask("PUT", self._path, body=b"".join(self._sent))

    def discard(self) -> None:
        with contextlib.suppress(RawkoError):
            self._http.ask("DELETE", self._path)

    def leave(self) -> None:
        return


class RemoteWriter(Writer):
    """A task on a server. Each append is one request that names the seal it follows."""

    def __init__(self, store: RemoteStore, task_id: str, lease: float | None) -> None:
        self.id = task_id
        self._store, self._http = store, store.http
        self._lease: ExpiringLease | None = None
        self._heard: str | None = None
        if lease is not None:
            self._lease = ExpiringLease(
                task_id,
                lambda token: store.take_lease(task_id, token, LEASE),
                lambda token: store.release_lease(task_id, token),
                wait=lease,
                done=store.close,
            )
        try:
            self._look()
        except BaseException:
            self.release_lease()
            raise

    @property
    def root(self) -> Path:
        return self._store.root

    @property
    def is_leased(self) -> bool:
        return self._lease is not None

    def position(self) -> Position:
        return self._position

    def _look(self) -> None:
        about = self._store.about(self.id)
        self._position = Position(int(about["end"]), str(about["seal"]), from_wire(TaskState, about["state"]))

    def refresh(self) -> TaskState:
        self._look()
        return self._position.state

    def reader(self) -> TaskReader:
        return self._store.reader(self.id)

    def has_grown(self) -> bool:
        """The answer to the last line of the draft says it already."""
        heard, self._heard = self._heard, None
        return bool((heard or self._store.about(self.id)["seal"]) != self._position.seal)

    def _hear(self, seal: str) -> None:
        self._heard = seal

    def holds(self, seal: str) -> bool:
        return bool(self._store.get("tasks", self.id, "records", seal)["holds"])

    def append(self, make: Make, expect: str | None = None, before: BeforeWrite | None = None) -> Appended:
        if expect is not None:
            self._look()
        while True:
            body = emit_blocks(make(self._position.state))
            headers = {"Content-Type": _BLOCKS, "If-Match": f'"{expect or self._position.seal}"'}
            if self._lease is not None:
                headers["Rawko-Lease"] = self._lease.token
            try:
                done = self._http.ask("POST", self._http.path("tasks", self.id, "records"), body=body, headers=headers)
            except ChainMoved:
                self._look()
                if expect is not None:
                    raise
                continue  # another writer was faster: what to append may depend on its record
            if "state" not in done:
                # The server died before it could respond, and knows only from the seal that the append was done.
                self._look()
                return Appended(done["seal"], "", 0, 0, self._position.state)
            state = from_wire(TaskState, done["state"])
            self._position = Position(done["end"], done["seal"], state)
            return Appended(done["seal"], done["parent"], done["offset"], done["end"], state)

    def last_turns(self) -> Iterator[Turn]:
        rows, _ = self._store.turn_rows(self.id)
        with self._store.reader(self.id) as reader:
            for row in reversed(rows):
                found = reader.turn_at(row.offset, row.length)
                if found is not None:
                    yield found

    def keeping_blobs(self, turn: Turn | None = None) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def with_blobs(self, turn: Turn, redact: Callable[[str], str]) -> Turn:
        """The server moves long outputs to blobs; they are sent with their turn."""
        return turn

    def draft(self, agent: str, fields: dict[str, Any], durable: bool) -> Draft:
        assert self._lease is not None
        sink = _DraftSink(self._store, self.id, self._lease.token, self._hear)
        return Draft(sink, agent, self._position.end, self._position.seal, fields, durable)

    def left_draft(self) -> DraftContent | None:
        return draft_content(self._lines())

    def _lines(self) -> list[bytes]:
        found = self._store.get("tasks", self.id, "draft")["lines"]
        return [json.dumps(line).encode() + b"\n" for line in found]

    def draft_text(self) -> str:
        return b"".join(self._lines()).decode("utf-8", "replace")

    def drop_draft(self) -> None:
        if self._lease is not None and self._lines():
            self._http.ask("DELETE", self._http.path("tasks", self.id, "draft", token=self._lease.token))

    def release_lease(self) -> None:
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    def close(self) -> None:
        self.release_lease()
