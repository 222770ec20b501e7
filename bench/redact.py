"""Redaction: speed, pauses, hostile text, recall and precision, false alarms; and cleanups: the plan, and the moving.

python bench/redact.py [--only speed,quality] [--tasks 100000] [--detect-secrets FOLDER] [--also FOLDER ...]

--tasks: the history that is cleaned up; 0 leaves that out. --detect-secrets: where it was installed, to compare
(pip install --target FOLDER detect-secrets). --also: more folders to count false alarms in, such as unpacked npm packages and logs.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

from histories import write_history

from rawko_state.backends.files.store import FileStore
from rawko_state.lifecycle.cleanup import carry_out
from rawko_state.lifecycle.retention import Policy, plan
from rawko_state.redact.redactor import Redactor
from rawko_state.redact.rules import NAMES, RULES
from rawko_state.redact.scan import slices

ROOT = Path(__file__).parent.parent
HOSTILE = [
    "token=", "token:", "eyJ", "eyJ-", "eyJa.", "sk-", "sk-ant-", "-----BEGIN PRIVATE KEY-----", "-----BEGIN ", "://", "://a:",
    'password="', "authorization: ", "a", "password", "://a:b@", "SG.", "_key", " -u a:", "[redacted:jwt:abcd]token=", "key-",
    "bearer ", "AKIA", "SK", "-----BEGIN PRIVATE KEY-----\nAAAAAAAAAAAAAAAAAAAAAAAA\n", "token='aaaaaa", "x", "cookie: ", "mysql -p", "datadog", "datadog=", "?sig=", "key-", 'password,"', "://a@", "Bearer ", "secret>",
    "\\\\\\", "\n", "é=",
]  # fmt: skip


def ordinary(size: int) -> str:
    """Python, Markdown and this project's own logs: what agents read and say."""
    pieces, total = [], 0
    places = [*ROOT.rglob("*.py"), *ROOT.rglob("*.md"), *Path(os.__file__).parent.rglob("*.py")]
    for path in places:
        if total >= size:
            break
        if ".venv" not in path.parts and "redact" not in path.name:
            text = path.read_text(encoding="utf-8", errors="replace")
            pieces.append(text)
            total += len(text)
    return "".join(pieces)[:size]


def took(work: object, times: int = 3) -> float:
    found = []
    for _ in range(times):
        start = time.perf_counter()
        work()  # type: ignore[operator]
        found.append(time.perf_counter() - start)
    return statistics.median(found)


def worked(work: object, times: int = 5) -> float:
    """Seconds of the processor, which others that use the machine change less."""
    return min(_cpu(work) for _ in range(times))


def speed(redactor: Redactor) -> None:
    text = ordinary(8_000_000)
    megabytes = len(text.encode()) / 1e6
    turns = [text[at : at + 2_000] for at in range(0, len(text), 2_000)]
    cold = worked(lambda: Redactor(lambda secret: "0000").spans(text), 1)
    whole = worked(lambda: redactor.spans(text))
    pieces = worked(lambda: [redactor.spans(turn) for turn in turns], 3)
    floor = worked(lambda: [part.words() for part in slices(text)])
    print(f"ordinary text, {megabytes:.0f} MB, {len(NAMES)} rules in {len(RULES)} rows")
    print(f"  at once               {megabytes / whole:6.1f} MB/s  (target: 25)")
    print(f"  the first time        {megabytes / cold:6.1f} MB/s  with everything to compile")
    print(f"  in turns of 2,000     {megabytes / pieces:6.1f} MB/s")
    print(f"  only splitting words  {megabytes / floor:6.1f} MB/s  rawko / that: {whole / floor:.1f}")


def pauses(redactor: Redactor) -> None:
    """How long the searching thread works, at most, before another thread gets its turn: by the clock of its processor time, so
    that other programs don't count."""
    print("pauses: the longest hold of the interpreter (target: 20 ms)")
    clock = time.pthread_getcpuclockid(threading.get_ident())
    texts = {
        "20 MB of x on one line": "x" * 20_000_000,
        "20 MB behind sk-ant-": "sk-ant-" + "x" * 20_000_000,
        "20 MB in base64": "QUJD" * 5_000_000,
        "8 MB of ordinary text": ordinary(8_000_000),
    }
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)
    try:
        for name, text in {"nothing": "", **texts}.items():
            gaps, stop = [0.0], threading.Event()

            def tick(gaps: list[float] = gaps, stop: threading.Event = stop) -> None:
                last = time.clock_gettime(clock)
                while not stop.is_set():
                    time.sleep(0.0002)
                    now = time.clock_gettime(clock)
                    gaps.append(now - last)
                    last = now

            thread = threading.Thread(target=tick)
            thread.start()
            time.sleep(0.2)
            start = time.perf_counter()
            redactor.spans(text)
            spent = time.perf_counter() - start
            stop.set()
            thread.join()
            print(f"  {name:24} {max(gaps) * 1000:6.1f} ms   ({spent:.1f} s)")
    finally:
        sys.setswitchinterval(before)


def hostile(redactor: Redactor) -> None:
    hints = sorted({hint for rule in RULES for hint in rule.hints})
    pieces = sorted({*HOSTILE, *hints, *(f"{hint}=" for hint in hints)})
    print(
        f"hostile text: {len(pieces)} pieces, repeated to 0.2 MB; the slowest, repeated to 1 MB and to 10 MB (target: 11 times)"
    )
    found = []
    for piece in pieces:
        text = piece * (200_000 // len(piece))
        found.append((worked(lambda text=text: redactor.spans(text), 1), piece))
    for spent, piece in sorted(found, reverse=True)[:5]:
        small, large = (piece * (size // len(piece)) for size in (1_000_000, 10_000_000))
        one = worked(lambda text=small: redactor.spans(text), 3)
        ten = worked(lambda text=large: redactor.spans(text), 1)
        print(f"  {piece!r:44} {spent * 5:6.2f} s a megabyte   10 MB / 1 MB: {ten / one:5.1f}")


def _cpu(work: object) -> float:
    start = time.process_time()
    work()  # type: ignore[operator]
    return time.process_time() - start


class Row(NamedTuple):
    text: str
    secret: str | None
    context: str


def labelled(half: str) -> list[Row]:
    rows = [json.loads(line) for line in (ROOT / f"fixtures/secrets/{half}.jsonl").read_text().splitlines()]
    return [
        Row(
            "".join(row["text"]),
            None if row["secret"] is None else "".join(row["secret"]),
            row["context"].partition(":")[0],
        )
        for row in rows
    ]


def quality(redactor: Redactor, other: bool) -> None:
    for half in ("tuning", "heldout"):
        rows = labelled(half)
        with_secret = [row for row in rows if row.secret]
        print(
            f"labelled set, {half} half: {len(with_secret)} texts with a secret, {len(rows) - len(with_secret)} without"
        )
        hits = {"rawko": [_is_hit(redactor, row) for row in rows]}
        if other and half == "heldout":
            hits["detect-secrets"] = [_detected(row.text, row.secret) for row in rows]
        for name, found in hits.items():
            pairs = list(zip(found, rows, strict=True))
            right = sum(1 for hit, row in pairs if hit and row.secret)
            wrong = sum(1 for hit, row in pairs if hit and not row.secret)
            print(
                f"  {name:16} precision {right / max(1, right + wrong):.3f}  recall {right / len(with_secret):.3f}  ({wrong} false)"
            )
            by_context: dict[str, list[bool]] = {}
            for hit, row in pairs:
                if row.secret:
                    by_context.setdefault(row.context, []).append(hit)
            lowest = sorted(by_context.items(), key=lambda each: sum(each[1]) / len(each[1]))[:5]
            shown = ", ".join(f"{context} {sum(found) / len(found):.2f}" for context, found in lowest)
            print(f"  {'':16} lowest recall of {len(by_context)} contexts: {shown}")
    if not other:
        print("  detect-secrets is not installed here: not compared")


def _is_hit(redactor: Redactor, row: Row) -> bool:
    if row.secret is None:
        return bool(redactor.spans(row.text))
    shown = redactor.text(row.text)
    return row.secret not in shown and row.secret[-10:] not in shown


def _detected(text: str, secret: str | None) -> bool:
    """As its own command scans a file; of a text with a secret, whether the secret, or the key that it is of, is reported."""
    from detect_secrets import SecretsCollection
    from detect_secrets.settings import default_settings

    with tempfile.NamedTemporaryFile("w", suffix=".log") as stream, default_settings():
        stream.write(text)
        stream.flush()
        found = SecretsCollection()
        found.scan_file(stream.name)
        lines = text.split("\n")
        for _, each in found:
            line = lines[each.line_number - 1]
            if secret is None or secret.split("\n")[0] in line or "PRIVATE" in line:
                return True
    return False


def false_alarms(redactor: Redactor, also: list[str]) -> None:
    """Everything found in code that is published counts, also what is a made-up password in a test."""
    library = Path(os.__file__).parent
    packages = Path(sys.prefix) / "lib"
    places = {
        "Python standard library": [path for path in library.rglob("*.py") if "site-packages" not in path.parts],
        "installed packages": [
            path for path in packages.rglob("site-packages/**/*") if path.suffix in (".py", ".txt", ".md", ".json")
        ],
        **{Path(name).name: [path for path in Path(name).rglob("*") if path.is_file()] for name in also},
    }
    print("false alarms (target: 0.3 a megabyte)")
    for name, paths in places.items():
        size = count = 0
        rules: Counter[str] = Counter()
        for path in paths:
            with contextlib.suppress(OSError, UnicodeDecodeError):
                text = path.read_text(encoding="utf-8")
                size += len(text)
                found = redactor.spans(text)
                count += len(found)
                rules.update(span.rule for span in found)
        said = ", ".join(f"{rule} {number}" for rule, number in rules.most_common(4))
        print(f"  {name:24} {count / max(1, size) * 1e6:5.2f} a megabyte in {size / 1e6:5.1f} MB  {said}")


def cleanup(tasks: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        os.environ["XDG_STATE_HOME"] = os.environ["XDG_CONFIG_HOME"] = os.environ["XDG_CACHE_HOME"] = str(root / "home")
        write_history(root, tasks)
        store = FileStore(root, warn=lambda message: None)
        store.reindex()
        policy = Policy(max_age=1, keep_failed=False)
        now = datetime.now(timezone.utc)
        connection = sqlite3.connect(root / ".rawko/state/index.db")
        columns = (
            "id, created_at, completed_at, status, pinned, parent_id, file_path, file_size, file_mtime_ns, detached"
        )
        bare = took(lambda: connection.execute(f"SELECT {columns} FROM tasks").fetchall())
        planning = took(lambda: plan(store.retention_rows(), policy, now))
        chosen = plan(store.retention_rows(), policy, now)
        print(f"cleanup of {tasks:,} tasks, {len(chosen.removals):,} to go")
        print(
            f"  plan {planning * 1000:.0f} ms, bare SELECT {bare * 1000:.0f} ms: {planning / bare:.2f} times (target: 3)"
        )
        start = time.perf_counter()
        done = carry_out(store, policy, chosen)
        spent = time.perf_counter() - start
        renames = _renames(root, min(tasks, 10_000))
        print(
            f"  moved {len(done.removed) / spent:,.0f} a second (target: 5,000); bare renames {renames:,.0f} a second"
        )
        start = time.perf_counter()
        back = store.restore()
        print(f"  brought back {len(back) / (time.perf_counter() - start):,.0f} a second")


def _renames(root: Path, count: int) -> float:
    for folder in ("a", "b"):
        (root / folder).mkdir()
    for number in range(count):
        (root / "a" / str(number)).touch()
    start = time.perf_counter()
    for number in range(count):
        os.rename(root / "a" / str(number), root / "b" / str(number))
    return count / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="some of speed, quality, alarms, pauses, hostile and cleanup")
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--detect-secrets")
    parser.add_argument("--also", nargs="*", default=[])
    given = parser.parse_args()
    if given.detect_secrets:
        sys.path.append(given.detect_secrets)
    redactor = Redactor(lambda secret: "0000")
    parts = {
        "speed": lambda: speed(redactor),
        "quality": lambda: quality(redactor, importlib.util.find_spec("detect_secrets") is not None),
        "alarms": lambda: false_alarms(redactor, given.also),
        "pauses": lambda: pauses(redactor),
        "hostile": lambda: hostile(redactor),
        "cleanup": lambda: cleanup(given.tasks) if given.tasks else None,
    }
    chosen = given.only.split(",") if given.only else list(parts)
    if unknown := set(chosen) - set(parts):
        parser.error(f"Unknown part: {min(unknown)}. Known: {', '.join(parts)}.")
    for name in chosen:
        parts[name]()


if __name__ == "__main__":
    main()
