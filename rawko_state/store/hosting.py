"""What a server stands on besides tasks: tokens, keys of requests, the audit, workspaces. The second, small contract.

``Host`` is one of two: the files of a project, or the workspaces of a PostgreSQL database (``rawko_state.backends.select``).
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
    """Who may do what. The secret itself is not kept."""

    id: str
    role: str
    workspace: str | None
    """None: any, on a server of several."""
    note: str | None
    created_at: str
    revoked_at: str | None

    def may(self, role: str) -> bool:
        return ROLES.index(self.role) >= ROLES.index(role)


class StoredRequest(NamedTuple):
    """A request that was made with a key."""

    body: str
    task: str | None
    seal: str | None
    """Of the record that it was about to write."""
    status: int | None
    """What was answered; None while that is not known."""
    answer: str | None


class Project(NamedTuple):
    """A folder that rawko was used in."""

    root: str
    vcs: str
    remote: str | None
    branch: str | None
    seen: str


class Imported(NamedTuple):
    """A session of another agent that was looked at: its file as it was, and what became of it."""

    size: int
    mtime_ns: int
    task: str | None
    """None: it does not belong to the project."""


class ServerState(Protocol):
    """Tokens, the keys of requests that must not be done twice, and who did what."""

    def create_token(self, role: str, workspace: str | None = None, note: str | None = None) -> str:
        """Returns the token, which is shown once."""

    def token(self, text: str) -> Token | None:
        """Whose token this is; None if it is nobody's, or was revoked."""

    def tokens(self) -> list[Token]: ...

    def has_tokens(self, *, valid: bool = False) -> bool:
        """Whether there ever were any: from then on one is needed. Or any that is ``valid``."""

    def revoke_token(self, key: str) -> bool: ...

    def request(self, who: str, key: str) -> StoredRequest | None: ...

    def intend(self, who: str, key: str, body: str, task: str, seal: str) -> None:
        """A record is about to be written for this request."""

    def answered(self, who: str, key: str, body: str, status: int, answer: str) -> None: ...

    def forget_request(self, who: str, key: str) -> None: ...

    def audit_all(self, rows: Sequence[tuple[str, str, str | None, str | None, int, str]]) -> None:
        """Who, what, in which workspace, to which task, with what outcome, from where."""

    def audited(self, limit: int, workspace: str | None, before: int | None = None) -> list[dict[str, Any]]: ...

    def tidy(self) -> None:
        """Forgets requests that nobody will repeat."""

    def close(self) -> None: ...


class Registry(Protocol):
    """Small values, and the repositories, agents and runtimes that were seen."""

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
    """What rawko knows of the user of this machine."""

    def projects(self) -> list[Project]:
        """The last used first."""

    def imported(self, root: str, source: str) -> dict[str, Imported]:
        """What was imported, by the session's key."""

    def saw_imported(self, root: str, source: str, seen: Iterable[tuple[str, Imported]]) -> None: ...


class Host(Protocol):
    """All that one server serves."""

    root: Path
    """The project whose settings count; with files, where they are."""

    @property
    def kind(self) -> str:
        """``local`` or ``postgres``."""

    @property
    def default(self) -> str:
        """The workspace that is used when none is named; empty where there are no workspaces."""

    @property
    def state(self) -> ServerState: ...

    def names(self) -> list[str]:
        """Every workspace."""

    def workspaces(self) -> list[dict[str, Any]]:
        """The same, with what is known of each; none where there are no workspaces."""

    def create_workspace(self, name: str, external_id: str | None = None) -> bool:
        """False if there is one."""

    def drop_workspace(self, name: str) -> None:
        """With everything in it, for good."""

    def has(self, name: str) -> bool: ...

    def open(self, name: str) -> tuple[HostedStore, Registry]: ...

    def check(self) -> None:
        """RawkoError if the tasks cannot be reached now."""

    def listen(self, stop: threading.Event, changed: Callable[[str, str], None]) -> None:
        """Where others write too: calls ``changed`` with a workspace and a task until told to stop; ``*`` for all of them."""

    @property
    def is_notified(self) -> bool:
        """Whether listen() hears of what others write."""

    def close(self) -> None: ...
