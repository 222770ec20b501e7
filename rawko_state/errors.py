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
│   ├── StorageGone         the tables of a workspace no longer exist
│   └── StorageAway         the database does not answer, for now
├── ServerAway              the server cannot be reached; the request may or may not have been processed
└── ServerRefused           the server rejected the request: wrong credentials or a bad request

A message says what happened, to which file or task, and what to do now. Whatever a program needs from an error is an attribute:
code never parses messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class RawkoError(Exception):
    """The base class: catch it to catch every rawko error.

    >>> try:
    ...     store.summary("zzz")
    ... except RawkoError as error:
    ...     print(type(error).__name__)
    TaskNotFound
    """


class InvalidValue(RawkoError, ValueError):
    """The format or the model does not allow this value.

    >>> store.start(" ")
    Traceback (most recent call last):
    InvalidValue: ...
    """


class IllegalMove(RawkoError):
    """The status cannot follow the current one. ``advice``: a line that says what to do instead.

    >>> with store.attach("fix0001") as task:
    ...     task.add_turn(Turn(agent="developer", content="late"))
    Traceback (most recent call last):
    IllegalMove: ...
    """

    def __init__(self, task: str, now: str, wanted: str, *, advice: str = "") -> None:
        over = now in ("completed", "failed", "cancelled", "unknown")
        if over and not advice:
            advice = f'Start another run: rawko resume {task} -m "what to do next"'
        words = f"Task {task} is already {now}." if over else f"Task {task} is {now} and can't become {wanted}."
        super().__init__(words + (f"\n  {advice}" if advice else ""))
        self.task, self.now, self.wanted, self.advice = task, now, wanted, advice


class NoProject(RawkoError):
    """The folder is not inside a project.

    >>> rawko.open("/nowhere/at/all")
    Traceback (most recent call last):
    NoProject: ...
    """


class TaskNotFound(RawkoError, KeyError):
    """No task has that name. ``closest``: ids that look like it.

    >>> store.summary("fix1000")
    Traceback (most recent call last):
    TaskNotFound: ...
    """

    def __init__(self, name: str, closest: Sequence[str] = (), *, in_trash: bool = False) -> None:
        self.name, self.closest, self.in_trash = name, tuple(closest), in_trash
        if in_trash:
            super().__init__(f"Task {name} is in the trash.\n  Restore it: rawko cleanup --restore {name}")
            return
        if not name:
            super().__init__("The task's id is empty.")
            return
        hint = f" Closest: {', '.join(closest)}." if closest else ""
        super().__init__(f"No task starts with {name!r}.{hint}")

    def __str__(self) -> str:  # KeyError would quote the message
        return str(self.args[0])


class AmbiguousTask(RawkoError):
    """Several tasks start with that prefix: ``candidates``.

    >>> store.start("x", id="fix0002").close()
    >>> store.summary("fix")
    Traceback (most recent call last):
    AmbiguousTask: ...
    """

    def __init__(self, name: str, candidates: Sequence[str]) -> None:
        shown = ", ".join(candidates[:8]) + (f" and {len(candidates) - 8} more" if len(candidates) > 8 else "")
        super().__init__(f"{name!r} matches several tasks: {shown}.")
        self.name, self.candidates = name, tuple(candidates)


class TaskExists(RawkoError):
    """Another task already has that id.

    >>> store.start("x", id="fix0001")
    Traceback (most recent call last):
    TaskExists: ...
    """

    def __init__(self, task: str, where: str = "") -> None:
        super().__init__(f"Another task already has the id {task}{where}.")
        self.task = task


class TaskBusy(RawkoError):
    """Another process runs the task. ``reason``: ``run`` (another process, ``holder`` if known, runs it),
    ``lost`` (the given lease is no longer
    valid), ``draft`` (a turn has not ended) or ``changed`` (it was written to just now).

    >>> store.resume(task.id)
    Traceback (most recent call last):
    TaskBusy: ...
    """

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
    """The task was paused or cancelled. Raised in the process that runs it, at its next turn or progress call.

    >>> _ = task.set_status("paused", by="Ann")
    >>> task.check()
    Traceback (most recent call last):
    Stopped: ...
    """

    def __init__(self, task: str, status: str, by: str | None = None, reason: str | None = None) -> None:
        who = f" by {by}" if by else ""
        why = f": {reason}" if reason else ""
        super().__init__(f"Task {task} was {status}{who}{why}.")
        self.task, self.status, self.by, self.reason = task, status, by, reason


class NoAnswer(RawkoError):
    """A question has no answer, or there is no such question.

    >>> task.answer("yes")
    Traceback (most recent call last):
    NoAnswer: ...
    """


class ChainMoved(RawkoError):
    """The task has changed since you read it. ``last``: the actual last seal, if you expected another one.

    >>> seen = task.seal
    >>> _ = task.note("somebody was faster")
    >>> task.add_turn(Turn(agent="developer"), expect=seen)
    Traceback (most recent call last):
    ChainMoved: ...
    """

    def __init__(self, message: str, *, last: str | None = None) -> None:
        """``last``: the actual last seal, when the caller expected a different one."""
        super().__init__(message)
        self.last = last


class NewerFormat(RawkoError):
    """A later version of rawko wrote the file: it is read, never appended to.

    >>> issubclass(NewerFormat, RawkoError)
    True
    """


class NotATask(RawkoError):
    """The file does not start like a task file: nothing is appended to it.

    >>> issubclass(NotATask, RawkoError)
    True
    """


class UnsafePath(RawkoError):
    """A link, a pipe or an unexpected name is in place of a task file.

    >>> issubclass(UnsafePath, RawkoError)
    True
    """


class IndexTrouble(RawkoError):
    """The index cannot be used now. The task files are not affected.

    >>> issubclass(IndexTrouble, RawkoError)
    True
    """


class IndexCorrupt(IndexTrouble):
    pass


class IndexNewer(IndexTrouble):
    pass


class SearchTrouble(RawkoError):
    """The search index cannot be used now. Searches read the task files instead.

    >>> issubclass(SearchTrouble, RawkoError)
    True
    """

    lasting = True
    """True: the search index is broken and must be rebuilt. False: the problem may go away."""


class StorageError(RawkoError):
    """The operating system refused a file operation. ``path`` and ``errno`` say which and why.

    >>> issubclass(StorageError, RawkoError)
    True
    """

    def __init__(self, message: str, path: str, errno: int | None = None) -> None:
        super().__init__(message)
        self.path, self.errno = path, errno


class OutcomeUnknown(StorageError):
    """A sync failed: the record with this ``seal`` may or may not survive. Open the task again and look for the seal before
    retrying.

    >>> with store.attach("fix0001") as again:  # after OutcomeUnknown as error: the value is error.seal
    ...     again.holds("0123456789abcdef")
    False
    """

    def __init__(self, message: str, path: str, errno: int | None, seal: str) -> None:
        super().__init__(message, path, errno)
        self.seal = seal


class StorageGone(StorageError):
    pass


class StorageAway(StorageError):
    """The database does not answer, for now."""


class ServerAway(RawkoError):
    """The server cannot be reached. The request may or may not have been processed.

    >>> RemoteStore("http://127.0.0.1:9", token="").check()
    Traceback (most recent call last):
    ServerAway: ...
    """


class ServerRefused(RawkoError):
    """The server rejected the request: wrong credentials or a bad request.

    >>> issubclass(ServerRefused, RawkoError)
    True
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status
