"""rawko config, in words: what was set, where, and whether it has an effect."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.processes import rawko

AGE = "state.retention.max_age"


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    rawko(tmp_path, "init")
    return tmp_path


def test_a_change_says_what_it_was_before(shop: Path) -> None:
    first = rawko(shop, "config", "set", AGE, "90d", "--project").stderr
    assert first == f"Set {AGE} to 90d in .rawko/config.yaml.\n"
    second = rawko(shop, "config", "set", AGE, "30d", "--project").stderr
    assert second == f"Set {AGE} to 30d in .rawko/config.yaml (was 90d).\n"
    removed = rawko(shop, "config", "unset", AGE, "--project").stderr
    assert removed == f"Removed {AGE} from .rawko/config.yaml. It is not set now.\n"


def test_a_change_without_effect_says_what_wins(shop: Path) -> None:
    by_variable = rawko(shop, "config", "set", AGE, "90d", "--project", RAWKO_STATE_RETENTION_MAX_AGE="7d").stderr
    assert by_variable.endswith("rawko: warning: It has no effect here: RAWKO_STATE_RETENTION_MAX_AGE sets it to 1w.\n")
    by_file = rawko(shop, "config", "set", AGE, "5d").stderr
    assert by_file.endswith("rawko: warning: It has no effect here: .rawko/config.yaml sets it to 90d.\n")
    assert "no effect" not in rawko(shop, "config", "set", AGE, "5d", "--project-user").stderr
