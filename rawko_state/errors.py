"""Every exception that rawko raises.

RawkoError
├── InvalidValue            the format or the model does not allow this value
├── IllegalMove             the status cannot follow the current one
├── NoProject               the current folder is not inside a project
├── TaskNotFound            no task has that name
├── AmbiguousTask           several tasks start with that prefix
├── TaskExists              another task already has that id
├── TaskBusy                another process runs the task
├── Stopped                 the task that this process runs was paused or cancelled
├── NoAnswer                a question has no answer, or there is no such question
├── ChainMoved              the file has changed since the writer read it
├── NewerFormat             a later version wrote the file: it is read, never appended to
├── NotATask                the file does not start like a task file: nothing is appended to it
├── UnsafePath              a link, a pipe or an unexpected name in place of a task file
├── IndexTrouble            the index cannot be used now; the task files are not affected
│   ├── IndexCorrupt        the file is not a database, or is corrupt
│   └── IndexNewer          a later version made it; it is left alone
├── SearchTrouble           the search index cannot be used now; searches read the task files instead
├── StorageError            the operating system refused a file operation
│   ├── OutcomeUnknown      a sync failed: the record may or may not be on disk
│   └── StorageGone         the tables of a workspace no longer exist
├── ServerAway              the server cannot be reached; the request may or may not have been processed
└── ServerRefused           the server rejected the request: wrong credentials or a bad request

A message says what happened, to which file or task, and what to do now. Whatever a program needs from an error is an attribute:
code never parses messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class RawkoError(Exception):
    """The base class: catch it to catch every rawko error."""


class InvalidValue(RawkoError, ValueError):
    pass


class IllegalMove(RawkoError):
    """``advice``: a line that says what to do instead."""

    def __init__(self, task: str, now: str, wanted: str, *, advice: str = "") -> None:
        over = now in ("completed", "failed", "cancelled", "unknown")
        if over and not advice:
            advice = f'Start another run: rawko resume {task} -m "what to do next"'
        words = f"Task {task} is already {now}." if over else f"Task {task} is {now} and can't become {wanted}."
        super().__init__(words + (f"\n  {advice}" if advice else ""))
        self.task, self.now, self.wanted, self.advice = task, now, wanted, advice


class NoProject(RawkoError):
    pass


class TaskNotFound(RawkoError, KeyError):
    def __init__(self, name: str, closest: Sequence[str] = (), *, in_trash: bool = False) -> None:
        self.name, self.closest, self.in_trash = name, tuple(closest), in_trash
        if in_trash:
            super().__init__(f"Task {name} is in the trash.\n  Restore it: rawko cleanup --restore {name}")
            return
        hint = f" Closest: {', '.join(closest)}." if closest else ""
        super().__init__(f"No task starts with {name!r}.{hint}")

    def __str__(self) -> str:  # KeyError would quote the message
        return str(self.args[0])


class AmbiguousTask(RawkoError):
    def __init__(self, name: str, candidates: Sequence[str]) -> None:
        shown = ", ".join(candidates[:8]) + (f" and {len(candidates) - 8} more" if len(candidates) > 8 else "")
        super().__init__(f"{name!r} matches several tasks: {shown}.")
        self.name, self.candidates = name, tuple(candidates)


class TaskExists(RawkoError):
    def __init__(self, task: str, where: str = "") -> None:
        super().__init__(f"Another task already has the id {task}{where}.")
        self.task = task


class TaskBusy(RawkoError):
    """``reason``: ``run`` (another process, ``holder`` if known, runs it), ``lost`` (the given lease is no longer valid),
    ``draft`` (a turn has not ended) or ``changed`` (it was written to just now)."""

    _WORDS: ClassVar = {
        "run": "is running in {holder}.",
        "lost": "is no longer yours: {holder} has it.",
        "draft": "has an unfinished turn.\n  Reopen it to end that: rawko resume --open {task}",
        "changed": "is running or has just changed. Try again.",
    }

    def __init__(self, task: str, holder: str | None = None, *, reason: str = "run") -> None:
        words = self._WORDS[reason].format(task=task, holder=holder or "another process")
        super().__init__(f"Task {task} {words}")
        self.task, self.holder, self.reason = task, holder, reason


class Stopped(RawkoError):
    """Raised in the process that runs the task, at its next turn or progress call."""

    def __init__(self, task: str, status: str, by: str | None = None, reason: str | None = None) -> None:
        who = f" by {by}" if by else ""
        why = f": {reason}" if reason else ""
        super().__init__(f"Task {task} was {status}{who}{why}.")
        self.task, self.status, self.by, self.reason = task, status, by, reason


class NoAnswer(RawkoError):
    pass


class ChainMoved(RawkoError):
    def __init__(self, message: str, *, last: str | None = None) -> None:
        """``last``: the actual last seal, when the caller expected a different one."""
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
    """True: the search index is broken and must be rebuilt. False: the problem may go away."""


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
