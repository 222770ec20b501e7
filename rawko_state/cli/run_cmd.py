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
from rawko_state.integrations.recording import run


class _NoCommand(click.ClickException):
    exit_code = 127  # as a shell says it


@click.command(
    name="run",
    cls=Page,
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
    examples="""
    rawko run "Nightly build" -- make all
    rawko run "Fix the tests" -- codex exec --json "Fix the tests"
    rawko run "Fix it" -- claude -p "Fix it" --verbose \\
        --output-format stream-json
    """,
)
@click.argument("request")
@click.argument("words", metavar="-- COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="Label to set (repeatable)")
@click.option("--agent", metavar="NAME", help="Agent name to record (default: the command's name)")
@click.pass_context
def command(
    ctx: click.Context, request: str, words: tuple[str, ...], labels: tuple[str, ...], agent: str | None
) -> None:
    """Run a command and record it as a task.

    REQUEST describes the task. The command behaves as without rawko: its output, signals and exit code pass through. The JSON
    streams of Claude Code and Codex are recorded live, turn by turn; any other output becomes the text of one turn. 'rawko
    cancel' stops the command.
    """
    given = list(words[1:] if words[0] == "--" else words)
    if not given:
        raise click.UsageError("No command given. Write it after '--': rawko run \"Fix the tests\" -- make test", ctx)
    if shutil.which(given[0]) is None:
        raise _NoCommand(f"Command not found: {given[0]}. Nothing was recorded.")
    store = store_of(ctx)
    name = agent or Path(given[0]).name
    task = store.start(
        request,
        agent=name,
        cwd=os.getcwd(),
        by=me(store.root),
        labels=labels_of(labels),
        fields={"Command": shlex.join(given)},
    )
    env = {**os.environ, "RAWKO_TASK": task.id, "RAWKO_PROJECT": str(store.root)}
    try:
        with task:
            code = run(given, store, task, name, env)
    except Stopped as stopped:
        click.echo(f"rawko: {visible(str(stopped))}", err=True)
        code = 1
    ctx.exit(code)
