"""rawko history --all-projects: query each project's own index and merge the results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click

from rawko_state.backends.select import open_files, user_state
from rawko_state.cli.history_cmd import JSON_VERSION, in_words, listed
from rawko_state.cli.history_search import hit_line, nothing_found
from rawko_state.cli.printing import first_line, is_terminal, page, screen, warn
from rawko_state.cli.projects_cmd import is_there
from rawko_state.errors import RawkoError
from rawko_state.store import RELEVANCE, Hit, TaskFilter, TaskSummary
from rawko_state.store.wire import summary_json

Found = tuple[str, TaskSummary, Hit | None]


def run(
    search: str | None, wanted: TaskFilter, *, turns: bool, form: str | None, utc: bool = False, iso: bool = False
) -> None:
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
    elif found:
        _show(found, utc=utc, iso=iso)
    elif search is not None:
        nothing_found(search, wanted, "in any project", None)
    else:
        asked = first_line(", ".join(words for words, _ in in_words(wanted)))
        click.echo(f"No task in any project matches: {asked}." if asked else "No tasks in any project yet.", err=True)


def _all(search: str | None, wanted: TaskFilter, turns: bool) -> Iterator[Found]:
    with user_state() as user:
        projects = user.projects()
    for project in projects:
        if not is_there(project.root):
            warn(f"warning: {project.root} is gone. Forget it: rawko projects forget --gone")
            continue
        try:
            store = open_files(project.root)
            if search is None:
                yield from ((project.root, summary, None) for summary in store.history(wanted))
            else:
                yield from ((project.root, hit.task, hit) for hit in store.search(search, wanted, turns=turns).hits)
            store.close()
        except RawkoError as error:
            warn(f"warning: {project.root}: {error}")


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


def _show(found: list[Found], *, utc: bool, iso: bool) -> None:
    lines = listed([summary for _, summary, _ in found], [root for root, _, _ in found], utc=utc, iso=iso)
    if not is_terminal():
        hits = [hit.excerpt if hit is not None else None for _, _, hit in found]
        lines = [line if hit is None else f"{line}\t{first_line(hit)}" for line, hit in zip(lines, hits, strict=True)]
    elif any(hit is not None for _, _, hit in found):
        columns = screen().columns
        shown = [lines[0]]
        for line, (_, _, hit) in zip(lines[1:], found, strict=True):
            shown += [line, hit_line(hit, columns)] if hit is not None and hit.kind else [line]
        lines = shown
    page(lines)
