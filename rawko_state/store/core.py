"""The core of a store: it keeps tasks, and tells what is in them. The other levels are in ``contract``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rawko_state.model.appended import BeforeWrite
from rawko_state.model.entries import Entry, Note, Parent, TaskHeader, ToolCall, Turn
from rawko_state.model.names import TaskName
from rawko_state.store.values import (
    RecordAt,
    RunRow,
    Said,
    TaskFilter,
    TaskSummary,
    TurnRow,
)

if TYPE_CHECKING:
    from typing_extensions import Self

    from rawko_state.format.reader import TaskReader
    from rawko_state.tasks.task import Task


class Cleaner(Protocol):
    """A store's ``redactor``: cleans texts on their way out."""

    def text(self, text: str) -> str: ...

    def entry(self, entry: Any) -> Any: ...

    def value(self, value: Any) -> Any: ...


class CoreStore(Protocol):
    """Keeps tasks: starts, opens and lists them, and reads what is in them.

    >>> with store.start("Say hello") as task:
    ...     pass
    >>> store.status(task.id)
    'completed'
    """

    root: Path
    """The user's project, whose settings apply. The tasks may be elsewhere."""

    look_around: Callable[[], Mapping[str, str | None]] | None
    """Supplies what start() was not given: repo, branch, commit, cwd, runtime, agent. None: nothing is added."""

    @property
    def where(self) -> str:
        """The location of the tasks, for display and to tell stores apart."""

    @property
    def redactor(self) -> Cleaner:
        """Removes secrets, as everything that is written or exported has them removed."""

    @property
    def is_local(self) -> bool:
        """Whether the tasks are files of the project at ``root``."""

    def close(self) -> None:
        """Releases open resources. The store can still be used afterwards.

        >>> store.close()
        """

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def history(self, wanted: TaskFilter) -> list[TaskSummary]:
        """The tasks that match, newest first by default.

        >>> [task.id for task in store.history(TaskFilter(status=("completed",)))]
        ['fix0001']
        """

    def count(self, wanted: TaskFilter) -> int:
        """How many tasks match, whatever ``limit`` and ``after`` say.

        >>> store.count(TaskFilter(status=("completed",), limit=1))
        1
        """

    def by_source(self, prefix: str) -> dict[str, str]:
        """The tasks with a source that starts with a prefix: a mapping of source to id. A source is a session that the task
        records, as its header says or a note; a task that was handed over to another agent has several.

        >>> store.by_source("tickets:")
        {'tickets:17': 'fix0001'}
        """

    def find_source(self, source: str) -> str | None:
        """The id of the task with exactly this source: the oldest, if there are several. None if there is none.

        >>> store.find_source("tickets:17"), store.find_source("tickets:1")
        ('fix0001', None)
        """

    def find(self, prefix: str) -> TaskName:
        """The name of a task.

        >>> store.find("fix").id
        'fix0001'
        """

    def summary(self, prefix: str) -> TaskSummary:
        """One task, as lists show it.

        >>> store.summary("fix0001").summary
        'Fixed the token check'
        """

    def status(self, prefix: str) -> str:
        """The recorded status, or ``interrupted`` for a running task whose writer is gone.

        >>> store.status("fix0001")
        'completed'
        """

    def children(self, task_id: str) -> list[tuple[str, int | None, str]]:
        """The tasks that name this one as their parent: id, turn, request.

        >>> with store.fork("fix0001", 2, message="Try it differently") as other:
        ...     pass
        >>> [turn for _, turn, _ in store.children("fix0001")]
        [2]
        """

    def turn_rows(self, prefix: str, up_to: int | None = None, most: int | None = None) -> tuple[list[TurnRow], int]:
        """The turns in order, and their number. With ``most``, only the first few and the newest turns and decisions.

        >>> rows, total = store.turn_rows("fix0001")
        >>> [(row.turn, row.agent) for row in rows], total
        ([(1, 'arbiter'), (2, 'developer')], 2)
        """

    def runs(self, prefix: str) -> list[RunRow]:
        """The runs in order.

        >>> [run.status for run in store.runs("fix0001")]
        ['completed']
        """

    def files(self, prefix: str) -> list[tuple[int, str, str]]:
        """The files touched: turn, operation, path.

        >>> store.files("fix0001")
        [(0, 'write', 'auth/sso.rs'), (2, 'write', 'auth/sso.rs')]
        """

    def snapshots(self, prefix: str) -> list[dict[str, Any]]:
        """Every snapshot of the work tree that a task refers to.

        >>> store.snapshots("fix0001")
        []
        """

    def source(self, prefix: str) -> str | None:
        """The first session that a task records: where it came from, according to its header.

        >>> store.source("fix0001")
        'tickets:17'
        """

    def reader(self, prefix: str) -> TaskReader:
        """A reader for any span of a task's bytes, and for its records."""

    def entries(self, prefix: str, *, whole: bool = True) -> Iterator[tuple[str, Entry]]:
        """All blocks of a task, each with the kind of its record.

        >>> [type(entry).__name__ for _, entry in store.entries("fix0001")][:2]
        ['TaskHeader', 'Request']
        """

    def records(self, prefix: str, after: str | None = None) -> Iterator[RecordAt]:
        """The records of a task, starting after a cursor: that of a record, of an event or of now(). Holds one record in memory
        at a time. A record that another process is still writing is left out. Raises ChainMoved if the task was rewritten and
        the cursor is no longer valid.

        >>> first, *rest = store.records("fix0001")
        >>> len(list(store.records("fix0001", first.cursor))) == len(rest)
        True
        """

    def turns(self, prefix: str, *, after: int = 0, last: int | None = None) -> Iterator[Turn]:
        """The turns in order: those with a number above ``after``, or the ``last`` newest ones. Holds one turn in memory at a
        time.

        >>> [turn.agent for turn in store.turns("fix0001", last=1)]
        ['developer']
        """

    def turn_page(
        self, prefix: str, *, after: int = 0, beyond: int = -1, limit: int = 200, newest: bool = False
    ) -> list[TurnRow]:
        """At most ``limit`` turns in order, with a number above ``after`` and an offset beyond ``beyond``: the first ones, or the
        ``newest``.

        >>> [row.turn for row in store.turn_page("fix0001", limit=1, newest=True)]
        [2]
        """

    def notes(self, prefix: str, kind: str | None = None, *, last: int | None = None) -> Iterator[Note]:
        """The notes in order: all, or those of one kind; with ``last``, only that number of the newest ones.

        >>> [note.data for note in store.notes("fix0001", "review")]
        [{'ok': True}]
        """

    def latest_state(self, prefix: str) -> Any:
        """The ``state`` of the newest turn that has one; None if none has. It is cached: a call reads only
        what was appended since the last one.

        >>> store.latest_state("fix0001")
        {'step': 1}
        """

    def folded(self, prefix: str, key: str, first: Callable[[], Any], step: Callable[[Any, Entry], Any]) -> Any:
        """A value that you compute from a task: ``first()``, then ``step(value, entry)`` for each entry. The store keeps it under
        ``key``, so that the next call reads only what was appended since. Treat what you get as read-only; ``step`` may change
        the value in place, as it is called by one thread at a time.

        >>> store.folded("fix0001", "count", lambda: 0, lambda count, entry: count + isinstance(entry, Turn))
        2
        """

    def reading(self) -> AbstractContextManager[None]:
        """While a thread holds this, each task that it reads is found, opened and scanned only once, and seen as of then.

        >>> with store.reading():
        ...     store.summary("fix0001").turns, len(store.runs("fix0001"))
        (2, 1)
        """

    def turn(self, prefix: str, number: int, *, row: TurnRow | None = None) -> Turn:
        """One turn, with a single seek, regardless of the size of the task. Passing its row saves the lookup.

        >>> store.turn("fix0001", 2).content
        'The token check ignores clock skew.'
        """

    def said(self, prefix: str, up_to: int | None = None) -> list[Said]:
        """The requests of all runs and the notes that are part of the conversation, in order; ``up_to`` a turn, if given.

        >>> [said.text for said in store.said("fix0001")]
        ['Fix the login bug']
        """

    def memory(self, prefix: str) -> dict[str, Any]:
        """The memory of a task: those of system_prompt, preferences, context, summary and important_steps that it has. The header
        sets them, and notes of these kinds change them: the last one counts.

        >>> store.memory("fix0001")
        {}
        """

    def open_question(self, prefix: str) -> Turn | None:
        """The turn whose question is still open.

        >>> store.open_question("fix0001") is None
        True
        """

    def last_note(self, prefix: str, kind: str) -> Note | None:
        """The newest note of a kind; None if there is none.

        >>> store.last_note("fix0001", "review").content
        'seen by Ann'
        """

    def turn_output(self, call: ToolCall) -> str | None:
        """The output of a tool call, wherever it is kept.

        >>> store.turn_output(store.turn("fix0001", 2).tools[0])
        'ok'
        """

    def blobs_of(self, prefix: str) -> dict[str, bytes]:
        """The long outputs that a task refers to, by name.

        >>> store.blobs_of("fix0001")
        {}
        """

    def start(
        self,
        request: str,
        *,
        title: str | None = None,
        agent: str | None = None,
        model: str | None = None,
        provider: str | None = None,
        repo: str | None = None,
        branch: str | None = None,
        commit: str | None = None,
        cwd: str | None = None,
        runtime: str | None = None,
        labels: Mapping[str, str] | None = None,
        user: str | None = None,
        by: str | None = None,
        source: str | None = None,
        parent: Parent | None = None,
        created: datetime | None = None,
        detached: bool = False,
        id: str | None = None,
        exact: bool = False,
        fields: Mapping[str, str] | None = None,
        sections: Mapping[str, str] | None = None,
        before: BeforeWrite | None = None,
    ) -> Task:
        """Starts a new task. ``id`` is yours to choose: 6 to 64 lower-case letters and digits; raises TaskExists if another task
        has it. With ``exact``, the state and payload of turns and the data of notes are kept as they are: a secret in them is not
        redacted. What people and agents say still is. ``before`` is called with its first record just before it is created. A
        remote store does not call it: the server records what it needs itself.

        >>> with store.start("Add a test", agent="developer", labels={"team": "auth"}) as task:
        ...     task.add_turn(Turn(agent="developer", content="Done.")).state.turns
        1
        """

    def open_task(
        self,
        source: str,
        request: str,
        *,
        id: str | None = None,
        exact: bool = False,
        title: str | None = None,
        agent: str | None = None,
        model: str | None = None,
        provider: str | None = None,
        repo: str | None = None,
        branch: str | None = None,
        commit: str | None = None,
        cwd: str | None = None,
        runtime: str | None = None,
        labels: Mapping[str, str] | None = None,
        user: str | None = None,
        by: str | None = None,
        parent: Parent | None = None,
        created: datetime | None = None,
        fields: Mapping[str, str] | None = None,
        sections: Mapping[str, str] | None = None,
        before: BeforeWrite | None = None,
    ) -> Task:
        """Opens the task with this source, or makes it if there is none. ``source`` is your key for it: "langgraph:thread-1".

        If several processes open one key at once, one creates the task and the others find it: ``task.is_new`` says which. The
        other arguments, such as ``id``, count only if the task is created; but with ``exact``, an existing task must be exact
        too, or InvalidValue is raised. The task is opened as attach() opens it: to append to it without running it, also while
        another process runs it. A task that is created here is detached. If it has been finished since, reopen() it before you
        add turns.

        >>> with store.open_task("langgraph:thread-1", "Chat") as task:
        ...     task.is_new
        True
        >>> with store.open_task("langgraph:thread-1", "Chat") as task:
        ...     task.is_new
        False
        """

    def resume(
        self,
        prefix: str,
        *,
        by: str | None = None,
        wait: float = 0.0,
        detached: bool = False,
        message: str | None = None,
    ) -> Task:
        """Resumes a task: takes its lease (or raises TaskBusy) and turns the draft of a dead writer into an interrupted turn.

        >>> with store.resume("fix0001", message="Also the logout") as task:
        ...     task.state.runs
        2
        """

    def fork(
        self,
        prefix: str,
        turn: int,
        *,
        message: str | None = None,
        by: str | None = None,
        detached: bool = False,
        title: str | None = None,
        before: BeforeWrite | None = None,
    ) -> Task:
        """Starts a new task that continues after a turn of another one.

        >>> with store.fork("fix0001", 2) as task:
        ...     task.state.parent
        Parent(task='fix0001', turn=2)
        """

    def attach(self, prefix: str) -> Task:
        """Opens a task to append to it without running it.

        >>> with store.attach("fix0001") as task:
        ...     task.note("Looks good", by="Ann").state.status
        'completed'
        """

    def reconcile(self) -> list[str]:
        """Reconciles the tasks whose writer has died. Returns their ids.

        >>> store.reconcile()
        []
        """

    def create(
        self,
        header: TaskHeader,
        entries: Sequence[Entry],
        *,
        detached: bool = False,
        before: BeforeWrite | None = None,
        find: bool = False,
    ) -> Task:
        """Creates a task from its first record: the header, which gets a new id unless it has one, and the entries that follow
        it. With ``find``, opens the task with the header's source instead, if there is one.

        >>> with store.create(TaskHeader(id="", source="mine:1"), [Request(text="x"), Execution()], detached=True) as task:
        ...     task.state.status
        'running'
        """

    def add_file(self, filename: str, data: bytes | Iterable[bytes], blobs: Iterable[bytes] = ()) -> TaskName | None:
        """Adds a whole task, byte for byte. None if it is already there; an error if a different one is."""

    def check(self) -> None:
        """Raises RawkoError if the tasks cannot be reached now.

        >>> store.check()
        """
