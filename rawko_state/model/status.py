"""The status of a task: its words, the legal moves between them, and the words of other systems."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

PENDING: Final = "pending"
RUNNING: Final = "running"
WAITING: Final = "waiting"
PAUSED: Final = "paused"
COMPLETED: Final = "completed"
FAILED: Final = "failed"
CANCELLED: Final = "cancelled"
INTERRUPTED: Final = "interrupted"

STATUSES: Final = (PENDING, RUNNING, WAITING, PAUSED, COMPLETED, FAILED, CANCELLED, INTERRUPTED)
FINISHED: Final = frozenset({COMPLETED, FAILED, CANCELLED})

# A finished task goes on only by a new request (pending) or by being resumed (running).
MOVES: Final = MappingProxyType(
    {
        PENDING: frozenset({RUNNING, CANCELLED, FAILED, PAUSED}),
        RUNNING: frozenset({RUNNING, WAITING, PAUSED, COMPLETED, FAILED, CANCELLED}),
        WAITING: frozenset({RUNNING, WAITING, PAUSED, COMPLETED, FAILED, CANCELLED}),
        PAUSED: frozenset({RUNNING, WAITING, PAUSED, COMPLETED, FAILED, CANCELLED}),
        COMPLETED: frozenset({PENDING, RUNNING}),
        FAILED: frozenset({PENDING, RUNNING}),
        CANCELLED: frozenset({PENDING, RUNNING}),
    }
)

RESULT_STATUS: Final = MappingProxyType({"success": COMPLETED, "failure": FAILED, "cancelled": CANCELLED})

# What other systems call the same thing.
SYNONYMS: Final = MappingProxyType(
    {
        "created": PENDING,
        "active": RUNNING,
        "waiting_for_input": WAITING,
        "succeeded": COMPLETED,
        "success": COMPLETED,
        "error": FAILED,
        "failure": FAILED,
        "canceled": CANCELLED,
    }
)


def canonical(word: str) -> str:
    """Our word for a status; an unknown one stays as it is, so that a newer version's words survive."""
    return SYNONYMS.get(word, word)


def is_legal(now: str, wanted: str) -> bool:
    """Unknown words come from newer versions, which know their own moves: from them everything is allowed."""
    moves = MOVES.get(now)
    return moves is None or wanted in moves
