"""What `rawko export --format atif` writes, judged by the `atif` package."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from atif import Trajectory

import rawko_state as rawko
from rawko_state.exchange.exporting import exported
from rawko_state.exchange.importing import Belonging
from tests.conftest import FIXTURES
from tests.exchange.sessions import bring
from tests.exchange.test_atif import sample

REAL = ("claude-code", "codex", "gemini", "qwen", "pi", "copilot", "cline", "opencode")


@pytest.mark.parametrize("source", ["", *REAL])
def test_every_task_is_a_valid_trajectory(tmp_path: Path, source: str) -> None:
    (tmp_path / ".rawko").mkdir()
    with rawko.open(tmp_path) as store:
        if source:
            bring(store, source, FIXTURES / "real" / source, belonging=Belonging((str(tmp_path),), everywhere=True))
        else:
            sample(store)
        tasks = store.history(rawko.TaskFilter())
        assert tasks
        for task in tasks:
            found = Trajectory.model_validate(json.loads(b"".join(exported(store, task.id, "atif"))))
            turns = sum(isinstance(entry, rawko.Turn) for _, entry in store.entries(task.id))
            assert sum(step.source == "agent" or bool(step.extra) for step in found.steps) == turns
            assert found.to_json_dict()["trajectory_id"] == task.id
