"""rawko init: make a folder a project. Optional: the first write creates what it needs."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import click

from rawko_state.backends.select import learn_of, make_folders
from rawko_state.errors import StorageError

SETTINGS = """\
# Settings of this project for rawko. They are shared with everybody who works on it;
# what is yours alone goes into config.user.yaml beside this file.
# There is nothing that must be set.
"""
GITIGNORE = """\
# rawko: what agents did stays on this machine; the project's settings are shared.
.rawko/state/
.rawko/config.user.yaml
"""


@click.command(name="init")
@click.option(
    "--gitignore/--no-gitignore", default=None, help="Add the lines to .gitignore, or don't; else you are asked."
)
@click.pass_context
def command(ctx: click.Context, gitignore: bool | None) -> None:
    """Make this folder (or -C DIR) a project: .rawko/, a settings file, and lines for .gitignore."""
    root = Path(ctx.find_root().obj or os.environ.get("RAWKO_DIR") or ".").resolve()
    if not root.is_dir():
        raise StorageError(f"{root} is not a folder", str(root))
    make_folders(root)
    settings = root / ".rawko" / "config.yaml"
    try:
        if not settings.exists():
            settings.write_text(SETTINGS, encoding="utf-8")
        with contextlib.suppress(Exception):  # the list of projects can be rebuilt
            learn_of(root)
        click.echo(f"project at {root}")
        _gitignore(root / ".gitignore", gitignore)
    except OSError as error:
        raise StorageError(f"cannot write in {root}: {error.strerror}", str(root), error.errno) from error


def _gitignore(path: Path, wanted: bool | None) -> None:
    there = path.read_bytes() if path.exists() else b""
    lines = [line.strip() for line in there.decode("utf-8", "replace").splitlines()]
    missing = [line for line in GITIGNORE.splitlines() if line not in lines]
    if not missing:
        return
    if wanted is None and sys.stdin is not None and sys.stdin.isatty():
        wanted = click.confirm(f"Add .rawko/state/ to {path}?", default=True)
    if wanted:
        gap = "" if not there or there.endswith(b"\n") else "\n"
        with open(path, "ab") as stream:  # keep the existing bytes, whatever their encoding and line endings
            stream.write((gap + "\n".join(missing) + "\n").encode())
        click.echo(f"added to {path}")
    elif wanted is None:
        click.echo("suggested for .gitignore (rawko init --gitignore adds it):")
        click.echo("\n".join(f"  {line}" for line in missing))
