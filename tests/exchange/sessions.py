"""What the tests of this folder share."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from rawko_state.backends.files.store import FileStore
from rawko_state.exchange.importing import Belonging, Report, import_sessions
from rawko_state.model.entries import Note, Turn


def bring(store: FileStore, source: str, *paths: Path, **more: object) -> Report:
    belonging = more.pop("belonging", None) or Belonging((str(store.root),))
    return import_sessions(store, source, paths, belonging=belonging, **more)  # type: ignore[arg-type]


def payload(store: FileStore, task: str) -> str:
    """All that a task holds of its source, in order."""
    found = []
    for _, entry in store.entries(task, whole=True):
        if isinstance(entry, Turn) and entry.payload is not None:
            found.append(entry.payload)
        if isinstance(entry, Note):
            found += [section.text for section in entry.sections if section.heading == "Payload"]
    return "\n".join(found)


def turns(store: FileStore, task: str) -> list[Turn]:
    return [entry for _, entry in store.entries(task) if isinstance(entry, Turn)]


def agrees(store: FileStore) -> None:
    live = store.sync.fresh().dump()
    store.reindex()
    assert store.sync.fresh().dump() == live
    assert not [fault for verdict in store.verify() for fault in verdict.faults]


def hook_event(name: str, path: Path, project: Path) -> str:
    """What Claude Code tells its hooks."""
    return json.dumps(
        {"session_id": path.stem, "transcript_path": str(path), "cwd": str(project), "hook_event_name": name}
    )


def run_recorded(project: Path, *command: str, code: int = 0, given: bytes | None = None) -> bytes:
    (project / ".rawko").mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "rawko_state", "-C", str(project), "run", "do it", "--", *command],
        capture_output=True,
        input=given,
    )
    assert b"Traceback" not in done.stderr, done.stderr
    assert done.returncode == code, done.stderr
    return done.stdout


STREAM = r"""
import json, os, sys, time
def say(**record):
    print(json.dumps({"session_id": "s1", **record}), flush=True)
say(type="system", subtype="init", cwd="/x")
say(type="assistant", message={"id": "m1", "role": "assistant", "model": "claude-x", "usage": {"input_tokens": 5, "output_tokens": 7},
    "content": [{"type": "text", "text": "I will look"}, {"type": "tool_use", "id": "t1", "name": "Read", "input": {"file_path": sys.argv[1] + "/a.py"}}]})
while not os.path.exists(sys.argv[2]):
    time.sleep(0.01)
say(type="user", message={"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "print(1)"}]})
say(type="assistant", message={"id": "m2", "role": "assistant", "content": [{"type": "text", "text": "Done."}]})
say(type="result", subtype="success", is_error=False)
"""


def _is_alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


def told(store: FileStore, source: str) -> str:
    """All that was imported from a source, as text: how each session ended, and its turns with their tools, files and diffs."""
    found = []
    for name, task in sorted(store.by_source(f"{source}:").items()):
        found += [f"{name}", *(f"  {line}" for line in _told(store, task)), ""]
    return "\n".join(found)


def _told(store: FileStore, task: str) -> Iterator[str]:
    summary, runs = store.summary(task), store.runs(task)
    parent = f", child of {summary.parent}" if summary.parent else ""
    yield f"{summary.status}{parent}: {summary.request} [{summary.title}]"
    for run in runs:
        yield f"run {run.status}" + (f": {run.error}" if run.error else "")
    for turn in turns(store, task):
        tokens = " ".join(f"{name}={count}" for name, count in sorted(turn.tokens.items()))
        cost = f" ${turn.cost.amount}" if turn.cost is not None else ""
        yield f"{turn.agent} {turn.status or ''} {turn.model or ''} {tokens}{cost}".rstrip()
        for text, mark in ((turn.thinking, "thinks: "), (turn.content, "")):
            if text:
                yield f"  {mark}{text.splitlines()[0]}"
        for call in turn.tools:
            assert not isinstance(call, str)
            yield f"  > {call.tool} {call.args.splitlines()[0] if call.args else ''}: {call.result}"[:110]
        for touch in turn.files:
            yield f"  {touch.operation} {touch.path}"
        for diff in turn.diffs:
            yield f"  diff {diff.old} {diff.new} +{diff.added} -{diff.removed} {diff.hunks.splitlines()[0]}"
