"""rawko answer: answer a task's pending question."""

from __future__ import annotations

import sys

import click

from rawko_state.cli.printing import visible
from rawko_state.cli.project import complete_ids, me, store_of, text_of
from rawko_state.errors import NoAnswer, RawkoError
from rawko_state.model.entries import Question
from rawko_state.store import TaskFilter


@click.command(name="answer")
@click.argument("task_id", metavar="[ID]", required=False, shell_complete=complete_ids)
@click.argument("text", required=False)
@click.option("--by", help="Who answers; by default the user of this machine.")
@click.pass_context
def command(ctx: click.Context, task_id: str | None, text: str | None, by: str | None) -> None:
    """Answer the question that a task waits with: in words, or by the number of a choice.

    Without TEXT the question and its choices are shown, and in a terminal an answer is asked for. Without ID it is the task
    that waits, if there is one. The waiting process gets the answer, or the next one that resumes the task.
    """
    store = store_of(ctx)
    if task_id is None:
        waiting = store.history(TaskFilter(status=("waiting",), limit=5))
        if len(waiting) != 1:
            ids = ", ".join(task.id for task in waiting)
            raise RawkoError(f"several tasks wait: {ids}" if waiting else "no task waits for an answer")
        task_id = waiting[0].id
    with store.attach(task_id) as task:
        asked = task.question()
        if asked is None:
            raise NoAnswer(f"task {task.id} asks nothing")
        given = text_of(text)
        if given is None:
            _show(asked)
            if not sys.stdin.isatty():
                click.echo(f'answer with: rawko answer {task.id} "…"', err=True)
                ctx.exit(2)
            shown = f" [{visible(asked.default)}]" if asked.default is not None else ""
            given = click.prompt(f"answer{shown}", default=asked.default, show_default=False, err=True)
        done = task.answer(given, by=by or me(store.root))
        click.echo(f"answered as turn {done.state.turns}; the task is {done.state.status}", err=True)


def _show(asked: Question) -> None:
    click.echo(visible(asked.text))
    for number, choice in enumerate(asked.choices, 1):
        click.echo(f"  {number}. {visible(choice)}" + ("  (default)" if choice == asked.default else ""))
