"""One server for each module of this folder: its tests share the tasks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rawko_state.backends.select import open_files
from rawko_state.store.contract import ProjectStore
from rawko_state.web.pages import routes
from tests.support.serving import Served, served
from tests.web.visitor import Visitor


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("web") / "shop"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def store(root: Path) -> Iterator[ProjectStore]:
    with open_files(root) as found:
        yield found


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[Served]:
    with served(root, pages=routes) as running:
        yield running


@pytest.fixture
def visitor(server: Served) -> Visitor:
    return Visitor(server.port)
