"""Redaction: speed on ordinary text and on hostile text, precision and recall; and cleanups: the plan, and the moving.

python bench/redact.py [--tasks 100000]   (of the history that is cleaned up; 0 leaves that out)

Beside detect-secrets, if it is installed (pip install detect-secrets).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sqlite3
import statistics
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from histories import write_history

from rawko_state.backends.files.store import FileStore
from rawko_state.lifecycle.cleanup import carry_out
from rawko_state.lifecycle.retention import Policy, plan
from rawko_state.redact.redactor import Redactor
from rawko_state.redact.rules import RULES

ROOT = Path(__file__).parent.parent
HOSTILE = [
    "token=", "token:", "eyJ", "eyJ-", "eyJa.", "sk-", "sk-ant-", "-----BEGIN PRIVATE KEY-----", "-----BEGIN ", "://", "://a:",
    'password="', "authorization: ", "a", "password", "://a:b@", "SG.", "_key", " -u a:", "[redacted:jwt:abcd]token=", "key-",
    "bearer ", "AKIA", "SK", "-----BEGIN PRIVATE KEY-----\nAAAAAAAAAAAAAAAAAAAAAAAA\n", "token='aaaaaa", "\\\\\\", "\n", "é=",
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


def speed(redactor: Redactor) -> None:
    text = ordinary(8_000_000)
    megabytes = len(text.encode()) / 1e6
    turns = [text[at : at + 2_000] for at in range(0, len(text), 2_000)]
    bare = took(lambda: [rule.pattern.search(text) for rule in RULES], 1)
    whole = took(lambda: redactor.spans(text))
    pieces = took(lambda: [redactor.spans(turn) for turn in turns])
    print(f"ordinary text, {megabytes:.0f} MB, {len(RULES)} rules")
    print(f"  at once               {megabytes / whole:6.1f} MB/s  (asked: 20)")
    print(f"  in turns of 2,000     {megabytes / pieces:6.1f} MB/s")
    print(f"  each pattern searched {megabytes / bare:6.1f} MB/s   rawko / that: {bare / whole:.1f} times as fast")


def hostile(redactor: Redactor) -> None:
    print("hostile text: seconds for 10 MB, and for 10 MB against 1 MB (10 is linear)")
    found = []
    for piece in HOSTILE:
        text = piece * (10_000_000 // len(piece))
        small = took(lambda text=text: redactor.spans(text[:1_000_000]), 1)
        large = took(lambda text=text: redactor.spans(text), 1)
        found.append((large / small, large, piece))
    for ratio, large, piece in sorted(found, reverse=True)[:4]:
        print(f"  {piece!r:44} {large:6.2f} s   {ratio:5.1f}")
    slowest = max(found, key=lambda each: each[1])
    print(f"  slowest: {slowest[2]!r}, {slowest[1]:.1f} s")


def labelled() -> list[tuple[str, str | None]]:
    rows = [json.loads(line) for line in (ROOT / "fixtures/secrets/labelled.jsonl").read_text().splitlines()]
    return [("".join(row["text"]), None if row["secret"] is None else "".join(row["secret"])) for row in rows]


def quality(redactor: Redactor) -> None:
    rows = labelled()
    hits = {
        "rawko": [
            (not _is_there(secret, redactor.text(text)) if secret else bool(redactor.spans(text)))
            for text, secret in rows
        ]
    }
    if importlib.util.find_spec("detect_secrets") is not None:
        hits["detect-secrets"] = [_detected(text, secret) for text, secret in rows]
    print(
        f"labelled set: {sum(1 for _, s in rows if s)} texts with a secret, {sum(1 for _, s in rows if not s)} without"
    )
    for name, found in hits.items():
        right = sum(1 for hit, (_, secret) in zip(found, rows, strict=True) if hit and secret)
        wrong = sum(1 for hit, (_, secret) in zip(found, rows, strict=True) if hit and not secret)
        recall = right / sum(1 for _, secret in rows if secret)
        print(f"  {name:16} precision {right / max(1, right + wrong):.2f}  recall {recall:.2f}  ({wrong} false)")
    if "detect-secrets" not in hits:
        print("  detect-secrets is not installed here: not compared")


def _is_there(secret: str, text: str) -> bool:
    return secret in text or secret[-10:] in text


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
            f"  plan {planning * 1000:.0f} ms, bare SELECT {bare * 1000:.0f} ms: {planning / bare:.2f} times (asked: 3)"
        )
        start = time.perf_counter()
        done = carry_out(store, policy, chosen)
        spent = time.perf_counter() - start
        renames = _renames(root, min(tasks, 10_000))
        print(f"  moved {len(done.removed) / spent:,.0f} a second (asked: 5,000); bare renames {renames:,.0f} a second")
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
    parser.add_argument("--tasks", type=int, default=100_000)
    given = parser.parse_args()
    redactor = Redactor(lambda secret: "0000")
    speed(redactor)
    quality(redactor)
    hostile(redactor)
    if given.tasks:
        cleanup(given.tasks)


if __name__ == "__main__":
    main()
