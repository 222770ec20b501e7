"""What an error says beyond its own words: the titles of tasks that were perhaps meant, and what to type."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rawko_state.cli.printing import one_line
from rawko_state.cli.project import STORE
from rawko_state.cli.times import ago
from rawko_state.config.project import find_project
from rawko_state.errors import AmbiguousTask, NoProject, RawkoError, ServerAway, TaskNotFound

if TYPE_CHECKING:
    from rawko_state.store import TaskSummary
    from rawko_state.store.contract import Store

_MOST = 8


def advise(error: RawkoError, ctx: click.Context) -> None:
    """Adds to the words of an error what the store and the command line can say about it."""
    store = ctx.find_root().meta.get(STORE)
    if isinstance(error, ServerAway):
        error.args = (f"{error}\n  Is the server running?{_files_instead(ctx)}",)
    elif store is not None:
        name_tasks(error, store)


def name_tasks(error: RawkoError, store: Store) -> None:
    """Puts titles beside the ids of an error that names several tasks. Without an index that can be read, the ids must do."""
    if isinstance(error, TaskNotFound) and error.closest and not error.in_trash:
        near = [(task_id, _summary(store, task_id)) for task_id in error.closest]
        named = (f"{task_id} ({_title(task)})" if task is not None else task_id for task_id, task in near)
        error.args = (f"No task starts with {error.name!r}. Closest: {', '.join(named)}.",)
    elif isinstance(error, TaskNotFound) and not error.in_trash:
        error.args = (f"{error}\n  List tasks: rawko history",)
    elif isinstance(error, AmbiguousTask):
        found = [_summary(store, task_id) for task_id in error.candidates[:_MOST]]
        if None in found:
            return
        rows = "".join(f"\n  {task.id}  {ago(task.updated):>8}  {_title(task)}" for task in found if task is not None)
        more = len(error.candidates) - _MOST
        error.args = (
            f"{error.name!r} matches {len(error.candidates)} tasks:{rows}"
            + (f"\n  and {more} more" if more > 0 else ""),
        )


def _summary(store: Store, task_id: str) -> TaskSummary | None:
    try:
        return store.summary(task_id)
    except RawkoError:
        return None


def _title(task: TaskSummary) -> str:
    return one_line(task.title or task.request or "", 50)


def _files_instead(ctx: click.Context) -> str:
    """How to use the files instead, if there is a project here."""
    try:
        find_project(override=ctx.find_root().obj)
    except NoProject:
        return ""
    return f" Use this project's files: rawko --remote local {ctx.find_root().invoked_subcommand or ''}".rstrip()
