"""Live: from progress() in one process to its line in `rawko watch` in another; contexts of huge tasks; many at once.

python bench/live.py [--events 300] [--size 1000]   (megabytes of the huge task)
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from rawko_state.backends.files.store import FileStore
from rawko_state.format.blocks import emit_block
from rawko_state.format.codec import encode
from rawko_state.format.records import seal_record
from rawko_state.format.seal import GENESIS
from rawko_state.model.entries import Execution, Request, TaskHeader, Turn

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
RAWKO = [sys.executable, "-c", "from rawko_state.cli import main; main()"]


def told(name: str, late: list[float]) -> None:
    late = sorted(late)
    print(
        f"  {name:34} median {statistics.median(late) * 1000:7.2f} ms   99th percentile {late[int(len(late) * 0.99) - 1] * 1000:7.2f} ms"
    )


def watch(folder: Path, events: int) -> None:
    store = FileStore(folder)
    task = store.start("x")
    watching = subprocess.Popen(
        [*RAWKO, "-C", str(folder), "watch", task.id, "--json", "--new"], stdout=subprocess.PIPE, text=True
    )
    time.sleep(1.5)
    assert watching.stdout is not None
    late = []
    with task.turn("dev") as turn:
        for number in range(events):
            sent = time.perf_counter()
            turn.progress(f"step {number}")
            json.loads(watching.stdout.readline())
            late.append(time.perf_counter() - sent)
            time.sleep(0.003 * (number % 7))
    task.finish("success")
    watching.communicate()
    told("progress() to rawko watch", late)


def pipe(events: int) -> None:
    code = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"
    other = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdin is not None
    assert other.stdout is not None
    late = []
    for number in range(events):
        sent = time.perf_counter()
        other.stdin.write(f"step {number}\n")
        other.stdin.flush()
        other.stdout.readline()
        late.append(time.perf_counter() - sent)
    other.communicate()
    told("a bare pipe, there and back", late)


def polled(folder: Path, events: int) -> None:
    path = folder / "polled.db"
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode = wal")
    db.execute("CREATE TABLE events (id INTEGER PRIMARY KEY, text TEXT)")
    code = (
        "import sqlite3, sys, time\n"
        "db = sqlite3.connect(sys.argv[1]); last = 0; print('ready', flush=True)\n"
        "while True:\n"
        "    for last, text in db.execute('SELECT id, text FROM events WHERE id > ? ORDER BY id', (last,)).fetchall():\n"
        "        print(text, flush=True)\n"
        "    time.sleep(0.1)"
    )
    other = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    other.stdout.readline()
    late = []
    for number in range(min(events, 60)):
        sent = time.perf_counter()
        db.execute("INSERT INTO events (text) VALUES (?)", (f"step {number}",))
        other.stdout.readline()
        late.append(time.perf_counter() - sent)
        time.sleep(0.003 * (number % 7))
    other.kill()
    other.communicate()
    told("SQLite, looked at every 100 ms", late)


def huge(folder: Path, megabytes: int) -> None:
    """Resume contexts of a small and a huge task with the same budget, each in a process of its own."""
    times = {}
    for size in (1, megabytes):
        root = folder / f"huge{size}"
        tasks = root / ".rawko" / "state" / "tasks"
        tasks.mkdir(parents=True)
        header = TaskHeader(id="huge01", created=None, status="running", format=1)
        data, seal = seal_record(
            b"".join(emit_block(encode(e)) for e in (header, Request(text="do it"), Execution())), GENESIS
        )
        path = tasks / "2024-01-15T10-30-00-huge01.task"
        written = number = 0
        with open(path, "wb") as stream:
            stream.write(data)
            while written < size * 1_000_000:
                number += 1
                turn = Turn(number=number, agent="dev", status="complete", content=f"n{number} " + "words of it " * 800)
                data, seal = seal_record(emit_block(encode(turn)), seal)
                written += stream.write(data)
        subprocess.run([*RAWKO, "-C", str(root), "history"], stdout=subprocess.DEVNULL, check=True)
        command = [*RAWKO, "-C", str(root), "resume", "huge01", "--dry-run", "--budget", "20000"]
        found = []
        for _ in range(5):
            start = time.perf_counter()
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
            found.append(time.perf_counter() - start)
            assert len(done.stdout) > 10_000
        times[size] = statistics.median(found)
        code = "import resource, sys; from rawko_state.cli import main\ntry: main()\nexcept SystemExit: pass\nsys.stderr.write(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))"
        done = subprocess.run(
            [sys.executable, "-c", code, *command[3:]], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        print(
            f"  context of {size} MB ({number:,} turns): {times[size] * 1000:.0f} ms, {int(done.stderr.split()[-1]) / 1000:.0f} MB of memory (target: 100)"
        )
    print(f"  huge / small: {times[megabytes] / times[1]:.2f}")


def many(folder: Path, tasks: int = 50, seconds: float = 10.0) -> None:
    """So many tasks streaming at once, each with a follower; writers in one process, followers in another."""
    store = FileStore(folder / "many")
    (folder / "many").mkdir()
    open_tasks = [store.start(f"n{number}") for number in range(tasks)]
    ids = [task.id for task in open_tasks]
    code = (
        "import sys, json, time, threading, resource\nfrom rawko_state.backends.files.store import FileStore\n"
        "counts = {}\nlate = []\n"
        "def follow(task_id):\n"
        "    store = FileStore(sys.argv[1], warn=lambda m: None); n = 0\n"
        "    for event in store.follow(task_id):\n"
        "        if event is not None and event.kind == 'progress' and event.live:\n"
        "            late.append(time.time() - float(event.text)); n += 1\n"
        "        if event is not None and event.kind == 'turn': whole = event.data\n"
        "    counts[task_id] = n\n"
        "threads = [threading.Thread(target=follow, args=(i,)) for i in sys.argv[2:]]\n"
        "[t.start() for t in threads]; print('ready', flush=True); [t.join() for t in threads]\n"
        "late.sort(); u = resource.getrusage(resource.RUSAGE_SELF)\n"
        "print(json.dumps([sum(counts.values()), late[len(late)//2], late[int(len(late)*.99)], u.ru_utime + u.ru_stime]))"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(folder / "many"), *ids], stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    other.stdout.readline()
    sent = [0]

    def stream(chosen: list[int]) -> None:
        own = [open_tasks[number].turn("dev") for number in chosen]
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for turn in own:
                turn.progress(repr(time.time()))
                sent[0] += 1
            time.sleep(0.2)
        for turn in own:
            turn.end()

    stream(list(range(tasks)))
    for task in open_tasks:
        task.finish("success")
    seen, median, worst, cpu = json.loads(other.stdout.readline())
    other.communicate()
    own = resource.getrusage(resource.RUSAGE_SELF)
    print(
        f"  {tasks} tasks, {tasks} followers, {sent[0]:,} events in {seconds:.0f} s: {seen:,} seen live, the rest with their turns; "
        f"median {median * 1000:.0f} ms, 99th percentile {worst * 1000:.0f} ms; followers used {cpu:.1f} s of CPU, this process {own.ru_utime + own.ru_stime:.1f} s in all"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=300)
    parser.add_argument("--size", type=int, default=1000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rawko-bench-") as name:
        folder = Path(name)
        os.environ["XDG_STATE_HOME"] = str(folder / "home")
        print("latency:")
        (folder / "watch").mkdir()
        watch(folder / "watch", arguments.events)
        pipe(arguments.events)
        polled(folder, arguments.events)
        print("resume context, 20,000 tokens:")
        huge(folder, arguments.size)
        print("many at once:")
        many(folder)


if __name__ == "__main__":
    main()
