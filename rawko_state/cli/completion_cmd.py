"""rawko completion: scripts for bash, zsh and fish."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from rawko_state.cli import cli


@click.command(name="completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print a completion script. It completes commands, options, and task ids with their requests.

    \b
    bash:  rawko completion bash >> ~/.bashrc
    zsh:   rawko completion zsh >> ~/.zshrc
    fish:  rawko completion fish > ~/.config/fish/completions/rawko.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(cli, {}, "rawko", "_RAWKO_COMPLETE").source())
