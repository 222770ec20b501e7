"""What is kept and what goes: the plan, the trash, packed files, rewriting; and all of them with the process killed in between."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from rawko_state.backends.files.store import FileStore
from rawko_state.errors import StorageError
from rawko_state.lifecycle.cleanup import carry_out, planned
from rawko_state.lifecycle.retention import Policy
from rawko_state.model.entries import ToolCall, Turn
from rawko_state.store import TaskFilter
from tests.lifecycle.retention import (
    NOW,
    SECRET,
    configure,
    contents,
    filled,
    nowhere,
    written_with_secrets,
)
from tests.support.faults import quiet
from tests.support.machine import patience
from tests.support.processes import rawko


class TestOddOnes:
    """What a review came upon."""

    def shared(self, store: FileStore) -> list[str]:
        for _ in range(2):
            with store.start("x") as task:
                task.add_turn(Turn(number=1, agent="d", tools=(ToolCall("x", output="shared " * 5000),)))
        return [summary.id for summary in store.history(TaskFilter())]

    def whole(self, store: FileStore) -> None:
        assert [verdict.faults for verdict in store.verify()] == [[]] * len(list(store.journal.layout.names()))

    def test_a_plan_from_before_a_restore_takes_nothing_that_was_restored(self, store: FileStore) -> None:
        made = filled(store, 2)
        old = planned(store, Policy(max_count=0), NOW)
        assert carry_out(store, Policy(), old).removed
        store.restore()
        assert carry_out(store, Policy(), old).removed == {}
        assert store.delete(made[0]) == made[0]

    def test_while_a_file_cannot_be_read_no_blob_is_deleted(self, store: FileStore, tmp_path: Path) -> None:
        first, second = self.shared(store)
        assert store.pack(store.retention_rows(first)[0])
        path = store.journal.layout.path(store.find(first))
        data = path.read_bytes()
        path.write_bytes(data[:-5])
        store.close()
        (tmp_path / ".rawko/state/index.db").unlink()
        again = quiet(tmp_path)
        again.delete(second)
        again.empty_trash()
        path.write_bytes(data)
        self.whole(again)

    def test_of_two_forms_the_packed_one_never_comes_back(self, store: FileStore, tmp_path: Path) -> None:
        (made,) = filled(store, 1)
        ((name, data),) = contents(tmp_path).items()
        assert store.pack(store.retention_rows(made)[0])
        plain = tmp_path / ".rawko/state/tasks" / name
        plain.write_bytes(data)
        os.chmod(plain, 0o600)
        with store.attach(made) as task:
            task.note("IMPORTANT")
        assert list(contents(tmp_path)) == [name]
        store.delete(made)
        assert contents(tmp_path) == {}
        store.restore(made)
        assert b"IMPORTANT" in next(iter(contents(tmp_path).values()))

    def test_a_leftover_goes_with_its_task(self, store: FileStore, tmp_path: Path) -> None:
        (made,) = filled(store, 1)
        ((name, data),) = contents(tmp_path).items()
        assert store.pack(store.retention_rows(made)[0])
        (tmp_path / ".rawko/state/tasks" / name).write_bytes(data)
        store.sync.fresh()
        store.delete(made)
        assert contents(tmp_path) == {}

    @pytest.mark.parametrize("cut", [0, 10, 40, -4, -1])
    def test_a_foreign_archive_that_was_cut_off_is_said_to_be(self, store: FileStore, tmp_path: Path, cut: int) -> None:
        (made,) = filled(store, 1)
        ((name, data),) = contents(tmp_path).items()
        path = tmp_path / ".rawko/state/tasks" / name
        path.with_name(name + ".gz").write_bytes(gzip.compress(data)[:cut])
        path.unlink()
        (verdict,) = store.verify()
        assert "damaged" in verdict.faults[0]
        with pytest.raises(StorageError, match="damaged"):
            store.reader(made)

    @pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
    def test_a_member_that_claims_too_much_is_read_piece_by_piece(self, store: FileStore, tmp_path: Path) -> None:
        import struct
        import zlib

        packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
        body = b"".join(packer.compress(b"\0" * (1 << 20)) for _ in range(96)) + packer.flush()
        size = 96 << 20
        crc = 0
        for _ in range(96):
            crc = zlib.crc32(b"\0" * (1 << 20), crc)
        head = struct.pack("<4sIBBH2sHII", b"\x1f\x8b\x08\x04", 0, 0, 255, 12, b"RK", 8, 24 + len(body) + 8, size)
        store.journal.layout.make()
        path = tmp_path / ".rawko/state/tasks/2026-01-01T00-00-00-bomb01.task.gz"
        path.write_bytes(head + body + struct.pack("<II", crc, size))
        # Not ru_maxrss, which a child inherits from the process that started it.
        code = (
            "from rawko_state.backends.files.store import FileStore;"
            f" list(FileStore({str(tmp_path)!r}).verify());"
            " print(*[line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')])"
        )
        done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=patience(120))
        assert int(done.stdout) < 100_000

    def test_dry_runs_change_nothing(self, store: FileStore, tmp_path: Path) -> None:
        filled(store, 3)
        configure(tmp_path, "max_count: 0")
        before = contents(tmp_path)
        for words_ in (
            ("redact", "--dry-run"),
            ("cleanup", "--dry-run"),
            ("import", "jsonl", "--dry-run", str(tmp_path)),
        ):
            rawko(tmp_path, *words_, code=None)
        assert contents(tmp_path) == before
        assert "no dry run" in rawko(tmp_path, "cleanup", "--restore", "--dry-run", code=2).stderr
        assert "only one of" in rawko(tmp_path, "cleanup", "--trash", "--empty-trash", code=2).stderr

    def test_a_cleanup_in_passing_does_not_wait_for_others(self, store: FileStore, tmp_path: Path) -> None:
        from rawko_state.journal.locks import gate

        filled(store, 3)
        configure(tmp_path, "max_count: 0")
        with gate(tmp_path / ".rawko/state/live/blobs.lock", shared=True):
            # With a patience of an hour instead of its own, the command would still be waiting when the test's limit comes.
            rawko(tmp_path, "history")
        assert store.history(TaskFilter()) == []

    def test_what_killed_processes_left_beside_goes(self, store: FileStore, tmp_path: Path) -> None:
        filled(store, 1)
        live = tmp_path / ".rawko/state/live"
        dead = subprocess.Popen(["true"])
        dead.wait()
        for name in (f"new-{dead.pid}-abc", f"new-{os.getpid()}-abc", "new-something"):
            (live / name).write_text("x")
        rawko(tmp_path, "history")
        assert sorted(path.name for path in live.glob("new-*")) == sorted([f"new-{os.getpid()}-abc", "new-something"])

    def test_odd_lines_in_the_trashs_log(self, store: FileStore, tmp_path: Path) -> None:
        (made,) = filled(store, 1)
        store.delete(made)
        log = tmp_path / ".rawko/state/trash/log.jsonl"
        entry = json.loads(log.read_text())
        log.write_text(json.dumps({**entry, "blobs": 7, "at": []}) + "\n[]\nnonsense\n")
        assert [each.id for each in store.trash()] == [made]
        assert made in rawko(tmp_path, "cleanup", "--restore").stdout

    def test_redaction_that_was_stopped_before_its_end_is_ended_the_next_time(self, tmp_path: Path) -> None:
        store = quiet(tmp_path)
        task_id = written_with_secrets(store, tmp_path)
        (tmp_path / ".rawko/state/live/reindex.due").touch()
        store.redact(task_id)
        store.close()
        rawko(tmp_path, "redact")
        nowhere(tmp_path)

    def test_redaction_that_was_killed_before_the_old_outputs_went_is_ended_the_next_time(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = quiet(tmp_path)
        task_id = written_with_secrets(store, tmp_path)
        clean = store.journal.put_blob(b"nobody refers to this, and it has no secret")
        (tmp_path / ".rawko/state/live/reindex.due").touch()
        with monkeypatch.context() as patched:
            patched.setattr("rawko_state.backends.files.redaction._drop", lambda *given: None)
            store.redact(task_id)
        store.close()
        assert any(SECRET.encode() in data for data in contents(tmp_path, "blobs").values())
        rawko(tmp_path, "redact")
        nowhere(tmp_path)
        assert clean.sha256 in contents(tmp_path, "blobs")
        self.whole(quiet(tmp_path))

    def test_outputs_that_a_killed_emptying_left_in_the_trash_go_with_the_next(
        self, store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first, second, third = filled(store, 3)
        store.delete(first)
        with monkeypatch.context() as patched:
            patched.setattr("rawko_state.journal.trash.delete_blobs", lambda *given: None)
            store.empty_trash()
        assert len(contents(tmp_path, "trash/blobs")) == 1
        store.delete(second)
        store.delete(third)
        log = tmp_path / ".rawko/state/trash/log.jsonl"
        told = log.read_text()
        log.write_text(told.replace(f"-{third}.task", "-elsewh.task"))
        store.empty_trash(datetime.now(timezone.utc) - timedelta(days=1))
        assert len(contents(tmp_path, "trash/blobs")) == 3
        log.write_text(told)
        store.restore(third)
        store.empty_trash()
        assert contents(tmp_path, "trash/blobs") == {}
        assert len(contents(tmp_path, "blobs")) == 1
        self.whole(store)

    def test_an_output_that_is_no_text(self, tmp_path: Path) -> None:
        store = quiet(tmp_path)
        task_id = written_with_secrets(store, tmp_path)
        with store.start("y") as task:
            blob = store.journal.put_blob(b"\xff\xfe" + SECRET.encode() + b"\xff" * 20_000)
            task.add_turn(Turn(number=1, agent="d", tools=(ToolCall("x", blob=blob),)))
        rawko(tmp_path, "redact")
        assert store.redact(task_id, dry_run=True).rules == {}
        assert all(SECRET.encode() not in data for data in contents(tmp_path, "blobs").values())
        self.whole(quiet(tmp_path))

    def test_a_torn_tail_is_looked_at_too(self, store: FileStore, tmp_path: Path) -> None:
        (made,) = filled(store, 1)
        (path,) = (tmp_path / ".rawko/state/tasks").iterdir()
        path.write_bytes(path.read_bytes() + b"--- Turn 9: dev ---\n[Content]\n" + SECRET.encode())
        assert store.redact(made, dry_run=True).rules == {"github-token": 1}
