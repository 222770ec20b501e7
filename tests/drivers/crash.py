"""A writer that is made to fail. It acknowledges each step on standard output once the call has returned.

    python crash.py steps  FOLDER     a whole task, step by step, with a live turn, a blob and a resume
    python crash.py stream FOLDER     turns without end, for power cuts
    python crash.py start  FOLDER     one task, and then nothing
    python crash.py batch  FOLDER N   N times five tasks with a long output each, in one batch, and then nothing
    python crash.py many   FOLDER N   N tasks of three turns
    python crash.py one    FOLDER ID N   N turns to one task
    python crash.py threads FOLDER ID N  the same from sixteen threads with one Task

A line of output is `ack TOKEN`: from then on TOKEN must be found in the task files, whatever happens.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

from rawko_state.backends.bulk import write_task
from rawko_state.backends.files import writer
from rawko_state.backends.files.store import FileStore
from rawko_state.backends.redaction import redactor_for
from rawko_state.errors import OutcomeUnknown, RawkoError
from rawko_state.journal import disk
from rawko_state.journal.batch import Batch
from rawko_state.journal.journal import Journal
from rawko_state.model.entries import Execution, Request, TaskHeader, ToolCall, Turn
from rawko_state.model.names import name_for
from rawko_state.tasks.task import Task

LOADED = writer  # what fails below is the disk, not an import


def say(word: str, token: str) -> None:
    os.write(1, f"{word} {token}\n".encode())


def mark(name: str) -> None:
    """A system call that stands out in a trace, to tell start-up from work."""
    with contextlib.suppress(OSError):
        os.open(f"/nonexistent-rawko-{name}", os.O_RDONLY)


def tried(action: Callable[[], object], token: str) -> bool:
    """Runs a step; on a plain failure once more, on an unknown outcome never."""
    for _ in range(2):
        try:
            action()
        except OutcomeUnknown as error:
            say("unknown", token)
            say("error", str(error).replace("\n", " "))
            return False
        except RawkoError as error:
            say("error", str(error).replace("\n", " "))
            continue
        say("ack", token)
        return True
    say("gave-up", token)
    return False


def steps(folder: str) -> None:
    mark("begin")
    store = FileStore(folder, warn=lambda message: None)
    held: list[Task] = []
    if not tried(lambda: held.append(store.start("request-token-0")), "request-token-0"):
        mark("end")
        return
    task = held[0]
    say("task", task.id)
    tried(lambda: task.decide(selected="developer", reason="token-1."), "token-1.")
    live = []
    if tried(lambda: live.append(task.turn("developer")), ""):
        turn = live[0]
        tried(lambda: turn.say("spoken-token-2a. "), "spoken-token-2a.")
        tried(lambda: turn.tool("shell.exec", "spoken-token-2b.", "exit 0", output="y" * 20_000), "spoken-token-2b.")
        tried(lambda: turn.end(), "spoken-token-2a.")
    tried(lambda: task.add_turn(Turn(number=1, agent="developer", status="complete", content="token-3.")), "token-3.")
    tried(lambda: task.note("token-4.", title="a title"), "token-4.")
    task.close()
    again: list[Task] = []
    if tried(lambda: again.append(store.resume(task.id, by="token-5.")), "token-5."):
        tried(lambda: again[0].add_turn(Turn(number=1, agent="d", status="complete", content="token-6.")), "token-6.")
        tried(lambda: again[0].finish("success", "token-7."), "token-7.")
        again[0].close()
    mark("end")


def stream(folder: str, unsafe: bool) -> None:
    if unsafe:
        disk._data_sync = lambda descriptor: None  # the control: it must lose turns
        disk.sync_folder = lambda path, seal="": None
    task = FileStore(folder, warn=lambda message: None).start("request")
    say("ack", task.id)
    for number in range(1, 100_000):
        if number % 7 == 0:
            with task.turn("d", durable=True) as turn:
                turn.say(f"token-{number}.")
                say("ack", f"token-{number}.")
        else:
            task.add_turn(
                Turn(number=1, agent="d", status="complete", content=f"token-{number}. " + "x" * (number * 37 % 5000))
            )
            say("ack", f"token-{number}.")


def start(folder: str) -> None:
    """Only starts a task, and without an index: nothing that follows, and no sync of SQLite's, can have made its name durable."""
    created = Journal(Path(folder)).create(TaskHeader(id="", status="running"), [Request(text="x"), Execution()])
    say("ack", created.name.id)
    time.sleep(60)


def batch(folder: str, count: int) -> None:
    """Without an index, as above. Each task names a blob."""
    layout = Journal(Path(folder)).layout
    layout.make()
    redactor = redactor_for(Path(folder), lambda message: None)
    together = Batch(layout)
    mark("begin")
    for number in range(count):
        names = [name_for(datetime.now(timezone.utc), f"batch{number:03}{part}") for part in range(5)]
        try:
            for name in names:
                long = ToolCall("shell.exec", "x", "exit 0", output=f"{name.id} " * 3_000)
                turn = Turn(number=1, agent="d", status="complete", content=f"token-{name.id}.", tools=(long,))
                header = TaskHeader(id=name.id, status="running", created=name.created)
                write_task(together, redactor, name, [[header, Request(text="x"), Execution()], [turn]])
            together.commit()
        except RawkoError as error:
            say("error", str(error).replace("\n", " "))
            together.discard()
            continue
        for name in names:
            say("ack", name.id)
    mark("end")
    if "wait" in sys.argv:
        time.sleep(60)


def many(folder: str, count: int) -> None:
    store = FileStore(folder, warn=lambda message: None)
    for number in range(count):
        with store.start(f"request {os.getpid()}-{number}") as task:
            for turn in range(3):
                token = f"token-{os.getpid()}-{number}-{turn}."
                task.add_turn(Turn(number=1, agent="d", status="complete", content=token))
                say("ack", f"{task.id} {token}")


def one(folder: str, task_id: str, count: int) -> None:
    task = FileStore(folder, warn=lambda message: None).attach(task_id)
    for number in range(count):
        token = f"token-{os.getpid()}-{number}."
        task.add_turn(Turn(number=1, agent="d", status="complete", content=token))
        say("ack", f"{task_id} {token}")


def threads(folder: str, task_id: str, count: int) -> None:
    """Sixteen threads and one Task."""
    task = FileStore(folder, warn=lambda message: None).attach(task_id)

    def write(name: int) -> None:
        for number in range(count):
            token = f"token-{os.getpid()}-{name}-{number}."
            task.add_turn(Turn(number=1, agent="d", status="complete", content=token))
            say("ack", f"{task_id} {token}")

    started = [threading.Thread(target=write, args=(name,)) for name in range(16)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()


if __name__ == "__main__":
    what, where, *rest = sys.argv[1:]
    if what == "steps":
        steps(where)
    elif what == "stream":
        stream(where, unsafe="unsafe" in rest)
    elif what == "start":
        start(where)
    elif what == "batch":
        batch(where, int(rest[0]))
    elif what == "many":
        many(where, int(rest[0]))
    elif what == "one":
        one(where, rest[0], int(rest[1]))
    elif what == "threads":
        threads(where, rest[0], int(rest[1]))
