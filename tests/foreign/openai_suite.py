"""Runs the session tests of the OpenAI Agents SDK against RawkoSession. Only the class that they use is another one.

    python tests/foreign/openai_suite.py [FOLDER]    FOLDER: their source; without it, it is fetched

As a plugin of pytest (``-p openai_suite``) it puts the other class in place and leaves out the tests below.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

FILES = ("tests/memory/test_session.py", "tests/memory/test_session_limit.py")
LEFT_OUT = {
    "test_sqlite_session_close_closes_worker_thread_connections": "connections",
    "test_sqlite_session_reaps_connections_from_exited_worker_threads": "connections",
    "test_sqlite_session_closes_retired_connections_before_the_next_allocation": "connections",
    "test_sqlite_session_keeps_connections_of_live_worker_threads": "connections",
    "test_sqlite_session_closed_rejects_empty_add_items": "the words 'SQLiteSession is closed'",
    "test_sqlite_session_pop_item_skips_corrupt_most_recent": "rows changed by hand",
    "test_sqlite_session_pop_item_returns_none_after_dropping_only_corrupt_rows": "rows changed by hand",
    "test_sqlite_session_get_items_limit_skips_corrupt_newest_rows": "rows changed by hand",
    "test_sqlite_session_get_items_session_settings_limit_skips_corrupt_rows": "rows changed by hand",
    "test_sqlite_session_file_lock_is_shared_across_instances": "locks",
    "test_sqlite_session_failed_add_items_releases_write_lock": "tables",
    "test_sqlite_session_failed_clear_session_rolls_back": "transactions",
    "test_sqlite_session_failed_pop_item_releases_write_lock": "transactions",
    "test_sqlite_session_rollback_failure_evicts_connection": "connections",
    "test_sqlite_session_close_retries_quarantined_connection": "connections",
    "test_sqlite_session_post_commit_cancellation_propagates_after_known_outcome": "connections",
}
"""Tests that look at what only SQLite has, and at what."""


def pytest_configure(config: Any) -> None:
    import agents

    import rawko_state
    from rawko_state.integrations.openai_agents import RawkoSession

    class Adapted(RawkoSession):
        """Takes what SQLiteSession takes. A file is a project of that name; all others are in memory."""

        def __init__(
            self, session_id: str, db_path: Any = ":memory:", *, session_settings: Any = None, **more: Any
        ) -> None:
            folder = None if str(db_path) == ":memory:" else Path(f"{db_path}.rawko")
            if folder is not None:
                (folder / ".rawko").mkdir(parents=True, exist_ok=True)
            store = rawko_state.open(":memory:") if folder is None else rawko_state.open(folder)
            super().__init__(store, session_id, session_settings)

    agents.SQLiteSession = Adapted  # type: ignore[attr-defined]


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    left = [item for item in items if item.originalname in LEFT_OUT]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item not in left]


def main() -> int:
    with tempfile.TemporaryDirectory() as scratch:
        given = sys.argv[1:2]
        folder = Path(given[0]) if given else _fetched(Path(scratch))
        # They have a package "tests", too, so this is found by its own folder.
        env = {**os.environ, "HOME": scratch, "PYTHONPATH": str(Path(__file__).parent), "OPENAI_API_KEY": "none"}
        words = [sys.executable, "-m", "pytest", "-q", "-p", "openai_suite", "-p", "no:randomly", *FILES]
        return subprocess.run(words, cwd=folder, env=env, check=False).returncode


def _fetched(scratch: Path) -> Path:
    """The source of the version that is installed."""
    from importlib.metadata import version

    wanted = f"openai-agents=={version('openai-agents')}"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "--no-binary",
        ":all:",
        "-d",
        str(scratch),
        wanted,
    ]
    subprocess.run(pip, check=True, timeout=600, stdin=subprocess.DEVNULL)
    with tarfile.open(next(scratch.glob("*.tar.gz"))) as archive:
        archive.extractall(scratch, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return next(path for path in scratch.iterdir() if path.is_dir() and (path / "tests").is_dir())


if __name__ == "__main__":
    sys.exit(main())
