"""The server's operations, as a table. Each row has a path, the role it requires, its parameters, and its function.

The routes, the checks and the OpenAPI document are all generated from it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rawko_state.errors import InvalidValue
from rawko_state.format import fair_json
from rawko_state.model.frozen import Frozen, field
from rawko_state.server.schemas import ANY, Schema, check

if TYPE_CHECKING:
    from pathlib import Path

    from rawko_state.model.appended import Appended
    from rawko_state.server.workspaces import Workspace
    from rawko_state.store.contract import HostedStore
    from rawko_state.store.hosting import AuditEntry, KeyedRequest, Registry, ServerState, Token
    from rawko_state.tasks.task import Task

BYTES: Final = "application/octet-stream"
BLOCKS: Final = "text/plain"
READ, WRITE, ADMIN = "read", "write", "admin"
DRAFT: Final = "draft "
"""In place of a seal: where in a draft the request's lines begin."""


class Param(Frozen):
    """A value in the path or the query."""

    name: str
    schema: Schema
    about: str = ""
    required: bool = False
    many: bool = False

    def read(self, values: list[str]) -> Any:
        if not values:
            if self.required:
                raise InvalidValue(f"{self.name} is required.")
            return [] if self.many else None
        found = [self._one(value) for value in values]
        if not self.many and len(found) > 1:
            raise InvalidValue(f"{self.name} is given more than once.")
        return found if self.many else found[0]

    def _one(self, text: str) -> Any:
        kind = self.schema.get("type")
        value: Any = text
        if "\x00" in text:
            raise InvalidValue(f"{self.name}: must not contain NUL characters.")
        if kind == "integer":
            if not text.removeprefix("-").isdecimal() or len(text) > 19 or not text.isascii():
                raise InvalidValue(f"{self.name} must be an integer.")
            value = int(text)
        elif kind == "boolean":
            if text not in ("true", "false"):
                raise InvalidValue(f"{self.name} must be true or false.")
            value = text == "true"
        check(value, self.schema, self.name)
        return value


@dataclass(slots=True)
class Streamed:
    """An answer that is sent in pieces."""

    pieces: Iterator[bytes]
    media: str = BYTES
    status: int = 200
    headers: dict[str, str] = dataclasses.field(default_factory=dict)


@dataclass(slots=True)
class Call:
    """One validated request."""

    workspace: Workspace
    who: Token
    peer: str
    params: dict[str, Any]
    body: bytes = b""
    upload: Path | None = None
    """The body, if it may be too large for memory."""
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    task: str | None = None
    """The task that the request concerns, for the audit log."""
    data: Any = None
    key: KeyedRequest | None = None
    """The request's idempotency key. It is stored with the record that the request writes."""
    audit: AuditEntry | None = None
    """The request's audit entry, if it gets one. Like the key, it is stored with the record if the database can do that."""
    stored: bool = False
    """Whether key and audit entry were part of the record's transaction."""
    seals: list[str] = dataclasses.field(default_factory=list)
    """The seals of the records that the request was about to write."""
    answer: Callable[[Appended], dict[str, Any]] = dataclasses.field(default_factory=lambda: done)
    """The answer to the request, given its record."""

    says: dict[str, str] = dataclasses.field(default_factory=dict)
    """Headers of the response."""
    lines: bytes = b""
    """The lines that the request adds to a draft."""

    @property
    def store(self) -> HostedStore:
        return self.workspace.store

    @property
    def registry(self) -> Registry:
        return self.workspace.registry

    @property
    def state(self) -> ServerState:
        return self.workspace.state

    @property
    def by(self) -> str:
        """The author to put into records, unless they name one."""
        return self.who.note or self.who.id

    @property
    def id(self) -> str:
        """The full id of the task that the path names."""
        if self.task is None:
            self.task = self.workspace.id_of(self.params["id"])
        return self.task

    @property
    def expected(self) -> str | None:
        """The seal that the client expects to be the last one."""
        given = self.headers.get("if-match")
        return given.strip().strip('"') if given and given.strip() != "*" else None

    def changed(self, task_id: str) -> None:
        """Wakes the followers of a task after a change."""
        self.workspace.changed(task_id)

    def writing(self, work: Callable[[Task], Any]) -> Any:
        """Calls ``work`` with the open task, with exclusive access."""
        found = self.workspace.warm.using(self.id, work, self.with_record, self.expected)
        self.changed(self.id)
        return found

    def with_record(self, record: Appended) -> None:
        """Stores what belongs to the request's record. Called just before the record is written."""
        self.task, joins = record.state.id, self.state.joins_writes
        key = self.key and self.key._replace(answer=json.dumps(self.answer(record)))
        audit = self.audit._replace(task=self.task) if self.audit is not None and joins else None
        if key is not None or audit is not None:
            self.seals.append(record.seal)
            self.state.with_record(self.task, record.seal, key, audit)
        self.stored = joins

    def with_draft(self, at: int) -> None:
        """The same for lines of a draft, which come to stand at this place."""
        if self.key is not None:
            key = self.key._replace(answer=json.dumps(None))
            self.state.with_record(self.id, f"{DRAFT}{at}", key, None, durable=False)
        self.stored = self.state.joins_writes


def done(record: Appended) -> dict[str, Any]:
    """The answer to most changes: the task's last seal and its state after the record."""
    state = record.state
    return {"version": 1, "task": state.id, "seal": record.seal, "turn": state.turns, "status": state.status}


class Operation(Frozen):
    method: str
    path: str
    about: str
    role: str
    do: Callable[[Call], Any]
    """Returns a value to send as JSON, or Streamed, or None for no content."""
    params: tuple[Param, ...] = ()
    body: Schema | str | None = None
    """A JSON schema, or a media type."""
    answer: Schema | str | tuple[str, ...] = field(default_factory=dict)
    """A JSON schema, or one or several media types."""
    status: int = 200
    alone: bool = False
    """Belongs to the server, not to a workspace."""
    uploads: bool = False
    records: bool = False
    """Its one record is written, or nothing is done. So its key, which is stored with the record, need not be looked up first."""

    @property
    def name(self) -> str:
        return self.do.__name__.rstrip("_")

    @property
    def changes(self) -> bool:
        return self.method != "GET"

    def parse(self, call: Call) -> None:
        """Parses and validates the body."""
        if isinstance(self.body, dict):
            if not call.body and not self.body.get("required"):
                call.data = {}
                return
            try:
                call.data = fair_json.loads(call.body)
            except ValueError as error:
                raise InvalidValue(f"The body is not valid JSON: {error}.") from None
            check(call.data, self.body or ANY)
