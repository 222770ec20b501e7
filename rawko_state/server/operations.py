"""What can be asked of the server, as a table: each row is an address, who may use it, what it takes, and what does it.

The routes, the checks and the OpenAPI document are all made from it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from rawko_state.errors import InvalidValue
from rawko_state.server.schemas import ANY, Schema, check

if TYPE_CHECKING:
    from pathlib import Path

    from rawko_state.server.workspaces import Workspace
    from rawko_state.store.contract import HostedStore
    from rawko_state.store.hosting import Registry, ServerState, Token
    from rawko_state.tasks.task import Task

BYTES: Final = "application/octet-stream"
BLOCKS: Final = "text/plain"
READ, WRITE, ADMIN = "read", "write", "admin"


@dataclass(frozen=True, slots=True)
class Param:
    """A value in the path or the query."""

    name: str
    schema: Schema
    about: str = ""
    required: bool = False
    many: bool = False

    def read(self, values: list[str]) -> Any:
        if not values:
            if self.required:
                raise InvalidValue(f"{self.name} is missing")
            return [] if self.many else None
        found = [self._one(value) for value in values]
        if not self.many and len(found) > 1:
            raise InvalidValue(f"{self.name} is given twice")
        return found if self.many else found[0]

    def _one(self, text: str) -> Any:
        kind = self.schema.get("type")
        value: Any = text
        if kind == "integer":
            if not text.removeprefix("-").isdecimal() or len(text) > 19 or not text.isascii():
                raise InvalidValue(f"{self.name}: expected integer")
            value = int(text)
        elif kind == "boolean":
            if text not in ("true", "false"):
                raise InvalidValue(f"{self.name}: expected true or false")
            value = text == "true"
        check(value, self.schema, self.name)
        return value


@dataclass(slots=True)
class Streamed:
    """An answer that comes piece by piece."""

    pieces: Iterator[bytes]
    media: str = BYTES
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Call:
    """One request, checked."""

    workspace: Workspace
    who: Token
    peer: str
    params: dict[str, Any]
    body: bytes = b""
    upload: Path | None = None
    """The body, where it may be too large to be held."""
    headers: Mapping[str, str] = field(default_factory=dict)
    intend: Callable[[str, str], None] | None = None
    """To be told the task and the seal of a record just before it is written."""
    task: str | None = None
    """The task that it was about, for the audit."""
    data: Any = None

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
        """Who records say did it, unless they say otherwise."""
        return self.who.note or self.who.id

    @property
    def id(self) -> str:
        """The task that the path names, whole."""
        if self.task is None:
            self.task = self.store.find(self.params["id"]).id
        return self.task

    @property
    def expected(self) -> str | None:
        """The seal that the client takes for the last one."""
        given = self.headers.get("if-match")
        return given.strip().strip('"') if given and given.strip() != "*" else None

    def changed(self, task_id: str) -> None:
        """Something happened to a task: whoever follows it is woken."""
        self.workspace.changed(task_id)

    def writing(self, work: Callable[[Task], Any]) -> Any:
        """Does something to the open task, alone."""
        found = self.workspace.warm.using(self.id, work, self._before, self.expected)
        self.changed(self.id)
        return found

    def _before(self, seal: str) -> None:
        if self.intend is not None:
            self.intend(self.id, seal)

    def before_start(self, task_id: str, seal: str) -> None:
        self.task = task_id
        if self.intend is not None:
            self.intend(task_id, seal)


@dataclass(frozen=True, slots=True)
class Operation:
    method: str
    path: str
    about: str
    role: str
    do: Callable[[Call], Any]
    """Returns what is to be sent as JSON, or Streamed; None for nothing."""
    params: tuple[Param, ...] = ()
    body: Schema | str | None = None
    """A schema of JSON, or a media type."""
    answer: Schema | str | tuple[str, ...] = field(default_factory=dict)
    """The same; or one of several media types."""
    status: int = 200
    alone: bool = False
    """Belongs to the server, not to a workspace."""
    uploads: bool = False

    @property
    def name(self) -> str:
        return self.do.__name__.rstrip("_")

    @property
    def changes(self) -> bool:
        return self.method != "GET"

    def parse(self, call: Call) -> None:
        """Reads and checks the body."""
        if isinstance(self.body, dict):
            if not call.body and not self.body.get("required"):
                call.data = {}
                return
            try:
                call.data = json.loads(call.body, parse_constant=_no_constant)
            except (ValueError, RecursionError) as error:
                raise InvalidValue(f"the body is not JSON: {error}") from None
            check(call.data, self.body or ANY)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
