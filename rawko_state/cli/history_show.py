"""rawko show: one task, rendered for reading. `rawko history show` is the same command."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING

import click

from rawko_state.cli import Page
from rawko_state.cli.completing import complete_ids
from rawko_state.cli.printing import counted, page, use_colour
from rawko_state.cli.project import place_of, store_of
from rawko_state.errors import InvalidValue, RawkoError
from rawko_state.lazy import lazy
from rawko_state.store import TaskFilter

if TYPE_CHECKING:
    from rawko_state.cli import reader
    from rawko_state.exchange import json_form
    from rawko_state.model.entries import Turn
    from rawko_state.store.contract import Store
else:
    json_form = lazy("rawko_state.exchange.json_form")
    reader = lazy("rawko_state.cli.reader")


@click.command(
    name="show",
    cls=Page,
    examples="""
    rawko show
    rawko show abc123
    rawko show abc123 4
    rawko show abc123 --brief
    rawko show abc123 --diff | delta
    """,
    headings={"View": ("brief", "full", "diff", "raw", "as_json"), "Select": ("number", "span", "follow")},
)
@click.argument("task_id", metavar="[ID]", required=False, shell_complete=complete_ids)
@click.argument("turn", metavar="[TURN]", required=False)
@click.option("--brief", is_flag=True, help="Only prompts, answers and results")
@click.option("--full", is_flag=True, help="Everything: all output, thinking, notes, state, unknown fields")
@click.option("--diff", is_flag=True, help="Only what changed in files, as unified diffs")
@click.option("--raw", is_flag=True, help="Print the task file unchanged")
@click.option("--json", "as_json", is_flag=True, help="Print JSON")
@click.option("--turn", "number", type=click.IntRange(1, 10**18), metavar="N", help="Show only this turn")
@click.option("--turns", "span", metavar="N-M", help="Show only these turns: 2-4, or 3- to the end")
@click.option("--follow", is_flag=True, help="Keep following the task after showing it")
@click.option("--utc", is_flag=True, help="Show times in UTC")
@click.option("--iso", is_flag=True, help="Show exact times, in UTC")
@click.pass_context
def command(
    ctx: click.Context,
    task_id: str | None,
    turn: str | None,
    brief: bool,
    full: bool,
    diff: bool,
    raw: bool,
    as_json: bool,
    number: int | None,
    span: str | None,
    follow: bool,
    utc: bool,
    iso: bool,
) -> None:
    """Read a task: prompts, answers, tool calls, result.

    ID may be any unique prefix; without it, the last active task is shown. TURN is a number such as 4, or a range such as 2-4.
    Long output is folded; --full shows all of it. Control characters in recorded text are shown, never executed.
    """
    store = store_of(ctx)
    if turn is not None:
        if number is not None or span is not None:
            raise click.UsageError("Use TURN, --turn or --turns, not several of them", ctx)
        number, span = (int(turn), None) if turn.isdecimal() and int(turn) else (None, turn)
    _check(ctx, brief=brief, full=full, diff=diff, raw=raw, json=as_json, turn=number or span, follow=follow)
    task_id = task_id if task_id is not None else newest(store)
    if raw:
        _raw(store, task_id)
        return
    turns: list[Turn] | None = None
    if number is not None or span is not None:
        with store.reading():
            numbers = [number] if number is not None else _span(store, task_id, span or "")
            turns = [_turn(store, task_id, each) for each in numbers]
        if as_json:
            _turns_as_json(turns, alone=number is not None)
            return
    summary = store.summary(task_id)
    if as_json:
        entries = (entry for _, entry in store.entries(summary.id))
        click.echo(json.dumps(json_form.task_object(summary.id, summary.status, entries), indent=1))
        return
    view = reader.View.here(full=full or (turns is not None and not diff), utc=utc, iso=iso)
    shown = reader.Reader(store, summary.id, view)
    if diff:
        page(shown.diffs(summary, turns))
    elif turns is not None:
        page(shown.turns(summary, turns))
    elif brief:
        page(shown.brief(summary))
    elif follow:
        from rawko_state.cli import watch_cmd

        cursor = store.now(summary.id)
        for line in shown.task(summary):
            click.echo(line, color=use_colour())
        try:
            watch_cmd.show(store.follow(summary.id, cursor))
        except KeyboardInterrupt:
            ctx.exit(130)
    else:
        page(shown.task(summary))


def _check(ctx: click.Context, **given: object) -> None:
    """Rejects options that contradict each other."""
    named = [name for name, value in given.items() if value]
    views = [f"--{name}" for name in named if name in ("brief", "full", "diff", "raw", "json")]
    if len(views) > 1:
        raise click.UsageError(f"Use {' or '.join(views)}, not {'both' if len(views) == 2 else 'all'}", ctx)
    if "turn" in named and ("raw" in named or "brief" in named):
        raise click.UsageError(f"{views[0]} shows a whole task; leave out the turn", ctx)
    if "follow" in named and ("turn" in named or (views and views != ["--full"])):
        raise click.UsageError(
            "--follow can't be combined with other options. For programs: rawko watch ID --json", ctx
        )


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


def _turn(store: Store, task_id: str, number: int) -> Turn:
    last = store.summary(task_id).turns
    if number > last:
        raise InvalidValue(f"Task {store.find(task_id).id} has {counted(last, 'turn')}; there is no turn {number}.")
    return store.turn(task_id, number)


def _turns_as_json(turns: list[Turn], *, alone: bool) -> None:
    from rawko_state.format.json_form import VERSION, plain

    shape = plain(turns[0]) if alone else {"turns": [plain(turn) for turn in turns]}
    click.echo(json.dumps({"version": VERSION, **shape}, indent=1))
