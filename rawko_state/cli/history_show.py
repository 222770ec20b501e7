"""rawko show: one task, rendered for reading. `rawko history show` is the same command."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

import click

from rawko_state.cli import Page
from rawko_state.cli.printing import STATUS_COLOURS, counted, one_line, page, size_text, use_colour, visible
from rawko_state.cli.project import complete_ids, place_of, store_of
from rawko_state.cli.times import local, took
from rawko_state.cli.watch_cmd import show
from rawko_state.errors import InvalidValue, RawkoError
from rawko_state.exchange.json_form import task_object
from rawko_state.format.diffs import diff_text
from rawko_state.format.json_form import VERSION, plain
from rawko_state.model.entries import (
    Diff,
    Entry,
    FileTouch,
    Note,
    Progress,
    Request,
    Result,
    Resumed,
    TaskHeader,
    ToolCall,
    Torn,
    Turn,
    Unknown,
    own_diffs,
    said_by,
)
from rawko_state.store import TaskFilter

if TYPE_CHECKING:
    from rawko_state.store import TaskSummary
    from rawko_state.store.contract import Store


@click.command(
    name="show",
    cls=Page,
    examples="""
    rawko show
    rawko show abc123
    rawko show abc123 4
    rawko show abc123 --raw | less
    """,
)
@click.argument("task_id", metavar="[ID]", required=False, shell_complete=complete_ids)
@click.argument("turn", metavar="[TURN]", required=False)
@click.option("--turn", "number", type=click.IntRange(1, 10**18), metavar="N", help="Show only this turn")
@click.option("--turns", "span", metavar="N-M", help="Show only these turns: 2-4, or 3- to the end")
@click.option("--raw", is_flag=True, help="Print the task file unchanged")
@click.option("--json", "as_json", is_flag=True, help="Print JSON")
@click.option("--follow", is_flag=True, help="Keep following the task after showing it")
@click.pass_context
def command(
    ctx: click.Context,
    task_id: str | None,
    turn: str | None,
    number: int | None,
    span: str | None,
    raw: bool,
    as_json: bool,
    follow: bool,
) -> None:
    """Read a task: prompts, answers, tool calls, result.

    ID may be any unique prefix; without it, the last active task is shown. TURN is a number such as 4, or a range such as 2-4.
    Control characters in recorded text are shown, never executed.
    """
    store = store_of(ctx)
    if turn is not None:
        if number is not None or span is not None:
            raise click.UsageError("Use TURN, --turn or --turns, not several of them", ctx)
        number, span = (int(turn), None) if turn.isdecimal() and int(turn) else (None, turn)
    task_id = task_id if task_id is not None else newest(store)
    if raw and (as_json or number is not None or span is not None):
        raise click.UsageError("--raw can't be combined with other options", ctx)
    if follow and (raw or as_json or number is not None or span is not None):
        raise click.UsageError(
            "--follow can't be combined with other options. For programs: rawko watch ID --json", ctx
        )
    if raw:
        _raw(store, task_id)
        return
    if number is not None or span is not None:
        with store.reading():
            numbers = [number] if number is not None else _span(store, task_id, span or "")
            turns = [store.turn(task_id, each) for each in numbers]
        if as_json:
            _turns_as_json(turns, alone=number is not None)
        else:
            _paged(line for turn in turns for line in _turn(turn))
        return
    summary = store.summary(task_id)
    if as_json:
        entries = (entry for _, entry in store.entries(summary.id))
        click.echo(json.dumps(task_object(summary.id, summary.status, entries), indent=1))
        return
    if follow:
        cursor = store.now(summary.id)
        for line in _task(store, summary):
            click.echo(line, color=use_colour())
        try:
            show(store.follow(summary.id, cursor))
        except KeyboardInterrupt:
            ctx.exit(130)
        return
    _paged(_task(store, summary))


def newest(store: Store) -> str:
    """The task that was active last."""
    found = store.history(TaskFilter(limit=1))
    if not found:
        raise RawkoError(f"No tasks {place_of(store)} yet.\n  What to do first: rawko")
    return found[0].id


def _raw(store: Store, task_id: str) -> None:
    with store.reader(task_id) as reader:
        offset = 0
        while piece := reader.fetch(offset, 1 << 20):
            sys.stdout.buffer.write(piece)
            offset += len(piece)
    sys.stdout.buffer.flush()


def _span(store: Store, task_id: str, text: str) -> list[int]:
    match = re.fullmatch(r"([1-9][0-9]*)-([1-9][0-9]*)?", text)
    if match is None:
        raise InvalidValue(f"Not a turn or a range of turns: {text!r}. Write 4, 3-7, or 3- for the rest.")
    last = store.summary(task_id).turns
    chosen = range(int(match[1]), min(int(match[2]) if match[2] else last, last) + 1)
    if not chosen:
        raise InvalidValue(f"Task {task_id} has {counted(last, 'turn')}; there are no turns {text}.")
    return list(chosen)


def _turns_as_json(turns: list[Turn], *, alone: bool) -> None:
    if alone:
        click.echo(json.dumps({"version": VERSION, **plain(turns[0])}, indent=1))
    else:
        click.echo(json.dumps({"version": VERSION, "turns": [plain(turn) for turn in turns]}, indent=1))


def _paged(lines: Iterable[str]) -> None:
    page(lines)


def _task(store: Store, summary: TaskSummary) -> Iterator[str]:
    colour = STATUS_COLOURS.get(summary.status)
    title = one_line(summary.title or summary.request or "", 200)
    yield (
        click.style(f"{summary.id}  ", bold=True) + click.style(one_line(summary.status, 40), fg=colour) + f"  {title}"
    )
    facts = [f"created {local(summary.created)}", f"took {took(summary.duration_ms)}", counted(summary.turns, "turn")]
    facts += [visible(value) for value in (summary.model, summary.branch) if value]
    facts += [f"{name}={visible(value)}" for name, value in summary.labels.items()]
    facts += ["pinned"] if summary.pinned else []
    yield click.style(" · ".join(facts), dim=True)
    yield click.style(visible(summary.file), dim=True)
    yield from _family(store, summary)
    for kind, entry in store.entries(summary.id):
        if kind == "damaged" and not isinstance(entry, Turn):
            yield click.style("DAMAGED: the text below was changed after it was recorded", fg="red")
        yield from _entry(entry)


_MOST_RELATIVES = 60


def _family(store: Store, summary: TaskSummary) -> Iterator[str]:
    """The tree of forks that contains a task, from its root down."""
    root, seen = summary, {summary.id}
    while root.parent:
        parent, _, turn = root.parent.partition("@")
        if parent in seen:
            break
        seen.add(parent)
        try:
            root = store.summary(parent)
        except RawkoError:
            after = f" after turn {turn}" if turn else ""
            yield click.style(f"forked from {visible(parent)}{after} (no longer here)", fg="yellow")
            break
    lines = list(islice(_tree(store, root.id, summary.id, {root.id}, ""), _MOST_RELATIVES + 1))
    if not lines:
        return
    yield _relative(root.id, None, root.title or root.request or "", summary.id)
    yield from lines[:_MOST_RELATIVES]
    if len(lines) > _MOST_RELATIVES:
        yield "   …"


def _tree(store: Store, parent: str, shown: str, seen: set[str], indent: str) -> Iterator[str]:
    children = [child for child in store.children(parent) if child[0] not in seen]
    for number, (child, turn, request) in enumerate(children):
        last = number == len(children) - 1
        seen.add(child)
        yield f"{indent}{'└─' if last else '├─'} {_relative(child, turn, request, shown)}"
        yield from _tree(store, child, shown, seen, indent + ("   " if last else "│  "))


def _relative(task_id: str, turn: int | None, about: str, shown: str) -> str:
    after = f" after turn {turn}" if turn is not None else ""
    line = f"{task_id}{after}  {one_line(about, 60)}"
    return click.style(line, bold=True) if task_id == shown else line


def _entry(entry: Entry) -> Iterator[str]:
    if isinstance(entry, TaskHeader):
        for field in entry.extra:
            yield f"{field.name}: {visible(field.value)}"
        for section in entry.sections:
            yield f"\n[{visible(section.heading)}]\n{visible(section.text)}"
    elif isinstance(entry, Request):
        yield "\n" + click.style(f"Request by {visible(said_by(entry) or '')}", bold=True)
        yield visible(entry.text)
    elif isinstance(entry, Turn):
        yield from _turn(entry)
    elif isinstance(entry, Result):
        yield "\n" + click.style(f"Result: {visible(entry.status or '')}", bold=True)
        for text in (entry.summary, entry.error):
            if text:
                yield visible(text)
        yield from (f"  {visible(path)}" for path in entry.files_modified)
        if entry.output is not None:
            yield visible(json.dumps(entry.output, indent=1, ensure_ascii=False))
    elif isinstance(entry, Resumed):
        when = local(entry.at.strftime("%Y-%m-%dT%H:%M:%SZ")) if entry.at else ""
        yield "\n" + click.style(f"Resumed {when} {visible(entry.by or '')}".rstrip(), bold=True)
    elif isinstance(entry, Note):
        yield from _note(entry)
    elif isinstance(entry, Torn):
        yield "\n" + click.style(f"[{entry.length} bytes of an unfinished write]", fg="red")
    elif isinstance(entry, Unknown):
        yield "\n" + click.style(f"unknown: {visible(entry.marker)}", dim=True)
        yield from (f"{field.name}: {visible(field.value)}" for field in entry.extra)
        yield from (f"[{visible(section.heading)}]\n{visible(section.text)}" for section in entry.sections)


def _note(note: Note) -> Iterator[str]:
    if note.kind in ("imported", "imported-before", "session") and note.title is None:
        return  # for programs: which session was recorded, how far, and what came before its first turn
    said = [f"title: {note.title}" if note.title is not None else "", f"status: {note.status}" if note.status else ""]
    said += [f"{name}={value}" for name, value in note.labels.items()] + [f"-{name}" for name in note.unlabel]
    said += [] if note.pinned is None else ["pinned" if note.pinned else "unpinned"]
    by = f" by {note.by}" if note.by else ""
    yield "\n" + click.style(visible(f"Note{by}: {', '.join(part for part in said if part)}".rstrip(": ")), dim=True)
    if note.content is not None:
        yield visible(note.content)
    if note.data is not None and note.kind != "imported":
        yield visible(json.dumps(note.data, ensure_ascii=False))


def _turn(turn: Turn) -> Iterator[str]:
    facts = [turn.status or "", took(turn.duration_ms) if turn.duration_ms is not None else "", turn.model or ""]
    facts += [f"{count} {name}" for name, count in turn.tokens.items()]
    facts += [f"by {by}"] if (by := said_by(turn)) else []
    head = click.style(visible(f"{turn.number}. {turn.agent}"), bold=True)
    yield "\n" + head + click.style(visible("  " + " · ".join(fact for fact in facts if fact)), dim=True)
    if turn.damaged:
        yield click.style("DAMAGED: this turn was changed after it was recorded", fg="red")
    yield from (f"{field.name}: {visible(field.value)}" for field in turn.extra)
    if turn.selected is not None:
        yield visible(f"-> {turn.selected}")
    for text in (turn.decision, turn.reason, turn.guidance):
        if text:
            yield visible(text)
    if turn.thinking is not None:
        yield from (click.style(visible(line), dim=True, italic=True) for line in turn.thinking.split("\n"))
    if turn.content is not None:
        yield visible(turn.content)
    if turn.question is not None:
        yield click.style(visible(f"? {turn.question.text}"), fg="yellow")
        yield from (visible(f"  - {choice}") for choice in turn.question.choices)
    for call in turn.tools:
        yield from _tool(call, turn.diffs)
    for diff in turn.diffs:
        yield from _diff(diff)
    for step in turn.progress:
        text = f"{step.time or '--:--:--'} {step.kind} {step.text}" if isinstance(step, Progress) else step
        yield click.style(visible(f"  {text}"), dim=True)
    for file in turn.files:
        yield click.style(
            visible(f"  {file.operation} {file.path}" if isinstance(file, FileTouch) else f"  {file}"), dim=True
        )
    if turn.state is not None:
        yield click.style("  [state] ", dim=True) + one_line(json.dumps(turn.state), 200)
    for section in turn.sections:
        yield f"[{visible(section.heading)}]\n{visible(section.text)}"


_DIFF_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


def _diff(diff: Diff) -> Iterator[str]:
    first, second, *hunks = diff_text(diff).split("\n")
    yield click.style(visible(f"  {first}"), bold=True)
    yield click.style(visible(f"  {second}"), bold=True)
    for line in hunks:
        yield click.style(visible(f"  {line}"), fg=_DIFF_COLOURS.get(line[:1]))


def _tool(call: ToolCall | str, diffs: tuple[Diff, ...] = ()) -> Iterator[str]:
    if isinstance(call, str):
        yield visible(f"  {call}")
        return
    own = own_diffs(call, diffs)
    counted = f"  +{sum(diff.added for diff in own)} \u2212{sum(diff.removed for diff in own)}" if own else ""
    result = f" -> {call.result}" if call.result is not None else ""
    yield click.style(visible(f"  {call.time or '--:--:--'} {call.tool} {call.args}{result}{counted}"), fg="cyan")
    if call.output is not None:
        yield from (click.style(visible(f"    {line}"), dim=True) for line in call.output.split("\n"))
    if call.blob is not None:
        yield click.style(
            f"    [{size_text(call.blob.size)} of output in .rawko/state/blobs/{call.blob.sha256}]", dim=True
        )
