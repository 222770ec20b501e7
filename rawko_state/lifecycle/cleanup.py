"""Carries out a retention plan: moves tasks to the trash, packs them, and deletes expired trash for good."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Final

from rawko_state.config.settings import load
from rawko_state.lifecycle.retention import Plan, Policy, plan, policy_of
from rawko_state.model.frozen import replace
from rawko_state.store import InTrash

if TYPE_CHECKING:
    from rawko_state.store.contract import Store

_BUDGET: Final = 0.3
_LARGE: Final = 4 << 20
"""Tasks this large are packed by `rawko cleanup` only, as that takes a while."""


@dataclass(slots=True)
class Done:
    """The result of a cleanup."""

    removed: dict[str, str] = field(default_factory=dict)
    """Task id to rule."""
    packed: list[str] = field(default_factory=list)
    deleted: list[InTrash] = field(default_factory=list)
    """Deleted from the trash for good."""

    def __bool__(self) -> bool:
        return bool(self.removed or self.packed or self.deleted)


def planned(store: Store, policy: Policy, now: datetime | None = None) -> Plan:
    return plan(store.retention_rows(), policy, now or datetime.now(timezone.utc)) if policy.is_set else Plan()


def old_trash(store: Store, policy: Policy) -> list[InTrash]:
    """The trash entries that have expired."""
    return [each for each in store.trash() if each.at < _trash_limit(policy)]


def carry_out(
    store: Store,
    policy: Policy,
    chosen: Plan,
    *,
    by: str | None = None,
    proceed: Callable[[], bool] = lambda: True,
    patience: float = 60.0,
) -> Done:
    """Carries out the plan, and never more: a task that has changed since is kept. Stops once ``proceed`` returns False."""
    done = Done()
    rules = {task.id: rule for task, rule in chosen.removals}
    for task_id in store.move_to_trash(chosen.removals, by=by, proceed=proceed, patience=patience):
        done.removed[task_id] = rules[task_id]
    for task in chosen.packings:
        if not proceed():
            break
        if store.pack(task):
            done.packed.append(task.id)
    if proceed():
        done.deleted = store.empty_trash(_trash_limit(policy), patience=patience, proceed=proceed)
    return done


def _trash_limit(policy: Policy) -> datetime:
    try:
        return datetime.now(timezone.utc) - timedelta(seconds=policy.trash)
    except OverflowError:
        return datetime.min.replace(tzinfo=timezone.utc)


def in_passing(store: Store, policy: Policy) -> Done:
    """As much of the cleanup as fits into a short time budget."""
    until = time.monotonic() + _BUDGET
    chosen = planned(store, policy)
    small = tuple(task for task in chosen.packings if task.size < _LARGE)
    chosen = replace(chosen, packings=small)
    return carry_out(store, policy, chosen, proceed=lambda: time.monotonic() < until, patience=0.1)


def once_a_day(store: Store) -> Done | None:
    """Applies the retention settings, within a short time budget. None if there are none."""
    policy = policy_of(load(store.root))
    return in_passing(store, policy) if policy.is_set else None


def described(done: Done) -> str:
    """A one-line summary for people."""
    parts = []
    if done.removed:
        rules = ", ".join(sorted(set(done.removed.values())))
        parts.append(f"moved {_tasks(len(done.removed))} to the trash ({rules}). Undo: rawko cleanup --restore")
    if done.packed:
        parts.append(f"compressed {_tasks(len(done.packed))}")
    if done.deleted:
        parts.append(f"permanently deleted {_tasks(len(done.deleted))} from the trash")
    return "; ".join(parts) or "nothing to do"


def _tasks(count: int) -> str:
    return f"{count} task{'' if count == 1 else 's'}"
