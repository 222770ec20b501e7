"""Which tasks go, and why: a plan, made of nothing but what the index says, the policy and the time.

The order is always this. Protected are: pinned tasks; damaged ones; those that are not over (running, waiting, paused,
pending); the newest ``min_keep`` of any status; failed and interrupted ones, if ``keep_failed``; those that were brought back
from the trash. Of the others go, first, those to which nothing has happened for longer than ``max_age``; then, while there are
more than ``max_count`` tasks, protected ones counted in, the oldest. What a task that stays was forked from stays too. Without
``max_age`` and ``max_count`` nothing goes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Final

from rawko_state.errors import InvalidValue
from rawko_state.format.values import write_time
from rawko_state.model import status as words
from rawko_state.store import RetentionRow

if TYPE_CHECKING:
    from rawko_state.config.settings import Settings

AGE, COUNT = "max_age", "max_count"
_LATER: Final = "9999"
_FAILED: Final = frozenset((words.FAILED, words.INTERRUPTED))
_OVER: Final = words.FINISHED | {words.INTERRUPTED}


@dataclass(frozen=True, slots=True)
class Policy:
    """As the settings say; ages in seconds."""

    max_age: int | None = None
    max_count: int | None = None
    keep_failed: bool = True
    min_keep: int = 0
    compress_after: int | None = None
    trash: int = 30 * 86_400

    @property
    def is_set(self) -> bool:
        """Whether anything is ever to be done."""
        return not (self.max_age is None and self.max_count is None and self.compress_after is None)


def policy_of(settings: Settings) -> Policy:
    """Refuses settings that are wrong anywhere: a limit that was not understood must not delete by another one."""
    if settings.problems:
        raise InvalidValue(f"{settings.problems[0]}; nothing was removed")
    prefix = "state.retention."
    return Policy(
        max_age=settings[f"{prefix}{AGE}"],
        max_count=settings[f"{prefix}{COUNT}"],
        keep_failed=settings[f"{prefix}keep_failed"],
        min_keep=settings[f"{prefix}min_keep"],
        compress_after=settings[f"{prefix}compress_after"],
        trash=settings[f"{prefix}trash"],
    )


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done, in this order: the oldest first."""

    removals: tuple[tuple[RetentionRow, str], ...] = ()
    """Each with the rule that takes it."""
    packings: tuple[RetentionRow, ...] = ()
    protected: dict[str, str] = field(default_factory=dict)
    """Why others stay that a rule would have taken."""


def plan(tasks: Iterable[RetentionRow], policy: Policy, now: datetime) -> Plan:
    """The same for the same input, whatever order it comes in."""
    # A task without a time is never old.
    ordered = sorted(tasks, key=lambda task: (task.last or _LATER, task.id), reverse=True)
    protected = {
        task.id: reason
        for place, task in enumerate(ordered)
        if (reason := _protection(task, place, policy)) is not None
    }
    taken: dict[str, str] = {}
    if policy.max_age is not None:
        limit = _before(now, policy.max_age)
        taken.update((task.id, AGE) for task in ordered if (task.last or _LATER) < limit and task.id not in protected)
    if policy.max_count is not None:
        left = len(ordered) - len(taken)
        for task in reversed(ordered):
            if left <= policy.max_count:
                break
            if task.id not in protected and task.id not in taken:
                taken[task.id] = COUNT
                left -= 1
    if taken:
        _keep_parents(ordered, taken, protected)
    removals = tuple((task, taken[task.id]) for task in reversed(ordered) if task.id in taken)
    return Plan(removals, _packings(ordered, taken, policy, now), protected)


def _protection(task: RetentionRow, place: int, policy: Policy) -> str | None:
    if task.pinned:
        return "pinned"
    if task.damaged:
        return "damaged"
    if task.status not in _OVER:
        return task.status
    if place < policy.min_keep:
        return "min_keep"
    if policy.keep_failed and task.status in _FAILED:
        return "keep_failed"
    return "restored" if task.exempt else None


def _keep_parents(ordered: list[RetentionRow], taken: dict[str, str], protected: dict[str, str]) -> None:
    by_id = {task.id: task for task in ordered}
    for task in ordered:
        child = task
        # Upwards from every task that stays; what is met a second time has been seen to.
        while child.id not in taken and child.parent in taken:
            protected[child.parent] = f"parent of {child.id}"
            del taken[child.parent]
            child = by_id[child.parent]


def _packings(
    ordered: list[RetentionRow], taken: dict[str, str], policy: Policy, now: datetime
) -> tuple[RetentionRow, ...]:
    if policy.compress_after is None:
        return ()
    limit = _before(now, policy.compress_after)
    return tuple(
        task
        for task in reversed(ordered)
        if task.status in words.FINISHED
        and not task.is_packed
        and task.id not in taken
        and (task.last or _LATER) < limit
    )


def _before(now: datetime, seconds: int) -> str:
    try:
        return write_time((now - timedelta(seconds=seconds)).astimezone(timezone.utc))
    except OverflowError:
        return ""
