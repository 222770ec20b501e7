"""The life of a task: its statuses, live turns, events, questions, pause and cancel, resume, follow-up, fork, snapshots."""

from __future__ import annotations

import pytest

from rawko_state.backends.files.store import FileStore
from rawko_state.errors import IllegalMove


def test_an_illegal_move_says_what_the_task_is(store: FileStore) -> None:
    with store.start("x") as task:
        pass
    with store.attach(task.id) as again, pytest.raises(IllegalMove, match="is already completed"):
        again.set_status("paused")
