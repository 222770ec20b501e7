"""What is kept and what goes: the plan, the trash, packed files, rewriting; and all of them with the process killed in between."""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rawko_state.backends.files.store import FileStore
from rawko_state.errors import StorageError
from rawko_state.journal import source as source_module
from rawko_state.journal.reader import open_reader
from rawko_state.model.entries import Turn
from rawko_state.store import TaskFilter
from tests.lifecycle.conftest import store  # noqa: F401 - fixtures
from tests.lifecycle.retention import (
    agrees,
    contents,
    filled,
)


class TestPacked:
    def long(self, store: FileStore, tmp_path: Path) -> tuple[str, bytes]:
        with store.start("a long one", title="Long") as task:
            for number in range(60):
                task.add_turn(Turn(number=1, agent="dev", content=f"turn{number}x " + f"{number:05d} words " * 1500))
        (data,) = contents(tmp_path).values()
        assert len(data) > 3 * source_module.MEMBER
        return task.id, data

    def pack(self, store: FileStore, task_id: str) -> Path:
        assert store.pack(store.retention_rows(task_id)[0])
        return store.journal.layout.path(store.find(task_id))

    def test_everything_works_on_it(self, store: FileStore, tmp_path: Path) -> None:
        task_id, data = self.long(store, tmp_path)
        before = store.summary(task_id)
        rows = store.sync.fresh().dump()
        cursor = [event.cursor for event in store.events(task_id)][30]
        after_cursor = [event.text for event in store.events(task_id, cursor)]
        store.flush()
        path = self.pack(store, task_id)
        assert path.name.endswith(".task.gz")
        assert len(path.read_bytes()) < len(data) / 5
        assert list(contents(tmp_path)) == [path.name]
        assert gzip.decompress(path.read_bytes()) == data
        assert store.summary(task_id).turns == before.turns
        assert store.turn(task_id, 41).content.startswith("turn40x")  # type: ignore[union-attr]
        assert [hit.turn for hit in store.search("turn40x", turns=True).hits] == [41]
        assert [event.text for event in store.events(task_id, cursor)] == after_cursor
        assert [verdict.faults for verdict in store.verify()] == [[]]
        assert store.status(task_id) == "completed"
        changed = {"file_path", "file_size"}
        columns = store.sync.index().tables.columns
        for one, other in zip(rows["tasks"], store.sync.fresh().dump()["tasks"], strict=True):
            assert {name for name, a, b in zip(columns, one, other, strict=True) if a != b} == changed
        agrees(store)
        assert [hit.turn for hit in store.search("turn40x", turns=True).hits] == [41]

    def test_packing_reads_nothing_anew_into_the_index(
        self, store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from rawko_state.backends.files import ingest as intake

        task_id, _ = self.long(store, tmp_path)
        store.flush()
        self.pack(store, task_id)
        monkeypatch.setattr(intake, "one_file", lambda *a, **k: pytest.fail("read again"))
        assert store.history(TaskFilter())[0].id == task_id
        assert store.unflushed() == 0

    def test_resuming_unpacks_it(self, store: FileStore, tmp_path: Path) -> None:
        task_id, data = self.long(store, tmp_path)
        self.pack(store, task_id)
        with store.resume(task_id, message="more") as task:
            task.add_turn(Turn(number=1, agent="dev", content="again"))
        ((name, after),) = contents(tmp_path).items()
        assert name.endswith(".task")
        assert after[300:].startswith(data[300:])
        agrees(store)

    def test_a_follower_goes_on_through_packing_and_unpacking(self, store: FileStore, tmp_path: Path) -> None:
        task_id, _ = self.long(store, tmp_path)
        reader = store.event_reader(task_id)
        seen = len(list(reader.poll()))
        assert seen
        self.pack(store, task_id)
        assert list(reader.poll()) == []
        with store.attach(task_id) as task:
            task.note("unpacked")
        assert [event.kind for event in reader.poll()] == ["note"]

    def test_one_turn_unpacks_one_or_two_members(
        self, store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        task_id, _ = self.long(store, tmp_path)
        self.pack(store, task_id)
        store.turn(task_id, 1)
        unpacked: list[int] = []
        real = source_module.PackedBytes._member

        def member(self: source_module.PackedBytes, number: int) -> bytes:
            unpacked.append(number)
            return real(self, number)

        monkeypatch.setattr(source_module.PackedBytes, "_member", member)
        store.turn(task_id, 41)
        assert len(set(unpacked)) <= 2

    def test_zgrep_and_zcat(self, store: FileStore, tmp_path: Path) -> None:
        if shutil.which("zgrep") is None:
            pytest.skip("NOT TESTED HERE: needs zgrep")
        task_id, data = self.long(store, tmp_path)
        path = self.pack(store, task_id)
        assert subprocess.run(["zcat", path], capture_output=True, check=True).stdout == data
        assert (
            subprocess.run(["zgrep", "-c", "turn40x", path], capture_output=True, check=True, text=True).stdout == "1\n"
        )

    def test_a_file_that_somebody_else_compressed(self, store: FileStore, tmp_path: Path) -> None:
        task_id, data = self.long(store, tmp_path)
        (path,) = (tmp_path / ".rawko/state/tasks").iterdir()
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(data[:100_000]) + gzip.compress(data[100_000:]))
        path.unlink()
        assert store.turn(task_id, 41).content.startswith("turn40x")  # type: ignore[union-attr]
        assert store.turn(task_id, 2).content.startswith("turn1x")  # type: ignore[union-attr]
        assert [verdict.faults for verdict in store.verify()] == [[]]
        with store.attach(task_id) as task:
            task.note("unpacked")
        assert next(iter(contents(tmp_path).values()))[300:].startswith(data[300:])

    @settings(max_examples=60)
    @given(st.integers(0, 5000), st.binary(min_size=1, max_size=4))
    def test_a_damaged_one_is_said_to_be(self, at: int, junk: bytes) -> None:
        """Whatever stands in it: an error of ours, or the right text."""
        import tempfile

        text = b"=== TASK abc ===\n" + bytes(range(32, 127)) * 100
        with tempfile.TemporaryDirectory() as folder:
            plain = Path(folder) / "2026-01-01T00-00-00-abc.task"
            plain.write_bytes(text)
            opened = source_module.open_source(plain)
            packed = bytearray(b"".join(source_module.packed(opened)))
            opened.close()
            at %= len(packed)
            packed[at : at + len(junk)] = junk
            path = plain.with_name(plain.name + ".gz")
            path.write_bytes(packed)
            plain.unlink()
            try:
                with open_reader(path) as reader:
                    got = reader.fetch(0, 1 << 20)
                    assert got == text or reader.size != len(text)
            except StorageError:
                pass

    def test_killed_between_its_two_forms_the_plain_one_counts(self, store: FileStore, tmp_path: Path) -> None:
        (made,) = filled(store, 1)
        ((name, data),) = contents(tmp_path).items()
        path = self.pack(store, made)
        (path.parent / name).write_bytes(data)
        os.chmod(path.parent / name, 0o600)
        assert not store.find(made).packed
        assert len(store.history(TaskFilter())) == 1
        with store.attach(made) as task:
            task.note("x")
        assert store.pack(store.retention_rows(made)[0])
        assert list(contents(tmp_path)) == [path.name]
        assert b"=== NOTE ===" in gzip.decompress(path.read_bytes())
