"""Fixtures of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from rawko_state.backends.files.store import FileStore
from tests.index.indexes import Told


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def store(tmp_path: Path, told: Told) -> FileStore:
    return FileStore(tmp_path, warn=told)
