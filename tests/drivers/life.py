"""A process that does what it is told with the tasks of a project, or that runs one until it is stopped.

python life_driver.py worker FOLDER         one JSON list [call, arguments] a line; answers with a line each
python life_driver.py stream FOLDER TOKEN   a task with live turns; prints what was acknowledged
python life_driver.py go-on FOLDER ID TOKEN the same, in a task that is resumed
python life_driver.py ask FOLDER            a task that asks, and prints the answer
"""

from __future__ import annotations

import json
import sys

from rawko_state.backends.files.store import FileStore
from rawko_state.errors import RawkoError, Stopped
from rawko_state.model.entries import Question, Turn
from rawko_state.tasks.task import Task


def worker(folder: str) -> None:
    store = FileStore(folder, warn=lambda message: None)
    held: dict[str, Task] = {}
    for line in sys.stdin:
        call, *arguments = json.loads(line)
        try:
            answer = _do(store, held, call, *arguments)
        except Stopped as stopped:
            answer = f"stopped {stopped.status}"
        except RawkoError as error:
            answer = f"error {type(error).__name__}"
        print(json.dumps(answer), flush=True)


def _do(store: FileStore, held: dict[str, Task], call: str, task_id: str = "", text: str = "") -> object:
    if call == "start":
        task = store.start("x", detached=text == "detached")
        held[task.id] = task
        return task.id
    if call == "resume":
        held[task_id] = store.resume(task_id, message=text or None)
        return "ok"
    if call == "close":
        held.pop(task_id).close()
        return "ok"
    mine = task_id in held
    task = held[task_id] if mine else store.attach(task_id)
    try:
        if call == "turn":
            task.add_turn(Turn(number=1, agent="dev", status="complete", content=text))
        elif call == "live":
            with task.turn("dev") as turn:
                turn.say(text)
        elif call == "ask":
            task.ask("dev", Question("?", ("a", "b")))
        elif call == "answer":
            task.answer("a")
        elif call in ("paused", "cancelled", "running"):
            task.set_status(call, by="me")
        elif call in ("success", "failure"):
            task.finish(call)
            held.pop(task_id, None)
        else:
            raise AssertionError(call)
    finally:
        if not mine:
            task.close()
    return "ok"


def stream(task: Task, token: str, turns: int = 4) -> None:
    print(f"task {task.id}", flush=True)
    for number in range(turns):
        task.decide(selected="dev", reason=f"{token}-d{number}")
        print(f"ack {token}-d{number}", flush=True)
        with task.turn("dev") as turn:
            for piece in range(3):
                turn.say(f"{token}-t{number}p{piece} ")
                turn.progress(f"{token}-t{number}g{piece}")
            key = turn.begin_tool("shell.exec", f"{token}-t{number}c")
            turn.end_tool(key, "ok")
        print(f"ack {token}-t{number}p2", flush=True)
    task.finish("success", f"{token}-end")
    print(f"ack {token}-end", flush=True)


def main(what: str, folder: str, *more: str) -> None:
    if what == "worker":
        worker(folder)
        return
    store = FileStore(folder, warn=lambda message: None)
    if what == "stream":
        stream(store.start("stream"), more[0])
    elif what == "go-on":
        stream(store.resume(more[0], by="test"), more[1])
    elif what == "ask":
        with store.start("ask") as task:
            print(task.id, flush=True)
            turn = task.turn("dev")
            turn.say("before I go on: ")
            print(turn.ask("Which database?", ["sqlite", "postgres"], timeout=60), flush=True)
    else:
        raise AssertionError(what)


if __name__ == "__main__":
    main(*sys.argv[1:])
