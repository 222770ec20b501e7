"""rawko keeps what coding agents did.

    import rawko_state as rawko

    store = rawko.open(".")
    with store.start("Fix the login bug") as task:
        task.decide(selected="developer", reason="small enough")
        with task.turn("developer") as turn:
            turn.say("The token check ignores clock skew.")
            turn.tool("filesystem.write", "auth/sso.rs", "2156 bytes")
        task.finish("success", "Fixed the token check", files=["auth/sso.rs"])

Each call returns when what it says is on the disk. The task file in ``.rawko/state/tasks/`` is the truth; its format is
specified in docs/format.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rawko_state.errors import (
    AmbiguousTask,
    ChainMoved,
    IllegalMove,
    InvalidValue,
    NewerFormat,
    NoProject,
    OutcomeUnknown,
    RawkoError,
    StorageError,
    TaskBusy,
    TaskNotFound,
    UnsafePath,
)
from rawko_state.model import (
    Blob,
    FileTouch,
    Money,
    Note,
    Parent,
    Progress,
    Question,
    Request,
    Result,
    TaskHeader,
    TaskState,
    ToolCall,
    Turn,
)

if TYPE_CHECKING:
    from rawko_state.backends.local import LocalStore

__version__ = "0.1.0"

__all__ = [
    "AmbiguousTask",
    "Blob",
    "ChainMoved",
    "FileTouch",
    "IllegalMove",
    "InvalidValue",
    "Money",
    "NewerFormat",
    "NoProject",
    "Note",
    "OutcomeUnknown",
    "Parent",
    "Progress",
    "Question",
    "RawkoError",
    "Request",
    "Result",
    "StorageError",
    "TaskBusy",
    "TaskHeader",
    "TaskNotFound",
    "TaskState",
    "ToolCall",
    "Turn",
    "UnsafePath",
    "open",
]


def open(folder: str | Path | None = None) -> LocalStore:
    """The store of the project around ``folder`` (or around the current folder)."""
    from rawko_state.backends.local import LocalStore
    from rawko_state.config.project import find_project

    return LocalStore(find_project(Path(folder) if folder is not None else None))
