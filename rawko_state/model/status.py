"""The status of a task: its values, the legal transitions, and synonyms from other systems."""

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
"""For tasks recorded elsewhere without an outcome."""

STATUSES: Final = (PENDING, RUNNING, WAITING, PAUSED, COMPLETED, FAILED, CANCELLED, INTERRUPTED, UNKNOWN)
FINISHED: Final = frozenset({COMPLETED, FAILED, CANCELLED, UNKNOWN})
ENDED: Final = FINISHED | {INTERRUPTED}
"""Ended by a result; an interrupted task waits to be resumed."""

# A finished task continues only with a new request (pending) or a resume (running).
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

# What other systems call the same status.
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
RESULT_WORDS: Final = tuple(
    word for word in (*STATUSES, *SYNONYMS) if SYNONYMS.get(word, word) in RESULT_STATUS.values()
)
"""Every word that is understood as a result."""


def canonical(word: str) -> str:
    """Our name for a status. Unknown names are kept, so that those of a newer version survive."""
    return SYNONYMS.get(word, word)


def outcome_of(word: str) -> str:
    """The result of a run: success, failure or cancelled; for runs recorded elsewhere also interrupted or unknown.
    ``completed`` and ``failed`` are accepted too."""
    found = next((result for result, status in RESULT_STATUS.items() if status == canonical(word)), None)
    if found is None:
        raise InvalidValue(f"Not a result: {word!r}. Use success, failure or cancelled.")
    return found


def turn_status(word: str) -> str:
    """The final status of a turn. ``completed``, ``success`` and ``failure`` are accepted too."""
    found = {COMPLETED: "complete", FAILED: "failed"}.get(canonical(word), word)
    if found not in TURN_STATUSES:
        raise InvalidValue(f"Not a turn status: {word!r}. Use {', '.join(TURN_STATUSES[:-1])} or {TURN_STATUSES[-1]}.")
    return found


def is_legal(now: str, wanted: str) -> bool:
    """Whether a transition is allowed. Anything may follow an unknown status: newer versions have their own rules."""
    moves = MOVES.get(now)
    return moves is None or wanted in moves
