"""What the tests of this folder share."""

from __future__ import annotations

import json
import subprocess
import sys
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
