"""What the tests of task files share."""

from __future__ import annotations

from pathlib import Path

from rawko_state.backends.files.store import FileStore
from rawko_state.model.entries import Turn


def turn(content: str) -> Turn:
    return Turn(number=1, agent="dev", status="complete", content=content)


def path_of(store: FileStore, task_id: str) -> Path:
    return store.journal.layout.path(store.find(task_id))
