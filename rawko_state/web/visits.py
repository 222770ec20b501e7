"""One request to the page, and the reply: who asks, for which project, and what is sent back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlencode

from starlette.datastructures import QueryParams

from rawko_state.errors import InvalidValue
from rawko_state.model.frozen import Frozen
from rawko_state.server.app import Server
from rawko_state.server.operations import READ
from rawko_state.server.workspaces import Workspace
from rawko_state.store.contract import HostedStore
from rawko_state.store.hosting import Host
from rawko_state.web.sessions import Visitor, form_token

FILTERS: Final = ("status", "agent", "model", "label", "file", "since", "until", "pinned", "branch")
"""What narrows a list or a search, in the address."""
_LONGEST: Final = 2_000


class Visit(Frozen):
    """A request of somebody who may make it."""

    server: Server
    visitor: Visitor
    workspace: Workspace
    base: str
    """What every address of this project begins with: empty, or ``/w/NAME``."""
    path: str
    query: QueryParams
    params: Mapping[str, str]
    """The variable parts of the path."""
    form: Mapping[str, str]
    peer: str
    theme: str
    keys: bool
    """Whether single keys do something."""

    @property
    def store(self) -> HostedStore:
        return self.workspace.store

    @property
    def host(self) -> Host:
        return self.server.workspaces.host

    @property
    def project(self) -> str:
        return self.workspace.name or self.store.root.name or "tasks"

    @property
    def form_token(self) -> str:
        return form_token(self.visitor.cookie)

    @property
    def is_part(self) -> bool:
        """Whether a script asks for the part of the page that changes."""
        return self.query.get("part") == "1"

    def may(self, role: str) -> bool:
        return self.visitor.who.may(role)

    def get(self, name: str) -> str | None:
        """A value of the query, if it is not empty."""
        value = self.query.get(name, "").strip()
        if len(value) > _LONGEST or "\x00" in value:
            raise InvalidValue(f"The value of {name} can't be used: it is too long or holds a NUL character.")
        return value or None

    def number(self, name: str) -> int | None:
        value = self.get(name)
        if value is None:
            return None
        if not value.isdecimal() or not value.isascii() or len(value) > 15:
            raise InvalidValue(f"Not a number: {name}={value[:40]!r}.")
        return int(value)

    def at(self, *parts: object, **query: object) -> str:
        """An address of this project."""
        given = urlencode({name: value for name, value in query.items() if value is not None}, doseq=True)
        return "/".join([self.base, *map(str, parts)]) + (f"?{given}" if given else "")

    def here(self, **changed: object) -> str:
        """The address of this page with some values of the query changed; None takes one out."""
        kept = [(name, value) for name, value in self.query.multi_items() if name not in changed and name != "part"]
        for name, value in changed.items():
            if isinstance(value, (list, tuple)):
                kept += [(name, str(each)) for each in value]
            elif value is not None:
                kept.append((name, str(value)))
        return self.path + (f"?{urlencode(kept)}" if kept else "")


@dataclass(slots=True)
class Reply:
    """What a view sends: a template and its values, or text, or a redirection."""

    template: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    begins: bool = False
    """Whether the beginning of the page is sent before the rest is made. What fails after that is said in the page."""
    to: str = ""
    """An address in this page to go to instead."""
    pieces: Iterator[bytes] | None = None
    """Or a file, piece by piece, of this kind:"""
    media: str = ""


class View(Frozen):
    """A row in the table of pages."""

    path: str
    do: Callable[[Visit], Reply]
    role: str = READ
    method: str = "GET"
