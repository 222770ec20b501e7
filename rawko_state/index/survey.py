"""Queries over all tasks that only upkeep asks, built from the models."""

from __future__ import annotations

from collections.abc import Iterator

from rawko_state.format.figures import counted
from rawko_state.index.rows import TaskDatabase
from rawko_state.model import status as words


def concerns(index: TaskDatabase) -> Iterator[tuple[str, str, bool]]:
    """Tasks with problems in their files: id, message, and whether an append in progress looks the same."""
    task = index.tables.tasks
    tail = (task.file_size > task.indexed_end) & task.tail_seal.is_null(False) & ~task.file_path.endswith(".gz")
    unfinished = task.format.is_null(True) & task.source.is_null(False) & task.tail_seal.is_null(False)
    with index.mapped():
        query = task.select(task.id, task.damaged, task.runs, tail, unfinished).order_by(task.id)
        query = query.where((task.damaged > 0) | (task.runs == 0) | tail | unfinished)
        for task_id, damaged, begun, torn, no_format in query.tuples():
            if not begun:
                yield task_id, "its file does not say what was asked: it is empty, cut off, or no task file", False
                continue
            if damaged:
                yield task_id, counted(damaged, "damaged record"), False
            if torn:
                yield task_id, "the end of its file is unfinished", True
            if no_format:
                yield (
                    task_id,
                    "an earlier version imported it without Format, and with a Status that is not kept",
                    False,
                )


def statuses(index: TaskDatabase) -> dict[str, str]:
    """What the records of each task say that it is."""
    task = index.tables.tasks
    with index.mapped():
        return {row[0]: row[1] or words.PENDING for row in task.select(task.id, task.status).tuples()}
