"""rawko completion: scripts for bash, zsh and fish."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from rawko_state.cli import Page, cli

_ZSH = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }"
"""Without it, a zsh whose settings don't switch completion on would complain at each start."""


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
    script = kind(cli, {}, "rawko", "_RAWKO_COMPLETE").source()
    if shell == "zsh":
        first, rest = script.split("\n", 1)  # the first line is for zsh itself
        script = f"{first}\n{_ZSH}\n{rest}"
    click.echo(script)
