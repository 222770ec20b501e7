"""What the parts of the suite share."""

from __future__ import annotations

from typing import Any

from rawko_state.model.entries import (
    Turn,
)
from rawko_state.store import TaskFilter
from rawko_state.store.contract import Store

TEXTS = (
    "plain",
    "",
    "\n",
    "a\r\nb\rc",
    "=== TASK abc123 ===\n[End 0123456789abcdef]\n--- Turn 7: evil ---\n[Content]",
    "nul \x00 and a lone surrogate \ud800",
    "\u2028 \x85 \x0c 日本語 ✓",
    "x" * 70_000,
)


def bytes_of(store: Store, task_id: str) -> bytes:
    with store.reader(task_id) as reader:
        return bytes(reader.fetch(0, reader.size))


def said(number: int = 1, agent: str = "dev", **more: Any) -> Turn:
    return Turn(number=number, agent=agent, status="complete", **more)


def asked(store: Store, task_id: str) -> list[str]:
    return [said.text for said in store.said(task_id) if said.kind == "request"]


def listed(store: Store, **wanted: Any) -> list[str]:
    found = [task.id for task in store.history(TaskFilter(**wanted))]
    if "limit" not in wanted and "after" not in wanted:
        assert store.count(TaskFilter(**wanted)) == len(found)
    return found
