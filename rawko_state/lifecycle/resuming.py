"""Which task to resume, and which snapshot of the work tree belongs to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rawko_state.store import TaskFilter

if TYPE_CHECKING:
    from rawko_state.store.contract import Store


def newest_to_resume(store: Store) -> str | None:
    """The newest task that is interrupted, waiting or paused."""
    found = store.history(TaskFilter(status=("interrupted", "waiting", "paused"), limit=1))
    return found[0].id if found else None


def snapshot_at(store: Store, prefix: str, turn: int) -> dict[str, Any] | None:
    """The last snapshot of the work tree at or before a turn, including those of its parents."""
    seen: set[str] = set()
    while True:
        summary = store.summary(prefix)
        made = [each for each in store.snapshots(summary.id) if each["turn"] <= turn and (each["ref"] or each["path"])]
        if made:
            return max(made, key=lambda each: int(each["turn"]))
        if not summary.parent or "@" not in summary.parent or summary.id in seen:
            return None
        seen.add(summary.id)
        prefix, _, at = summary.parent.partition("@")
        turn = min(turn, int(at))
