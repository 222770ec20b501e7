"""rawko records what coding agents do.

    import rawko_state as rawko

    store = rawko.open(".")
    with store.start("Fix the login bug") as task:
        task.decide(selected="developer", reason="small enough")
        with task.turn("developer") as turn:
            turn.say("The token check ignores clock skew.")
            turn.tool("filesystem.write", "auth/sso.rs", "2156 bytes")
        task.finish("success", "Fixed the token check", files=["auth/sso.rs"])

Each call returns once its data is on disk. The task file in ``.rawko/state/tasks/`` is the source of truth; docs/format.md
specifies its format.
"""

from __future__ import annotations

from rawko_state.version import __version__ as __version__

# Agents wait for their hooks, so this imports nothing that a hook does not need.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from rawko_state.backends.files.store import FileStore
    from rawko_state.backends.postgres.store import PostgresStore
    from rawko_state.backends.remote.store import RemoteStore
    from rawko_state.errors import (
        AmbiguousTask,
        ChainMoved,
        IllegalMove,
        IndexTrouble,
        InvalidValue,
        NewerFormat,
        NoAnswer,
        NoProject,
        OutcomeUnknown,
        RawkoError,
        SearchTrouble,
        ServerAway,
        ServerRefused,
        Stopped,
        StorageError,
        TaskBusy,
        TaskNotFound,
        UnsafePath,
    )
    from rawko_state.model.entries import (
        Blob,
        Diff,
        FileTouch,
        Money,
        Note,
        Parent,
        Progress,
        Question,
        Request,
        Result,
        TaskHeader,
        ToolCall,
        Turn,
    )
    from rawko_state.model.events import Event
    from rawko_state.model.state import TaskState
    from rawko_state.store import Answer, Hit, Stats, TaskFilter, TaskSummary
    from rawko_state.store.contract import Store

__all__ = [
    "AmbiguousTask",
    "Answer",
    "Blob",
    "ChainMoved",
    "Diff",
    "Event",
    "FileStore",
    "FileTouch",
    "Hit",
    "IllegalMove",
    "IndexTrouble",
    "InvalidValue",
    "Money",
    "NewerFormat",
    "NoAnswer",
    "NoProject",
    "Note",
    "OutcomeUnknown",
    "Parent",
    "PostgresStore",
    "Progress",
    "Question",
    "RawkoError",
    "RemoteStore",
    "Request",
    "Result",
    "SearchTrouble",
    "ServerAway",
    "ServerRefused",
    "Stats",
    "Stopped",
    "StorageError",
    "Store",
    "TaskBusy",
    "TaskFilter",
    "TaskHeader",
    "TaskNotFound",
    "TaskState",
    "TaskSummary",
    "ToolCall",
    "Turn",
    "UnsafePath",
    "open",
]

_HOMES = (
    "errors",
    "model.entries",
    "model.events",
    "model.state",
    "store",
    "store.contract",
    "backends.files.store",
    "backends.remote.store",
    "backends.postgres.store",
)


def __getattr__(name: str) -> Any:
    """Imports names on first use, so that `import rawko_state`, and with it `rawko --help`, loads nothing it does not need."""
    import importlib

    if name in __all__:
        for home in _HOMES:
            module = importlib.import_module(f"rawko_state.{home}")
            if name in vars(module):
                return vars(module)[name]
    raise AttributeError(f"module 'rawko_state' has no attribute {name!r}")


def open(folder: str | Path | None = None, *, remote: str | None = None, workspace: str | None = None) -> Store:
    """Opens the store of the project that contains ``folder`` (default: the current folder). The store is the project's files, or
    the server named by ``remote`` or the settings. ``remote="local"`` always uses the files."""
    from pathlib import Path

    from rawko_state.backends.select import LOCAL, open_store
    from rawko_state.config.project import find_project
    from rawko_state.errors import NoProject

    here = Path(folder) if folder is not None else None
    try:
        root = find_project(here)
    except NoProject:
        if remote in (None, LOCAL):
            raise
        root = (here or Path.cwd()).resolve()  # the tasks are elsewhere
    return open_store(root, remote=remote, workspace=workspace)
