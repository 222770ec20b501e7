"""rawko history --all-projects: query each project's own index and merge the results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click

from rawko_state.backends.select import open_files, user_state
from rawko_state.cli.history_cmd import JSON_VERSION, about
from rawko_state.cli.printing import one_line, visible
from rawko_state.cli.projects_cmd import is_there
from rawko_state.cli.times import local
from rawko_state.errors import RawkoError
from rawko_state.store import RELEVANCE, Hit, TaskFilter, TaskSummary
from rawko_state.store.wire import summary_json

Found = tuple[str, TaskSummary, Hit | None]


def run(search: str | None, wanted: TaskFilter, *, turns: bool, form: str | None) -> None:
    found = list(_all(search, wanted, turns))
    found.sort(key=lambda each: _rank(each, wanted), reverse=not wanted.reverse)
    found = found[: wanted.limit]
    if form == "ids":
        for _, summary, _ in found:
            click.echo(summary.id)
    elif form == "jsonl":
        for each in found:
            click.echo(json.dumps({"version": JSON_VERSION, **_object(each)}))
    elif form == "json":
        click.echo(json.dumps({"version": JSON_VERSION, "tasks": [_object(each) for each in found]}, indent=1))
    else:
        _show(found)


def _all(search: str | None, wanted: TaskFilter, turns: bool) -> Iterator[Found]:
    with user_state() as user:
        projects = user.projects()
    for project in projects:
        if not is_there(project.root):
            click.echo(f"rawko: {visible(project.root)} is gone; 'rawko projects forget --gone' forgets it", err=True)
            continue
        try:
            store = open_files(project.root)
            if search is None:
                yield from ((project.root, summary, None) for summary in store.history(wanted))
            else:
                yield from ((project.root, hit.task, hit) for hit in store.search(search, wanted, turns=turns).hits)
            store.close()
        except RawkoError as error:
            click.echo(f"rawko: {visible(project.root)}: {visible(str(error))}", err=True)


def _rank(found: Found, wanted: TaskFilter) -> tuple[Any, ...]:
    _, summary, hit = found
    if hit is not None and wanted.sort == RELEVANCE:
        # Scores are not comparable across projects, so rank by the number of matching query words first, then by score.
        return (hit.words, hit.score, summary.created or "", summary.id)
    value: Any = {
        "updated": summary.updated or "",
        "completed": summary.completed or "",
        "duration": summary.duration_ms or 0,
        "turns": summary.turns,
        "tokens": (summary.tokens_in or 0) + (summary.tokens_out or 0),
    }.get(wanted.sort, summary.created or "")
    return (value, summary.id)


def _object(found: Found) -> dict[str, Any]:
    root, summary, hit = found
    shown = {"project": root, **summary_json(summary)}
    if hit is not None:
        shown["hit"] = (
            {"kind": hit.kind, "turn": hit.turn, "agent": hit.agent, "excerpt": hit.excerpt} if hit.kind else None
        )
    return shown


def _show(found: list[Found]) -> None:
    if not found:
        click.echo("no task matches in any project", err=True)
    for root, summary, hit in found:
        head = f"{click.style(summary.id, bold=True)}  {local(summary.created)}  {one_line(summary.status, 12):11}"
        click.echo(f"{head}  {click.style(visible(root), dim=True)}  {one_line(about(summary), 60)}")
        if hit is not None and hit.excerpt:
            where = f"turn {hit.turn} {hit.agent}" if hit.turn is not None else hit.kind
            click.echo(f"      {one_line(where, 30)}  {one_line(hit.excerpt, 90)}")
