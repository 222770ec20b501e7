"""Bringing in Claude Code's sessions: time to the first correct search result, a second time with nothing new, memory, disk.

python bench/import.py [--sessions 5000]

Beside agentsview and claude-session-search, if their commands are found (pip install agentsview claude-session-search; --peers FOLDER
names the folder with them), on the same files in the same run, each with a home of its own and telemetry off.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from agents import write_sessions

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def memory_of(session: int) -> int:
    """Bytes that all processes of a session have in memory."""
    total = 0
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                fields = Path(entry.path, "stat").read_text().rpartition(") ")[2].split()
                if int(fields[3]) == session:
                    total += int(fields[21]) * 4096
            except (OSError, IndexError, ValueError):
                continue
    return total


def timed(words: list[str], env: dict[str, str], cwd: Path) -> tuple[float, int, str]:
    """Seconds, the most memory that it and its children had at once, and what it printed."""
    start = time.perf_counter()
    process = subprocess.Popen(
        words, env=env, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    most, done = 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.wait(0.1):
            most = max(most, memory_of(process.pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    out = process.communicate()[0].decode("utf-8", "replace")
    spent = time.perf_counter() - start
    done.set()
    watcher.join()
    return spent, most, out


def disk(*folders: Path) -> int:
    return (
        sum(path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file()) if folders else 0
    )


def measured(
    name: str, bring: list[str], search: list[str], env: dict[str, str], cwd: Path, folder: Path, wanted: str
) -> tuple[float, ...] | None:
    first, memory, said = timed(bring, env, cwd)
    look, _, found = timed(search, {key: value for key, value in env.items() if key != "AGENTSVIEW_NO_DAEMON"}, cwd)
    size = disk(folder)
    again, _, _ = timed(bring, env, cwd)
    right = wanted in found
    print(f"  {name:22} import {first:6.1f} s   first search {look:5.2f} s{'' if right else ' WRONG'}   nothing new {again:5.2f} s   "
          f"memory {memory / 1e6:4.0f} MB   disk {size / 1e6:5.0f} MB")  # fmt: skip
    if not right:
        print("   ", said[-300:], found[-300:])
        return None
    return first + look, again, size


def hooks(project: Path, env: dict[str, str]) -> None:
    """What an agent waits for at every event."""
    event = json.dumps({"session_id": "x", "cwd": str(project), "hook_event_name": "PostToolUse"}).encode()
    floor = [sys.executable, "-c", "import click, sys; open('x', 'wb').write(sys.stdin.buffer.read())"]
    found = []
    for words in (floor, [sys.executable, "-m", "rawko_state", "hook", "run", "claude-code"]):
        spent = []
        for _ in range(21):
            start = time.perf_counter()
            subprocess.run(words, input=event, env=env, cwd=project, capture_output=True, check=True)
            spent.append(time.perf_counter() - start)
        found.append(statistics.median(spent))
    print(
        f"hook run {found[1] * 1000:.0f} ms, import click and write a file {found[0] * 1000:.0f} ms: {found[1] / found[0]:.2f} times (target: 1.5)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=5_000)
    parser.add_argument("--peers", type=Path, help="folder with the commands agentsview and claude-session-search")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        project = work / "project"
        (project / ".rawko").mkdir(parents=True)
        home = work / "home"
        size = write_sessions(home / ".claude", str(project), given.sessions, output=330)
        print(f"{given.sessions:,} sessions, {given.sessions * 20:,} records, {size / 1e6:.0f} MB")
        env = {
            **os.environ,
            "HOME": str(home),
            "DO_NOT_TRACK": "1",
            "AGENTSVIEW_NO_DAEMON": "1",
            "AGENTSVIEW_TELEMETRY": "0",
        }
        env["AGENTSVIEW_NO_DAEMON"] = "1"
        env = {key: value for key, value in env.items() if not key.startswith(("XDG_", "CLAUDE_"))}
        word = f"session{given.sessions * 4 // 5}"
        hooks(project, env)
        rawko = [sys.executable, "-m", "rawko_state"]
        ours = measured(
            "rawko",
            [*rawko, "import", "claude-code"],
            [*rawko, "history", "--search", word],
            env,
            project,
            project / ".rawko",
            word,
        )
        other = work / "packed"
        shutil.copytree(project, other, ignore=shutil.ignore_patterns("state"))
        words = [*rawko, "-C", str(other), "import", "claude-code", "--all-projects", "--pack"]
        elsewhere = {**env, "XDG_STATE_HOME": str(work / "state")}
        shutil.move(project, work / "away")  # so that the sessions go to the project that is asked
        measured(
            "rawko --pack",
            words,
            [*rawko, "-C", str(other), "history", "--search", word],
            elsewhere,
            other,
            other / ".rawko",
            word,
        )
        shutil.move(work / "away", project)
        path = os.pathsep.join([str(given.peers), os.environ["PATH"]]) if given.peers else os.environ["PATH"]
        peers: dict[str, tuple[list[str], list[str], Path]] = {}
        if agentsview := shutil.which("agentsview", path=path):
            peers["agentsview"] = ([agentsview, "sync"], [agentsview, "session", "search", word], home / ".agentsview")
        if search := shutil.which("claude-session-search", path=path):
            python = str(Path(search).parent / "python")
            code = "from cc_search import server; print(server.api_search({'q': '" + word + "'}))"
            peers["claude-session-search"] = (
                [search, "--reindex", "--no-open"],
                [python, "-c", code],
                home / ".cc-search",
            )
        for peer, (bring, look, folder) in peers.items():
            theirs = measured(peer, bring, look, env, project, folder, word)
            if ours is not None and theirs is not None:
                print(
                    f"    rawko / it: first result {ours[0] / theirs[0]:.2f}, nothing new {ours[1] / theirs[1]:.2f}, disk {ours[2] / max(1.0, theirs[2]):.2f}"
                )
        if "agentsview" in peers:  # its search has started a server, on loopback
            subprocess.run([peers["agentsview"][0][0], "daemon", "stop"], env=env, capture_output=True)
        if not peers:
            print("  agentsview and claude-session-search are not installed here: not compared")


if __name__ == "__main__":
    main()
