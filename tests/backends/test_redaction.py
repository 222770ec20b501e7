"""What is kept and what goes: the plan, the trash, packed files, rewriting; and all of them with the process killed in between."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

from rawko_state.backends.files.store import FileStore
from rawko_state.errors import RawkoError, TaskBusy
from rawko_state.model.entries import Turn
from tests.lifecycle.conftest import store  # noqa: F401 - fixtures
from tests.lifecycle.retention import (
    SECRET,
    agrees,
    contents,
    nowhere,
    written_with_secrets,
)
from tests.support.faults import quiet


class TestRewriting:
    def test_dry_run_then_for_good(self, tmp_path: Path) -> None:
        store = quiet(tmp_path)
        task_id = written_with_secrets(store, tmp_path)
        before = contents(tmp_path)
        looked = store.redact(task_id, dry_run=True)
        assert looked.rules["github-token"] >= 4
        assert contents(tmp_path) == before
        found = store.redact(task_id, by="kim")
        assert found.rules == looked.rules
        assert found.changed == 3
        store.reindex()
        nowhere(tmp_path)
        assert [verdict.faults for verdict in store.verify()] == [[]]
        summary = store.summary(task_id)
        assert (summary.status, summary.turns, summary.title) == ("completed", 2, "Deploy")
        assert re.search(r"using \[redacted:github-token:....\] now", store.turn(task_id, 2).content or "")  # type: ignore[union-attr]
        (text,) = contents(tmp_path).values()
        assert b"=== NOTE ===\n" in text
        assert b"Kind: redacted" in text
        assert store.redact(task_id).changed == 0
        agrees(store)
        with store.resume(task_id, message="more") as task:
            task.add_turn(Turn(number=1, agent="dev", content="again"))
        assert [verdict.faults for verdict in store.verify()] == [[]]

    def test_a_packed_one(self, tmp_path: Path) -> None:
        store = quiet(tmp_path)
        task_id = written_with_secrets(store, tmp_path)
        assert store.pack(store.retention_rows(task_id)[0])
        assert store.redact(task_id).changed == 3
        store.reindex()
        ((name, data),) = contents(tmp_path).items()
        assert name.endswith(".gz")
        assert SECRET.encode() not in gzip.decompress(data)
        assert [verdict.faults for verdict in store.verify()] == [[]]

    def test_torn_and_damaged_and_unsealed(self, tmp_path: Path) -> None:
        store = quiet(tmp_path)
        task_id = written_with_secrets(store, tmp_path)
        (path,) = (tmp_path / ".rawko/state/tasks").iterdir()
        data = path.read_bytes().replace(b"nothing here", b"nothing HERE " + SECRET.encode(), 1)
        path.write_bytes(data + b"\n--- Turn 3: dev ---\n[Content]\nhalf of " + SECRET.encode() + b" and")
        unsealed = path.with_name("2024-01-15T10-30-00-abc123.task")
        unsealed.write_bytes(
            b"=== TASK abc123 ===\nStatus: completed\n\n=== REQUEST ===\nUser: use " + SECRET.encode() + b"\n"
        )
        problems = len(next(iter(store.verify(task_id))).faults)
        assert problems
        for each in (task_id, "abc123"):
            assert store.redact(each).changed
        assert SECRET.encode() not in path.read_bytes() + unsealed.read_bytes()
        assert b"half of [redacted:github-token:" in path.read_bytes()
        assert b"Kind: redacted" in unsealed.read_bytes()
        faults = next(iter(store.verify(task_id))).faults
        assert [fault for fault in faults if "seal" in fault]
        assert not [fault for fault in faults if "torn" in fault]

    def test_one_that_is_being_run_is_refused(self, store: FileStore) -> None:
        task = store.start("x")
        with pytest.raises(TaskBusy):
            store.redact(task.id)
        task.close()

    def test_an_open_writer_is_told(self, tmp_path: Path) -> None:
        store = quiet(tmp_path)
        task_id = written_with_secrets(store, tmp_path)
        task = store.attach(task_id)
        store.redact(task_id)
        with pytest.raises(RawkoError, match="replaced by another file"):
            task.note("x")
        task.close()
