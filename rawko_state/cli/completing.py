"""What the shell completes: ids, statuses, agents, labels, files, settings. One that fails must not litter the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rawko_state.backends.select import open_files
from rawko_state.cli.printing import one_line
from rawko_state.config.project import find_project
from rawko_state.errors import AmbiguousTask
from rawko_state.model.status import FINISHED, STATUSES, WAITING
from rawko_state.store import TaskFilter, TaskSummary

if TYPE_CHECKING:
    from rawko_state.store.contract import ProjectStore

_OFFERED = 200


def _completing(ctx: click.Context) -> ProjectStore:
    return open_files(find_project(override=ctx.find_root().obj))


def _recent(ctx: click.Context) -> list[TaskSummary]:
    try:
        return _completing(ctx).history(TaskFilter(limit=500))
    except Exception:
        return []


def complete_ids(
    ctx: click.Context, param: click.Parameter, incomplete: str, status: tuple[str, ...] = ()
) -> list[Any]:
    """Task ids, newest first, each with its title or request: of the newest tasks, or of all that start with what is typed."""
    try:
        store = _completing(ctx)
        ids = _ids_like(store, incomplete) if incomplete and not status else None
        found = store.history(TaskFilter(ids=ids, status=status, limit=_OFFERED))
    except Exception:
        return []
    return [
        _offered(summary.id, summary.title or summary.request) for summary in found if summary.id.startswith(incomplete)
    ]


def _ids_like(store: ProjectStore, prefix: str) -> tuple[str, ...]:
    try:
        return (store.find(prefix).id,)
    except AmbiguousTask as error:
        return tuple(error.candidates[:_OFFERED])


def _offered(task_id: str, about: str | None) -> Any:
    from click.shell_completion import CompletionItem

    return CompletionItem(task_id, help=one_line(about or "", 60))


def complete_waiting(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """The tasks that wait for an answer."""
    return complete_ids(ctx, param, incomplete, (WAITING,))


def complete_unfinished(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """The tasks that can still be paused or cancelled."""
    return complete_ids(ctx, param, incomplete, tuple(status for status in STATUSES if status not in FINISHED))


def complete_trash(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """The tasks that can be restored."""
    try:
        found = _completing(ctx).trash()
    except Exception:
        return []
    return [_offered(each.id, f"deleted {each.at:%Y-%m-%d}") for each in found if each.id.startswith(incomplete)]


def complete_statuses(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    before, comma, word = incomplete.rpartition(",")
    return [before + comma + status for status in STATUSES if status.startswith(word)]


def complete_agents(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    try:
        usage = _completing(ctx).stats(TaskFilter(), top=1000).usage
    except Exception:
        return []
    names = dict.fromkeys(row.agent for row in usage)
    return sorted(name for name in names if name.startswith(incomplete) and name.isprintable())


def complete_labels(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    labels = {f"{name}={value}" for summary in _recent(ctx) for name, value in summary.labels.items()}
    return sorted(label for label in labels if label.startswith(incomplete) and label.isprintable())


def complete_files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The files that tasks have touched, and the folders that they are in."""
    try:
        paths = _completing(ctx).stats(TaskFilter(), top=1000).by_file
    except Exception:
        return []
    return sorted(path for path in paths if path.startswith(incomplete) and path.isprintable())[:200]


def complete_runners(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The agents that a task can be handed over to."""
    from rawko_state.integrations.handover import AGENTS

    return [agent for agent in AGENTS if agent.startswith(incomplete)]


def complete_settings(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    from click.shell_completion import CompletionItem

    from rawko_state.config.schema import SETTINGS

    return [CompletionItem(each.key, help=each.help) for each in SETTINGS if each.key.startswith(incomplete)]
