"""rawko run: run a command and record what it does."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

import click

from rawko_state.cli.printing import visible
from rawko_state.cli.project import labels_of, me, store_of
from rawko_state.errors import RawkoError, Stopped
from rawko_state.integrations.recording import run


@click.command(name="run", context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})
@click.argument("request")
@click.argument("words", metavar="-- COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="May be given several times.")
@click.option("--agent", help="Whose turns these are; by default the command's name.")
@click.pass_context
def command(
    ctx: click.Context, request: str, words: tuple[str, ...], labels: tuple[str, ...], agent: str | None
) -> None:
    """Run a command as it would run without rawko, and record it as a task that was asked for with REQUEST.

    \b
    rawko run "Fix the tests" -- claude -p "Fix the tests" --output-format stream-json --verbose
    rawko run "Fix the tests" -- codex exec --json "Fix the tests"
    rawko run "Nightly build" -- make all

    Its output is passed through, and so are signals and its exit code. The streams of Claude Code and Codex are recorded turn by
    turn, tool by tool, live; any other output as the text of one turn. `rawko cancel` ends the command.
    """
    given = list(words[1:] if words[0] == "--" else words)
    if not given:
        raise click.UsageError("no command to run", ctx)
    if shutil.which(given[0]) is None:
        raise RawkoError(f"{given[0]} cannot be run: there is no such command")
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
