"""rawko history --all-projects: query each project's own index and merge the results."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from rawko_state.cli.everywhere import each_project
from rawko_state.cli.history_cmd import JSON_VERSION, listed, more_below
from rawko_state.cli.history_search import hit_line, more_match
from rawko_state.cli.nothing import ANYWHERE, no_match, no_tasks
from rawko_state.cli.printing import first_line, is_terminal, page, screen
from rawko_state.store import RELEVANCE, Hit, TaskFilter, TaskSummary
from rawko_state.store.wire import summary_json

if TYPE_CHECKING:
    from rawko_state.store.contract import Store

Found = tuple[str, TaskSummary, Hit | None]


def run(
    ctx: click.Context,
    search: str | None,
    wanted: TaskFilter,
    *,
    turns: bool,
    form: str | None,
    utc: bool = False,
    iso: bool = False,
) -> None:
    # Totals are shown below a list on a terminal; nothing else pays for counting.
    counting = form is None and search is None and is_terminal()
    found, total = _all(ctx, search, wanted, turns, counting=counting)
    found.sort(key=lambda each: _rank(each, wanted), reverse=not wanted.reverse)
    matching, found = len(found), found[: wanted.limit]
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
        more_below(len(found), total)
        if search is not None and matching > len(found):
            more_match(len(found), turns=turns)
    elif search is not None:
        no_match(search, wanted, ANYWHERE, None)
    else:
        no_tasks(wanted, ANYWHERE)


def _all(
    ctx: click.Context, search: str | None, wanted: TaskFilter, turns: bool, *, counting: bool
) -> tuple[list[Found], int]:
    """What each project has, and with ``counting`` how many tasks match in all of them."""
    found: list[Found] = []
    total = 0

    def ask(root: str, store: Store) -> None:
        nonlocal total
        if search is not None:
            found.extend((root, hit.task, hit) for hit in store.search(search, wanted, turns=turns).hits)
            return
        found.extend((root, summary, None) for summary in store.history(wanted))
        total += store.count(wanted) if counting else 0

    each_project(ctx, ask)
    return found, total


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
