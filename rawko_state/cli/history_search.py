"""rawko search and history --search: the tasks that match a query, with the matching turn and text."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from rawko_state.cli.history_cmd import JSON_VERSION, about
from rawko_state.cli.printing import (
    counted,
    cut,
    first_line,
    footer,
    hint,
    is_terminal,
    one_line,
    page,
    screen,
    styled_status,
    visible,
    warn,
    width_of,
)
from rawko_state.cli.project import place_of
from rawko_state.cli.times import ago
from rawko_state.errors import RawkoError
from rawko_state.model.frozen import replace
from rawko_state.store import Answer, Hit, TaskFilter

if TYPE_CHECKING:
    from rawko_state.store.contract import Store


def run(store: Store, query: str, wanted: TaskFilter, *, turns: bool, form: str | None) -> None:
    """Prints the results, then updates the search index if due."""
    # One more than is shown, to tell whether that is all; counting them all would be a longer search.
    listing = form is None and is_terminal()
    asked = replace(wanted, limit=wanted.limit + 1) if listing and wanted.limit is not None else wanted
    answer = store.search(query, asked, turns=turns)
    if answer.hint:
        warn(answer.hint)
    if form == "ids":
        for task_id in dict.fromkeys(hit.task.id for hit in answer.hits):
            click.echo(task_id)
    elif form in ("json", "jsonl"):
        _print_json(answer, in_lines=form == "jsonl")
    elif answer.hits:
        hits = answer.hits[: wanted.limit]
        _print(hits)
        if len(answer.hits) > len(hits):
            more_match(len(hits), turns=turns)
        best = hits[0]
        hint((f"rawko show {best.task.id}{'' if best.turn is None else f' {best.turn}'}", "read the best match"))
    if not answer.hits and form != "json":
        from rawko_state.cli.nothing import no_match

        no_match(query, wanted, place_of(store), answer.suggestion)
    _flush(store)


def _print_json(answer: Answer, *, in_lines: bool) -> None:
    import json

    found = [_as_json(hit) for hit in answer.hits]
    if in_lines:
        for hit in found:
            click.echo(json.dumps({"version": JSON_VERSION, **hit}))
    else:
        click.echo(json.dumps({"version": JSON_VERSION, "tasks": found, "suggestion": answer.suggestion}, indent=1))


def _as_json(hit: Hit) -> dict[str, Any]:
    from rawko_state.store.wire import summary_json

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


def _print(hits: tuple[Hit, ...]) -> None:
    if not is_terminal():
        for hit in hits:
            place = "" if hit.turn is None else str(hit.turn)
            click.echo("\t".join([hit.task.id, place, first_line(_who(hit)), first_line(hit.excerpt)]))
        return
    columns = screen().columns
    lines: list[str] = []
    last = None
    for hit in hits:
        if hit.task.id != last:
            lines += ["", _task_line(hit, columns)] if lines else [_task_line(hit, columns)]
        last = hit.task.id
        if hit.kind:
            lines.append(hit_line(hit, columns))
    page(lines)


def more_match(limit: int, *, turns: bool) -> None:
    footer(f"{counted(limit, 'turn' if turns else 'task')} shown, more match · --limit 0 lists all")


def _task_line(hit: Hit, width: int) -> str:
    task = hit.task
    when, status = ago(task.updated), one_line(task.status, 16)
    left = width - len(task.id) - len(when) - width_of(status) - 6
    facts = [when, styled_status(task.status, status)]
    if left < 16:  # a narrow terminal has room for the request only
        facts, left = [], width - len(task.id) - 2
    return "  ".join([click.style(task.id, bold=True), *facts, one_line(about(task), max(1, left))])


def _who(hit: Hit) -> str:
    """Where in the task the match is: the agent of the turn, or request, result, note, title."""
    return (hit.agent or "turn") if hit.kind == "turn" else {"task": "title"}.get(hit.kind, hit.kind)


def hit_line(hit: Hit, width: int) -> str:
    where = f"{hit.turn} " if hit.kind == "turn" else ""
    where = one_line(where + _who(hit), 20)
    gap = " " * max(2, 12 - width_of(where))
    left = max(1, width - 2 - width_of(where) - len(gap))
    return f"  {click.style(where, dim=True)}{gap}{fitted(hit.excerpt, hit.highlights, left)}"


def fitted(text: str, marks: Sequence[tuple[int, int]], width: int) -> str:
    """The part of an excerpt that fits, around its first match. It starts and ends at words, with … where it was cut, and
    matches are highlighted."""
    start = 0
    if marks and width_of(_plain(text[: marks[0][1]])) > width - 1:
        start = max(0, marks[0][0] - width // 4)
        space = text.find(" ", start, marks[0][0])
        start = marks[0][0] if space < 0 else space + 1
    lead = "…" if start and not text.startswith("…", start) else ""
    end = len(text)
    if width_of(lead + _plain(text[start:])) > width:
        end = start + len(cut(text[start:], width - len(lead))) - 1
        space = text.rfind(" ", start, end + 1)
        floor = next((last for first, last in marks if first >= start), start)
        end = space if space > max(start, floor - 1) else end
    shown, at = lead, start
    for first, last in marks:
        if first >= at and first < end:
            last = min(last, end)
            shown += _plain(text[at:first]) + click.style(_plain(text[first:last]), bold=True, fg="yellow")
            at = last
    shown += _plain(text[at:end]).rstrip()
    return shown + ("…" if end < len(text) and not shown.endswith("…") else "")


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
            warn(
                f"Updating the search index in the background ({megabytes}). Until then searches are complete, but slower."
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
