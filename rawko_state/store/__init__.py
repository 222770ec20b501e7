"""The store contract: its queries and its answers. The CLI and every other entry point use this and nothing below it.

This package exports the values; the interface itself is in ``contract``.
"""

from __future__ import annotations

from rawko_state.store.values import (
    RELEVANCE,
    SORTS,
    TIME,
    Answer,
    Hit,
    InTrash,
    RecordAt,
    RetentionRow,
    RunRow,
    Said,
    Stats,
    TaskFilter,
    TaskSummary,
    TurnRow,
    Usage,
)

__all__ = [
    "RELEVANCE",
    "SORTS",
    "TIME",
    "Answer",
    "Hit",
    "InTrash",
    "RecordAt",
    "RetentionRow",
    "RunRow",
    "Said",
    "Stats",
    "TaskFilter",
    "TaskSummary",
    "TurnRow",
    "Usage",
]
