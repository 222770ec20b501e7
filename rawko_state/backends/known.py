"""The task index, as a search queries it."""

from __future__ import annotations

from collections.abc import Collection

from rawko_state.index import flushed, queries
from rawko_state.index.rows import TaskDatabase
from rawko_state.store import TaskFilter, TaskSummary


class IndexedTasks:
    def __init__(self, index: TaskDatabase, alive: Collection[str]) -> None:
        """``alive``: tasks that a process is running now."""
        self._index, self._alive = index, alive

    def ids(self, wanted: TaskFilter) -> dict[str, str | None]:
        return queries.ids(self._index, wanted, self._alive)

    def summaries(self, wanted: TaskFilter) -> list[TaskSummary]:
        return queries.history(self._index, wanted, self._alive)

    def totals(self) -> tuple[int, int]:
        return flushed.totals(self._index)
