"""Plans which tasks to remove, and why, from nothing but the index, the policy and the time.

The order is fixed. Protected are: pinned tasks; damaged ones; unfinished ones (running, waiting, paused, pending); the newest
``min_keep`` of any status; failed and interrupted ones, if ``keep_failed``; those restored from the trash. Of the others, first
those without activity for longer than ``max_age`` are removed. Then the oldest are removed while there are more than
``max_count`` tasks, including protected ones. The parents of forks that are kept are kept, too. Without ``max_age`` and
``max_count``, nothing is removed.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Final

from rawko_state.errors import InvalidValue
from rawko_state.format.values import write_time
from rawko_state.model import status as words
from rawko_state.model.frozen import Frozen, field
from rawko_state.store import RetentionRow

if TYPE_CHECKING:
    from rawko_state.config.settings import Settings

AGE, COUNT = "max_age", "max_count"
_LATER: Final = "9999"
_FAILED: Final = frozenset((words.FAILED, words.INTERRUPTED))
_OVER: Final = words.FINISHED | {words.INTERRUPTED}


class Policy(Frozen):
    """The retention settings; ages in seconds."""

    max_age: int | None = None
    max_count: int | None = None
    keep_failed: bool = True
    min_keep: int = 0
    compress_after: int | None = None
    trash: int = 30 * 86_400

    @property
    def is_set(self) -> bool:
        """Whether there is anything to do at all."""
        return not (self.max_age is None and self.max_count is None and self.compress_after is None)


def policy_of(settings: Settings) -> Policy:
    """Rejects settings with any error: if one limit was not understood, another one must not delete tasks."""
    if settings.problems:
        raise InvalidValue(f"{settings.problems[0]}. Nothing was removed.")
    prefix = "state.retention."
    return Policy(
        max_age=settings[f"{prefix}{AGE}"],
        max_count=settings[f"{prefix}{COUNT}"],
        keep_failed=settings[f"{prefix}keep_failed"],
        min_keep=settings[f"{prefix}min_keep"],
        compress_after=settings[f"{prefix}compress_after"],
        trash=settings[f"{prefix}trash"],
    )


class Plan(Frozen):
    """What to do, in this order: oldest first."""

    removals: tuple[tuple[RetentionRow, str], ...] = ()
    """Each with the rule that removes it."""
    packings: tuple[RetentionRow, ...] = ()
    protected: dict[str, str] = field(default_factory=dict)
    """Protected task ids, with the reason."""


def plan(tasks: Iterable[RetentionRow], policy: Policy, now: datetime) -> Plan:
    """Deterministic: the order of the input does not matter."""
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
        # Walk up from every task that is kept. Stop at a parent that is already kept.
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
