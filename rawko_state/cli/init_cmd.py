"""rawko init: make a folder a project. Optional: the first write creates what it needs."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import click

from rawko_state.backends.select import learn_of, make_folders
from rawko_state.cli import Page
from rawko_state.cli.printing import hint
from rawko_state.cli.project import with_tilde
from rawko_state.errors import StorageError

SETTINGS = """\
# rawko settings for this project, shared with everyone who works on it.
# Your own settings go into config.user.yaml next to this file.
# Nothing has to be set.
"""
GITIGNORE = """\
# rawko: recorded tasks stay on this machine; .rawko/config.yaml is shared.
.rawko/state/
.rawko/config.user.yaml
"""


@click.command(
    name="init",
    cls=Page,
    examples="""
    rawko init
    rawko init --gitignore
    rawko -C ~/src/shop init
    """,
)
@click.option(
    "--gitignore/--no-gitignore", default=None, help="Add rawko's private files to .gitignore, or don't (default: ask)"
)
@click.pass_context
def command(ctx: click.Context, gitignore: bool | None) -> None:
    """Make this folder (or -C DIR) a rawko project.

    It makes .rawko/ with a settings file, and a folder for recorded tasks that only you can read. You can also skip it: the first
    recording does the same.
    """
    root = Path(ctx.find_root().obj or os.environ.get("RAWKO_DIR") or ".").resolve()
    if not root.is_dir():
        raise StorageError(f"{root} is not a folder.", str(root))
    settings = root / ".rawko" / "config.yaml"
    try:
        new = not settings.exists()
        make_folders(root)
        if new:
            settings.write_text(SETTINGS, encoding="utf-8")
        with contextlib.suppress(Exception):  # the list of projects can be rebuilt
            learn_of(root)
        if new:
            click.echo(f"Made {with_tilde(root)} a rawko project:")
            click.echo("  .rawko/config.yaml   settings; commit it (empty: everything has a default)")
            click.echo("  .rawko/state/        recorded tasks; private to you, ignored by git")
        else:
            click.echo(f"{with_tilde(root)} is already a project." + (" Nothing was changed." if not gitignore else ""))
        if new or gitignore:
            _gitignore(root / ".gitignore", gitignore)
    except OSError as error:
        raise StorageError(f"Can't write to {root}: {error.strerror}.", str(root), error.errno) from error
    if new:
        hint(
            ("rawko import", "bring in past sessions"),
            ("rawko hook install claude-code", "record every session from now on"),
        )


def _gitignore(path: Path, wanted: bool | None) -> None:
    there = path.read_bytes() if path.exists() else b""
    lines = [line.strip() for line in there.decode("utf-8", "replace").splitlines()]
    missing = [line for line in GITIGNORE.splitlines() if line not in lines]
    if not missing:
        return
    if wanted is None and sys.stdin is not None and sys.stdin.isatty():
        wanted = click.confirm(f"Add rawko's private files to {with_tilde(path)} too?", default=True, err=True)
    if wanted:
        gap = "" if not there or there.endswith(b"\n") else "\n"
        with open(path, "ab") as stream:  # keep the existing bytes, whatever their encoding and line endings
            stream.write((gap + "\n".join(missing) + "\n").encode())
        click.echo(f"Added to {with_tilde(path)}.")
