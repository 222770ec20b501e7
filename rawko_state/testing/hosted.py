"""Additional tests for a store that a server can run on."""

from __future__ import annotations

import pytest

from rawko_state.errors import TaskBusy
from rawko_state.format.records import emit_record
from rawko_state.model.entries import Blob
from rawko_state.store.contract import HostedStore
from rawko_state.testing.common import said


class HostedConformance:
    """What a server additionally needs from a store. Subclass it and supply ``store``."""

    def test_how_far_a_task_has_come(self, store: HostedStore) -> None:
        with store.start("x", detached=True) as task:
            done = task.add_turn(said(content="said"))
        position = store.position(task.id)
        assert (position.end, position.seal, position.state.turns) == (done.end, done.seal, 1)
        assert store.holds(task.id, done.seal)
        assert not store.holds(task.id, "0" * 15 + "1")

    def test_leases_of_clients(self, store: HostedStore) -> None:
        task = store.start("x", detached=True)
        token = store.take_lease(task.id, None, 60.0)
        store.check_lease(task.id, token)
        with pytest.raises(TaskBusy):
            store.check_lease(task.id, "0" * 32)
        with pytest.raises(TaskBusy):
            store.take_lease(task.id)
        assert store.take_lease(task.id, token, 60.0) == token
        store.expire_leases()
        store.release_lease(task.id, token)
        with pytest.raises(TaskBusy):
            store.check_lease(task.id, token)

    def test_drafts_of_clients(self, store: HostedStore) -> None:
        task = store.start("x", detached=True)
        assert store.add_to_draft(task.id, b"{}\n") is False
        store.begin_draft(task.id, b'{"agent": "a"}\n')
        assert store.add_to_draft(task.id, b'{"kind": "text"}\n') is True
        assert store.draft_lines(task.id) == [b'{"agent": "a"}\n', b'{"kind": "text"}\n']
        assert store.drafted() == {task.id}
        store.drop_draft(task.id)
        assert (store.draft_lines(task.id), store.drafted()) == ([], set())

    def test_long_outputs(self, store: HostedStore) -> None:
        blob = store.put_blob(b"output")
        assert store.blob_bytes(blob) == b"output"
        assert store.blob_bytes(Blob("0" * 64, 6)) is None

    def test_a_longer_writing_takes_the_place_of_a_shorter_one(self, store: HostedStore) -> None:
        with store.start("x", detached=True) as task:
            task.add_turn(said(content="one"))
        name, short = store.find(task.id), store.position(task.id)
        with store.reader(task.id) as reader:
            before = reader.fetch(0, reader.size)
        more, _ = emit_record([said(content="two")], short.seal)
        longer = before + more
        assert not store.replace_task(name, [longer], [], len(before) + 1, short.seal)
        assert store.replace_task(name, [longer], [], len(before), short.seal)
        assert store.turn(task.id, 1).content in ("one", "two")
        with store.reader(task.id) as reader:
            assert reader.fetch(0, reader.size) == longer
