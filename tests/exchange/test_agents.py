"""Sessions that six more agents wrote, each in full: how it ended, its turns, tools, files, diffs, tokens and cost, in order."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from rawko_state.backends.files.store import FileStore
from rawko_state.exchange.importing import Belonging
from tests.exchange.sessions import agrees, bring, payload, told
from tests.support.processes import ROOT

REAL = ROOT / "fixtures" / "real"
AGENTS = ("opencode", "gemini", "qwen", "pi", "copilot", "cline")


def brought(root: Path, agent: str) -> FileStore:
    store = FileStore(root)
    report = bring(store, agent, REAL / agent, belonging=Belonging((str(root), "/home/ann/src")))
    assert not report.wrong
    assert not report.unknown
    return store


@pytest.mark.parametrize("agent", AGENTS)
def test_a_session_is_told_as_it_was(agent: str, tmp_path: Path) -> None:
    store = brought(tmp_path, agent)
    assert told(store, agent) == (REAL / "told" / f"{agent}.txt").read_text(encoding="utf-8")
    agrees(store)


@pytest.mark.parametrize("agent", AGENTS)
def test_a_second_import_adds_nothing(agent: str, tmp_path: Path) -> None:
    store = brought(tmp_path / "project", agent)
    shutil.copytree(REAL / agent, tmp_path / agent)
    for path in (tmp_path / agent).rglob("*"):
        os.utime(path)  # they look as if they had changed
    before = told(store, agent), [payload(store, task) for task in sorted(store.by_source(f"{agent}:").values())]
    report = bring(store, agent, tmp_path / agent, belonging=Belonging((str(store.root), "/home/ann/src")))
    assert (report.new, report.grown, report.wrong) == ([], [], [])
    assert before == (
        told(store, agent),
        [payload(store, task) for task in sorted(store.by_source(f"{agent}:").values())],
    )


@pytest.mark.parametrize("agent", ["gemini", "qwen", "pi", "copilot"])
def test_every_line_of_a_session_is_kept(agent: str, tmp_path: Path) -> None:
    store = brought(tmp_path, agent)
    kept = {task: payload(store, task).split("\n") for task in store.by_source(f"{agent}:").values()}
    for path in (REAL / agent).rglob("*.jsonl"):
        lines = path.read_text(encoding="utf-8").splitlines()
        assert any(lines == found for found in kept.values()), path


def test_every_row_of_opencode_is_kept(tmp_path: Path) -> None:
    import sqlite3

    store = brought(tmp_path, "opencode")
    kept = "\n".join(payload(store, task) for task in store.by_source("opencode:").values())
    with sqlite3.connect(f"file:{REAL}/opencode/opencode.db?mode=ro", uri=True) as database:
        for table in ("message", "part"):
            for (data,) in database.execute(f"SELECT data FROM {table}"):
                assert data in kept
