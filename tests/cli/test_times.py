"""Times as tables show them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from rawko_state.cli.times import ago
from rawko_state.format.values import write_time

NEW_YEAR = datetime(2027, 1, 3, 12, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("before", "shown"),
    [
        (timedelta(seconds=2), "now"),
        (timedelta(seconds=40), "40s ago"),
        (timedelta(hours=3, minutes=20), "3h ago"),
        (timedelta(days=6), "6d ago"),
        (timedelta(days=34), "Nov 30"),
        (timedelta(days=299), "Mar 10"),
        (timedelta(days=400), "Nov 2025"),
    ],
)
def test_a_time_is_shown_as_seen_from_now_also_behind_the_turn_of_the_year(before: timedelta, shown: str) -> None:
    assert ago(write_time(NEW_YEAR - before), NEW_YEAR) == shown
