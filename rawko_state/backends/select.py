"""The single entry point to the backends for all higher layers: chooses the store, and the host that a server runs on.

A server is named by a flag, the environment or the settings, in that order. A server named in a project's own settings is used
only if the user trusts it. Those settings come with a clone, and its author would receive everything recorded there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from rawko_state.config.settings import Settings, load
from rawko_state.errors import InvalidValue
from rawko_state.lazy import lazy

if TYPE_CHECKING:
    from rawko_state.backends import redaction
    from rawko_state.backends.files import host as files_host
    from rawko_state.backends.files import store as files_store
    from rawko_state.backends.memory import store as memory_store
    from rawko_state.backends.postgres import host as postgres_host
    from rawko_state.backends.postgres import store as postgres_store
    from rawko_state.backends.remote import store as remote_store
    from rawko_state.backends.remote import values as remote_values
    from rawko_state.config import project, repository, surroundings
    from rawko_state.config.surroundings import Surroundings
    from rawko_state.index import server_state, userdb
    from rawko_state.index.userdb import UserState
    from rawko_state.journal import layout
    from rawko_state.redact.redactor import Redactor
    from rawko_state.store.contract import HostedStore, ProjectStore, Store
    from rawko_state.store.hosting import Host, ServerState, Values
else:
    redaction = lazy("rawko_state.backends.redaction")
    files_host = lazy("rawko_state.backends.files.host")
    memory_store = lazy("rawko_state.backends.memory.store")
    files_store = lazy("rawko_state.backends.files.store")
    postgres_host = lazy("rawko_state.backends.postgres.host")
    postgres_store = lazy("rawko_state.backends.postgres.store")
    remote_store = lazy("rawko_state.backends.remote.store")
    remote_values = lazy("rawko_state.backends.remote.values")
    project = lazy("rawko_state.config.project")
    repository = lazy("rawko_state.config.repository")
    surroundings = lazy("rawko_state.config.surroundings")
    server_state = lazy("rawko_state.index.server_state")
    userdb = lazy("rawko_state.index.userdb")
    layout = lazy("rawko_state.journal.layout")

Warn = Callable[[str], None]
S = TypeVar("S", bound="Store")
MEMORY: Final = ":memory:"
"""Given in place of a folder: a store in memory."""
LOCAL: Final = "local"
"""Given in place of a server's address: use the local files, whatever the settings say."""


def _silent(message: str) -> None:
    return


def server_of(root: Path, settings: Settings | None = None) -> str | None:
    """The server named in the settings, if it may be used."""
    settings = settings or load(root)
    found = settings.value("remote-server")
    if found.value in (None, LOCAL):
        return None
    if found.origin.startswith(str(root / ".rawko")) and found.value not in settings["trusted-servers"]:
        raise InvalidValue(
            f"{found.origin} selects the server {found.value}, which is not in your trusted servers.\n    "
            f"Trust it: rawko config set trusted-servers {found.value} · Use the files here: --remote local"
        )
    return str(found.value)


def server_named(root: Path, remote: str | None = None, settings: Settings | None = None) -> str | None:
    """The server to use: the one given, unless it is "local", else the one in the settings."""
    return None if remote == LOCAL else remote or server_of(root, settings)


def open_store(
    root: Path, *, remote: str | None = None, workspace: str | None = None, warn: Warn | None = None
) -> Store:
    """The store for commands and programs in a project. ``remote="local"`` selects the files, whatever the settings say."""
    settings = load(root)
    url = server_named(root, remote, settings)
    if url is None:
        if workspace is not None or settings.value("workspace").origin == "RAWKO_WORKSPACE":
            named = "--workspace" if workspace is not None else "RAWKO_WORKSPACE"
            raise InvalidValue(f"{named} is for servers with workspaces only; a project's files have none.")
        return _recording_surroundings(open_files(root, warn), settings)
    named = workspace or settings["workspace"]
    store = remote_store.RemoteStore(url, workspace=named, ca=settings["remote-ca"], root=root, warn=warn or _silent)
    return _recording_surroundings(store, settings)


def _recording_surroundings(store: S, settings: Settings) -> S:
    """Makes new tasks record where they run. Only for the process that does the work, so not for a server."""
    if not settings["record.surroundings"]:
        return store
    told: set[Surroundings] = set()

    def look() -> dict[str, str | None]:
        found = surroundings.look_around(store.root)
        if found not in told:
            told.add(found)
            with contextlib.suppress(Exception):  # recording the task matters more; the lists can be rebuilt
                learn_of(store.root, found, is_project=store.is_local or project.is_project(store.root))
        return found._asdict()

    store.look_around = look
    return store


def learn_of(root: Path, found: Surroundings | None = None, *, is_project: bool = True) -> None:
    """Adds a project, and the agent and runtime found in it, to the user's lists."""
    at = repository.Repository.around(root)
    remote, branch = redactor_for(root).entry(
        (next(iter(at.remotes), None), at.default_branch) if at is not None else (None, None)
    )
    with user_state() as user:
        if is_project:
            user.saw_project(str(root), project.vcs_of(root) or "none", remote, branch)
        if found is not None and found.runtime is not None:
            user.saw_runtime(found.runtime, surroundings.devcontainer_of(root))
        if found is not None and found.agent is not None:
            user.saw_agent(found.agent, "")


def open_files(root: Path | str, warn: Warn | None = _silent) -> ProjectStore:
    """Opens a project's task files. If ``warn`` is None, problems that were handled become RuntimeWarnings."""
    return files_store.FileStore(root, warn=warn)


def open_memory() -> HostedStore:
    """A new store in this process's memory, with the settings of the user."""
    return memory_store.MemoryStore()


def make_folders(root: Path) -> None:
    """Creates a project's state folders. Loads no store, because agents wait for their hooks."""
    layout.Layout(root).make()


def apply_sharing(root: Path) -> None:
    """Updates what git ignores in the state folder to match the setting ``state.share``."""
    project = layout.Layout(root)
    if project.state.exists():
        project.write_git_files(shared=load(root)["state.share"] == "git")


def open_postgres(url: str, workspace: str, root: Path) -> HostedStore:
    """Opens one workspace of a database, creating it if needed."""
    store = postgres_store.PostgresStore(url, workspace, root=root)
    postgres_host.PostgresServerState(store.postgres).create_workspace(workspace)
    return store


def open_host(root: Path, database: str | None, warn: Warn, *, listen: str | None = None) -> Host:
    """The host that a server runs on: a project's files, or a database."""
    if database is None:
        return files_host.FileHost(root, warn)
    host = open_database(database, root, warn, listen=listen)
    host.create_workspace(host.default)
    return host


def open_projects(root: Path, warn: Warn) -> Host:
    """The host for every project of this machine, the given one first."""
    return files_host.ProjectsHost(root, warn)


def open_database(url: str, root: Path, warn: Warn = _silent, *, listen: str | None = None) -> Host:
    """Opens a database with its workspaces. ``listen`` is a direct address, if ``url`` is a pooler."""
    return postgres_host.PostgresHost(url, root, warn, listen)


def open_server_state(root: Path) -> ServerState:
    """The server state of a project: its tokens."""
    return server_state.FileServerState(root)


def user_state() -> UserState:
    """What rawko stores about the user: small values, projects, and what was imported."""
    return userdb.UserState()


def open_values(root: Path, remote: str | None = None, workspace: str | None = None) -> Values:
    """The user's own small values: on the server if there is one, else on this machine."""
    store = open_store(root, remote=remote, workspace=workspace) if server_named(root, remote) is not None else None
    return remote_values.RemoteValues(store.http) if isinstance(store, remote_store.RemoteStore) else user_state()


def own_pattern_problems(settings: Settings) -> list[str]:
    """What is wrong with the user's own patterns: too slow, or at odds with their samples."""
    return redaction.own_pattern_problems(settings)


def check_own_pattern(pattern: str) -> None:
    """Raises InvalidValue if the pattern could take exponentially long."""
    redaction.check_own_pattern(pattern)


def redactor_for(root: Path) -> Redactor:
    """The project's redactor, configured from its settings."""
    return redaction.redactor_for(root, _silent)
