"""The whole OpenAPI document, asked by a program that does not know what the server should do: nothing is a fault of the server, and
everything is answered as the document says."""

from __future__ import annotations

import string
import subprocess
import sys
from pathlib import Path

import pytest

from rawko_state.backends.files.store import FileStore
from rawko_state.backends.postgres.store import PostgresStore
from tests.support.machine import patience
from tests.support.serving import served

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
FILE = b"=== TASK x ===\nCreated: 2024-01-15T10:30:00Z\nStatus: running\n\n=== REQUEST ===\nUser: x\n\n=== EXECUTION ===\n\n--- Turn 1: a ---\n"


@pytest.mark.parametrize("kind", ["local", "postgres"])
def test_schemathesis_finds_nothing(kind: str, tmp_path: Path, request: pytest.FixtureRequest, every: bool) -> None:
    database = request.getfixturevalue("database") if kind == "postgres" else None
    store = PostgresStore(database, root=tmp_path) if database else FileStore(tmp_path, warn=lambda message: None)
    # Any letter names a task, so that what is made up is found now and then.
    for letter in string.ascii_letters + string.digits:
        store.add_file(f"2024-01-15T10-30-00-{letter}0.task", FILE)
    store.close()
    with served(tmp_path, database) as running:
        words = [sys.executable, "-m", "schemathesis.cli", "run", f"{running.url}/openapi.json", "--checks", CHECKS]
        words += ["--no-color", "--request-timeout", str(patience(60)), "--generation-deterministic"]
        # The coverage phase alone is some 2,000 requests.
        phases = "examples,coverage,fuzzing,stateful" if every else "examples,fuzzing,stateful"
        words += ["-n", "10" if every else "1", "--phases", phases]
        done = subprocess.run(words, capture_output=True, text=True, timeout=patience(280), cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "generated" in done.stdout
