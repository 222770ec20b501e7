"""rawko completion: scripts for bash, zsh and fish."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from rawko_state.cli import Page, cli


@click.command(
    name="completion",
    cls=Page,
    examples="""
    rawko completion bash >> ~/.bashrc
    rawko completion zsh >> ~/.zshrc
    rawko completion fish > ~/.config/fish/completions/rawko.fish
    """,
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print a completion script for your shell.

    It completes commands, options, task ids, statuses, agents, labels, files and settings. Open a new shell afterwards.
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(cli, {}, "rawko", "_RAWKO_COMPLETE").source())
