"""rawko pick: find a task interactively. The finder itself is in pick_screen.py, as it needs an optional package."""

from __future__ import annotations

import sys

import click

from rawko_state.cli import Page
from rawko_state.cli.history_show import newest
from rawko_state.cli.project import store_of
from rawko_state.errors import RawkoError
from rawko_state.lazy import installing


@click.command(
    name="pick",
    cls=Page,
    examples="""
    rawko pick
    rawko pick clock skew
    rawko show $(rawko pick --print)
    """,
)
@click.argument("words", metavar="[QUERY]...", nargs=-1)
@click.option("--print", "only_print", is_flag=True, help="Print the id of the chosen task, for scripts")
@click.pass_context
def command(ctx: click.Context, words: tuple[str, ...], only_print: bool) -> None:
    """Find a task interactively.

    \b
    type           search, with the query language of 'rawko search'
    up, down       choose
    Enter          show the task, at the turn that matched
    Ctrl-R         resume it: rawko resume ID
    Ctrl-F         fork it after the turn that matched
    Ctrl-Y, Ctrl-T copy the id, copy the resume command
    Esc            leave

    Exits with 130 if nothing was chosen.
    """
    if sys.stdin is None or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise click.UsageError("pick needs a terminal.\n  In a script: rawko search QUERY --ids")
    try:
        from rawko_state.cli import pick_screen
    except ImportError:
        raise RawkoError(f"pick needs one more package.\n  Install it: {installing('pick')}") from None
    store = store_of(ctx)
    newest(store)  # without a task there is nothing to pick, and it says what to do first
    chosen = pick_screen.choose(store, " ".join(words))
    store.close()
    if chosen is None:
        ctx.exit(130)
    if only_print:
        click.echo(chosen.task)
        return
    if chosen.copied is not None:
        click.echo(chosen.copied)
        return
    root = ctx.find_root()
    name, *arguments = chosen.command
    command = root.command.get_command(root, name)  # type: ignore[attr-defined]
    assert command is not None
    click.echo(click.style(f"$ rawko {' '.join(chosen.command)}", dim=True), err=True)
    with command.make_context(name, arguments, parent=root) as inner:
        command.invoke(inner)
