"""A later page of a list costs what the first one does."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from rawko_state.backends.files.store import FileStore
from rawko_state.store import SORTS, TaskFilter

START = datetime(2024, 1, 1, tzinfo=timezone.utc)


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    found = FileStore(tmp_path)
    for number in range(12):
        created = START + timedelta(days=number // 3)  # several of the same time
        task = found.start(f"task {number}", created=created, detached=True)
        if number % 2:
            task.finish("success", completed=created)
        else:
            task.close()
    return found


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("sort", SORTS)
def test_pages_together_are_the_list(store: FileStore, sort: str, reverse: bool) -> None:
    whole = [task.id for task in store.history(TaskFilter(sort=sort, reverse=reverse))]
    paged: list[str] = []
    while page := store.history(TaskFilter(sort=sort, reverse=reverse, limit=5, after=paged[-1] if paged else None)):
        paged += [task.id for task in page]
    assert paged == whole
    assert len(set(whole)) == 12


@pytest.mark.parametrize("sort", ["updated", "created"])
def test_a_later_page_is_a_range_of_the_index(store: FileStore, sort: str, monkeypatch: pytest.MonkeyPatch) -> None:
    index: Any = store.sync.index()
    last = store.history(TaskFilter(sort=sort, limit=4))[-1].id
    asked: list[tuple[str, Any]] = []
    read = index.read
    monkeypatch.setattr(
        index, "read", lambda statement, values=(): asked.append((statement, values)) or read(statement, values)
    )
    store.history(TaskFilter(sort=sort, limit=4, after=last))
    listed = [each for each in asked if "ORDER BY" in each[0]]
    assert listed
    for statement, values in listed:
        plan = " ".join(str(row[-1]) for row in read(f"EXPLAIN QUERY PLAN {statement}", values))
        assert "MULTI-INDEX OR" not in plan
        assert "TEMP B-TREE FOR ORDER BY" not in plan, plan
