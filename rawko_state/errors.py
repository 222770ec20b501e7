"""Every error that rawko raises.

RawkoError
├── InvalidValue            a value that the format or the model does not allow
├── IllegalMove             a status that cannot follow the present one
├── NoProject               no project around the current folder
├── TaskNotFound            no task of that name
├── AmbiguousTask           several tasks start like that
├── TaskExists              another task has that id already
├── TaskBusy                another process runs the task
├── Stopped                 somebody has paused or cancelled the task that this process runs
├── NoAnswer                a question that nobody has answered, or that nobody asks
├── ChainMoved              the file is not what the writer knew
├── NewerFormat             written by a later version: read, never appended to
├── NotATask                a file that does not begin as a task file does: nothing is appended to it
├── UnsafePath              a link, a pipe or a foreign name where a task file should be
├── IndexTrouble            the index cannot be used now; the task files are not concerned
│   ├── IndexCorrupt        it is not a database, or a broken one
│   └── IndexNewer          it was made by a later version; it is not touched
├── SearchTrouble           the search index cannot be used now; searches read the task files
├── StorageError            the system refused a file operation
│   ├── OutcomeUnknown      a sync failed: the record may be on the disk, or not
│   └── StorageGone         the tables of a workspace are not there any more
├── ServerAway              the server cannot be reached; what was asked may have been done, or not
└── ServerRefused           the server does not take a request: who asks, or how, is not right

An error says what happened, to which file or task, and what to do now. What a program may ask of it is an attribute: no code
looks at the words of a message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class RawkoError(Exception):
    """The root: catch this one to catch all."""


class InvalidValue(RawkoError, ValueError):
    pass


class IllegalMove(RawkoError):
    def __init__(self, task: str, now: str, wanted: str, *, advice: str = "") -> None:
        super().__init__(f"task {task} is {now}; it cannot become {wanted}" + (f": {advice}" if advice else ""))
        self.task, self.now, self.wanted, self.advice = task, now, wanted, advice


class NoProject(RawkoError):
    pass


class TaskNotFound(RawkoError, KeyError):
    def __init__(self, name: str, closest: Sequence[str] = (), *, in_trash: bool = False) -> None:
        self.name, self.closest, self.in_trash = name, tuple(closest), in_trash
        if in_trash:
            super().__init__(f"task {name} is in the trash; 'rawko cleanup --restore {name}' brings it back")
            return
        hint = f"; closest: {', '.join(closest)}" if closest else ""
        super().__init__(f"no task starts with {name!r}{hint}")

    def __str__(self) -> str:  # KeyError would show the message in quotes
        return str(self.args[0])


class AmbiguousTask(RawkoError):
    def __init__(self, name: str, candidates: Sequence[str]) -> None:
        shown = ", ".join(candidates[:8]) + (f" and {len(candidates) - 8} more" if len(candidates) > 8 else "")
        super().__init__(f"{name!r} could be any of: {shown}")
        self.name, self.candidates = name, tuple(candidates)


class TaskExists(RawkoError):
    def __init__(self, task: str, where: str = "") -> None:
        super().__init__(f"there is another task {task} already{where}")
        self.task = task


class TaskBusy(RawkoError):
    """``reason``: ``run`` (somebody, perhaps ``holder``, runs it), ``lost`` (the lease that was shown is not valid any more),
    ``draft`` (a turn has not ended) or ``changed`` (somebody has written to it just now)."""

    _WORDS: ClassVar = {
        "run": "is being run by {holder}",
        "lost": "is not yours any more: {holder} has it",
        "draft": "has a turn that has not ended; 'rawko resume --open {task}' ends it",
        "changed": "is being run, or was changed just now; try again",
    }

    def __init__(self, task: str, holder: str | None = None, *, reason: str = "run") -> None:
        words = self._WORDS[reason].format(task=task, holder=holder or "somebody else")
        super().__init__(f"task {task} {words}")
        self.task, self.holder, self.reason = task, holder, reason


class Stopped(RawkoError):
    """Raised in the process that runs the task, at its next turn or progress call."""

    def __init__(self, task: str, status: str, by: str | None = None, reason: str | None = None) -> None:
        who = f" by {by}" if by else ""
        why = f": {reason}" if reason else ""
        super().__init__(f"task {task} was {status}{who}{why}")
        self.task, self.status, self.by, self.reason = task, status, by, reason


class NoAnswer(RawkoError):
    pass


class ChainMoved(RawkoError):
    def __init__(self, message: str, *, last: str | None = None) -> None:
        """``last``: the last seal, where the caller expected another one."""
        super().__init__(message)
        self.last = last


class NewerFormat(RawkoError):
    pass


class NotATask(RawkoError):
    pass


class UnsafePath(RawkoError):
    pass


class IndexTrouble(RawkoError):
    pass


class IndexCorrupt(IndexTrouble):
    pass


class IndexNewer(IndexTrouble):
    pass


class SearchTrouble(RawkoError):
    lasting = True
    """It is broken, and a new one must be made; else it may do again later."""


class StorageError(RawkoError):
    def __init__(self, message: str, path: str, errno: int | None = None) -> None:
        super().__init__(message)
        self.path, self.errno = path, errno


class OutcomeUnknown(StorageError):
    """The record with this seal may or may not survive. Open the task again and look for the seal before retrying."""

    def __init__(self, message: str, path: str, errno: int | None, seal: str) -> None:
        super().__init__(message, path, errno)
        self.seal = seal


class StorageGone(StorageError):
    pass


class ServerAway(RawkoError):
    pass


class ServerRefused(RawkoError):
    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status
