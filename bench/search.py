"""Full-text search beside SQLite FTS5 and grep, on the same generated history, in one run.

    python bench/search.py [TURNS ...] [--times N]

Prints for each size: the time to build, the size and the memory of the index; for five queries the time of a fresh process that
asks, beside a fresh process that asks FTS5 through click, one that only imports click, sqlite3 and whoosh, and grep; the same with a tail of
5 MB that is not folded; and an append with the search index there and without.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from append import a_turn, beside_bare
from corpus import PATH, PHRASE, RARE, Corpus, write_corpus

from rawko_state.backends.files.store import FileStore
from rawko_state.model.entries import Turn
from rawko_state.tasks.task import Task

FTS = """
import sqlite3, sys
import click
@click.command()
@click.argument("query")
def main(query):
    db = sqlite3.connect(DATABASE)
    rows = db.execute("SELECT task, offset, snippet(turns, 2, '[', ']', '…', 12) FROM turns WHERE turns MATCH ? ORDER BY bm25(turns) LIMIT 20", (query,))
    for row in rows:
        click.echo(str(row))
main()
"""


def fresh(command: list[str], times: int = 7) -> float:
    """The median time of a fresh process, in milliseconds."""
    found = []
    for _ in range(times):
        start = time.perf_counter()
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        found.append((time.perf_counter() - start) * 1000)
    return statistics.median(found)


def build_fts(root: Path, database: Path) -> float:
    """All turns into FTS5, as a tool would: the text of each, and its place."""
    from rawko_state.index.flushed import Unflushed
    from rawko_state.search.turn_text import Documents

    store = FileStore(root)
    documents = Documents(store.journal)
    db = sqlite3.connect(database)
    db.execute("CREATE VIRTUAL TABLE turns USING fts5(task UNINDEXED, offset UNINDEXED, text)")
    rows = []
    for name in sorted(store.journal.layout.names()):
        path = f".rawko/state/tasks/{name.filename}"
        size = (root / path).stat().st_size
        for document in documents.stretch(Unflushed(name.id, path, 0, size, 0, None)):
            rows.append((name.id, document.offset, "\n".join(text for _, text in document.parts)))
    start = time.perf_counter()
    db.executemany("INSERT INTO turns VALUES (?, ?, ?)", rows)
    db.commit()
    db.close()
    store.close()
    return time.perf_counter() - start


def folder_size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def build(root: Path) -> str:
    """Builds in a process of its own, so that its memory can be told."""
    code = (
        "import sys, time, resource; from pathlib import Path; from rawko_state.backends.files.store import FileStore; "
        "from rawko_state.backends.files.flush import flush; "
        "s = FileStore(Path(sys.argv[1])); i = s.sync.fresh(); t = time.perf_counter(); "
        "n = flush(i, s.journal); d = time.perf_counter() - t; "
        "print(n, d, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(root)], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def queries(turns: int) -> dict[str, tuple[str, str, str]]:
    """For each kind: as we ask it, as FTS5 asks it, and what grep looks for."""
    corpus = Corpus(1)
    path = " ".join(PATH.replace("/", " ").replace(".", " ").replace("_", " ").split())
    return {
        "rare": (RARE, RARE, RARE),
        "common": (corpus.common, corpus.common, corpus.common),
        "two words": (f"{corpus.common} {corpus.other}", f"{corpus.common} {corpus.other}", corpus.common),
        "phrase": (f'"{PHRASE}"', f'"{PHRASE}"', PHRASE),
        "path": (PATH, f'"{path}"', PATH),
    }


def ask(root: Path, database: Path, asked: dict[str, tuple[str, str, str]], times: int) -> dict[str, float]:
    rawko = [sys.executable, "-c", "from rawko_state.cli import main; main()", "-C", str(root), "history", "--search"]
    script = database.with_suffix(".py")
    script.write_text(FTS.replace("DATABASE", repr(str(database))))
    floor = fresh([sys.executable, "-c", "import click, sqlite3, whoosh.index"], times)
    print(f"    {'':10} {'rawko':>8} {'FTS5':>8} {'imports':>8} {'grep':>8}   rawko / the larger of FTS5 and imports")
    found = {}
    for kind, (ours, theirs, plain) in asked.items():
        mine = fresh([*rawko, ours], times)
        fts = fresh([sys.executable, str(script), theirs], times)
        grep = fresh(["grep", "-rl", "-F", plain, str(root / ".rawko/state/tasks")], times)
        found[kind] = mine
        print(
            f"    {kind:10} {mine:6.0f}ms {fts:6.0f}ms {floor:6.0f}ms {grep:6.0f}ms   {mine / max(fts, floor):.2f}  (target: 2)"
        )
    return found


def run(turns: int, base: Path, times: int) -> None:
    root = base / f"h{turns}"
    size = write_corpus(root, turns)
    print(f"{turns:,} turns, {size / 1e6:.0f} MB")
    bytes_in, seconds, own, children = build(root).split()
    rate = int(bytes_in) / 1e6 / float(seconds)
    cores = os.cpu_count() or 1
    memory = (int(own) + cores * int(children)) / 1000
    index_size = folder_size(root / ".rawko/state/search")
    database = base / f"fts{turns}.db"
    fts_seconds = build_fts(root, database)
    print(
        f"  build: {float(seconds):.1f} s, {rate:.1f} MB/s (target: 4); FTS5 without reading the files: {fts_seconds:.1f} s"
    )
    print(f"  size: {index_size / size:.2f} of the text (target: 1); FTS5: {database.stat().st_size / size:.2f}")
    print(f"  memory: {memory:.0f} MB with {cores} workers (target: 400)")
    print("  fresh process, all folded:")
    asked = queries(turns)
    folded = ask(root, database, asked, times)
    write_corpus(root, 2_000, first=10_000_000)
    print("  fresh process, with a tail of 5 MB:")
    with_tail = ask(root, database, asked, times)
    print(
        "    with the tail / without: "
        + ", ".join(f"{kind} {with_tail[kind] / folded[kind]:.2f}" for kind in asked)
        + "  (target: 1.5)"
    )


def appends(base: Path, rounds: int = 2000) -> None:
    """A durable append while there is a search index, beside one where folding is switched off."""
    import random

    found = {}
    for kind in ("off", "auto"):
        os.environ["RAWKO_SEARCH_FOLD"] = kind
        folder = base / f"append-{kind}"
        folder.mkdir()
        chance = random.Random(1)
        store = FileStore(folder)
        task = store.start("a request")
        turns = [a_turn(chance) for _ in range(50)]
        path = store.journal.layout.path(store.find(task.id))
        size = path.stat().st_size
        task.add_turn(turns[0])
        record = path.read_bytes()[size:]
        if kind == "auto":
            store.flush()

        def append(number: int, task: Task = task, turns: list[Turn] = turns) -> None:
            task.add_turn(turns[number % 50])

        ours, floor = beside_bare(append, record, folder, rounds)
        found[kind] = statistics.median(ours) / statistics.median(floor)
        task.close()
        store.close()
    os.environ["RAWKO_SEARCH_FOLD"] = "off"
    print(
        f"append, with search / without, each beside a bare write: {found['auto'] / found['off']:.2f}  (target: 1.05)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("turns", nargs="*", type=int, default=[10_000, 100_000])
    parser.add_argument("--times", type=int, default=7)
    arguments = parser.parse_args()
    os.environ["RAWKO_SEARCH_FOLD"] = "off"
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # what pip installs is compiled, so ours is too
    base = Path(tempfile.mkdtemp(prefix="rawko-bench-"))
    try:
        os.environ["XDG_STATE_HOME"] = str(base / "home")
        for turns in arguments.turns:
            run(turns, base, arguments.times)
        appends(base)
    finally:
        shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    main()
