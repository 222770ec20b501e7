"""What is kept and what goes: the plan, the trash, packed files, rewriting; and all of them with the process killed in between."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from rawko_state.backends.files.store import FileStore
from tests.lifecycle.conftest import store  # noqa: F401 - fixtures
from tests.lifecycle.retention import (
    configure,
    filled,
)
from tests.support.processes import rawko


class TestDoctor:
    def test_it_looks_at_the_users_key_and_at_the_settings(self, store: FileStore, tmp_path: Path) -> None:
        filled(store, 1)
        assert "No problems found" in rawko(tmp_path, "doctor").stdout
        key = Path(os.environ["XDG_STATE_HOME"]) / "rawko/secret"
        for path in (key, key.with_name("state.db")):
            path.chmod(0o644)
            said = rawko(tmp_path, "doctor", code=1).stdout
            assert f"chmod 600 {path}" in said
            path.chmod(0o600)
        configure(tmp_path, "max_ag: 3d")
        assert "Did you mean state.retention.max_age?" in rawko(tmp_path, "doctor", code=1).stdout

    def test_the_list_of_projects_has_no_passwords(self, store: FileStore, tmp_path: Path) -> None:
        filled(store, 1)
        for given_words in (("init", "-q"), ("remote", "add", "origin", "https://bob:hunter2Zebra@example.org/x.git")):
            subprocess.run(["git", "-C", str(tmp_path), *given_words], check=True)
        rawko(tmp_path, "projects", "add", str(tmp_path))
        listed = rawko(tmp_path, "projects", "list", "--json").stdout
        state = Path(os.environ["XDG_STATE_HOME"]) / "rawko/state.db"
        assert "hunter2Zebra" not in listed
        for path in state.parent.glob("state.db*"):
            assert b"hunter2Zebra" not in path.read_bytes()
