"""rawko history --search: the tasks that match a query, with the matching turn and text."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import click

from rawko_state.cli.history_cmd import JSON_VERSION, STATUS_COLOURS, about, page
from rawko_state.cli.printing import one_line, screen, visible
from rawko_state.cli.times import local
from rawko_state.errors import RawkoError
from rawko_state.store import Hit, TaskFilter
from rawko_state.store.contract import Store
from rawko_state.store.wire import summary_json


def run(store: Store, query: str, wanted: TaskFilter, *, turns: bool, form: str | None) -> None:
    """Prints the results, then updates the search index if due."""
    answer = store.search(query, wanted, turns=turns)
    if answer.hint:
        click.echo(f"rawko: {visible(answer.hint)}", err=True)
    if form == "ids":
        for task_id in dict.fromkeys(hit.task.id for hit in answer.hits):
            click.echo(task_id)
    elif form == "jsonl":
        for hit in answer.hits:
            click.echo(json.dumps({"version": JSON_VERSION, **_as_json(hit)}))
    elif form == "json":
        found = [_as_json(hit) for hit in answer.hits]
        click.echo(json.dumps({"version": JSON_VERSION, "tasks": found, "suggestion": answer.suggestion}, indent=1))
    elif answer.hits:
        _print(answer.hits, turns)
    if not answer.hits and form != "json":
        hint = f"; did you mean: {visible(answer.suggestion)}" if answer.suggestion else ""
        click.echo(f"no task matches{hint}", err=True)
    _flush(store)


def _as_json(hit: Hit) -> dict[str, Any]:
    where: dict[str, Any] | None = {
        "kind": hit.kind,
        "turn": hit.turn,
        "agent": hit.agent,
        "offset": hit.offset,
        "length": hit.length,
        "score": hit.score,
        "words": hit.words,
        "excerpt": hit.excerpt,
        "highlights": [list(span) for span in hit.highlights],
    }
    return {**summary_json(hit.task), "hit": where if hit.kind else None}


def _print(hits: tuple[Hit, ...], turns: bool) -> None:
    size = screen()
    lines: list[str] = []
    last = None
    for hit in hits:
        if hit.task.id != last:
            lines.append(_task_line(hit, size.columns))
        last = hit.task.id
        if hit.kind:
            lines.append(_hit_line(hit, size.columns))
    page(lines, size.lines)


def _task_line(hit: Hit, width: int) -> str:
    task = hit.task
    status = one_line(task.status, 16)
    left = max(20, width - len(task.id) - len(status) - 22)
    return "  ".join(
        [
            click.style(task.id, bold=True),
            local(task.created),
            click.style(status, fg=STATUS_COLOURS.get(task.status)),
            one_line(about(task), left),
        ]
    )


def _hit_line(hit: Hit, width: int) -> str:
    where = f"turn {hit.turn} {one_line(hit.agent or '', 20)}" if hit.kind == "turn" else hit.kind
    left = max(30, width - len(where) - 8)
    start = 0
    if hit.highlights and hit.highlights[0][1] > left - 10:
        start = max(0, hit.highlights[0][0] - left // 3)
    shown, at = "", start
    for first, last in hit.highlights:
        if first >= at and last <= start + left:
            shown += _plain(hit.excerpt[at:first]) + click.style(
                _plain(hit.excerpt[first:last]), bold=True, fg="yellow"
            )
            at = last
    shown += _plain(hit.excerpt[at : start + left])
    return f"      {click.style(where, dim=True)}  {'…' if start else ''}{shown}"


def _plain(text: str) -> str:
    """The text without anything that moves the cursor or changes a colour."""
    return visible(text).replace("\n", " ").replace("\t", " ")


def _flush(store: Store) -> None:
    """Adds new text to the search index once there is enough of it: at once if that is cheap, else in the background."""
    try:
        due = store.flush_due()
        if due == "now":
            store.flush()
        elif due == "background":
            megabytes = f"{store.unflushed() / 1e6:,.0f} MB"
            click.echo(
                f"rawko: taking {megabytes} into the search index in the background; until then searches read the files",
                err=True,
            )
            in_background(["-C", str(store.root), "reindex", "--search", "--quiet"])
    except (RawkoError, OSError):
        pass  # the results have been printed; the next search tries again


def in_background(arguments: list[str]) -> None:
    import subprocess

    code = "import os; os.nice(10) if hasattr(os, 'nice') else None; from rawko_state.cli import main; main()"
    subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "RAWKO_DIR": ""},
    )
