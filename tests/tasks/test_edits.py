"""Edits, thinking and exact durations of live turns, through every way in."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

import rawko_state as rawko
from rawko_state.backends.files.store import FileStore
from rawko_state.errors import InvalidValue
from rawko_state.model.entries import ToolCall, Turn, own_diffs
from rawko_state.model.long_texts import DIFF_LIMIT
from rawko_state.store import TaskFilter
from rawko_state.tasks.lines import Recorder


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path)


def text_of(store: FileStore) -> str:
    return next((store.root / ".rawko/state/tasks").glob("*.task")).read_text(encoding="utf-8")


def test_an_edit_belongs_to_its_call_and_is_found_by_grep_and_by_search(store: FileStore) -> None:
    with store.start("fix") as task, task.turn("dev") as turn:
        turn.think("It must be rounded.")
        key = turn.begin_tool("Edit", "calc.py")
        turn.edit("calc.py", before="total = price\n", after="total = round(price)\n", tool=key)
        turn.end_tool(key, "done")
        turn.edit("new.py", after="x\n")
    recorded = store.turn(task.id, 1)
    assert recorded.thinking == "It must be rounded."
    (call,) = recorded.tools
    assert isinstance(call, ToolCall)
    assert [diff.path for diff in own_diffs(call, recorded.diffs)] == ["calc.py"]
    assert [(diff.old, diff.new, diff.added, diff.removed) for diff in recorded.diffs] == [
        ("calc.py", "calc.py", 1, 1),
        (None, "new.py", 1, 0),
    ]
    assert "\n+total = round(price)\n" in text_of(store)
    assert text_of(store).index("[Thinking]") < text_of(store).index("[Tool Log]") < text_of(store).index("[Diff]")
    for query in ("round(price", "added:round", 'added:"total = round"', "removed:price"):
        assert [hit.turn for hit in store.search(query).hits] == [1], query
    assert not store.search("removed:round").hits
    assert [task.id for task in store.history(TaskFilter(file="new.py"))] == [task.id]


def test_a_killed_turn_keeps_its_edits(store: FileStore) -> None:
    pid = os.fork()
    if pid == 0:  # pragma: no cover - killed
        inner = FileStore(store.root)
        turn = inner.start("fix").turn("dev")
        turn.think("hm")
        turn.edit("a.py", before="1\n", after="2\n")
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    (task_id,) = store.reconcile()
    recorded = store.turn(task_id, 1)
    assert (recorded.status, recorded.thinking) == ("interrupted", "hm")
    assert [diff.path for diff in recorded.diffs] == ["a.py"]


def test_a_long_diff_is_kept_apart_and_verified(store: FileStore) -> None:
    with store.start("fix") as task, task.turn("dev") as turn:
        turn.edit("big.txt", after="".join(f"line {n}\n" for n in range(DIFF_LIMIT // 8)))
    (diff,) = store.turn(task.id, 1).diffs
    assert diff.blob is not None
    assert diff.hunks == ""
    assert diff.added == DIFF_LIMIT // 8
    assert list(store.blobs_of(task.id)) == [diff.blob.sha256]
    (verdict,) = store.verify()
    assert not verdict.faults
    (store.root / ".rawko/state/blobs" / diff.blob.sha256).unlink()
    (verdict,) = store.verify()
    assert "missing or changed" in verdict.faults[0]


def test_secrets_in_edits_are_redacted(store: FileStore) -> None:
    secret = "ghp_" + "x8Kq2" * 7 + "a"
    with store.start("fix") as task, task.turn("dev") as turn:
        turn.edit(".env", before="", after=f"TOKEN={secret}\n")
        turn.think(secret)
    assert secret not in text_of(store)
    assert store.turn(task.id, 1).diffs[0].added == 1


def test_edits_by_lines(store: FileStore) -> None:
    recorder = Recorder(store)
    recorder.do("start", {"request": "fix"})
    recorder.do("turn", {"agent": "dev", "open": True})
    recorder.do("thinking", {"text": "hm"})
    recorder.do("tool", {"tool": "Edit", "args": "a", "id": "c1", "running": True})
    recorder.do("edit", {"path": "a", "diff": "@@ -1 +1 @@\n-x\n+y", "id": "c1"})
    recorder.do("tool", {"id": "c1", "result": "done"})
    recorder.do("end", {})
    edits = [{"path": "b", "before": "1\n", "after": "2\n"}]
    recorder.do("turn", {"agent": "dev", "thinking": "so", "edits": edits})
    recorder.do("result", {"tokens": {"in": 5}, "cost": "0.25"})
    assert recorder.task is not None
    task_id = recorder.task.id
    first, second = store.turn(task_id, 1), store.turn(task_id, 2)
    assert [diff.path for diff in (*first.diffs, *second.diffs)] == ["a", "b"]
    assert isinstance(first.tools[0], ToolCall)
    assert first.tools[0].more["diff"] == 1
    assert (first.thinking, second.thinking) == ("hm", "so")
    summary = store.summary(task_id)
    assert (summary.tokens_in, summary.cost) == (5, "0.25")


@pytest.mark.parametrize(
    "given",
    [{"diff": "no diff"}, {"diff": "@@ -1 +1 @@\n-a\n+b", "after": "b"}, {}],
)
def test_what_is_no_edit_is_refused(store: FileStore, given: dict[str, str]) -> None:
    with store.start("fix") as task, task.turn("dev") as turn, pytest.raises(InvalidValue):
        turn.edit("a", **given)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue):
        Recorder(store, store.attach(task.id)).do("turn", {"agent": "a", "edits": [{"path": "a", **given}]})


def test_a_turn_of_an_older_file_keeps_its_thinking(store: FileStore) -> None:
    """Earlier versions wrote the section after all others."""
    from rawko_state.format.records import scan_bytes

    data = b"--- Turn 1: a ---\nStatus: complete\n\n[Content]\nhello\n\n[Thinking]\nhm\n\n"
    records, _ = scan_bytes(data)
    entry = records[0].blocks[0].entry(lambda at, size: data[at : at + size])
    assert isinstance(entry, Turn)
    assert (entry.content, entry.thinking) == ("hello", "hm")


def test_a_short_task_is_not_said_to_have_taken_longer(store: FileStore) -> None:
    """Its time of creation is in whole seconds."""
    spent = 0.0
    for _ in range(3):
        begun = time.monotonic()
        with store.start("quick") as task:
            task.finish("success")
        spent += time.monotonic() - begun
    assert sum(task.duration_ms or 0 for task in store.history(TaskFilter())) <= spent * 1000


def test_a_payload_is_text(store: FileStore) -> None:
    with store.start("x") as task, task.turn("dev") as turn, pytest.raises(InvalidValue, match="payload must be text"):
        turn.end(payload=[{"role": "user"}])  # type: ignore[arg-type]


def test_field_names_of_other_programs_may_have_underscores(store: FileStore) -> None:
    with store.start("x", fields={"mux_session": "s1"}):
        pass
    assert "X-mux-session: s1" in text_of(store)


def test_a_remote_store_needs_no_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with rawko.open(remote="http://127.0.0.1:9") as store:
        assert store.where == "http://127.0.0.1:9"


def test_json_of_a_turn_with_edits(store: FileStore) -> None:
    from rawko_state.format.json_form import plain

    with store.start("x") as task, task.turn("dev") as turn:
        turn.edit("a", after="1\n")
    shown = json.loads(json.dumps(plain(store.turn(task.id, 1))))
    assert shown["diffs"] == [{"new": "a", "hunks": "@@ -0,0 +1 @@\n+1", "added": 1, "removed": 0}]
