"""The status of a task: its words, the legal moves between them, and the words of other systems."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from rawko_state.errors import InvalidValue

PENDING: Final = "pending"
RUNNING: Final = "running"
WAITING: Final = "waiting"
PAUSED: Final = "paused"
COMPLETED: Final = "completed"
FAILED: Final = "failed"
CANCELLED: Final = "cancelled"
INTERRUPTED: Final = "interrupted"

UNKNOWN: Final = "unknown"
"""Of what was recorded elsewhere, and does not say how it ended."""

STATUSES: Final = (PENDING, RUNNING, WAITING, PAUSED, COMPLETED, FAILED, CANCELLED, INTERRUPTED, UNKNOWN)
FINISHED: Final = frozenset({COMPLETED, FAILED, CANCELLED, UNKNOWN})
ENDED: Final = FINISHED | {INTERRUPTED}
"""By a result; an interrupted one waits for somebody to go on with it."""

# A finished task goes on only by a new request (pending) or by being resumed (running).
MOVES: Final = MappingProxyType(
    {
        PENDING: frozenset({RUNNING, CANCELLED, FAILED, PAUSED}),
        RUNNING: frozenset({RUNNING, WAITING, PAUSED, COMPLETED, FAILED, CANCELLED, INTERRUPTED, UNKNOWN}),
        WAITING: frozenset({RUNNING, WAITING, PAUSED, COMPLETED, FAILED, CANCELLED, INTERRUPTED, UNKNOWN}),
        PAUSED: frozenset({RUNNING, WAITING, PAUSED, COMPLETED, FAILED, CANCELLED, INTERRUPTED, UNKNOWN}),
        INTERRUPTED: frozenset({RUNNING, WAITING, PAUSED, COMPLETED, FAILED, CANCELLED, INTERRUPTED, UNKNOWN}),
        COMPLETED: frozenset({PENDING, RUNNING}),
        FAILED: frozenset({PENDING, RUNNING}),
        CANCELLED: frozenset({PENDING, RUNNING}),
        UNKNOWN: frozenset({PENDING, RUNNING}),
    }
)

RESULT_STATUS: Final = MappingProxyType(
    {
        "success": COMPLETED,
        "failure": FAILED,
        "cancelled": CANCELLED,
        "interrupted": INTERRUPTED,
        "unknown": UNKNOWN,
    }
)

TURN_STATUSES: Final = ("complete", "failed", INTERRUPTED, WAITING)

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


def outcome_of(word: str) -> str:
    """The word for the result of a run: success, failure or cancelled; of what was recorded elsewhere also interrupted or
    unknown. ``completed`` and ``failed`` are understood too."""
    found = next((result for result, status in RESULT_STATUS.items() if status == canonical(word)), None)
    if found is None:
        raise InvalidValue(f"a result is success, failure or cancelled, not {word!r}")
    return found


def turn_status(word: str) -> str:
    """The word for how a turn ended. ``completed``, ``success`` and ``failure`` are understood too."""
    found = {COMPLETED: "complete", FAILED: "failed"}.get(canonical(word), word)
    if found not in TURN_STATUSES:
        raise InvalidValue(f"a turn is {', '.join(TURN_STATUSES[:-1])} or {TURN_STATUSES[-1]}, not {word!r}")
    return found


def is_legal(now: str, wanted: str) -> bool:
    """Unknown words come from newer versions, which know their own moves: from them everything is allowed."""
    moves = MOVES.get(now)
    return moves is None or wanted in moves
