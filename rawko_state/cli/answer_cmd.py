"""rawko answer: answer a task's pending question."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from rawko_state.cli import Page
from rawko_state.cli.completing import complete_waiting
from rawko_state.cli.printing import one_line, screen, visible, wrapped
from rawko_state.cli.project import me, store_of, text_of
from rawko_state.errors import InvalidValue, NoAnswer, RawkoError
from rawko_state.model.entries import Question
from rawko_state.store import TaskFilter

if TYPE_CHECKING:
    from rawko_state.store import TaskSummary
    from rawko_state.store.contract import Store


@click.command(
    name="answer",
    cls=Page,
    examples="""
    rawko answer
    rawko answer abc123
    rawko answer abc123 2
    rawko answer abc123 "postgres, but on another port"
    """,
)
@click.argument("task_id", metavar="[ID]", required=False, shell_complete=complete_waiting)
@click.argument("text", required=False)
@click.option("--by", metavar="NAME", help="Name to record (default: you)")
@click.pass_context
def command(ctx: click.Context, task_id: str | None, text: str | None, by: str | None) -> None:
    """Answer a task's pending question.

    The answer is text, or the number of a choice. Without TEXT, the question is shown, and on a terminal you are asked. Without
    ID, it is the task that is waiting. The process that waits gets the answer, or the next one that resumes the task.
    """
    store = store_of(ctx)
    terminal = sys.stdin is not None and sys.stdin.isatty()
    if task_id is None:
        task_id = _waiting(store, terminal)
    with store.attach(task_id) as task:
        asked = task.question()
        if asked is None:
            raise NoAnswer(f"Task {task.id} is not waiting for an answer.")
        given = text_of(text)
        if given is None:
            _show(asked)
            if not terminal:
                click.echo(f"  Answer it: rawko answer {task.id} {'1' if asked.choices else 'TEXT'}", err=True)
                ctx.exit(2)
        while True:
            said = given if given is not None else _prompt(asked)
            try:
                task.answer(said, by=by or me(store.root))
                break
            except InvalidValue as error:
                if given is not None and not terminal:
                    raise
                click.echo(visible(str(error)), err=True)
                if given is not None:
                    _show(asked)
                given = None
        if task.id in store.alive():
            click.echo(f"Answered {task.id}. Its process continues.", err=True)
        else:
            click.echo(f"Answered {task.id}. Nothing is running it.\n  Continue it: rawko resume {task.id}", err=True)


def _waiting(store: Store, terminal: bool) -> str:
    """The task that waits for an answer. If there are several, the user chooses."""
    waiting = store.history(TaskFilter(status=("waiting",), limit=20))
    if not waiting:
        raise RawkoError("No task is waiting for an answer.")
    if len(waiting) == 1:
        click.echo(_titled(waiting[0]), err=True)
        return waiting[0].id
    turns = {task.id: store.open_question(task.id) for task in waiting}
    asked = {
        task_id: turn.question.text for task_id, turn in turns.items() if turn is not None and turn.question is not None
    }
    if not terminal:
        which = "".join(
            f"\n  rawko answer {task.id}   {one_line(asked.get(task.id) or task.title or task.request or '', 60)}"
            for task in waiting
        )
        raise InvalidValue(f"{len(waiting)} tasks are waiting for an answer. Say which one:{which}")
    for number, task in enumerate(waiting, 1):
        click.echo(f"  {number}  {_titled(task)}", err=True)
        if task.id in asked:
            question = one_line(asked[task.id], max(20, screen().columns - 7 - len(task.id)))
            click.echo(" " * (7 + len(task.id)) + click.style(question, fg="yellow"), err=True)
    chosen = click.prompt("Which task", type=click.IntRange(1, len(waiting)), default=1, err=True)
    return waiting[int(chosen) - 1].id


def _titled(task: TaskSummary) -> str:
    return f"{click.style(task.id, bold=True)}  {one_line(task.title or task.request or '', 60)}"


def _prompt(asked: Question) -> str:
    default = f", Enter for {visible(asked.default)}" if asked.default is not None else ""
    numbers = f"1-{len(asked.choices)}" if asked.choices else ""
    shown = f" ({(numbers + default).removeprefix(', ')})" if numbers or default else ""
    return str(click.prompt(f"Answer{shown}", default=asked.default, show_default=False, err=True))


def _show(asked: Question) -> None:
    first, *more = wrapped(asked.text, max(20, screen().columns - 2))
    click.echo(click.style("? ", fg="yellow") + first)
    for line in more:
        click.echo(f"  {line}")
    for number, choice in enumerate(asked.choices, 1):
        click.echo(f"    {number}  {visible(choice)}" + (" (default)" if choice == asked.default else ""))
