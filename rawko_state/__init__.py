"""rawko records what coding agents do.

    import rawko_state as rawko

    store = rawko.open(".")
    with store.start("Fix the login bug") as task:
        task.decide(selected="developer", reason="small enough")
        with task.turn("developer") as turn:
            turn.say("The token check ignores clock skew.")
            turn.tool("filesystem.write", "auth/sso.rs", "2156 bytes")
        task.finish("success", "Fixed the token check", files=["auth/sso.rs"])

Each call returns once its data is on disk. The task file in ``.rawko/state/tasks/`` is the source of truth;
docs/reference/format.md specifies its format.
"""

from __future__ import annotations

from rawko_state.version import __version__ as __version__

# Agents wait for their hooks, so this imports nothing that a hook does not need.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from rawko_state import aio
    from rawko_state.backends.files.store import FileStore
    from rawko_state.backends.memory.store import MemoryStore
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
        NotATask,
        OutcomeUnknown,
        RawkoError,
        SearchTrouble,
        ServerAway,
        ServerRefused,
        Stopped,
        StorageError,
        TaskBusy,
        TaskExists,
        TaskNotFound,
        UnsafePath,
    )
    from rawko_state.model.appended import Appended, LocatedBlock
    from rawko_state.model.entries import (
        Blob,
        Diff,
        Entry,
        Execution,
        Field,
        FileTouch,
        Json,
        Money,
        Note,
        Parent,
        Progress,
        Question,
        Request,
        Result,
        Resumed,
        Section,
        Span,
        TaskHeader,
        ToolCall,
        Torn,
        Turn,
        Unknown,
    )
    from rawko_state.model.events import Event
    from rawko_state.model.names import TaskName
    from rawko_state.model.state import TaskState
    from rawko_state.store import (
        Answer,
        Hit,
        InTrash,
        RecordAt,
        RunRow,
        Said,
        Stats,
        TaskFilter,
        TaskSummary,
        TurnRow,
        Usage,
    )
    from rawko_state.store.contract import EventStream, SecretsFound, Store, Verdict
    from rawko_state.tasks.live_turn import LiveTurn
    from rawko_state.tasks.task import Task

__all__ = [
    "AmbiguousTask",
    "Answer",
    "Appended",
    "Blob",
    "ChainMoved",
    "Diff",
    "Entry",
    "Event",
    "EventStream",
    "Execution",
    "Field",
    "FileStore",
    "FileTouch",
    "Hit",
    "IllegalMove",
    "InTrash",
    "IndexTrouble",
    "InvalidValue",
    "Json",
    "LiveTurn",
    "LocatedBlock",
    "MemoryStore",
    "Money",
    "NewerFormat",
    "NoAnswer",
    "NoProject",
    "NotATask",
    "Note",
    "OutcomeUnknown",
    "Parent",
    "PostgresStore",
    "Progress",
    "Question",
    "RawkoError",
    "RecordAt",
    "RemoteStore",
    "Request",
    "Result",
    "Resumed",
    "RunRow",
    "Said",
    "SearchTrouble",
    "SecretsFound",
    "Section",
    "ServerAway",
    "ServerRefused",
    "Span",
    "Stats",
    "Stopped",
    "StorageError",
    "Store",
    "Task",
    "TaskBusy",
    "TaskExists",
    "TaskFilter",
    "TaskHeader",
    "TaskName",
    "TaskNotFound",
    "TaskState",
    "TaskSummary",
    "ToolCall",
    "Torn",
    "Turn",
    "TurnRow",
    "Unknown",
    "UnsafePath",
    "Usage",
    "Verdict",
    "aio",
    "open",
]

_HOMES = {
    "backends.files.store": "FileStore",
    "backends.memory.store": "MemoryStore",
    "backends.postgres.store": "PostgresStore",
    "backends.remote.store": "RemoteStore",
    "errors": (
        "AmbiguousTask ChainMoved IllegalMove IndexTrouble InvalidValue NewerFormat NoAnswer NoProject NotATask "
        "OutcomeUnknown RawkoError SearchTrouble ServerAway ServerRefused Stopped StorageError TaskBusy TaskExists "
        "TaskNotFound UnsafePath"
    ),
    "model.appended": "Appended LocatedBlock",
    "model.entries": (
        "Blob Diff Entry Execution Field FileTouch Json Money Note Parent Progress Question Request Result Resumed "
        "Section Span TaskHeader ToolCall Torn Turn Unknown"
    ),
    "model.events": "Event",
    "model.names": "TaskName",
    "model.state": "TaskState",
    "store": "Answer Hit InTrash RecordAt RunRow Said Stats TaskFilter TaskSummary TurnRow Usage",
    "store.contract": "EventStream SecretsFound Store Verdict",
    "tasks.live_turn": "LiveTurn",
    "tasks.task": "Task",
}
"""The module of each name."""


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


# Type checkers must not see this: with it, every misspelt name would be one of ours.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Imports names on first use, so that `import rawko_state`, and with it `rawko --help`, loads nothing it doesn't need."""
        import importlib

        if name == "aio":
            return importlib.import_module("rawko_state.aio")
        for home, names in _HOMES.items():
            if name in names.split():
                return getattr(importlib.import_module(f"rawko_state.{home}"), name)
        raise AttributeError(f"module 'rawko_state' has no attribute {name!r}")


def open(folder: str | Path | None = None, *, remote: str | None = None, workspace: str | None = None) -> Store:
    """Opens the store of the project that contains ``folder`` (default: the current folder). A folder that is named and is in no
    project becomes one with the first task. The store is the project's files, or the server named by ``remote`` or the settings.
    ``remote="local"`` always uses the files.

    ``":memory:"`` opens a new, empty store that lives as long as this object, for tests.

    >>> rawko.open(":memory:").history(TaskFilter())
    []
    """
    from pathlib import Path

    from rawko_state.backends.select import LOCAL, MEMORY, open_memory, open_store
    from rawko_state.config.project import find_project
    from rawko_state.errors import NoProject

    if folder == MEMORY:
        return open_memory()
    here = Path(folder) if folder is not None else None
    try:
        root = find_project(here)
    except NoProject:
        # The tasks are elsewhere, or the folder was named, as with -C.
        if remote in (None, LOCAL) and (here is None or not here.is_dir() or here.resolve().parent == here.resolve()):
            raise
        root = (here or Path.cwd()).resolve()
    return open_store(root, remote=remote, workspace=workspace)
