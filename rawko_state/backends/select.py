"""The one door to the backends for everything above them: which store, and what a server stands on.

A server is named by a flag, the environment or the settings, in that order. One that a project's own settings name is used only
if the user trusts it: those come with a clone, and whoever made it would get everything that is recorded there.
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
    from rawko_state.backends.postgres import host as postgres_host
    from rawko_state.backends.postgres import store as postgres_store
    from rawko_state.backends.remote import store as remote_store
    from rawko_state.config import project, repository, surroundings
    from rawko_state.config.surroundings import Surroundings
    from rawko_state.index import server_state, userdb
    from rawko_state.index.userdb import UserState
    from rawko_state.journal import layout
    from rawko_state.redact.redactor import Redactor
    from rawko_state.store.contract import HostedStore, ProjectStore, Store
    from rawko_state.store.hosting import Host, ServerState
else:
    redaction = lazy("rawko_state.backends.redaction")
    files_host = lazy("rawko_state.backends.files.host")
    files_store = lazy("rawko_state.backends.files.store")
    postgres_host = lazy("rawko_state.backends.postgres.host")
    postgres_store = lazy("rawko_state.backends.postgres.store")
    remote_store = lazy("rawko_state.backends.remote.store")
    project = lazy("rawko_state.config.project")
    repository = lazy("rawko_state.config.repository")
    surroundings = lazy("rawko_state.config.surroundings")
    server_state = lazy("rawko_state.index.server_state")
    userdb = lazy("rawko_state.index.userdb")
    layout = lazy("rawko_state.journal.layout")

Warn = Callable[[str], None]
S = TypeVar("S", bound="Store")
LOCAL: Final = "local"
"""In place of a server's address: the files here, whatever the settings say."""


def _silent(message: str) -> None:
    return


def server_of(root: Path, settings: Settings | None = None) -> str | None:
    """The server that the settings name, if it may be used."""
    settings = settings or load(root)
    found = settings.value("remote-server")
    if found.value in (None, LOCAL):
        return None
    if found.origin.startswith(str(root / ".rawko")) and found.value not in settings["trusted-servers"]:
        raise InvalidValue(
            f"{found.origin} names the server {found.value}, which you have not said you trust:"
            f" 'rawko config set trusted-servers {found.value}', or '--remote local' for the files here"
        )
    return str(found.value)


def open_store(
    root: Path, *, remote: str | None = None, workspace: str | None = None, warn: Warn | None = None
) -> Store:
    """The store that commands and programs in a project use. ``remote="local"`` means the files, whatever the settings say."""
    settings = load(root)
    url = None if remote == LOCAL else remote or server_of(root, settings)
    if url is None:
        if workspace is not None or settings.value("workspace").origin == "RAWKO_WORKSPACE":
            named = "--workspace" if workspace is not None else "RAWKO_WORKSPACE"
            raise InvalidValue(f"{named} is for servers that have such; the files of a project have none")
        return _watching(open_files(root, warn))
    named = workspace or settings["workspace"]
    return _watching(remote_store.RemoteStore(url, workspace=named, root=root, warn=warn or _silent))


def _watching(store: S) -> S:
    """Tasks that are started from now on say where: this process is where the work is done. (A server's is not.)"""
    told: set[Surroundings] = set()

    def look() -> dict[str, str | None]:
        if not load(store.root)["record.surroundings"]:
            return {}
        found = surroundings.look_around(store.root)
        if found not in told:
            told.add(found)
            with contextlib.suppress(Exception):  # the task is what counts; the lists are learned anew
                learn_of(store.root, found)
        return found._asdict()

    store.look_around = look
    return store


def learn_of(root: Path, found: Surroundings | None = None) -> None:
    """Puts a project, and the agent and runtime that were met in it, on the user's lists."""
    at = repository.Repository.around(root)
    remote, branch = redactor_for(root).entry(
        (next(iter(at.remotes), None), at.default_branch) if at is not None else (None, None)
    )
    with user_state() as user:
        user.saw_project(str(root), project.vcs_of(root) or "none", remote, branch)
        if found is not None and found.runtime is not None:
            user.saw_runtime(found.runtime, surroundings.devcontainer_of(root))
        if found is not None and found.agent is not None:
            user.saw_agent(found.agent, "")


def open_files(root: Path | str, warn: Warn | None = _silent) -> ProjectStore:
    """The task files of a project. ``warn`` None: trouble that is dealt with becomes a RuntimeWarning."""
    return files_store.FileStore(root, warn=warn)


def make_folders(root: Path) -> None:
    """Makes the folders of a project's state; loads no store, as agents wait for their hooks."""
    layout.Layout(root).make()


def apply_sharing(root: Path) -> None:
    """Makes what git ignores of the state follow the setting ``state.share``."""
    project = layout.Layout(root)
    if project.state.exists():
        project.write_git_files(shared=load(root)["state.share"] == "git")


def open_postgres(url: str, workspace: str, root: Path) -> HostedStore:
    """One workspace of a database, which is made if it is not there."""
    store = postgres_store.PostgresStore(url, workspace, root=root)
    postgres_host.PostgresServerState(store.postgres).create_workspace(workspace)
    return store


def open_host(root: Path, database: str | None, warn: Warn) -> Host:
    """What a server stands on: the files of a project, or a database."""
    if database is None:
        return files_host.FileHost(root, warn)
    host = open_database(database, root, warn)
    host.create_workspace(host.default)
    return host


def open_database(url: str, root: Path, warn: Warn = _silent) -> Host:
    """The workspaces of a database."""
    return postgres_host.PostgresHost(url, root, warn)


def open_server_state(root: Path) -> ServerState:
    """The tokens of a project's server."""
    return server_state.FileServerState(root)


def user_state() -> UserState:
    """What rawko knows of the user: small values, projects, and what was imported."""
    return userdb.UserState()


def redactor_for(root: Path) -> Redactor:
    """The redactor of a project, as its settings say."""
    return redaction.redactor_for(root, _silent)
