"""Fixtures of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rawko_state.backends.files.store import FileStore
from tests.support.faults import quiet


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    return root


@pytest.fixture
def store(project: Path) -> Iterator[FileStore]:
    opened = quiet(project)
    yield opened
    opened.close()


@pytest.fixture
def sessions(tmp_path: Path, project: Path, fixtures: Path) -> Path:
    """The fixtures with the project's own folder in them."""
    target = tmp_path / "agents"
    for path in (fixtures / "agents").rglob("*"):
        if path.is_file():
            copy = target / path.relative_to(fixtures / "agents")
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(path.read_text(encoding="utf-8").replace("ROOT", str(project)), encoding="utf-8")
    return target
