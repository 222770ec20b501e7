"""One of several processes that write to a project at random, for the test that the live index equals a rebuilt one.

python index_driver.py FOLDER SEED STEPS
"""

from __future__ import annotations

import random
import sys
import warnings
from decimal import Decimal

from rawko_state.backends.files.store import FileStore
from rawko_state.errors import RawkoError
from rawko_state.model.entries import FileTouch, Money, Question, Turn
from rawko_state.store import TaskFilter
from rawko_state.tasks.task import Task


def main(folder: str, seed: int, steps: int) -> None:
    chance = random.Random(seed)
    warnings.simplefilter("ignore")
    store = FileStore(folder)
    open_tasks: list[Task] = []
    for number in range(steps):
        try:
            step(store, chance, open_tasks, f"{seed}-{number}")
        except RawkoError:
            continue  # an illegal move, or a task that another process runs
    for task in open_tasks[: len(open_tasks) // 2]:
        task.close()  # the others are left as if this process had been killed


def step(store: FileStore, chance: random.Random, mine: list[Task], token: str) -> None:
    what = chance.choice(
        [
            "start",
            "start",
            "turn",
            "turn",
            "turn",
            "live",
            "note",
            "ask",
            "answer",
            "finish",
            "resume",
            "history",
            "close",
        ]
    )
    names = list(store.journal.layout.names())
    if what == "start" or not names:
        labels = {"k": chance.choice("abc")} if chance.random() < 0.5 else {}
        mine.append(store.start(f"request {token}\x00", labels=labels, detached=chance.random() < 0.3, agent="a\ud800"))
        return
    if what == "history":
        store.history(TaskFilter(limit=5))
        return
    task = chance.choice(mine) if mine and chance.random() < 0.7 else store.attach(chance.choice(names).id)
    if what == "turn":
        files = (FileTouch("write", f"src/{chance.randint(1, 5)}.py"),) if chance.random() < 0.5 else ()
        task.add_turn(
            Turn(
                number=1,
                agent=chance.choice(["dev", "planner"]),
                status="complete",
                content=token,
                files=files,
                tokens={"in": 3, "out": 4},
                cost=Money(Decimal("0.30")),
            )
        )
    elif what == "live":
        with task.turn("live") as turn:
            turn.say(token)
            turn.tool("filesystem.read", "README.md", "ok")
    elif what == "note":
        task.note(token, title=f"title {token}", labels={"n": token}, pinned=chance.random() < 0.5)
    elif what == "ask":
        task.ask("dev", Question("?"))
    elif what == "answer":
        task.answer(token)
    elif what == "finish":
        task.finish(chance.choice(["success", "failure", "cancelled"]), token, files=["a.py", "b.py"])
    elif what == "resume":
        mine.append(store.resume(chance.choice(names).id))
    elif what == "close":
        task.close()
    if task not in mine and what != "finish":
        task.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
