"""Fixtures of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.clients import Client
from tests.support.serving import Served, served


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


@pytest.fixture
def server(project: Path) -> Iterator[Served]:
    with served(project) as running:
        yield running


@pytest.fixture
def client(server: Served) -> Client:
    return Client(server.port)


@pytest.fixture(params=["local", "postgres"])
def any_server(request: pytest.FixtureRequest, project: Path) -> Iterator[Served]:
    url = request.getfixturevalue("database") if request.param == "postgres" else None
    with served(project, url) as running:
        yield running
