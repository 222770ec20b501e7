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


class StoredRequest(NamedTuple):
    """A request that was made with an idempotency key."""

    body: str
    task: str | None
    seal: str | None
    """The seal of the record that it was about to write."""
    status: int | None
    """The status of the response; None while it is not known."""
    answer: str | None


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

    def tokens(self) -> list[Token]: ...

    def has_tokens(self, *, valid: bool = False) -> bool:
        """Whether a token was ever created: from then on one is required. With ``valid``, whether a valid one exists."""

    def revoke_token(self, key: str) -> bool: ...

    def request(self, who: str, key: str) -> StoredRequest | None: ...

    def intend(self, who: str, key: str, body: str, task: str, seal: str) -> None:
        """Notes that a record is about to be written for this request."""

    def answered(self, who: str, key: str, body: str, status: int, answer: str) -> None: ...

    def forget_request(self, who: str, key: str) -> None: ...

    def audit_all(self, rows: Sequence[tuple[str, str, str | None, str | None, int, str]]) -> None:
        """Each row: who, what, workspace, task, status, peer address."""

    def audited(self, limit: int, workspace: str | None, before: int | None = None) -> list[dict[str, Any]]: ...

    def tidy(self) -> None:
        """Deletes requests that are too old to be repeated."""

    def close(self) -> None: ...


class Registry(Protocol):
    """Small key-value pairs, and the repositories, agents and runtimes that were seen."""

    def get(self, scope: str, key: str) -> str | None: ...
    def set(self, scope: str, key: str, value: str) -> None: ...
    def delete(self, scope: str, key: str) -> bool: ...
    def items(self, scope: str | None = None) -> list[tuple[str, str, str]]: ...
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
