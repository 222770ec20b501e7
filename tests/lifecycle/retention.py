"""What the tests of this folder share."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

from rawko_state.backends.files.store import FileStore
from rawko_state.format.values import write_time
from rawko_state.model.entries import ToolCall, Turn
from rawko_state.redact.redactor import Redactor
from rawko_state.redact.rules import NAMES
from rawko_state.store import RetentionRow
from tests.support.processes import DRIVERS

DRIVER = str(DRIVERS / "keeping.py")


NOW = datetime(2026, 6, 1, tzinfo=timezone.utc)


DAY = 86_400


SECRET = "ghp_16C7e42F292c6912E7710c838347Ae178B4a"


def ago(days: float) -> str:
    return write_time(NOW - timedelta(days=days))


def kept(task_id: str, days: float | None = 0.0, status: str = "completed", **more: object) -> RetentionRow:
    values: dict[str, object] = {
        "pinned": False,
        "exempt": False,
        "parent": None,
        "file": f"{task_id}.task",
        "size": 100,
        "mtime_ns": 1,
    }
    return RetentionRow(task_id, None if days is None else ago(days), status, **{**values, **more})  # type: ignore[arg-type]


def ids(chosen: object) -> dict[str, str]:
    return {task.id: rule for task, rule in chosen.removals}  # type: ignore[attr-defined]


def written_with_secrets(store: FileStore, tmp_path: Path) -> str:
    """As a version wrote it that did not redact."""
    store.__dict__["redactor"] = Redactor(lambda secret: "0000", off=NAMES)  # finds nothing
    with store.start(f"deploy with {SECRET}", title="Deploy") as task:
        task.add_turn(Turn(number=1, agent="dev", content="nothing here"))
        with task.turn("dev") as turn:
            turn.say(f"=== NOTE ===\nusing {SECRET} now")
            turn.tool("shell.exec", f"curl -H 'Authorization: token {SECRET}'", "ok", output=f"{SECRET}\n" * 2000)
        task.finish("success", f"done with {SECRET}")
    del store.__dict__["redactor"]
    store.flush()
    return task.id


def nowhere(root: Path) -> None:
    for path in (root / ".rawko").rglob("*"):
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes(), path
            assert SECRET.lower().encode()[4:] not in path.read_bytes().lower(), path


def filled(store: FileStore, count: int, text: str = "hello") -> list[str]:
    found = []
    for number in range(count):
        with store.start(f"task {number}", created=NOW - timedelta(days=count - number)) as task:
            task.add_turn(
                Turn(
                    number=1,
                    agent="dev",
                    content=f"{text} {number}",
                    started=NOW - timedelta(days=count - number),
                    tools=(ToolCall("x", output=f"{text} {number} " * 3000),),
                )
            )
            task.finish("success", completed=NOW - timedelta(days=count - number))
            found.append(task.id)
    return found


def contents(root: Path, folder: str = "tasks") -> dict[str, bytes]:
    place = root / ".rawko/state" / folder
    return {path.name: path.read_bytes() for path in place.iterdir() if path.is_file()} if place.exists() else {}


def agrees(store: FileStore) -> None:
    """The index says what the files say."""
    live = store.sync.fresh().dump()
    store.reindex()
    assert store.sync.fresh().dump() == live


def configure(root: Path, text: str) -> None:
    (root / ".rawko" / "config.yaml").write_text(
        "state:\n  retention:\n" + "".join(f"    {line}\n" for line in text.split(", "))
    )
