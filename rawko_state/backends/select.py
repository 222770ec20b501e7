"""Which backend: a server, if one is named; else the files of the project.

A server is named by a flag, the environment or the settings, in that order. One that a project's own settings name is used only
if the user trusts it: those come with a clone, and whoever made it would get everything that is recorded there.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rawko_state.config.settings import Settings, load
from rawko_state.errors import InvalidValue

if TYPE_CHECKING:
    from rawko_state.backends.files.store import FileStore
    from rawko_state.backends.remote.store import RemoteStore


def server_of(root: Path, settings: Settings | None = None) -> str | None:
    """The server that the settings name, if it may be used."""
    settings = settings or load(root)
    found = settings.value("remote-server")
    if found.value is None:
        return None
    if found.origin.startswith(str(root / ".rawko")) and found.value not in settings["trusted-servers"]:
        raise InvalidValue(
            f"{found.origin} names the server {found.value}, which you have not said you trust:"
            f" 'rawko config set trusted-servers {found.value}', or '--remote local' for the files here"
        )
    return str(found.value)


def selected(
    root: Path,
    *,
    remote: str | None = None,
    workspace: str | None = None,
    warn: Callable[[str], None] | None = None,
) -> FileStore | RemoteStore:
    """The store that commands and programs in a project use. ``remote="local"`` means the files, whatever the settings say."""
    settings = None
    if remote is None or (workspace is None and remote != "local"):
        settings = load(root)
    url = None if remote == "local" else remote or server_of(root, settings)
    if url is None:
        if workspace is not None:
            raise InvalidValue("--workspace is for servers that have such; the files of a project have none")
        from rawko_state.backends.files.store import FileStore

        return FileStore(root, warn=warn)
    from rawko_state.backends.remote.store import RemoteStore

    named = workspace or (settings["workspace"] if settings is not None else None)
    return RemoteStore(url, workspace=named, root=root, warn=warn or (lambda message: None))
