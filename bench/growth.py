"""What grows with the history: each operation at several sizes, in one run, beside its floor.

    python bench/growth.py [--sizes 300,1000,3000] [--rounds 7]

Commands are timed in fresh processes, in turns, so that a busy moment hits all of them. CPU time is given, as that is what noise
changes least. What is not flat has a ratio above 1.3 in the last column.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from append import a_turn, beside_bare
from histories import write_history

from rawko_state.backends.files.store import FileStore
from rawko_state.store import TaskFilter

RAWKO = [sys.executable, "-c", "from rawko_state.cli import main; main()"]
FLOORS = {
    "python alone": [sys.executable, "-c", ""],
    "import click, sqlite3": [sys.executable, "-c", "import click, sqlite3"],
    "import click, sqlite3, whoosh.index": [sys.executable, "-c", "import click, sqlite3, whoosh.index"],
}


def commands(task: str) -> dict[str, list[str]]:
    words = {
        "rawko": "",
        "history": "history",
        "history --status failed": "history --status failed",
        "history --file src/m7": "history --file src/m7",
        "history --agent developer": "history --agent developer",
        "search, one word": "search skew",
        "search, two words": "search skew cannot",
        "search, phrase of common words": '''search "clock|skew|users"''',
        "show": f"show {task}",
        "resume --dry-run": f"resume --dry-run {task}",
        "stats": "stats",
        "cleanup --dry-run": "cleanup --dry-run",
    }
    return {name: [*RAWKO, *(each.replace("|", " ") for each in line.split())] for name, line in words.items()}


def cpu(command: list[str], folder: Path) -> float:
    """The CPU time of one fresh process, in milliseconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def append(root: Path, rounds: int) -> float:
    """An append with its rows, as a ratio to a bare write and sync."""
    store, chance = FileStore(root), random.Random(1)
    turns = [a_turn(chance) for _ in range(50)]
    with store.start("a request") as task:
        path = store.journal.layout.path(store.find(task.id))
        size = path.stat().st_size
        task.add_turn(turns[0])
        record = path.read_bytes()[size:]
        ours, floor = beside_bare(lambda number: task.add_turn(turns[number % 50]), record, root, rounds)
    store.close()
    return statistics.median(ours) / statistics.median(floor)


def measured(root: Path, size: int, rounds: int) -> dict[str, float]:
    root.mkdir()
    total = write_history(root, size)
    store = FileStore(root)
    begun = time.perf_counter()
    store.reindex()
    store.flush()
    print(f"{size:,} tasks, {total / 1e6:.0f} MB, indexed in {time.perf_counter() - begun:.0f} s", flush=True)
    task = store.history(TaskFilter(limit=1))[0].id
    store.close()
    asked = {**FLOORS, **commands(task)}
    found: dict[str, list[float]] = {name: [] for name in asked}
    for _ in range(rounds + 1):
        for name, command in asked.items():
            found[name].append(cpu(command, root))
    times = {name: statistics.median(each[1:]) for name, each in found.items()}  # the first fills caches
    return {**times, "append (times a bare write + fdatasync)": append(root, 60 * rounds)}


def table(results: dict[int, dict[str, float]]) -> str:
    """In Markdown."""
    sizes = list(results)
    lines = [
        "| CPU ms of a fresh process | " + " | ".join(f"{size:,} tasks" for size in sizes) + " | last / first |",
        "|---|" + "---:|" * (len(sizes) + 1),
    ]
    for name in results[sizes[0]]:
        values = [results[size][name] for size in sizes]
        form = "{:.2f}" if name.startswith("append") else "{:.0f}"
        shown = " | ".join(form.format(value) for value in values)
        lines.append(f"| {name} | {shown} | {values[-1] / values[0]:.2f} |")
    return "\n".join(lines)


def run(sizes: list[int], rounds: int, folder: Path | None = None) -> str:
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # what pip installs is compiled, so ours is too
    with tempfile.TemporaryDirectory(prefix="rawko-bench-", dir=folder) as name:
        base = Path(name)
        os.environ["HOME"] = os.environ["XDG_STATE_HOME"] = str(base / "home")
        os.environ["RAWKO_SEARCH_FOLD"] = "off"
        os.environ["RAWKO_STATE_RETENTION_MAX_AGE"] = "3650d"  # for cleanup, which is asked what it would remove
        (base / "home").mkdir()
        return table({size: measured(base / str(size), size, rounds) for size in sizes})


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--sizes", default="300,1000,3000")
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--folder", type=Path, help="where to write (default: the system's temporary folder)")
    chosen = options.parse_args()
    print(run([int(size) for size in chosen.sizes.split(",")], chosen.rounds, chosen.folder))


if __name__ == "__main__":
    main()
