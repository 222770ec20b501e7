"""Search: what counts as a match, that folding changes nothing but the time, and that nothing can break it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rawko_state.backends.files import flush
from rawko_state.backends.files.store import FileStore
from tests.search.searching import (
    said,
)
from tests.support.machine import patience, wait_for


class TestCommand:
    def _run(self, root: Path, *words: str, fold: str = "off") -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-c", "from rawko_state.cli import main; main()", "-C", str(root), *words],
            capture_output=True,
            text=True,
            env={**os.environ, "RAWKO_SEARCH_FOLD": fold, "COLUMNS": "100"},
            timeout=patience(120),
        )
        assert "Traceback" not in done.stderr
        return done

    def test_what_it_prints(self, store: FileStore) -> None:
        task_id = said(store, "first", "the SSO callback \x1b[31m fails", title="Login")
        done = self._run(store.root, "history", "--search", "sso")
        lines = done.stdout.splitlines()
        assert lines[0].startswith(f"{task_id}\t")
        assert "SSO callback" in lines[0]
        assert lines[0].split("\t")[1:3] == ["2", "developer"]
        assert "\x1b" not in done.stdout

    def test_json(self, store: FileStore) -> None:
        task_id = said(store, "first sso", "second sso")
        whole = json.loads(self._run(store.root, "history", "--search", "sso", "--json").stdout)
        assert [task["id"] for task in whole["tasks"]] == [task_id]
        hit = whole["tasks"][0]["hit"]
        assert set(hit) == {"kind", "turn", "agent", "offset", "length", "score", "words", "excerpt", "highlights"}
        (start, end) = hit["highlights"][0]
        assert hit["excerpt"][start:end] == "sso"
        lines = self._run(store.root, "history", "--search", "sso", "--jsonl", "--turns").stdout.splitlines()
        assert sorted(json.loads(line)["hit"]["turn"] for line in lines) == [1, 2]
        assert self._run(store.root, "history", "--search", "sso", "--ids", "--turns").stdout == f"{task_id}\n"

    def test_nothing_found(self, store: FileStore) -> None:
        said(store, "authentication")
        done = self._run(store.root, "history", "--search", "authentcation")
        assert (done.returncode, done.stdout) == (0, "")
        assert done.stderr.splitlines() == [
            f"No task in {store.root.name} matches: authentcation.",
            "  Did you mean: rawko search authentication",
        ]
        done = self._run(store.root, "history", "--search", "(authentication")
        assert done.stderr == "rawko: warning: Can't read the query: unmatched (. Searching for the words instead.\n"
        assert len(done.stdout.splitlines()) == 1

    def test_used_wrongly(self, store: FileStore) -> None:
        for words in (["--turns"], ["--sort", "time"], ["--sort", "relevance"]):
            done = self._run(store.root, "history", *words)
            assert done.returncode == 2
            assert "need --search" in done.stderr

    def test_a_long_tail_is_folded_on_the_way(self, store: FileStore) -> None:
        said(store, "needle " + "filler " * 250_000)
        before = store.unflushed()
        assert flush.WORTH_IT < before < flush.CHEAP
        assert "needle" in self._run(store.root, "history", "--search", "needle", fold="auto").stdout
        assert store.unflushed() == 0

    def test_a_very_long_one_in_the_background(self, store: FileStore) -> None:
        said(store, *("needle " + "filler " * 300_000 for _ in range(3)))
        assert store.unflushed() > flush.CHEAP
        done = self._run(store.root, "history", "--search", "needle", fold="auto")
        assert "in the background" in done.stderr
        wait_for(lambda: not store.unflushed())
        assert store.unflushed() == 0

    def test_finishing_a_task_folds_when_that_is_cheap(self, store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RAWKO_SEARCH_FOLD", "auto")
        said(store, "needle " + "filler " * 250_000)
        assert store.unflushed() == 0
        said(store, "needle")
        assert store.unflushed() > 0

    def test_the_doctor_looks_at_it(self, store: FileStore) -> None:
        said(store, "needle")
        fresh = self._run(store.root, "doctor")  # what a search adds by itself is the normal state
        assert "up to date; the newest " in fresh.stdout
        assert "No problems found.\n" in fresh.stdout
        said(store, *("needle " + "filler " * 300_000 for _ in range(3)))
        behind = self._run(store.root, "doctor")
        assert "are not in the index yet" in behind.stdout
        assert "\nNo problems found, 1 note.\n  rawko reindex --search   Search\n" in behind.stdout
        assert behind.returncode == 0
        store.flush()
        assert self._run(store.root, "doctor").returncode == 0
        for path in (store.root / ".rawko/state/search").glob("*.toc"):
            path.write_bytes(b"rubbish")
        done = self._run(store.root, "doctor")
        assert done.returncode == 1
        assert "The search index" in done.stdout

    def test_reindex_search(self, store: FileStore) -> None:
        said(store, "needle")
        done = self._run(store.root, "reindex", "--search")
        assert done.stdout.endswith("to the search index.\n")
        assert store.unflushed() == 0
        assert self._run(store.root, "reindex", "--search", "--quiet").stdout == ""
