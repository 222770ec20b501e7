"""rawko export: tasks in other formats. `rawko history export` is the same command."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rawko_state.cli import Page
from rawko_state.cli.completing import complete_ids
from rawko_state.cli.printing import warn
from rawko_state.cli.project import store_of
from rawko_state.errors import StorageError
from rawko_state.exchange.exporting import (
    EXACT,
    READABLE,
    check,
    exported,
    plain_name,
    readable,
    redacted_object,
    whole_object,
)
from rawko_state.exchange.rich_html import is_rich
from rawko_state.lazy import installing
from rawko_state.lifecycle import prices

if TYPE_CHECKING:
    from rawko_state.store.contract import Store

_ENDINGS = {"json": "json", "jsonl": "jsonl", "md": "md", "html": "html", "atif": "atif.json", "task": "task"}


_PLAIN = "Markdown is not rendered and code is not coloured: the [html] extra is missing."


@click.command(
    name="export",
    cls=Page,
    examples="""
    rawko export abc123 --format html -o abc123.html
    rawko export abc123 --format md --brief | gh pr comment --body-file -
    rawko export abc123 def456 --format html -o both.html
    rawko export abc123 -o abc123.json
    """,
)
@click.argument("task_ids", metavar="ID...", nargs=-1, required=True, shell_complete=complete_ids)
@click.option(
    "--format", "form", type=click.Choice(list(_ENDINGS)), help="Format  [default: by the ending of -o, else json]"
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Write to this file, or to one file per task in this folder"
)
@click.option("--brief", is_flag=True, help="Only prompts, answers and results (md, html)")
@click.option("--redact", is_flag=True, help="Remove secrets again on the way out (md, html, atif: always)")
@click.option("--as-is", is_flag=True, help="Don't remove secrets, and don't refuse tasks with secrets")
@click.pass_context
def command(
    ctx: click.Context,
    task_ids: tuple[str, ...],
    form: str | None,
    output: Path | None,
    brief: bool,
    redact: bool,
    as_is: bool,
) -> None:
    """Export tasks to a file or to standard output.

    \b
    json, jsonl  everything; 'rawko import rawko FILE' restores the same bytes
    md           Markdown, for a pull request or a chat
    html         one page to send to someone; it needs no network and no script
    atif         a trajectory for Harbor, Terminal-Bench and others
    task         the task file itself

    Several tasks as md or html are one file. json, jsonl and task are exact, so tasks with secrets are refused; with --redact,
    json and jsonl leave the secrets out and can't be imported again.
    """
    form = form or _by_ending(output)
    if redact and as_is:
        raise click.UsageError("Use --redact or --as-is, not both", ctx)
    if brief and form not in READABLE:
        raise click.UsageError("--brief needs --format md or html", ctx)
    if redact and form == "task":
        raise click.UsageError("A task file is exported unchanged. Remove its secrets first: rawko redact ID", ctx)
    store = store_of(ctx)
    ids = [store.find(task_id).id for task_id in dict.fromkeys(task_ids)]
    if not (as_is or redact) and form in EXACT:
        for task_id in ids:
            check(store, task_id)
    if form == "html" and not is_rich():
        warn(f"warning: {_PLAIN}\n  Install it: {installing('html')}")

    def pieces(chosen: list[str]) -> Iterator[bytes]:
        if form in READABLE:
            return readable(store, chosen, form, as_is=as_is, brief=brief, estimate=prices.estimated)
        if redact and form in EXACT:
            return _redacted(store, chosen, form)
        if form == "json" and len(chosen) > 1:
            return _several(store, chosen)
        return (piece for each in chosen for piece in exported(store, each, form, as_is=as_is or form in EXACT))

    if output is not None and output.is_dir():
        for task_id in ids:
            target = output / f"{plain_name(store, task_id).removesuffix('.task')}.{_ENDINGS[form]}"
            _to_file(target, pieces([task_id]))
            click.echo(str(target))
        return
    if len(ids) > 1 and form in ("atif", "task"):
        raise click.UsageError(f"Several tasks as {form} need a folder: -o DIR", ctx)
    if output is None:
        for piece in pieces(ids):
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
    else:
        _to_file(output, pieces(ids))


def _by_ending(output: Path | None) -> str:
    """The format that a file's name asks for."""
    name = output.name if output is not None else ""
    found = [form for form, ending in _ENDINGS.items() if name.endswith(f".{ending}")]
    return max(found, key=lambda form: len(_ENDINGS[form]), default="json")


def _redacted(store: Store, ids: list[str], form: str) -> Iterator[bytes]:
    shapes = [redacted_object(store, task_id) for task_id in ids]
    if form == "jsonl":
        yield from (json.dumps(shape).encode() + b"\n" for shape in shapes)
    else:
        yield json.dumps(shapes[0] if len(shapes) == 1 else shapes, indent=1).encode() + b"\n"


def _several(store: Store, ids: list[str]) -> Iterator[bytes]:
    yield b"[\n"
    for number, task_id in enumerate(ids):
        yield (b",\n" if number else b"") + json.dumps(whole_object(store, task_id), indent=1).encode()
    yield b"\n]\n"


def _to_file(path: Path, pieces: Iterator[bytes]) -> None:
    try:
        with open(path, "wb") as stream:
            for piece in pieces:
                stream.write(piece)
    except OSError as error:
        raise StorageError(f"Can't write {path}: {error.strerror}.", str(path), error.errno) from error
