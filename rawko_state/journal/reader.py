"""Opens task files for reading."""

from __future__ import annotations

from pathlib import Path

from rawko_state.format.reader import TaskReader
from rawko_state.journal.source import open_source


def open_reader(path: Path) -> TaskReader:
    """Opens a task file, packed or not."""
    return TaskReader(path, open_source(path))
