"""The contract: what a store is asked for and what it answers. The CLI and every other way in use this and nothing below it.

The values are here; the interface itself, method by method, is in ``contract``.
"""

from __future__ import annotations

from rawko_state.store.values import (
    RELEVANCE,
    SORTS,
    TIME,
    Answer,
    Hit,
    InTrash,
    RetentionRow,
    RunRow,
    Said,
    Stats,
    TaskFilter,
    TaskSummary,
    TurnRow,
)

__all__ = [
    "RELEVANCE",
    "SORTS",
    "TIME",
    "Answer",
    "Hit",
    "InTrash",
    "RetentionRow",
    "RunRow",
    "Said",
    "Stats",
    "TaskFilter",
    "TaskSummary",
    "TurnRow",
]
