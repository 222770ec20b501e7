"""Fixtures of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from rawko_state.backends.files.store import FileStore


@pytest.fixture(autouse=True)
def _no_background(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAWKO_SEARCH_FOLD", "off")


@pytest.fixture
def store(tmp_path: Path):  # type: ignore[no-untyped-def]
    opened = FileStore(tmp_path)
    yield opened
    opened.close()
