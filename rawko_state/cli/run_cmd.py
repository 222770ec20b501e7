"""rawko run: run a command and record what it does."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

import click

from rawko_state.cli import Page
from rawko_state.cli.printing import visible
from rawko_state.cli.project import labels_of, me, store_of
from rawko_state.errors import Stopped
from rawko_state.integrations.recording import prompt_in, run


class _NoCommand(click.ClickException):
    exit_code = 127  # as a shell says it


def _quoted(argument: str) -> str:
    """As a person would write it for a shell: ``"it's"``, where ``shlex`` has ``'it'"'"'s'``."""
    return f'"{argument}"' if "'" in argument and not set(argument) & set('"$`\\!') else shlex.quote(argument)


class _Run(Page):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Without a request, what stands behind ``--`` is the command."""
        given = list(args)
        rest = super().parse_args(ctx, args)
        words = tuple(
            each for each in (ctx.params.get("request"), *(ctx.params.get("words") or ())) if each is not None
        )
        if words and given[-len(words) - 1 : -len(words)] == ["--"]:
            ctx.params |= {"request": None, "words": words}
        return rest


@click.command(
    name="run",
    cls=_Run,
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
    examples="""
    rawko run "Nightly build" -- make all
    rawko run "Fix the tests" -- codex exec --json "Fix the tests"
    rawko run -- claude -p "Fix it" --verbose \\
        --output-format stream-json
    """,
)
@click.argument("request", required=False)
@click.argument("words", metavar="-- COMMAND...", nargs=-1, type=click.UNPROCESSED)
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="Label to set (repeatable)")
@click.option("--agent", metavar="NAME", help="Agent name to record (default: the command's name)")
@click.pass_context
def command(
    ctx: click.Context, request: str | None, words: tuple[str, ...], labels: tuple[str, ...], agent: str | None
) -> None:
    """Run a command and record it as a task.

    REQUEST describes the task; without it, that is the prompt on the command line of an agent, else the command. The command
    behaves as without rawko: its output, signals and exit code pass through. The JSON streams of coding agents are recorded live,
    turn by turn; any other output becomes the text of one turn. 'rawko cancel' stops the command.
    """
    given = list(words[1:] if words[:1] == ("--",) else words)
    if not given:
        raise click.UsageError("No command given. Write it after '--': rawko run \"Fix the tests\" -- make test", ctx)
    if shutil.which(given[0]) is None:
        raise _NoCommand(f"Command not found: {given[0]}. Nothing was recorded.")
    store = store_of(ctx)
    shown = " ".join(map(_quoted, given))
    name = agent or Path(given[0]).name
    task = store.start(
        request if request is not None else prompt_in(given) or shown,
        agent=name,
        cwd=os.getcwd(),
        by=me(store.root),
        labels=labels_of(labels),
        fields={"Command": shown},
    )
    env = {**os.environ, "RAWKO_TASK": task.id, "RAWKO_PROJECT": str(store.root)}
    try:
        with task:
            code = run(given, store, task, name, env)
    except Stopped as stopped:
        click.echo(f"rawko: {visible(str(stopped))}", err=True)
        code = 1
    ctx.exit(code)
