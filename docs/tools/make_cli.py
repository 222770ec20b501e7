"""Writes docs/reference/commands.md from the commands' own help; with --check, says whether it is up to date."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from rawko_state.cli import COMMANDS, cli

TARGET = Path(__file__).parent.parent / "reference" / "commands.md"


def text() -> str:
    parts = ["# Commands\n\nMade by `python docs/tools/make_cli.py` from the commands' own help.\n"]
    for name in sorted(COMMANDS):
        context = click.Context(cli, info_name="rawko", **cli.context_settings)
        command = cli.get_command(context, name)
        assert command is not None
        parts += _help(command, context, name, "##")
    return "\n".join(parts)


def _help(command: click.Command, parent: click.Context, name: str, level: str) -> list[str]:
    context = click.Context(command, info_name=name, parent=parent, terminal_width=100, max_content_width=100)
    parts = [f"{level} {context.command_path}\n", f"```\n{command.get_help(context)}\n```\n"]
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            inner = command.get_command(context, child)
            assert inner is not None
            parts += _help(inner, context, child, level + "#")
    return parts


if __name__ == "__main__":
    if "--check" in sys.argv:
        if TARGET.read_text() != text():
            sys.exit("docs/reference/commands.md is behind: run python docs/tools/make_cli.py")
    else:
        TARGET.write_text(text())
