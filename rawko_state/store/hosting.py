"""What a server needs besides tasks: tokens, idempotency keys, the audit log, workspaces. The second, smaller contract.

A ``Host`` is either the files of a project or the workspaces of a PostgreSQL database (``rawko_state.backends.select``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from rawko_state.store.contract import HostedStore

ROLES: Final = ("read", "write", "admin")


class Token(NamedTuple):
    """An access token and its permissions. The secret itself is not stored."""

    id: str
    role: str
    workspace: str | None
    """None: any workspace, on a server with several."""
    note: str | None
    created_at: str
    revoked_at: str | None

    def may(self, role: str) -> bool:
        return ROLES.index(self.role) >= ROLES.index(role)


class KeyedRequest(NamedTuple):
    """A request with an idempotency key, and its answer once that is known."""

    who: str
    key: str
    body: str
    """A digest of the request."""
    status: int
    answer: str | None = None


class StoredRequest(NamedTuple):
    """A request that was made with an idempotency key."""

    body: str
    task: str | None
    seal: str | None
    """The seal of the record that it was about to write, or the place of the lines in a draft."""
    status: int | None
    """The status of the response; None while it is not known whether the request was carried out."""
    answer: str | None


class AuditEntry(NamedTuple):
    """Who did what, to which task, from where, and the status of the response."""

    who: str
    action: str
    workspace: str | None
    task: str | None
    status: int
    peer: str


class Project(NamedTuple):
    """A folder that rawko was used in."""

    root: str
    vcs: str
    remote: str | None
    branch: str | None
    seen: str


class Imported(NamedTuple):
    """A session of another agent that was examined: the size and time of its file then, and the resulting task."""

    size: int
    mtime_ns: int
    task: str | None
    """None: the session does not belong to the project."""


class ServerState(Protocol):
    """Tokens, idempotency keys and the audit log."""

    def create_token(self, role: str, workspace: str | None = None, note: str | None = None) -> str:
        """Returns the token, which is shown once."""

    def token(self, text: str) -> Token | None:
        """Looks up a token; None if it is unknown or was revoked."""

    def signed(self, key: str, text: str) -> tuple[Token, str] | None:
        """A valid token by its id, and the signature of a text in its name; None if it is unknown or was revoked. For sessions
        that end with their token."""

    def tokens(self) -> list[Token]: ...

    def recalls(self, text: str | None) -> bool:
        """Whether token(text), or has_tokens() without a text, is answered from memory or as quickly."""

    def has_tokens(self, *, valid: bool = False) -> bool:
        """Whether a token was ever created: from then on one is required. With ``valid``, whether a valid one exists."""

    def revoke_token(self, key: str) -> bool: ...

    @property
    def joins_writes(self) -> bool:
        """Whether what with_record() writes joins the record's transaction. If not, it is durable before the record is."""

    def request(self, who: str, key: str) -> StoredRequest | None: ...

    def with_record(
        self, task: str, seal: str, key: KeyedRequest | None, audit: AuditEntry | None, *, durable: bool = True
    ) -> None:
        """Stores what belongs to a record, from its ``before`` hook. Raises if the key is already in use. Unless this joins the
        record's transaction, the key is stored as not carried out yet."""

    def finished(self, key: KeyedRequest | None, audit: Sequence[AuditEntry], *, durable: bool = True) -> None:
        """Stores the answer to a request that was carried out, and its audit entry."""

    def forget_request(self, who: str, key: str) -> None: ...

    def audited(self, limit: int, workspace: str | None, before: int | None = None) -> list[dict[str, Any]]: ...

    def tidy(self, audit_age: float | None = None) -> None:
        """Deletes requests that are too old to be repeated, and audit entries older than ``audit_age`` seconds."""

    def close(self) -> None: ...


class Values(Protocol):
    """Small key-value pairs."""

    def get(self, scope: str, key: str) -> str | None: ...
    def set(self, scope: str, key: str, value: str) -> None: ...
    def delete(self, scope: str, key: str) -> bool: ...
    def items(self, scope: str | None = None) -> list[tuple[str, str, str]]: ...


class Registry(Values, Protocol):
    """Small key-value pairs, and the repositories, agents and runtimes that were seen."""

    def repos(self) -> list[dict[str, Any]]: ...
    def saw_repo(self, vcs: str, remote: str, branch: str | None) -> None: ...
    def agent_rows(self) -> list[dict[str, Any]]: ...
    def saw_agent(self, name: str, version: str, metadata: dict[str, Any] | None = None) -> None: ...
    def runtimes(self) -> list[dict[str, Any]]: ...
    def saw_runtime(self, kind: str, devcontainer: str | None, metadata: dict[str, Any] | None = None) -> None: ...


class UserRegistry(Registry, Protocol):
    """What rawko knows about the user of this machine."""

    def projects(self) -> list[Project]:
        """Most recently used first."""

    def imported(self, root: str, source: str) -> dict[str, Imported]:
        """The imported sessions, by key."""

    def saw_imported(self, root: str, source: str, seen: Iterable[tuple[str, Imported]]) -> None: ...


class Host(Protocol):
    """Everything that one server serves."""

    root: Path
    """The project whose settings apply; for files, also their location."""

    @property
    def kind(self) -> str:
        """``local`` or ``postgres``."""

    @property
    def default(self) -> str:
        """The workspace used if none is named; empty without workspaces."""

    @property
    def state(self) -> ServerState: ...

    def names(self) -> list[str]:
        """The names of all workspaces."""

    def workspaces(self) -> list[dict[str, Any]]:
        """The same, with details; empty without workspaces."""

    def create_workspace(self, name: str, external_id: str | None = None) -> bool:
        """False if it already exists."""

    def drop_workspace(self, name: str) -> None:
        """Permanently deletes the workspace and everything in it."""

    def has(self, name: str) -> bool: ...

    def open(self, name: str) -> tuple[HostedStore, Registry]: ...

    def check(self) -> None:
        """Raises RawkoError if the tasks cannot be reached now."""

    def listen(self, stop: threading.Event, changed: Callable[[str, str], None]) -> None:
        """If others write too: calls ``changed`` with a workspace and a task (``*`` for all) until ``stop`` is set."""

    @property
    def is_notified(self) -> bool:
        """Whether listen() is notified of writes by others."""

    def close(self) -> None: ...
