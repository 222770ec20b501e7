"""A pool of workers: each job is a task, whoever takes it; what a dead worker left, the next one continues.

    python examples/worker_pool.py FOLDER

Workers are processes here, but may run on any number of machines: give ``rawko.open`` a server (``remote="https://…"``).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import rawko_state as rawko
from rawko_state import TaskBusy, TaskFilter, Turn

JOBS = [f"job-{number}" for number in range(6)]
STEPS = 3


def work(store: rawko.Store, job: str, *, dies: bool = False) -> None:
    """Does one job, or what is left of it. Another worker may be at it: then we leave it alone."""
    with store.open_task(f"pool:{job}", f"Do {job}", title=job) as known:
        if known.state.is_finished:
            return
    try:
        task = store.resume(known.id, by=f"worker {os.getpid()}")
    except TaskBusy:
        return
    with task:
        if task.state.is_finished:
            return
        # The newest state says how far the last worker came. It is kept warm by the store.
        done = (store.latest_state(task.id) or {"done": 0})["done"]
        for step in range(done + 1, STEPS + 1):
            task.add_turn(Turn(agent="worker", status="complete", content=f"step {step}", state={"done": step}))
            if dies and step == 2:
                os._exit(9)  # as if the machine lost power; what was acknowledged is kept
        task.finish("success", f"{job} is done")


def worker(folder: str, dies: bool) -> None:
    with rawko.open(folder) as store:
        for job in JOBS:
            work(store, job, dies=dies)


def pool(folder: Path, workers: int = 3) -> list[int]:
    """Runs a worker that dies in the middle of a job, then others side by side, which do the rest. Returns their exit codes."""
    program = [sys.executable, __file__, "--worker", str(folder)]
    died = subprocess.call([*program, "dies"])
    others = [subprocess.Popen(program) for _ in range(workers)]
    return [died, *(each.wait() for each in others)]


if __name__ == "__main__":
    if sys.argv[1] == "--worker":
        worker(sys.argv[2], "dies" in sys.argv)
    else:
        where = Path(sys.argv[1])
        where.mkdir(parents=True, exist_ok=True)
        pool(where)
        with rawko.open(where) as found:
            for each in found.history(TaskFilter(sort="created", reverse=True)):
                print(f"{each.title}: {each.status}, {each.turns} turns, {each.runs} run(s)")
